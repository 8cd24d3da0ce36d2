"""Assignment by number of leases."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.assignment.plan import Fleet, LeaseLimits, LeaseMove, MoveKind, by_lease_count
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_protocol.sequence import SHARD_END, TRIM_HORIZON

A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")
WORKERS = (A, B, C)
GONE = WorkerId("gone")


def lease(
    number: int, owner: WorkerId | None = None, *, old_owner: WorkerId | None = None, finished: bool = False
) -> Lease:
    return Lease(
        LeaseKey(f"shard-{number:03d}"),
        5,
        SHARD_END if finished else TRIM_HORIZON,
        lease_owner=owner,
        checkpoint_owner=old_owner,
    )


def fleet(
    leases: list[Lease],
    *workers: WorkerId,
    abandoned: frozenset[LeaseKey] = frozenset(),
    overdue: frozenset[LeaseKey] = frozenset(),
    most: int = 1000,
) -> Fleet:
    return Fleet(leases, abandoned, overdue, frozenset(workers), LeaseLimits(most))


def placed(moves: tuple[LeaseMove, ...]) -> Counter[WorkerId]:
    return Counter(move.to for move in moves)


def test_a_fresh_fleet_is_spread_evenly_with_nobody_idle() -> None:
    plan = by_lease_count(fleet([lease(n) for n in range(4)], A, B, C))
    assert placed(plan.moves) == {A: 2, B: 1, C: 1}
    assert {move.how for move in plan.moves} == {MoveKind.TAKE}


def test_a_lease_that_its_owner_may_not_have_found_yet_is_not_moved() -> None:
    leases = [lease(n, A) for n in range(4)]
    unclaimed = frozenset(each.lease_key for each in leases[:3])
    plan = by_lease_count(replace(fleet(leases, A, B), unclaimed=unclaimed))
    assert [move.lease for move in plan.moves] == leases[3:]


def test_a_silent_owners_leases_go_to_the_living_only() -> None:
    leases = [lease(0, A), lease(1, A), lease(2, B)]
    plan = by_lease_count(
        fleet(leases, B, C, abandoned=frozenset({leases[0].lease_key, leases[1].lease_key}))
    )
    assert placed(plan.moves) == {B: 1, C: 1} or placed(plan.moves) == {C: 2}
    assert all("silent" in move.reason for move in plan.moves)


def test_a_lease_that_a_living_worker_lets_stand_still_goes_to_another_that_has_room() -> None:
    leases = [lease(0, A), lease(1, B), lease(2, B)]
    lost = frozenset({leases[0].lease_key})
    (move,) = by_lease_count(fleet(leases, A, B, abandoned=lost)).moves
    assert (move.lease.lease_key, move.to) == (leases[0].lease_key, B)
    assert [move.to for move in by_lease_count(fleet(leases, A, B, abandoned=lost, most=2)).moves] == [A]
    assert [move.to for move in by_lease_count(fleet(leases[:1], A, abandoned=lost)).moves] == [A]


def test_who_cannot_claim_a_lease_in_a_dead_handoff_is_a_worker_like_any_other() -> None:
    leases = [lease(0, GONE, old_owner=A), lease(1, GONE, old_owner=B), lease(2), lease(3, B), lease(4, B)]
    lost = frozenset(each.lease_key for each in leases[:2])
    plan = by_lease_count(fleet(leases, A, B, abandoned=lost))
    assert placed(plan.moves) == {A: 3}
    assert [(move.how, move.to) for move in plan.moves[:1]] == [(MoveKind.TAKE, A)]
    full = by_lease_count(fleet(leases, A, B, abandoned=lost, most=2))
    assert placed(full.moves) == {A: 2}
    assert placed(by_lease_count(fleet(leases[:1], A, abandoned=lost)).moves) == {A: 1}


def test_a_new_worker_is_handed_its_share_by_those_with_most() -> None:
    plan = by_lease_count(
        fleet([lease(n, A) for n in range(4)] + [lease(n, B) for n in range(4, 8)], A, B, C)
    )
    assert placed(plan.moves) == {C: 2}
    assert {move.how for move in plan.moves} == {MoveKind.HANDOFF}
    assert sorted(str(move.lease.lease_owner) for move in plan.moves) == ["a", "b"]
    assert "leases 4 -> " in plan.moves[0].reason


def test_nothing_moves_when_the_numbers_differ_by_one() -> None:
    assert by_lease_count(fleet([lease(0, A), lease(1, A), lease(2, B)], A, B)).moves == ()


def test_finished_leases_are_no_work() -> None:
    leases = [lease(n, A, finished=True) for n in range(5)] + [lease(9)]
    assert placed(by_lease_count(fleet(leases, A, B)).moves) == {A: 1}


def test_a_handoff_under_way_counts_for_the_next_owner_and_is_left_alone() -> None:
    leases = [lease(0, B, old_owner=A), lease(1, A), lease(2, A)]
    assert by_lease_count(fleet(leases, A, B)).moves == ()


def test_an_overdue_handoff_is_forced() -> None:
    leases = [lease(0, B, old_owner=A), lease(1, A)]
    (move,) = by_lease_count(fleet(leases, A, B, overdue=frozenset({leases[0].lease_key}))).moves
    assert (move.how, move.to) == (MoveKind.FORCE, B)
    assert "took too long" in move.reason


def test_a_handoff_whose_old_owner_died_is_taken() -> None:
    leases = [lease(0, B, old_owner=A)]
    (move,) = by_lease_count(fleet(leases, B, abandoned=frozenset({leases[0].lease_key}))).moves
    assert (move.how, move.to) == (MoveKind.TAKE, B)


def test_leases_beyond_the_limit_are_reported_not_placed() -> None:
    plan = by_lease_count(fleet([lease(n) for n in range(5)], A, B, most=2))
    assert placed(plan.moves) == {A: 2, B: 2}
    assert plan.unplaced == (LeaseKey("shard-004"),)


def test_who_has_more_than_the_limit_already_gets_no_more_and_all_that_waits_is_reported() -> None:
    leases = [*(lease(n, A) for n in range(3)), lease(7), lease(8)]
    plan = by_lease_count(fleet(leases, A, most=2))
    assert (plan.moves, plan.unplaced) == ((), (leases[3].lease_key, leases[4].lease_key))


def test_where_the_others_have_more_than_the_limit_the_avoided_worker_gets_its_lease_back() -> None:
    leases = [lease(0, A), *(lease(n, B) for n in range(1, 4))]
    (move,) = by_lease_count(fleet(leases, A, B, abandoned=frozenset({leases[0].lease_key}), most=2)).moves
    assert (move.lease, move.to) == (leases[0], A)


def test_nothing_is_evened_out_onto_a_worker_that_is_at_the_limit() -> None:
    leases = [*(lease(n, A) for n in range(5)), *(lease(n, B) for n in range(5, 7))]
    assert by_lease_count(fleet(leases, A, B, most=2)).moves == ()
    assert by_lease_count(fleet(leases, A, B, most=3)).moves != ()


def test_without_workers_everything_waits() -> None:
    plan = by_lease_count(fleet([lease(0), lease(1, A)]))
    assert plan.moves == ()
    assert plan.unplaced == (LeaseKey("shard-000"),)


owners = st.sampled_from([None, *WORKERS, WorkerId("gone")])


@given(
    owned=st.lists(owners, max_size=30),
    abandoned=st.sets(st.integers(0, 29)),
    alive=st.sets(st.sampled_from(WORKERS)),
)
def test_repeated_runs_come_to_rest_balanced_and_never_move_a_lease_twice(
    owned: list[WorkerId | None], abandoned: set[int], alive: set[WorkerId]
) -> None:
    leases = [lease(n, owner) for n, owner in enumerate(owned)]
    lost = {
        each.lease_key for n, each in enumerate(leases) if each.lease_owner is not None and n in abandoned
    }
    lost |= {
        each.lease_key for each in leases if each.lease_owner is not None and each.lease_owner not in alive
    }
    for _ in range(4):
        now = fleet(leases, *sorted(alive), abandoned=frozenset(lost))
        plan = by_lease_count(now)
        assert len({move.lease.lease_key for move in plan.moves}) == len(plan.moves)
        moved = {move.lease.lease_key: move.to for move in plan.moves}
        assert set(moved.values()) <= now.workers
        leases = [replace(each, lease_owner=moved.get(each.lease_key, each.lease_owner)) for each in leases]
        lost -= set(moved)
    final = by_lease_count(fleet(leases, *sorted(alive), abandoned=frozenset(lost)))
    assert final.moves == ()
    if final.counts:
        assert max(final.counts.values()) - min(final.counts.values()) <= 1


def test_the_plan_does_not_depend_on_the_order_of_the_rows() -> None:
    leases = [lease(n, A if n % 3 else None) for n in range(9)]
    assert by_lease_count(fleet(leases, A, B, C)).moves == by_lease_count(fleet(leases[::-1], C, B, A)).moves


def test_a_worker_whose_leases_are_all_on_their_way_gives_none() -> None:
    leases = [*(lease(n, A, old_owner=C) for n in range(5)), lease(5, A)]
    plan = by_lease_count(fleet(leases, A, B, C))
    assert [move.lease.lease_key for move in plan.moves] == [leases[5].lease_key]


@pytest.mark.parametrize(
    ("workers", "most", "to"),
    [((A, B, C), 9, B), ((A, B), 2, A), ((A,), 9, A)],
    ids=["another one", "nobody else has room", "nobody else"],
)
def test_whose_children_kept_failing_gets_a_lease_back_only_where_nobody_else_can(
    workers: tuple[WorkerId, ...], most: int, to: WorkerId
) -> None:
    # By number alone A would get it.
    others = [lease(number, worker) for number, worker in enumerate((B, B, C, C)) if worker in workers]
    (move,) = by_lease_count(fleet([replace(lease(9), degraded_by=A), *others], *workers, most=most)).moves
    assert move.to == to
    more = [replace(lease(9), degraded_by=A), lease(10), lease(11)]
    if len(workers) > 1 and most > 3:
        assert placed(by_lease_count(fleet(more, *workers)).moves)[A] == 1
