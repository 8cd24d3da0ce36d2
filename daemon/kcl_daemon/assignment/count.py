"""Assignment by number of leases (KCL: LeaseCountBasedLeaseAssignmentDecider).

Differs from KCL where KCL leaves workers idle: it fills one worker to the target before the next (4 leases on 3 workers
become 2, 2, 0), here each lease goes to the worker with the fewest and a move is made while two workers differ by two
or more. Nothing moves in a balanced fleet.
"""

from __future__ import annotations

from kcl_daemon.assignment.plan import Fleet, How, Move, Plan
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId


def by_lease_count(fleet: Fleet) -> Plan:
    """Place the leases that nobody reads, then even out the numbers."""
    counts = dict.fromkeys(sorted(fleet.able_workers()), 0)
    if not counts:
        return Plan(unplaced=tuple(lease.lease_key for lease in fleet.unfinished if fleet.is_free(lease)))
    for lease in fleet.unfinished:
        future = _future_owner(lease, fleet)
        if future is not None and future in counts:
            counts[future] += 1
    moves, unplaced = _place(fleet, counts)
    if not moves and not unplaced:
        moves = _even_out(fleet, counts)
    return Plan(tuple(moves), tuple(unplaced), counts)


def _future_owner(lease: Lease, fleet: Fleet) -> WorkerId | None:
    """Who will read the shard once what is under way is done; None where somebody must be found."""
    if fleet.is_free(lease) or lease.lease_key in fleet.overdue:
        return None
    return lease.lease_owner


def _place(fleet: Fleet, counts: dict[WorkerId, int]) -> tuple[list[Move], list[LeaseKey]]:
    moves: list[Move] = []
    unplaced: list[LeaseKey] = []
    waiting = (lease for lease in fleet.unfinished if _future_owner(lease, fleet) is None)
    for lease in sorted(waiting, key=lambda lease: lease.lease_key):
        to = min(counts, key=lambda worker: (counts[worker], worker))
        if counts[to] >= fleet.max_leases_for_worker:
            unplaced.append(lease.lease_key)
            continue
        counts[to] += 1
        moves.append(_taking(lease, to, fleet))
    return moves, unplaced


def _taking(lease: Lease, to: WorkerId, fleet: Fleet) -> Move:
    if lease.actual_owner is None:
        return Move(lease, to, f"{lease.lease_key}: nobody -> {to}, it had no owner", How.TAKE)
    what = f"{lease.lease_key}: {lease.actual_owner} -> {to}"
    if fleet.is_free(lease):
        return Move(lease, to, f"{what}, its owner has gone silent", How.TAKE)
    return Move(lease, to, f"{what}, its hand-off took too long", How.FORCE)


def _even_out(fleet: Fleet, counts: dict[WorkerId, int]) -> list[Move]:
    movable: dict[WorkerId, list[Lease]] = {worker: [] for worker in counts}
    for lease in sorted(fleet.unfinished, key=lambda lease: lease.lease_key, reverse=True):
        owner = lease.lease_owner
        if owner is not None and owner in movable and lease.checkpoint_owner is None:
            movable[owner].append(lease)
    moves: list[Move] = []
    while True:
        to = min(counts, key=lambda worker: (counts[worker], worker))
        donors = [worker for worker in counts if movable[worker] and counts[worker] - counts[to] >= 2]
        if not donors or counts[to] >= fleet.max_leases_for_worker:
            return moves
        donor = max(donors, key=lambda worker: (counts[worker], worker))
        lease = movable[donor].pop()
        reason = f"{lease.lease_key}: {donor} -> {to}, leases {counts[donor]} -> {counts[to]}"
        counts[donor] -= 1
        counts[to] += 1
        moves.append(Move(lease, to, reason, How.HAND_OFF))
