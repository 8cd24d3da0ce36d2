"""What strategies take and give, and the one by count, which unlike KCL's leaves no worker idle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from heapq import heapify, heappop, heappush, heapreplace
from typing import Protocol

from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.worker_row import WorkerRow


@dataclass(frozen=True, slots=True)
class Fleet:
    """The application as its leader sees it.

    Args:
        abandoned: not renewed for the failover time.
        overdue: their handoff takes too long.
        workers: live ones that may get leases; none that lets leases expire, unless known to live (`leases/expiry.py`).
        stats: a worker without a row has no figures.
        ages_s: since each lease changed; missing: just now.
        unclaimed: the new owner has not written them yet.
    """

    leases: Sequence[Lease]
    abandoned: frozenset[LeaseKey]
    overdue: frozenset[LeaseKey]
    workers: frozenset[WorkerId]
    max_leases_for_worker: int
    stats: Mapping[WorkerId, WorkerRow] = field(default_factory=dict[WorkerId, WorkerRow])
    ages_s: Mapping[LeaseKey, float] = field(default_factory=dict[LeaseKey, float])
    unclaimed: frozenset[LeaseKey] = frozenset()

    @property
    def unfinished(self) -> list[Lease]:
        return [lease for lease in self.leases if not lease.is_finished]

    def is_free(self, lease: Lease) -> bool:
        return lease.actual_owner is None or lease.lease_key in self.abandoned

    def reader(self, lease: Lease) -> WorkerId | None:
        return None if self.is_free(lease) else lease.actual_owner

    def future_owner(self, lease: Lease) -> WorkerId | None:
        """After all moves under way; None if a worker must be found."""
        if self.is_free(lease) or lease.lease_key in self.overdue:
            return None
        return lease.lease_owner

    def avoided_worker(self, lease: Lease) -> WorkerId | None:
        """It gets the lease only if nobody else has room: it failed there, or did not renew it.

        A lease that expired during a handoff does not count: its owner may have restarted and cannot claim it.
        """
        owner = lease.lease_owner
        if lease.lease_key in self.abandoned and lease.checkpoint_owner is None and owner in self.workers:
            return owner
        return lease.degraded_by


class MoveKind(Enum):
    TAKE = "take"
    """Nobody reads the shard: at once, unless the lease has changed."""
    HANDOFF = "hand off"
    """Its owner lives: ask it to finish, checkpoint and release the lease."""
    FORCE = "force"
    """Its owner did not finish the handoff in time: although it still renews."""


@dataclass(frozen=True, slots=True)
class LeaseMove:
    lease: Lease
    to: WorkerId
    reason: str
    how: MoveKind


def move_to_worker(lease: Lease, to: WorkerId, fleet: Fleet) -> LeaseMove:
    """For a lease without a `Fleet.future_owner`."""
    if lease.actual_owner is None:
        return LeaseMove(lease, to, f"{lease.lease_key}: nobody -> {to}, it had no owner", MoveKind.TAKE)
    what = f"{lease.lease_key}: {lease.actual_owner} -> {to}"
    if fleet.is_free(lease):
        return LeaseMove(lease, to, f"{what}, its owner is silent", MoveKind.TAKE)
    return LeaseMove(lease, to, f"{what}, its handoff took too long", MoveKind.FORCE)


@dataclass(frozen=True, slots=True)
class AssignmentPlan:
    moves: tuple[LeaseMove, ...] = ()
    unplaced: tuple[LeaseKey, ...] = ()
    counts: Mapping[WorkerId, int] = field(default_factory=dict[WorkerId, int])


class Strategy(Protocol):
    def __call__(self, fleet: Fleet) -> AssignmentPlan: ...


def handoffs_on_shutdown(fleet: Fleet, leaving_worker: WorkerId, place: Strategy) -> tuple[LeaseMove, ...]:
    """If another worker has room; KCL only releases them. `place`: the strategy for free leases."""
    mine = {
        lease.lease_key: lease
        for lease in fleet.unfinished
        if lease.lease_owner == leaving_worker and lease.checkpoint_owner is None
    }
    without = replace(
        fleet,
        leases=[
            replace(lease, lease_owner=None) if lease.lease_key in mine else lease for lease in fleet.leases
        ],
        workers=fleet.workers - {leaving_worker},
    )
    return tuple(
        LeaseMove(
            mine[move.lease.lease_key],
            move.to,
            f"{move.lease.lease_key}: {leaving_worker} -> {move.to}, {leaving_worker} stops",
            MoveKind.HANDOFF,
        )
        for move in place(without).moves
        if move.lease.lease_key in mine
    )


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
    """Push it back afterwards."""
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
    # Only workers that differ by two or more exchange a lease, so no donor becomes a receiver.
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
