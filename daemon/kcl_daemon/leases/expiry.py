"""What an observer knows of leases and workers over time, on its own monotonic clock (KCL: LeaseAssignmentManager).

Nobody's time of day counts: a lease is abandoned when its counter has stood still for the fail-over time under the
observer's eyes, a worker is alive while its row keeps changing.

Whether a process that left a record in the state folder is proven dead, so that its leases may be taken at once.

A proof holds for one boot of one kernel only. The boot id is drawn anew at each boot, so a record with ours was written
on this host since it was started: another host with a copy of the folder never has it. Where that holds, the kernel
tells the rest: a file lock that was held for life is free, or no process with that number and start time is there.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from math import inf
from typing import Final, cast

from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.worker_row import WorkerRow

# In fail-over times: the 1.3 after which a worker of ours without leases has looked, and a Java worker has looked and
# renewed for the first time, and some more for the look itself.
_UNCLAIMED_PATIENCE: Final = 1.5
# In assignment intervals: a Java worker looks twice in one, with the interval at its default once in a fail-over time.
_UNCLAIMED_INTERVALS: Final = 0.75


def unclaimed_patience_s(failover_s: float, interval_s: float) -> float:
    """How long a lease that was given away may stand still before its new owner must have written it.

    A worker of ours without leases looks for them rarely (`Timings.epoch_poll_s`). A Java worker looks twice in an assignment
    interval whatever it has, and first writes what it has found when it renews (KCL: DynamoDBLeaseDiscoverer).

    Args:
        failover_s: the fail-over time.
        interval_s: leaseAssignmentIntervalMillis, in seconds.
    """
    return max(_UNCLAIMED_PATIENCE * failover_s, _UNCLAIMED_INTERVALS * interval_s)


@dataclass(frozen=True, slots=True)
class LeaseObservation:
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

    def has_changed_since(self, before: LeaseObservation) -> bool:
        """Whether its owner has written it since."""
        return self.owner == before.owner and self.state[0] != before.state[0] and not self.unclaimed


@dataclass(frozen=True, slots=True)
class WorkerObservation:
    """A report of a worker and since when it has been the latest one, in monotonic seconds."""

    last_update_s: int
    since_s: float
    changed: bool


@dataclass(frozen=True, slots=True)
class LivenessLog:
    """Everything one observer remembers between two looks at the tables.

    Args:
        leases: as they were last seen.
        workers: likewise, by their rows.
        suspects: the workers that have most likely died, with the report they had made by then.
        alive_s: until when, at least, workers have lived that were seen to report or to renew, in monotonic seconds.
        polled_s: when the latest reading of the leases began.
        workers_read_s: when the latest reading of the workers' rows began.
        unclaimed_s: how long a lease may stand still that its owner may not have found yet (`unclaimed_patience_s`);
            None: by the fail-over time alone.
    """

    leases: Mapping[LeaseKey, LeaseObservation] = field(default_factory=dict[LeaseKey, LeaseObservation])
    workers: Mapping[WorkerId, WorkerObservation] = field(default_factory=dict[WorkerId, WorkerObservation])
    suspects: Mapping[WorkerId, int] = field(default_factory=dict[WorkerId, int])
    alive_s: Mapping[WorkerId, float] = field(default_factory=dict[WorkerId, float])
    polled_s: float = 0.0
    workers_read_s: float = 0.0
    unclaimed_s: float | None = None

    def poll(
        self,
        leases: Iterable[Lease],
        workers: Iterable[WorkerRow],
        *,
        began_s: float,
        ended_s: float,
        failover_s: float,
        workers_read_s: float | None = None,
    ) -> LivenessLog:
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
        changing = self._changed_leases(seen_leases)
        after = LivenessLog(
            seen_leases,
            seen_workers,
            alive_s=self._alive_since(seen_workers, changing),
            polled_s=began_s,
            workers_read_s=began_s if workers_read_s is None else workers_read_s,
            unclaimed_s=self.unclaimed_s,
        )
        still = {
            each: at
            for each, at in self.suspects.items()
            if each not in changing and after._vouches_for(each, at)
        }
        return replace(after, suspects=after._suspects(still, failover_s))

    def abandoned(self, failover_s: float) -> frozenset[LeaseKey]:
        """The leases that an owner has left alone for so long that they may be given to another."""
        return frozenset(
            key
            for key, seen in self.leases.items()
            if seen.owner is not None
            and self.polled_s - seen.since_s > self._timeout_s(seen, self.suspects, failover_s)
        )

    @property
    def unclaimed(self) -> frozenset[LeaseKey]:
        """The leases that were given to workers who have not written them since."""
        return frozenset(key for key, seen in self.leases.items() if seen.unclaimed)

    def _timeout_s(self, seen: LeaseObservation, silent: Container[WorkerId], failover_s: float) -> float:
        """How long a lease may stand still; longer while its owner may not know of it, if it is thought to live."""
        owner = seen.owner
        slow = seen.unclaimed and owner is not None and owner in self.workers and owner not in silent
        if not slow:
            return failover_s
        return unclaimed_patience_s(failover_s, 0) if self.unclaimed_s is None else self.unclaimed_s

    def _changed_leases(self, leases: Mapping[LeaseKey, LeaseObservation]) -> set[WorkerId | None]:
        """Those that have written one of their leases since the look before."""
        return {
            seen.owner
            for key, seen in leases.items()
            if key in self.leases and seen.has_changed_since(self.leases[key])
        }

    def _alive_since(
        self, workers: Mapping[WorkerId, WorkerObservation], changing: AbstractSet[WorkerId | None]
    ) -> dict[WorkerId, float]:
        """Until when workers have lived at least: what is new was written after the reading before, perhaps just so."""
        alive_s = {each: at_s for each, at_s in self.alive_s.items() if each in workers}
        for each, seen in workers.items():
            if each in changing:
                alive_s[each] = max(alive_s.get(each, -inf), self.polled_s)
            before = self.workers.get(each)
            if before is not None and before.last_update_s != seen.last_update_s:
                alive_s[each] = max(alive_s.get(each, -inf), self.workers_read_s)
        return alive_s

    def _vouches_for(self, worker_id: WorkerId, reported: int) -> bool:
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
            failover_s: as in `poll`.
        """
        found = dict(suspects)
        for seen in self.leases.values():
            owner = seen.owner
            if owner is None or owner not in self.workers:
                continue
            due_s = seen.since_s + self._timeout_s(seen, suspects, failover_s)
            if self.alive_s.get(owner, -inf) <= due_s < self.polled_s:
                found.setdefault(owner, self.workers[owner].last_update_s)
        return found

    def has_lived_since(self, worker_id: WorkerId, since_s: float) -> bool:
        """Whether a worker was seen to report or to renew something that it cannot have written before (monotonic seconds)."""
        return self.alive_s.get(worker_id, -inf) >= since_s

    def still_s(self, lease: Lease) -> float:
        """For how many seconds the lease has not moved; 0 where it was never seen."""
        seen = self.leases.get(lease.lease_key)
        return 0.0 if seen is None else self.polled_s - seen.since_s

    def handoff_s(self, lease: Lease) -> float:
        """For how many seconds the lease has been in the same hand-off; 0 outside one."""
        seen = self.leases.get(lease.lease_key)
        return 0.0 if seen is None or seen.handoff is None else self.polled_s - seen.handoff_since_s

    def reporting(self, *, wall_s: float, active_s: float) -> frozenset[WorkerId]:
        """The workers whose rows show them alive: changed under our eyes, or by their own clock, within `active_s`.

        Those under suspicion are not among them.
        """
        return frozenset(
            worker_id
            for worker_id, seen in self.workers.items()
            if worker_id not in self.suspects and self._fresh(seen, wall_s=wall_s, active_s=active_s)
        )

    def _fresh(self, seen: WorkerObservation, *, wall_s: float, active_s: float) -> bool:
        return self.polled_s - seen.since_s <= active_s and (
            seen.changed or abs(wall_s - seen.last_update_s) <= active_s
        )


def _see_lease(lease: Lease, before: LeaseObservation | None, now_s: float) -> LeaseObservation:
    state = (lease.lease_counter, lease.actual_owner)
    handoff = None if lease.checkpoint_owner is None else (lease.checkpoint_owner, lease.lease_owner)
    if before is None:
        return LeaseObservation(state, now_s, handoff, now_s)
    return LeaseObservation(
        state,
        before.since_s if before.state == state else now_s,
        handoff,
        before.handoff_since_s if before.handoff == handoff else now_s,
        before.unclaimed if before.state == state else _is_given(lease, before),
    )


def _is_given(lease: Lease, before: LeaseObservation) -> bool:
    """Whether a lease that has changed was given to its owner: by the old one, or by the leader, who ends hand-offs too."""
    owner = lease.actual_owner
    ended = before.handoff is not None and lease.checkpoint_owner is None
    return owner is not None and (owner != before.owner or ended)


def _see_worker(worker: WorkerRow, before: WorkerObservation | None, now_s: float) -> WorkerObservation:
    if before is not None and before.last_update_s == worker.last_update_s:
        return before
    return WorkerObservation(worker.last_update_s, now_s, changed=before is not None)


_TEXTS: Final = ("worker_id", "incarnation", "boot_id")
_NUMBERS: Final = ("pid", "started", "pid_namespace", "device", "inode")


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """What a daemon writes about itself in the state folder.

    Args:
        worker_id: its name in the tables.
        incarnation: drawn at its start; the worker's row has it, too.
        boot_id: of the kernel it runs on.
        pid: its number, in its namespace.
        started: clock ticks from boot to its start; tells it from a later process with the same number.
        pid_namespace: which namespace that is.
        device: of the file system that the record was written to.
        inode: of the record; a copy has another.
    """

    worker_id: WorkerId
    incarnation: str
    boot_id: str
    pid: int
    started: int
    pid_namespace: int
    device: int
    inode: int

    def to_text(self) -> str:
        """As it is stored."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> ProcessRecord | None:
        """The record in a file; None where there is none in it, whatever it holds."""
        try:
            found: object = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(found, dict):
            return None
        fields = cast("dict[str, object]", found)
        texts = [value for name in _TEXTS if isinstance(value := fields.get(name), str) and value]
        numbers = [value for name in _NUMBERS if type(value := fields.get(name)) is int]
        if len(texts) != len(_TEXTS) or len(numbers) != len(_NUMBERS):
            return None
        return cls(WorkerId(texts[0]), texts[1], texts[2], *numbers)


class FileLockState(Enum):
    """What came of the try for the lock that the process held for life."""

    FREE = "free"  # and ours now
    HELD = "held"
    UNKNOWN = "unknown"  # there are no locks here


@dataclass(frozen=True, slots=True)
class ProcessObservation:
    """What this host shows of the process of a record, now.

    Args:
        boot_id: of this kernel; None: it does not tell.
        device: of the file system in which the record is.
        inode: of the record.
        lock: its lock.
        is_local: whether the file system is this host's own. Locks of a network file system can be lost by one that
            lives.
        running: whether a process with that number and start time is there; None: this cannot be told, as from
            inside another container.
    """

    boot_id: str | None
    device: int
    inode: int
    lock: FileLockState
    is_local: bool
    running: bool | None


@dataclass(frozen=True, slots=True)
class ProvenDead:
    """It is proven dead; `reason` says by what."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unproven:
    """It may live.

    Args:
        reason: why that is not known.
        may_change: it has ended, but what it started has not: look again in a moment.
    """

    reason: str
    may_change: bool = False


def judge_process(record: ProcessRecord, seen: ProcessObservation) -> ProvenDead | Unproven:
    """Whether the process of a record is proven dead. What is not certain is no proof."""
    if not seen.boot_id or seen.boot_id != record.boot_id:
        return Unproven(
            "it ran on another host, or before this host was started; a copied disk looks the same"
        )
    if (seen.device, seen.inode) != (record.device, record.inode):
        return Unproven("its record was copied or moved to another disk")
    if seen.running:
        return Unproven(f"process {record.pid} runs")
    return _by_lock(record, seen)


def _by_lock(record: ProcessRecord, seen: ProcessObservation) -> ProvenDead | Unproven:
    if seen.lock is FileLockState.HELD:
        return Unproven("its lock is held, by itself or by the guard of its children", may_change=True)
    if seen.lock is FileLockState.FREE and seen.is_local:
        return ProvenDead(f"process {record.pid} released its lock, which happens only when it ends")
    if seen.running is False:
        return ProvenDead(f"process {record.pid} no longer exists")
    return Unproven("neither its lock nor its process can be seen from here")
