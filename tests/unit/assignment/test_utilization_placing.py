"""Placing leases by how busy the workers are."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.assignment.load import smoothed
from kcl_daemon.assignment.plan import AssignmentPlan, Fleet, LeaseMove, MoveKind
from kcl_daemon.assignment.utilization import BalanceOptions, by_utilization
from kcl_daemon.leases.lease import LeaseKey, WorkerId
from kcl_daemon.leases.worker_row import CPU, FAILED, THROUGHPUT, WorkerRow
from tests.unit.assignment.fleets import A, B, C, applied, fleet, lease, reports

WORKERS = (A, B, C)


def plan(state: Fleet, options: BalanceOptions | None = None) -> AssignmentPlan:
    return by_utilization(options or BalanceOptions(balance_this_run=False))(state)


def placed(moves: tuple[LeaseMove, ...]) -> Counter[WorkerId]:
    return Counter(move.to for move in moves)


def test_a_fresh_fleet_without_figures_is_spread_evenly() -> None:
    answer = plan(fleet([lease(n) for n in range(8)], A, B, C))
    assert placed(answer.moves) == {A: 3, B: 3, C: 2}
    assert answer.counts == {A: 3, B: 3, C: 2}
    assert {move.how for move in answer.moves} == {MoveKind.TAKE}


def test_a_fresh_fleet_of_idle_hosts_is_spread_evenly() -> None:
    state = fleet([lease(n) for n in range(9)], A, B, C, stats=reports(a=0.5, b=2.0, c=0.0))
    assert placed(plan(state).moves) == {A: 3, B: 3, C: 3}


def test_idle_shards_are_not_piled_upon_one_worker() -> None:
    leases = [lease(n, None, 0.0) for n in range(10)] + [lease(10, A, 500.0), lease(11, B, 400.0)]
    answer = plan(fleet(leases, A, B, stats=reports(a=50.0, b=48.0)))
    assert placed(answer.moves)[A] >= 3


def test_the_worker_with_most_headroom_comes_first() -> None:
    leases = [lease(0, None, 50.0), lease(1, A, 100.0), lease(2, B, 100.0), lease(3, C, 100.0)]
    (move,) = plan(fleet(leases, A, B, C, stats=reports(a=60.0, b=30.0, c=45.0))).moves
    assert move.to == B


def test_a_ceiling_counts_where_it_is_below_the_average() -> None:
    stats = reports(a=40.0, b=30.0)
    stats[B] = WorkerRow(B, 1, {CPU: (30.0,)}, {CPU: 20})
    leases = [lease(0, None, 50.0), lease(1, A, 100.0), lease(2, B, 100.0)]
    (move,) = plan(fleet(leases, A, B, stats=stats)).moves
    assert move.to == A


def test_leases_without_an_owner_come_first_then_those_that_wait_longest() -> None:
    leases = [lease(n, WorkerId("gone")) for n in range(3)] + [lease(3)]
    keys = [each.lease_key for each in leases]
    state = fleet(leases, A, abandoned=frozenset(keys[:3]), ages_s={keys[0]: 11.0, keys[1]: 30.0})
    assert [move.lease.lease_key for move in plan(state).moves] == [keys[3], keys[1], keys[0], keys[2]]


def test_a_lease_that_stands_still_does_not_stay_where_another_has_room() -> None:
    leases = [lease(0, A, 10.0), lease(1, B, 10.0)]
    state = fleet(leases, A, B, stats=reports(a=0.0, b=90.0), abandoned=frozenset({leases[0].lease_key}))
    (move,) = plan(state).moves
    assert (move.to, move.how) == (B, MoveKind.TAKE)
    assert "silent" in move.reason


def test_an_abandoned_lease_stays_with_an_owner_that_lives_where_there_is_nobody_else() -> None:
    leases = [lease(0, A, 10.0), lease(1, A, 10.0)]
    state = fleet(leases, A, stats=reports(a=10.0), abandoned=frozenset({leases[0].lease_key}))
    answer = plan(state)
    assert answer.moves == ()
    assert answer.counts == {A: 2}


def test_who_cannot_claim_a_lease_in_a_dead_handoff_is_a_worker_like_any_other() -> None:
    leases = [lease(0, WorkerId("gone"), 10.0, old_owner=A), lease(1, A, 10.0), lease(2, B, 10.0), lease(3)]
    state = fleet(leases, A, B, stats=reports(a=10.0, b=90.0), abandoned=frozenset({leases[0].lease_key}))
    assert [(move.lease.lease_key, move.to, move.how) for move in plan(state).moves] == [
        (leases[3].lease_key, A, MoveKind.TAKE),
        (leases[0].lease_key, A, MoveKind.TAKE),
    ]
    alone = fleet(leases[:1], A, stats=reports(a=10.0), abandoned=state.abandoned)
    assert [(move.to, move.how) for move in plan(alone).moves] == [(A, MoveKind.TAKE)]


def test_a_stuck_handoff_is_given_even_to_its_own_next_owner() -> None:
    leases = [lease(0, A, 10.0, old_owner=C), lease(1, A, 10.0), lease(2, B, 10.0)]
    state = fleet(leases, A, B, stats=reports(a=10.0, b=90.0), abandoned=frozenset({leases[0].lease_key}))
    (move,) = plan(state).moves
    assert (move.to, move.how) == (A, MoveKind.TAKE)


def test_an_overdue_handoff_is_forced() -> None:
    leases = [lease(0, B, 10.0, old_owner=A), lease(1, A, 10.0)]
    state = fleet(leases, A, B, stats=reports(a=80.0, b=20.0), overdue=frozenset({leases[0].lease_key}))
    (move,) = plan(state).moves
    assert (move.how, move.to) == (MoveKind.FORCE, B)


def test_a_handoff_under_way_counts_for_the_next_owner() -> None:
    leases = [lease(0, B, 50.0, old_owner=A), lease(1, A, 50.0), lease(2, B, 50.0), lease(3, None, 50.0)]
    (move,) = plan(fleet(leases, A, B, stats=reports(a=50.0, b=40.0))).moves
    assert move.to == A  # 25 % are about to go from it to the other


def test_a_handoff_from_a_worker_that_reports_nothing_counts_too() -> None:
    leases = [lease(0, B, 50.0, old_owner=WorkerId("mute")), lease(1, A, 50.0), lease(2, None, 50.0)]
    (move,) = plan(fleet(leases, A, B)).moves
    assert move.to == A


def test_a_handoff_to_a_worker_that_reports_nothing_is_left_alone() -> None:
    leases = [lease(0, WorkerId("mute"), 50.0, old_owner=A), lease(1, A, 50.0), lease(2, B, 50.0)]
    assert plan(fleet(leases, A, B), BalanceOptions()).moves == ()


def test_leases_beyond_the_limit_are_reported_not_placed() -> None:
    answer = plan(fleet([lease(n) for n in range(5)], A, B, most=2))
    assert placed(answer.moves) == {A: 2, B: 2}
    assert answer.unplaced == (LeaseKey("shard-000004"),)


def test_a_worker_above_the_throughput_limit_is_given_nothing() -> None:
    leases = [lease(0, A, 101.0), lease(1, B, 90.0), lease(2, None, 50.0), lease(3, None, 50.0)]
    answer = plan(
        fleet(leases, A, B, stats=reports(a=10.0, b=50.0)),
        BalanceOptions(max_throughput_per_host_kbps=100, balance_this_run=False),
    )
    assert [move.to for move in answer.moves] == [B]
    assert len(answer.unplaced) == 1


def test_without_workers_everything_waits() -> None:
    answer = plan(fleet([lease(0), lease(1, A)]), BalanceOptions())
    assert (answer.moves, answer.unplaced) == ((), (LeaseKey("shard-000000"),))


def test_an_empty_table_needs_nothing() -> None:
    assert plan(fleet([], A, B), BalanceOptions()).moves == ()


def test_finished_leases_are_no_work() -> None:
    leases = [lease(n, A, 100.0, finished=True) for n in range(5)] + [lease(9)]
    assert plan(fleet(leases, A, B)).counts == {A: 1, B: 0}


def test_a_worker_that_cannot_measure_itself_gets_nothing_new() -> None:
    state = fleet([lease(n) for n in range(4)], A, B, stats=reports(a=(5.0, FAILED), b=50.0))
    assert placed(plan(state).moves) == {B: 4}


def test_if_no_worker_can_measure_itself_they_read_all_the_same() -> None:
    stats = reports(a=(50.0, FAILED), b=(50.0, FAILED))
    assert placed(plan(fleet([lease(n) for n in range(4)], A, B, stats=stats)).moves) == {A: 2, B: 2}


def test_a_worker_without_figures_among_others_is_judged_by_its_throughput() -> None:
    leases = [lease(0, A, 10.0), lease(1, B, 100.0), lease(2, C, 100.0), lease(3, None, 20.0)]
    stats = {**reports(b=50.0, c=50.0), A: WorkerRow(A, 1, {THROUGHPUT: (99.0,)}, {THROUGHPUT: 100})}
    (move,) = plan(fleet(leases, A, B, C, stats=stats)).moves
    assert move.to == A


def test_the_average_of_reports_is_smoothed_without_failed_captures() -> None:
    assert smoothed((10.0, FAILED, 20.0, 30.0), 0.5) == 22.5
    assert smoothed((10.0, 20.0), 0.25) == 12.5
    assert smoothed((FAILED,), 0.5) is None


owners = st.sampled_from([None, *WORKERS, WorkerId("gone")])
figures = st.none() | st.floats(0, 1000)


@given(
    rows=st.lists(st.tuples(owners, figures, st.booleans()), max_size=30),
    cpu=st.dictionaries(st.sampled_from(["a", "b", "c"]), st.floats(0, 100), max_size=3),
    alive=st.sets(st.sampled_from(WORKERS)),
    most=st.sampled_from([2, 1000]),
    balance=st.booleans(),
)
def test_every_plan_keeps_the_rules(
    rows: list[tuple[WorkerId | None, float | None, bool]],
    cpu: dict[str, float],
    alive: set[WorkerId],
    most: int,
    balance: bool,
) -> None:
    leases = [lease(n, owner, kbps) for n, (owner, kbps, _) in enumerate(rows)]
    lost = frozenset(
        each.lease_key
        for each, (owner, _, silent) in zip(leases, rows, strict=True)
        if owner is not None and (silent or owner not in alive)
    )
    state = fleet(leases, *alive, stats=reports(**cpu), abandoned=lost, most=most)
    answer = plan(state, BalanceOptions(balance_this_run=balance))
    able = state.workers
    moved = {move.lease.lease_key: move for move in answer.moves}
    assert len(moved) == len(answer.moves)
    assert {move.to for move in answer.moves} <= able
    assert not moved.keys() & set(answer.unplaced)
    before = Counter(each.lease_owner for each in leases if not state.is_free(each))
    after = Counter(each.lease_owner for each in applied(leases, answer.moves))
    for each in leases:
        if state.is_free(each) and able:
            stays = each.lease_owner in able and each.lease_key not in answer.unplaced
            assert stays or each.lease_key in moved or each.lease_key in answer.unplaced
    for move in answer.moves:
        assert move.how is (MoveKind.TAKE if state.is_free(move.lease) else MoveKind.HANDOFF)
        assert move.lease.lease_owner != move.to
    assert all(after[worker] <= max(most, before[worker]) for worker in able if not lost)
    backwards = plan(replace(state, leases=leases[::-1]), BalanceOptions(balance_this_run=balance))
    assert backwards.counts.keys() == answer.counts.keys()
    assert backwards.unplaced == answer.unplaced


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
    (move,) = plan(fleet([replace(lease(9), degraded_by=A), *others], *workers, most=most)).moves
    assert move.to == to
    more = [replace(lease(9), degraded_by=A), lease(10), lease(11)]
    if len(workers) > 1 and most > 3:
        assert placed(plan(fleet(more, *workers)).moves)[A] == 1
