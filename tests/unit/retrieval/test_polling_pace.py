"""How long to wait between two reads of a shard."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.retrieval.polling import PollPace, PollResult, has_service_limits

TIP = PollResult(1, 100, 0)
BEHIND = PollResult(1, 100, 60_000)
MIB = 2**20


def test_at_the_tip_the_configured_pause_is_made_less_what_the_read_took() -> None:
    assert PollPace(1.5).pause_s(TIP, elapsed_s=0.5, chance=0.0) == 1.0
    assert PollPace(1.5).pause_s(TIP, elapsed_s=9.0, chance=0.0) == 0.0


def test_behind_the_tip_only_the_services_limit_of_five_reads_a_second_counts() -> None:
    assert PollPace(1.5).pause_s(BEHIND, elapsed_s=0.05, chance=0.0) == 0.2 - 0.05
    assert PollPace(1.5).pause_s(BEHIND, elapsed_s=0.3, chance=0.0) == 0.0


def test_a_large_answer_is_followed_by_the_pause_that_two_mebibytes_a_second_ask_for() -> None:
    assert PollPace(1.5).pause_s(PollResult(1, 10 * MIB, 60_000), elapsed_s=1.0, chance=0.0) == 4.0
    assert PollPace(1.5).pause_s(PollResult(1, 10 * MIB, 0), elapsed_s=1.0, chance=0.0) == 4.0


def test_a_stand_in_has_no_limits_until_it_refuses_a_read_for_its_rate() -> None:
    free = PollPace(1.5, limited=False)
    assert free.pause_s(BEHIND, elapsed_s=0.0, chance=0.0) == 0.0
    assert free.pause_s(TIP, elapsed_s=0.0, chance=0.0) == 1.5
    assert free.failed().succeeded().pause_s(BEHIND, elapsed_s=0.0, chance=0.0) == 0.0
    assert free.failed(throttled=True).succeeded().pause_s(BEHIND, elapsed_s=0.0, chance=0.0) == 0.2


def test_a_stand_in_that_has_nothing_to_give_is_not_asked_without_end() -> None:
    assert PollPace(1.5, limited=False).pause_s(PollResult(0, 0, 60_000), elapsed_s=0.0, chance=0.0) == 0.2


def test_a_shard_that_is_near_enough_is_read_less_often() -> None:
    pace = PollPace(0.5, reduced_within_s=3.0)
    assert pace.pause_s(PollResult(1, 100, 2_999), elapsed_s=1.0, chance=0.0) == 2.0
    assert pace.pause_s(PollResult(1, 100, 3_000), elapsed_s=0.0, chance=0.0) == 0.2
    assert pace.pause_s(TIP, elapsed_s=0.0, chance=0.0) == 3.0


def test_failures_in_a_row_wait_longer_each_time_up_to_a_limit() -> None:
    pace, pauses = PollPace(1.5), list[float]()
    for _ in range(6):
        pace = pace.failed()
        pauses.append(pace.pause_s(None, elapsed_s=0.0, chance=1.0))
    assert pauses == [1.5, 3.0, 6.0, 10.0, 10.0, 10.0]
    assert pace.succeeded() == PollPace(1.5)


@pytest.mark.parametrize(
    ("endpoint", "kept"),
    [
        (None, True),
        ("https://kinesis.eu-west-1.amazonaws.com", True),
        ("https://vpce-1.kinesis.eu-west-1.vpce.amazonaws.com:443/", True),
        ("https://kinesis.cn-north-1.amazonaws.com.cn", True),
        ("https://kinesis.eu-west-1.api.aws", True),
        ("http://127.0.0.1:4567", False),
        ("http://localhost:4566", False),
    ],
)
def test_limits_are_known_of_the_service_only(endpoint: str | None, kept: bool) -> None:
    assert has_service_limits(endpoint) is kept


@given(
    idle_s=st.floats(0, 100),
    elapsed_s=st.floats(0, 100),
    answer=st.none()
    | st.builds(PollResult, st.integers(0, 10), st.integers(0, 2**24), st.integers(0, 10**9)),
    failures=st.integers(0, 10_000),
    limited=st.booleans(),
)
def test_no_pause_is_negative_or_endless(
    idle_s: float, elapsed_s: float, answer: PollResult | None, failures: int, limited: bool
) -> None:
    pace = PollPace(idle_s, limited=limited, failures=failures)
    pause_s = pace.pause_s(answer, elapsed_s=elapsed_s, chance=0.5)
    assert 0.0 <= pause_s <= max(10.0, idle_s, 0.2)
