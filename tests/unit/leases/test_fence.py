"""Whether a lease is still ours after a write whose outcome is not known."""

from __future__ import annotations

import pytest

from kcl_daemon.leases.fence import LeaseGone, StillOurs, judge_written_row
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.row import Row, new_lease_row
from kcl_protocol.sequence import TRIM_HORIZON

ME, OTHER = WorkerId("me"), WorkerId("other")
HELD = Lease(LeaseKey("s"), 7, TRIM_HORIZON, lease_owner=ME)


def row(counter: int, owner: WorkerId | None = ME, checkpoint_owner: WorkerId | None = None) -> Row:
    found = dict(new_lease_row(Lease(LeaseKey("s"), counter, TRIM_HORIZON, lease_owner=owner)))
    if checkpoint_owner is not None:
        found["checkpointOwner"] = checkpoint_owner
    return found


def test_an_unchanged_row_is_still_ours_and_shows_no_write() -> None:
    assert judge_written_row(HELD, row(7), me=ME, uncertain=True) == StillOurs(HELD, moved=False)


def test_our_own_lost_answer_is_recognised() -> None:
    verdict = judge_written_row(HELD, row(8), me=ME, uncertain=True)
    assert isinstance(verdict, StillOurs)
    assert verdict.moved
    assert verdict.lease.lease_counter == 8


@pytest.mark.parametrize(
    ("now", "uncertain", "reason"),
    [
        (None, True, "deleted"),
        (row(8), False, "counter is 8"),
        (row(9), True, "counter is 9"),
        (row(6), False, "counter is 6"),  # deleted and made again
        (row(6), True, "counter is 6"),
        (row(8, OTHER), True, "other owns it"),
        (row(8, WorkerId("a-worker-before-me-in-the-alphabet")), True, "in-the-alphabet owns it"),
        (row(8, None), True, "it has no owner"),
        (row(7, OTHER, OTHER), True, "other owns it"),
        (row(7, ME, ME), True, "both sides"),
        ({"leaseKey": "s", "leaseOwner": "me"}, True, "leaseCounter"),
    ],
)
def test_everything_else_is_lost_with_a_reason(now: Row | None, uncertain: bool, reason: str) -> None:
    verdict = judge_written_row(HELD, now, me=ME, uncertain=uncertain)
    assert isinstance(verdict, LeaseGone)
    assert reason in verdict.reason


def test_a_handoff_away_from_us_is_still_ours_until_we_pass_it_on() -> None:
    verdict = judge_written_row(HELD, row(7, OTHER, ME), me=ME, uncertain=False)
    assert isinstance(verdict, StillOurs)
    assert verdict.lease.lease_owner == OTHER


def test_only_another_counter_under_our_name_speaks_of_a_second_process() -> None:
    second = judge_written_row(HELD, row(9), me=ME, uncertain=True)
    assert isinstance(second, LeaseGone)
    assert second.by_duplicate
    for now in (None, row(8, OTHER), row(8, None), row(7, ME, ME)):
        gone = judge_written_row(HELD, now, me=ME, uncertain=True)
        assert isinstance(gone, LeaseGone)
        assert not gone.by_duplicate
