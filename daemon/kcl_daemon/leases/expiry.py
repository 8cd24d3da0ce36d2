"""What an observer knows of leases and workers over time, on its own monotonic clock (KCL: LeaseAssignmentManager, G8).

Nobody's time of day counts: a lease is abandoned when its counter has stood still for the fail-over time under the
observer's eyes, a worker is alive while its row keeps changing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.stats import WorkerRow


@dataclass(frozen=True, slots=True)
class LeaseSeen:
    """A state of a lease and since when it has been seen so, in monotonic seconds.

    Args:
        state: counter and owners.
        since_s: first seen in this state.
        handoff_since_s: first seen in this hand-off, None outside one.
    """

    state: tuple[int, WorkerId | None, WorkerId | None]
    since_s: float
    handoff_since_s: float | None = None


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """A report of a worker and since when it has been the latest one, in monotonic seconds."""

    last_update_s: int
    since_s: float
    changed: bool


@dataclass(frozen=True, slots=True)
class Watchbook:
    """Everything one observer remembers between two looks at the tables."""

    leases: Mapping[LeaseKey, LeaseSeen] = field(default_factory=dict[LeaseKey, LeaseSeen])
    workers: Mapping[WorkerId, WorkerSeen] = field(default_factory=dict[WorkerId, WorkerSeen])

    def look(self, leases: Iterable[Lease], workers: Iterable[WorkerRow], *, now_s: float) -> Watchbook:
        """The book after a look; rows that have vanished are forgotten.

        Args:
            leases: as read.
            workers: as read.
            now_s: monotonic seconds before the reading began, so that nothing seems to stand still for longer than
                it did.
        """
        return Watchbook(
            {lease.lease_key: _see_lease(lease, self.leases.get(lease.lease_key), now_s) for lease in leases},
            {
                worker.worker_id: _see_worker(worker, self.workers.get(worker.worker_id), now_s)
                for worker in workers
            },
        )

    def still_s(self, lease: Lease, *, now_s: float) -> float:
        """For how many seconds the lease has not moved; 0 where it was never seen."""
        seen = self.leases.get(lease.lease_key)
        return 0.0 if seen is None else now_s - seen.since_s

    def handoff_s(self, lease: Lease, *, now_s: float) -> float:
        """For how many seconds the lease has been in the same hand-off; 0 outside one."""
        seen = self.leases.get(lease.lease_key)
        return 0.0 if seen is None or seen.handoff_since_s is None else now_s - seen.handoff_since_s

    def reporting(self, *, now_s: float, wall_s: float, active_s: float) -> frozenset[WorkerId]:
        """The workers whose rows show them alive: changed under our eyes, or by their own clock, within `active_s`."""
        return frozenset(
            worker_id
            for worker_id, seen in self.workers.items()
            if (seen.changed and now_s - seen.since_s <= active_s)
            or (
                not seen.changed
                and abs(wall_s - seen.last_update_s) <= active_s
                and now_s - seen.since_s <= active_s
            )
        )


def _see_lease(lease: Lease, before: LeaseSeen | None, now_s: float) -> LeaseSeen:
    state = (lease.lease_counter, lease.lease_owner, lease.checkpoint_owner)
    same_handoff = before is not None and before.state[1:] == state[1:] and before.handoff_since_s is not None
    handoff_since = None
    if lease.checkpoint_owner is not None:
        handoff_since = before.handoff_since_s if before is not None and same_handoff else now_s
    since = before.since_s if before is not None and before.state == state else now_s
    return LeaseSeen(state, since, handoff_since)


def _see_worker(worker: WorkerRow, before: WorkerSeen | None, now_s: float) -> WorkerSeen:
    if before is not None and before.last_update_s == worker.last_update_s:
        return before
    return WorkerSeen(worker.last_update_s, now_s, changed=before is not None)
