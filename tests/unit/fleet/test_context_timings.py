"""The periods of the loops fit together, whatever the settings are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.config.balance import BalanceSettings, LeaseSettings
from kcl_daemon.context import timings


@given(failover_ms=st.integers(1, 3_600_000), held=st.integers(0, 1_000))
def test_a_lease_that_was_given_is_found_before_it_seems_abandoned(failover_ms: int, held: int) -> None:
    periods = timings(LeaseSettings(failover_time_ms=failover_ms))
    assert periods.discovery_s(held, leading=False) <= periods.failover_s / 2


@given(failover_ms=st.integers(1, 3_600_000), held=st.integers(0, 1_000))
def test_news_are_read_before_a_lease_seems_abandoned_for_twice_the_time_where_none_is_held(
    failover_ms: int, held: int
) -> None:
    periods = timings(LeaseSettings(failover_time_ms=failover_ms))
    assert periods.epoch_poll_s(held) < periods.failover_s * (1 if held else 2)
    assert periods.epoch_poll_s(held) >= periods.epoch_poll_s(held + 1)


@given(failover_ms=st.integers(1, 3_600_000))
def test_a_worker_that_has_just_started_asks_more_often_than_any_other(failover_ms: int) -> None:
    periods = timings(LeaseSettings(failover_time_ms=failover_ms))
    young_s = periods.discovery_s(0, leading=False, young=True)
    assert young_s <= min(periods.discovery_s(held, leading=False) for held in range(100))


@given(failover_ms=st.integers(1, 3_600_000), interval_ms=st.integers(1, 3_600_000))
def test_a_java_worker_has_looked_and_renewed_before_a_lease_that_it_was_given_is_taken_back(
    failover_ms: int, interval_ms: int
) -> None:
    periods = timings(
        LeaseSettings(failover_time_ms=failover_ms), BalanceSettings(assignment_interval_ms=interval_ms)
    )
    java_s = (interval_ms / 2 + failover_ms / 3) / 1000  # DynamoDBLeaseCoordinator: discovery, then a renewal
    assert periods.unclaimed_s > java_s
