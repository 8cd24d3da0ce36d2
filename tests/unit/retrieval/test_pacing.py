"""How long to wait between two reads of a shard."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.retrieval.pacing import Pace


def test_at_the_tip_the_configured_pause_is_made_less_what_the_read_took() -> None:
    assert Pace(1.5).pause_s(elapsed_s=0.5, behind=False, chance=0.0) == 1.0
    assert Pace(1.5).pause_s(elapsed_s=9.0, behind=False, chance=0.0) == 0.0


def test_behind_the_tip_only_the_services_limit_of_five_reads_a_second_counts() -> None:
    assert Pace(1.5).pause_s(elapsed_s=0.05, behind=True, chance=0.0) == 0.2 - 0.05
    assert Pace(1.5).pause_s(elapsed_s=0.3, behind=True, chance=0.0) == 0.0


def test_failures_in_a_row_wait_longer_each_time_up_to_a_limit() -> None:
    pace, pauses = Pace(1.5), list[float]()
    for _ in range(6):
        pace = pace.failed()
        pauses.append(pace.pause_s(elapsed_s=0.0, behind=True, chance=1.0))
    assert pauses == [1.5, 3.0, 6.0, 10.0, 10.0, 10.0]
    assert pace.succeeded() == Pace(1.5)


@given(
    idle_s=st.floats(0, 100),
    elapsed_s=st.floats(0, 100),
    behind=st.booleans(),
    failures=st.integers(0, 10_000),
)
def test_no_pause_is_negative_or_endless(
    idle_s: float, elapsed_s: float, behind: bool, failures: int
) -> None:
    pause_s = Pace(idle_s, failures).pause_s(elapsed_s=elapsed_s, behind=behind, chance=0.5)
    assert 0.0 <= pause_s <= max(10.0, idle_s, 0.2)
