"""The plans of the lease-count rule are those of its plain form, which looks at every worker for each lease."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.assignment.plan import (
    AssignmentPlan,
    Fleet,
    LeaseMove,
    MoveKind,
    by_lease_count,
    move_to_worker,
)
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from tests.unit.assignment import fleets

WORKERS = [WorkerId(name) for name in ("a", "b", "ba", "c", "d")]


def plainly(state: Fleet) -> AssignmentPlan:
    counts = dict.fromkeys(sorted(state.workers), 0)
    if not counts:
        return AssignmentPlan(
            unplaced=tuple(lease.lease_key for lease in state.unfinished if state.is_free(lease))
        )
    for lease in state.unfinished:
        future = state.future_owner(lease)
        if future is not None and future in counts:
            counts[future] += 1
    moves, unplaced = _place(state, counts)
    if not moves and not unplaced:
        moves = _even_out(state, counts)
    return AssignmentPlan(tuple(moves), tuple(unplaced), counts)


def _place(state: Fleet, counts: dict[WorkerId, int]) -> tuple[list[LeaseMove], list[LeaseKey]]:
    moves: list[LeaseMove] = []
    unplaced: list[LeaseKey] = []
    waiting = (lease for lease in state.unfinished if state.future_owner(lease) is None)
    for lease in sorted(waiting, key=lambda lease: lease.lease_key):
        room = [worker for worker in counts if counts[worker] < state.limits.for_worker]
        wanted = [worker for worker in room if worker != state.avoided_worker(lease)]
        to = min(wanted or room, key=lambda worker: (counts[worker], worker), default=None)
        if to is None:
            unplaced.append(lease.lease_key)
            continue
        counts[to] += 1
        moves.append(move_to_worker(lease, to, state))
    return moves, unplaced


def _even_out(state: Fleet, counts: dict[WorkerId, int]) -> list[LeaseMove]:
    movable: dict[WorkerId, list[Lease]] = {worker: [] for worker in counts}
    for lease in sorted(state.unfinished, key=lambda lease: lease.lease_key, reverse=True):
        owner = lease.lease_owner
        if owner is not None and owner in movable and lease.checkpoint_owner is None:
            movable[owner].append(lease)
    moves: list[LeaseMove] = []
    while True:
        to = min(counts, key=lambda worker: (counts[worker], worker))
        donors = [worker for worker in counts if movable[worker] and counts[worker] - counts[to] >= 2]
        if not donors or counts[to] >= state.limits.for_worker:
            return moves
        donor = max(donors, key=lambda worker: (counts[worker], worker))
        lease = movable[donor].pop()
        reason = f"{lease.lease_key}: {donor} -> {to}, leases {counts[donor]} -> {counts[to]}"
        counts[donor] -= 1
        counts[to] += 1
        moves.append(LeaseMove(lease, to, reason, MoveKind.HANDOFF))


owners = st.sampled_from([None, *WORKERS, WorkerId("gone")])


@given(
    owned=st.lists(st.tuples(owners, st.booleans(), st.booleans(), st.booleans()), max_size=40),
    alive=st.sets(st.sampled_from(WORKERS)),
    most=st.sampled_from([1, 3, 1000]),
)
def test_the_plan_is_that_of_the_plain_form(
    owned: list[tuple[WorkerId | None, bool, bool, bool]], alive: set[WorkerId], most: int
) -> None:
    leases = [
        fleets.lease(n, owner, old_owner=WORKERS[n % 5] if handoff and owner is not None else None)
        for n, (owner, handoff, _, _) in enumerate(owned)
    ]
    state = fleets.fleet(
        leases,
        *alive,
        abandoned=frozenset(
            each.lease_key
            for each, (_, _, lost, _) in zip(leases, owned, strict=True)
            if lost and each.actual_owner
        ),
        overdue=frozenset(
            each.lease_key
            for each, (_, _, _, late) in zip(leases, owned, strict=True)
            if late and each.checkpoint_owner
        ),
        most=most,
    )
    assert by_lease_count(state) == plainly(state)


@given(
    numbers=st.lists(st.integers(0, 12), min_size=5, max_size=5),
    blocked=st.sets(st.integers(0, 59)),
    most=st.sampled_from([4, 1000]),
)
def test_evening_out_is_that_of_the_plain_form(numbers: list[int], blocked: set[int], most: int) -> None:
    holders = [worker for worker, number in zip(WORKERS, numbers, strict=True) for _ in range(number)]
    leases = [
        fleets.lease(n, worker, old_owner=WORKERS[0] if n in blocked else None)
        for n, worker in enumerate(holders)
    ]
    state = fleets.fleet(leases, *WORKERS, most=most)
    assert by_lease_count(state) == plainly(state)
