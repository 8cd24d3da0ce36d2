"""What an assignment strategy is given and what it answers, as values.

Who goes on with the leases of a worker that stops (no counterpart in KCL, where they are simply given up).

Owns nothing but the question; the answer is that of the rule that places leases which nobody reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.worker_row import WorkerRow


@dataclass(frozen=True, slots=True)
class Fleet:
    """The state of an application as its leader sees it.

    Args:
        leases: every lease in the table.
        abandoned: leases whose owner has not renewed them for the fail-over time.
        overdue: leases whose hand-off has taken longer than it may.
        workers: those that show that they live, and may be given leases. One that lets a lease stand still is not among
            them, unless it is known to live all the same (`leases/expiry.py`).
        max_leases_for_worker: nobody is given more than these.
        stats: what the workers report of themselves; one that is not in it has no figures.
        ages_s: for how long each lease has not moved; one that is not in it has just moved.
        unclaimed: leases that were given to a worker that has not written them since; perhaps it does not know of them.
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
        """The leases that are still work; finished ones count in no balance."""
        return [lease for lease in self.leases if not lease.is_finished]

    def is_free(self, lease: Lease) -> bool:
        """Whether nobody reads the shard: no owner, or one that has gone silent."""
        return lease.actual_owner is None or lease.lease_key in self.abandoned

    def reader(self, lease: Lease) -> WorkerId | None:
        """Who reads the shard now; None where nobody does."""
        return None if self.is_free(lease) else lease.actual_owner

    def future_owner(self, lease: Lease) -> WorkerId | None:
        """Who will read the shard once what is under way is done; None where somebody must be found."""
        if self.is_free(lease) or lease.lease_key in self.overdue:
            return None
        return lease.lease_owner

    def avoided_worker(self, lease: Lease) -> WorkerId | None:
        """Who is given the lease only where nobody else has room: it kept failing there, or was left to stand still.

        One that stands still in a hand-off tells nothing of its old owner: who has restarted meanwhile cannot claim it.
        """
        owner = lease.lease_owner
        if lease.lease_key in self.abandoned and lease.checkpoint_owner is None and owner in self.workers:
            return owner
        return lease.degraded_by


class MoveKind(Enum):
    """The way a lease changes hands."""

    TAKE = "take"
    """Nobody reads the shard: at once, unless the lease has moved since it was looked at."""
    HANDOFF = "hand off"
    """Its owner lives: ask it to finish, checkpoint and pass the lease on."""
    FORCE = "force"
    """Its owner was asked and did not finish in time: at once, although it still renews."""


@dataclass(frozen=True, slots=True)
class LeaseMove:
    """One lease to give to a worker.

    Args:
        lease: as it was read.
        to: the worker.
        reason: for people.
        how: in which way.
    """

    lease: Lease
    to: WorkerId
    reason: str
    how: MoveKind


def move_to_worker(lease: Lease, to: WorkerId, fleet: Fleet) -> LeaseMove:
    """The move that gives a worker a lease for which `Fleet.future_owner` names nobody."""
    if lease.actual_owner is None:
        return LeaseMove(lease, to, f"{lease.lease_key}: nobody -> {to}, it had no owner", MoveKind.TAKE)
    what = f"{lease.lease_key}: {lease.actual_owner} -> {to}"
    if fleet.is_free(lease):
        return LeaseMove(lease, to, f"{what}, its owner is silent", MoveKind.TAKE)
    return LeaseMove(lease, to, f"{what}, its handoff took too long", MoveKind.FORCE)


@dataclass(frozen=True, slots=True)
class AssignmentPlan:
    """What to do now. `unplaced` leases found no worker with room."""

    moves: tuple[LeaseMove, ...] = ()
    unplaced: tuple[LeaseKey, ...] = ()
    counts: Mapping[WorkerId, int] = field(default_factory=dict[WorkerId, int])


class Strategy(Protocol):
    """A rule that decides who holds what."""

    def __call__(self, fleet: Fleet) -> AssignmentPlan:
        """The moves for this state of the fleet; none when it is balanced."""
        ...


def handoffs_on_shutdown(fleet: Fleet, leaving_worker: WorkerId, place: Strategy) -> tuple[LeaseMove, ...]:
    """One hand-off for each lease that the leaver reads and that finds a worker with room.

    Args:
        fleet: as seen now; the leaver is given nothing, whether or not it is still among the workers.
        leaving_worker: who stops.
        place: gives away what nobody reads.
    """
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
