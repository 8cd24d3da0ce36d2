"""The periods of the loops fit together, whatever the settings are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.config.settings import LeaseSettings
from kcl_daemon.coordination.timings import timings


@given(failover_ms=st.integers(1, 3_600_000), held=st.integers(0, 1_000))
def test_a_lease_that_was_given_is_found_before_it_seems_abandoned(failover_ms: int, held: int) -> None:
    periods = timings(LeaseSettings(failover_time_ms=failover_ms))
    assert periods.discovery_s(held, leading=False) <= periods.failover_s / 2
