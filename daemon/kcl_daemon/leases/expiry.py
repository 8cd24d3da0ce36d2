"""What an observer knows of leases and workers over time, on its own monotonic clock (KCL: LeaseAssignmentManager).

Nobody's time of day counts: a lease is abandoned when its counter has stood still for the fail-over time under the
observer's eyes, a worker is alive while its row keeps changing.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.stats import WorkerRow

# In fail-over times: the 1.3 after which a worker of ours without leases has looked, and a Java worker has looked and
# renewed for the first time, and some more for the look itself.
_UNCLAIMED_PATIENCE: Final = 1.5
# In assignment intervals: a Java worker looks twice in one, with the interval at its default once in a fail-over time.
_UNCLAIMED_INTERVALS: Final = 0.75


def unclaimed_patience_s(failover_s: float, interval_s: float) -> float:
    """How long a lease that was given away may stand still before its new owner must have written it.

    A worker of ours without leases looks for them rarely (`Timings.news_s`). A Java worker looks twice in an assignment
    interval whatever it has, and first writes what it has found when it renews (KCL: DynamoDBLeaseDiscoverer).

    Args:
        failover_s: the fail-over time.
        interval_s: leaseAssignmentIntervalMillis, in seconds.
    """
    return max(_UNCLAIMED_PATIENCE * failover_s, _UNCLAIMED_INTERVALS * interval_s)


@dataclass(frozen=True, slots=True)
class LeaseSeen:
    """A state of a lease and since when it has been seen so, in monotonic seconds.

    Args:
        state: counter and actual owner. The beginning of a hand-off changes neither: it is the leader's write and no
            sign of life of the owner.
        since_s: first seen in this state.
        handoff: old and next owner, None outside a hand-off.
        handoff_since_s: first seen in this hand-off.
        unclaimed: it was given to its owner under our eyes, who has not written it since.
    """

    state: tuple[int, WorkerId | None]
    since_s: float
    handoff: tuple[WorkerId, WorkerId | None] | None = None
    handoff_since_s: float = 0.0
    unclaimed: bool = False

    @property
    def owner(self) -> WorkerId | None:
        """Who reads the shard."""
        return self.state[1]

    def has_stirred_since(self, before: LeaseSeen) -> bool:
        """Whether its owner has written it since."""
        return self.owner == before.owner and self.state[0] != before.state[0] and not self.unclaimed


@dataclass(frozen=True, slots=True)
class WorkerSeen:
    """A report of a worker and since when it has been the latest one, in monotonic seconds."""

    last_update_s: int
    since_s: float
    changed: bool


@dataclass(frozen=True, slots=True)
class Watchbook:
    """Everything one observer remembers between two looks at the tables.

    Args:
        leases: as they were last seen.
        workers: likewise, by their rows.
        suspects: the workers that have most likely died, with the report they had made by then.
        lived_s: until when, at least, workers have lived that were seen to report or to renew, in monotonic seconds.
        looked_s: when the latest reading of the leases began.
        workers_read_s: when the latest reading of the workers' rows began.
        unclaimed_s: how long a lease may stand still that its owner may not have found yet (`unclaimed_patience_s`);
            None: by the fail-over time alone.
    """

    leases: Mapping[LeaseKey, LeaseSeen] = field(default_factory=dict[LeaseKey, LeaseSeen])
    workers: Mapping[WorkerId, WorkerSeen] = field(default_factory=dict[WorkerId, WorkerSeen])
    suspects: Mapping[WorkerId, int] = field(default_factory=dict[WorkerId, int])
    lived_s: Mapping[WorkerId, float] = field(default_factory=dict[WorkerId, float])
    looked_s: float = 0.0
    workers_read_s: float = 0.0
    unclaimed_s: float | None = None

    def look(
        self,
        leases: Iterable[Lease],
        workers: Iterable[WorkerRow],
        *,
        began_s: float,
        ended_s: float,
        failover_s: float,
        workers_read_s: float | None = None,
    ) -> Watchbook:
        """The book after a look; rows that have vanished are forgotten.

        Args:
            leases: as read.
            workers: as read.
            began_s: monotonic seconds before the reading began: until then, at least, nothing had moved.
            ended_s: monotonic seconds after it ended: since then, at the latest, what is new has been so. With the
                two nothing seems to stand still for longer than it did, however long a scan takes.
            failover_s: what stands still for longer is abandoned.
            workers_read_s: monotonic seconds before the rows of workers were read; None: with the leases.
        """
        seen_leases = {
            lease.lease_key: _see_lease(lease, self.leases.get(lease.lease_key), ended_s) for lease in leases
        }
        seen_workers = {
            worker.worker_id: _see_worker(worker, self.workers.get(worker.worker_id), ended_s)
            for worker in workers
        }
        stirring = self._stirring(seen_leases)
        after = Watchbook(
            seen_leases,
            seen_workers,
            lived_s=self._lived(seen_workers, stirring),
            looked_s=began_s,
            workers_read_s=began_s if workers_read_s is None else workers_read_s,
            unclaimed_s=self.unclaimed_s,
        )
        still = {
            each: at
            for each, at in self.suspects.items()
            if each not in stirring and after._stands_by(each, at)
        }
        return replace(after, suspects=after._suspects(still, failover_s))

    def abandoned(self, failover_s: float) -> frozenset[LeaseKey]:
        """The leases that an owner has left alone for so long that they may be given to another."""
        return frozenset(
            key
            for key, seen in self.leases.items()
            if seen.owner is not None
            and self.looked_s - seen.since_s > self._patience_s(seen, self.suspects, failover_s)
        )

    @property
    def unclaimed(self) -> frozenset[LeaseKey]:
        """The leases that were given to workers who have not written them since."""
        return frozenset(key for key, seen in self.leases.items() if seen.unclaimed)

    def _patience_s(self, seen: LeaseSeen, doubted: Container[WorkerId], failover_s: float) -> float:
        """How long a lease may stand still; longer while its owner may not know of it, if it is thought to live."""
        owner = seen.owner
        slow = seen.unclaimed and owner is not None and owner in self.workers and owner not in doubted
        if not slow:
            return failover_s
        return unclaimed_patience_s(failover_s, 0) if self.unclaimed_s is None else self.unclaimed_s

    def _stirring(self, leases: Mapping[LeaseKey, LeaseSeen]) -> set[WorkerId | None]:
        """Those that have written one of their leases since the look before."""
        return {
            seen.owner
            for key, seen in leases.items()
            if key in self.leases and seen.has_stirred_since(self.leases[key])
        }

    def _lived(
        self, workers: Mapping[WorkerId, WorkerSeen], stirring: AbstractSet[WorkerId | None]
    ) -> dict[WorkerId, float]:
        """Until when workers have lived at least: what is new was written after the reading before, perhaps just so."""
        lived_s = {each: at_s for each, at_s in self.lived_s.items() if each in workers}
        for each, seen in workers.items():
            if each in stirring:
                lived_s[each] = max(lived_s.get(each, -inf), self.looked_s)
            before = self.workers.get(each)
            if before is not None and before.last_update_s != seen.last_update_s:
                lived_s[each] = max(lived_s.get(each, -inf), self.workers_read_s)
        return lived_s

    def _stands_by(self, worker_id: WorkerId, reported: int) -> bool:
        """Whether that is still the latest report of a worker that has not left."""
        return worker_id in self.workers and self.workers[worker_id].last_update_s == reported

    def _suspects(self, suspects: Mapping[WorkerId, int], failover_s: float) -> dict[WorkerId, int]:
        """The workers that let a lease stand still, with the report they had made by then.

        A row may outlive its worker by a minute. Whoever lets a lease stand still has most likely died, whatever its
        row says, and stays under suspicion until it reports anew or one of its leases moves. Where it is known to have
        lived by a time at which it should long have renewed that lease, it does not hold it: after a restart in the
        middle of a hand-off, say, it cannot, until the leader has ended that. That is no sign of its death.

        Args:
            suspects: those of before that have given no sign of life since.
            failover_s: as in `look`.
        """
        found = dict(suspects)
        for seen in self.leases.values():
            owner = seen.owner
            if owner is None or owner not in self.workers:
                continue
            due_s = seen.since_s + self._patience_s(seen, suspects, failover_s)
            if self.lived_s.get(owner, -inf) <= due_s < self.looked_s:
                found.setdefault(owner, self.workers[owner].last_update_s)
        return found

    def has_lived_since(self, worker_id: WorkerId, since_s: float) -> bool:
        """Whether a worker was seen to report or to renew something that it cannot have written before (monotonic seconds)."""
        return self.lived_s.get(worker_id, -inf) >= since_s

    def still_s(self, lease: Lease) -> float:
        """For how many seconds the lease has not moved; 0 where it was never seen."""
        seen = self.leases.get(lease.lease_key)
        return 0.0 if seen is None else self.looked_s - seen.since_s

    def handoff_s(self, lease: Lease) -> float:
        """For how many seconds the lease has been in the same hand-off; 0 outside one."""
        seen = self.leases.get(lease.lease_key)
        return 0.0 if seen is None or seen.handoff is None else self.looked_s - seen.handoff_since_s

    def reporting(self, *, wall_s: float, active_s: float) -> frozenset[WorkerId]:
        """The workers whose rows show them alive: changed under our eyes, or by their own clock, within `active_s`.

        Those under suspicion are not among them.
        """
        return frozenset(
            worker_id
            for worker_id, seen in self.workers.items()
            if worker_id not in self.suspects and self._fresh(seen, wall_s=wall_s, active_s=active_s)
        )

    def _fresh(self, seen: WorkerSeen, *, wall_s: float, active_s: float) -> bool:
        return self.looked_s - seen.since_s <= active_s and (
            seen.changed or abs(wall_s - seen.last_update_s) <= active_s
        )


def _see_lease(lease: Lease, before: LeaseSeen | None, now_s: float) -> LeaseSeen:
    state = (lease.lease_counter, lease.actual_owner)
    handoff = None if lease.checkpoint_owner is None else (lease.checkpoint_owner, lease.lease_owner)
    if before is None:
        return LeaseSeen(state, now_s, handoff, now_s)
    return LeaseSeen(
        state,
        before.since_s if before.state == state else now_s,
        handoff,
        before.handoff_since_s if before.handoff == handoff else now_s,
        before.unclaimed if before.state == state else _is_given(lease, before),
    )


def _is_given(lease: Lease, before: LeaseSeen) -> bool:
    """Whether a lease that has changed was given to its owner: by the old one, or by the leader, who ends hand-offs too."""
    owner = lease.actual_owner
    ended = before.handoff is not None and lease.checkpoint_owner is None
    return owner is not None and (owner != before.owner or ended)


def _see_worker(worker: WorkerRow, before: WorkerSeen | None, now_s: float) -> WorkerSeen:
    if before is not None and before.last_update_s == worker.last_update_s:
        return before
    return WorkerSeen(worker.last_update_s, now_s, changed=before is not None)
