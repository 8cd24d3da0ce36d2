"""What strategies take and give, and the one by count, which unlike KCL's leaves no worker idle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import Protocol, TypeAlias, TypeVar

from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.worker_row import WorkerRow


@dataclass(frozen=True, slots=True)
class LeaseLimits:
    for_worker: int = 2**31 - 1

    def of(self, worker_id: WorkerId, *leases: Lease) -> WorkerLeases:
        return WorkerLeases(worker_id, limits=self, leases=len(leases))

    def has_room(self, worker: WorkerLeases, *leases: Lease) -> bool:
        return worker.leases + len(leases) <= self.for_worker


@dataclass(slots=True)
class WorkerLeases:
    """With those on their way."""

    worker_id: WorkerId
    limits: LeaseLimits = field(kw_only=True)
    leases: int = field(default=0, kw_only=True)

    @property
    def is_full(self) -> bool:
        return self.leases >= self.limits.for_worker

    def has_room(self, *leases: Lease) -> bool:
        return self.limits.has_room(self, *leases)

    def count(self, *leases: Lease, by: int = 1) -> None:
        self.leases += by * len(leases)


_Worker = TypeVar("_Worker", bound=WorkerLeases)
Queued: TypeAlias = tuple[float, int, WorkerId, _Worker]


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
    limits: LeaseLimits
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
    workers = {worker: fleet.limits.of(worker) for worker in fleet.workers}
    if not workers:
        return AssignmentPlan(unplaced=tuple(lease.lease_key for lease in unfinished if fleet.is_free(lease)))
    waiting: list[Lease] = []
    for lease in unfinished:
        future = fleet.future_owner(lease)
        if future is None:
            waiting.append(lease)
        elif future in workers:
            workers[future].count(lease)
    moves, unplaced = place_all(
        sorted(waiting, key=lambda lease: lease.lease_key),
        workers.values(),
        fleet,
        order=_by_count,
        give=WorkerLeases.count,
    )
    if not moves and not unplaced:
        moves = _even_out(unfinished, fleet, workers)
    counts = {name: workers[name].leases for name in sorted(workers)}
    return AssignmentPlan(tuple(moves), tuple(unplaced), counts)


def _by_count(worker: WorkerLeases) -> Queued[WorkerLeases] | None:
    return None if worker.is_full else (worker.leases, worker.leases, worker.worker_id, worker)


def place_all(
    waiting: Iterable[Lease],
    workers: Iterable[_Worker],
    fleet: Fleet,
    *,
    order: Callable[[_Worker], Queued[_Worker] | None],
    give: Callable[[_Worker, Lease], None],
) -> tuple[list[LeaseMove], list[LeaseKey]]:
    """`order`: None if full."""
    moves: list[LeaseMove] = []
    unplaced: list[LeaseKey] = []
    queue = [*filter(None, map(order, workers))]
    heapify(queue)
    for lease in waiting:
        to = _first_with_room(queue, lease, fleet.avoided_worker(lease))
        if to is None:
            unplaced.append(lease.lease_key)
            continue
        give(to, lease)
        if (place := order(to)) is not None:
            heappush(queue, place)
        moves.append(move_to_worker(lease, to.worker_id, fleet))
    return moves, unplaced


def _first_with_room(
    queue: list[Queued[_Worker]], lease: Lease, avoided_worker: WorkerId | None = None
) -> _Worker | None:
    """It leaves the queue."""
    passed: list[Queued[_Worker]] = []
    fitting: list[Queued[_Worker]] = []
    while queue and (not fitting or fitting[-1][2] == avoided_worker):
        entry = heappop(queue)
        (fitting if entry[3].has_room(lease) else passed).append(entry)
    to = fitting.pop()[3] if fitting else None
    for entry in passed + fitting:
        heappush(queue, entry)
    return to


def _even_out(
    unfinished: list[Lease], fleet: Fleet, workers: Mapping[WorkerId, WorkerLeases]
) -> list[LeaseMove]:
    movable: dict[WorkerId, list[Lease]] = {worker: [] for worker in workers}
    for lease in sorted(unfinished, key=lambda lease: lease.lease_key, reverse=True):
        owner = lease.lease_owner
        in_motion = lease.checkpoint_owner is not None or lease.lease_key in fleet.unclaimed
        if owner is not None and owner in movable and not in_motion:
            movable[owner].append(lease)
    fewest = [*filter(None, map(_by_count, workers.values()))]
    most = [(-workers[who].leases, -rank, who) for rank, who in enumerate(sorted(workers)) if movable[who]]
    heapify(fewest)
    heapify(most)
    moves: list[LeaseMove] = []
    # Only workers that differ by two or more exchange a lease, so no donor becomes a receiver.
    while most and fewest:
        negated, rank, donor = heappop(most)
        if -negated - fewest[0][0] < 2:
            break
        lease = movable[donor].pop()
        if (to := _first_with_room(fewest, lease)) is not None:
            if -negated - to.leases >= 2:
                reason = f"{lease.lease_key}: {donor} -> {to.worker_id}, leases {-negated} -> {to.leases}"
                moves.append(LeaseMove(lease, to.worker_id, reason, MoveKind.HANDOFF))
                workers[donor].count(lease, by=-1)
                to.count(lease)
            if (place := _by_count(to)) is not None:
                heappush(fewest, place)
        if movable[donor]:
            heappush(most, (-workers[donor].leases, rank, donor))
    return moves
