"""Assignment by number of leases (KCL: LeaseCountBasedLeaseAssignmentDecider).

Unlike KCL, which leaves workers idle (4 leases on 3 workers become 2, 2, 0), each lease goes to the worker
with the fewest.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace

from kcl_daemon.assignment.plan import AssignmentPlan, Fleet, LeaseMove, MoveKind, move_to_worker
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId


def by_lease_count(fleet: Fleet) -> AssignmentPlan:
    unfinished = fleet.unfinished
    counts = dict.fromkeys(sorted(fleet.workers), 0)
    if not counts:
        return AssignmentPlan(unplaced=tuple(lease.lease_key for lease in unfinished if fleet.is_free(lease)))
    waiting: list[Lease] = []
    for lease in unfinished:
        future = fleet.future_owner(lease)
        if future is None:
            waiting.append(lease)
        elif future in counts:
            counts[future] += 1
    moves, unplaced = _place(waiting, fleet, counts)
    if not moves and not unplaced:
        moves = _even_out(unfinished, fleet, counts)
    return AssignmentPlan(tuple(moves), tuple(unplaced), counts)


def _place(
    waiting: list[Lease], fleet: Fleet, counts: dict[WorkerId, int]
) -> tuple[list[LeaseMove], list[LeaseKey]]:
    moves: list[LeaseMove] = []
    unplaced: list[LeaseKey] = []
    fewest = [(count, worker) for worker, count in counts.items()]
    heapify(fewest)
    for lease in sorted(waiting, key=lambda lease: lease.lease_key):
        avoided = _avoided(fleet.avoided_worker(lease), fewest, fleet.max_leases_for_worker)
        count, to = fewest[0]
        if count >= fleet.max_leases_for_worker:
            unplaced.append(lease.lease_key)
            continue
        counts[to] = count + 1
        heapreplace(fewest, (count + 1, to))
        moves.append(move_to_worker(lease, to, fleet))
        if avoided is not None:
            heappush(fewest, avoided)
    return moves, unplaced


def _avoided(
    avoided_worker: WorkerId | None, fewest: list[tuple[int, WorkerId]], max_leases: int
) -> tuple[int, WorkerId] | None:
    """The avoided worker gets the lease only if nobody else has room; push it back afterwards."""
    if len(fewest) < 2 or fewest[0][1] != avoided_worker:
        return None
    first = heappop(fewest)
    if fewest[0][0] < max_leases:
        return first
    heappush(fewest, first)
    return None


def _even_out(unfinished: list[Lease], fleet: Fleet, counts: dict[WorkerId, int]) -> list[LeaseMove]:
    movable: dict[WorkerId, list[Lease]] = {worker: [] for worker in counts}
    for lease in sorted(unfinished, key=lambda lease: lease.lease_key, reverse=True):
        owner = lease.lease_owner
        in_motion = lease.checkpoint_owner is not None or lease.lease_key in fleet.unclaimed
        if owner is not None and owner in movable and not in_motion:
            movable[owner].append(lease)
    ranks = {worker: rank for rank, worker in enumerate(sorted(counts))}
    fewest = [(count, worker) for worker, count in counts.items()]
    most = [(-counts[worker], -ranks[worker], worker) for worker, leases in movable.items() if leases]
    heapify(fewest)
    heapify(most)
    moves: list[LeaseMove] = []
    # A move only happens between workers that differ by two or more. So no donor becomes a receiver, and
    # neither heap needs the other's changes.
    while most:
        least, to = fewest[0]
        negated, rank, donor = heappop(most)
        if -negated - least < 2 or least >= fleet.max_leases_for_worker:
            break
        lease = movable[donor].pop()
        moves.append(
            LeaseMove(
                lease,
                to,
                f"{lease.lease_key}: {donor} -> {to}, leases {-negated} -> {least}",
                MoveKind.HANDOFF,
            )
        )
        counts[donor], counts[to] = -negated - 1, least + 1
        heapreplace(fewest, (least + 1, to))
        if movable[donor]:
            heappush(most, (negated + 1, rank, donor))
    return moves
