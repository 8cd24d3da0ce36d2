"""Who goes on with the leases of a worker that stops."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.assignment.plan import MoveKind, by_lease_count, handoffs_on_shutdown
from kcl_daemon.leases.lease import WorkerId
from tests.unit.assignment.test_plan_by_count import A, B, C, fleet, lease


def test_the_leases_of_the_leaver_go_to_the_others_evenly() -> None:
    leases = [lease(n, (A, B, C)[n % 3]) for n in range(12)]
    moves = handoffs_on_shutdown(fleet(leases, A, B, C), A, by_lease_count)
    assert Counter(move.to for move in moves) == {B: 2, C: 2}
    assert {move.how for move in moves} == {MoveKind.HANDOFF}
    assert all(move.lease.lease_owner == A for move in moves)
    assert "a stops" in moves[0].reason


def test_leases_of_others_finished_ones_and_those_in_a_handoff_are_not_handed_off_at_shutdown() -> None:
    leases = [
        lease(0),
        lease(1, B),
        lease(2, B, old_owner=A),
        lease(3, A, finished=True),
        lease(4, A, old_owner=B),
    ]
    assert handoffs_on_shutdown(fleet(leases, A, B), A, by_lease_count) == ()


def test_without_peers_or_room_nothing_is_announced() -> None:
    assert handoffs_on_shutdown(fleet([lease(0, A)], A), A, by_lease_count) == ()
    assert handoffs_on_shutdown(fleet([lease(0, A), lease(1, B)], A, B, most=1), A, by_lease_count) == ()


@given(owners=st.lists(st.sampled_from([A, B, C, None]), max_size=30), there=st.booleans())
def test_the_leaver_is_never_named(owners: list[WorkerId | None], *, there: bool) -> None:
    leases = [lease(n, owner) for n, owner in enumerate(owners)]
    moves = handoffs_on_shutdown(fleet(leases, *((A,) if there else ()), B, C), A, by_lease_count)
    assert len(moves) == owners.count(A)
    assert all(move.to in {B, C} for move in moves)
