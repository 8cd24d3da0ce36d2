"""When a lease is abandoned, and when a worker is dead (KCL: LeaseAssignmentManager)."""

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

# In failover times: after 1.3 one of our workers has polled, and a Java worker has polled and renewed.
_UNCLAIMED_PATIENCE: Final = 1.5
# In assignment intervals; a Java worker polls twice per interval.
_UNCLAIMED_INTERVALS: Final = 0.75
_TEXTS: Final = ("worker_id", "incarnation", "boot_id")
_NUMBERS: Final = ("pid", "started", "pid_namespace", "device", "inode")


def unclaimed_patience_s(failover_s: float, interval_s: float) -> float:
    """How long an assigned lease may stay unchanged until its new owner must have written it.

    A Java worker first writes a lease when it renews (KCL: DynamoDBLeaseDiscoverer).
    """
    return max(_UNCLAIMED_PATIENCE * failover_s, _UNCLAIMED_INTERVALS * interval_s)


@dataclass(frozen=True, slots=True)
class LeaseObservation:
    """Counter and actual owner of a lease, and since when they are unchanged, in monotonic seconds.

    `handoff`: old and next owner. `unclaimed`: assigned while we observed, and not yet written by its owner.
    """

    state: tuple[int, WorkerId | None]
    since_s: float
    handoff: tuple[WorkerId, WorkerId | None] | None = None
    handoff_since_s: float = 0.0
    unclaimed: bool = False

    @property
    def owner(self) -> WorkerId | None:
        return self.state[1]

    def has_changed_since(self, before: LeaseObservation) -> bool:
        return self.owner == before.owner and self.state[0] != before.state[0] and not self.unclaimed


@dataclass(frozen=True, slots=True)
class WorkerObservation:
    last_update_s: int
    since_s: float
    changed: bool

    def is_doubtful(self, wall_s: float, now_s: float, active_s: float) -> bool:
        return not self.changed and now_s - self.since_s <= active_s < wall_s - self.last_update_s

    def redated(self, worker: WorkerRow, clocks_apart_s: float) -> WorkerRow:
        """With the observer's dates; what never changed may be older."""
        later_s = int(self.since_s + clocks_apart_s) - self.last_update_s
        later_s = later_s if self.changed else min(later_s, 0)
        said_s = worker.support_update_s
        return replace(
            worker, last_update_s=worker.last_update_s + later_s, support_update_s=said_s and said_s + later_s
        )


@dataclass(frozen=True, slots=True)
class LivenessLog:
    """What one observer remembers between two polls of the tables. Times are monotonic seconds.

    `suspects` are probably dead: the `last_update_s` of their report at that time.
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
        """An old state counts until `began_s`, a new one from `ended_s`: no lease seems unchanged for too long."""
        seen_leases = {
            lease.lease_key: _see_lease(lease, self.leases.get(lease.lease_key), ended_s) for lease in leases
        }
        seen_workers = see_workers(workers, self.workers, ended_s)
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
        return frozenset(
            key
            for key, seen in self.leases.items()
            if seen.owner is not None
            and self.polled_s - seen.since_s > self._timeout_s(seen, self.suspects, failover_s)
        )

    @property
    def unclaimed(self) -> frozenset[LeaseKey]:
        return frozenset(key for key, seen in self.leases.items() if seen.unclaimed)

    def _timeout_s(self, seen: LeaseObservation, silent: Container[WorkerId], failover_s: float) -> float:
        owner = seen.owner
        slow = seen.unclaimed and owner is not None and owner in self.workers and owner not in silent
        if not slow:
            return failover_s
        return unclaimed_patience_s(failover_s, 0) if self.unclaimed_s is None else self.unclaimed_s

    def _changed_leases(self, leases: Mapping[LeaseKey, LeaseObservation]) -> set[WorkerId | None]:
        return {
            seen.owner
            for key, seen in leases.items()
            if key in self.leases and seen.has_changed_since(self.leases[key])
        }

    def _alive_since(
        self, workers: Mapping[WorkerId, WorkerObservation], changing: AbstractSet[WorkerId | None]
    ) -> dict[WorkerId, float]:
        """A change may be as old as the start of the previous read."""
        alive_s = {each: at_s for each, at_s in self.alive_s.items() if each in workers}
        for each, seen in workers.items():
            if each in changing:
                alive_s[each] = max(alive_s.get(each, -inf), self.polled_s)
            before = self.workers.get(each)
            if before is not None and before.last_update_s != seen.last_update_s:
                alive_s[each] = max(alive_s.get(each, -inf), self.workers_read_s)
        return alive_s

    def _vouches_for(self, worker_id: WorkerId, reported: int) -> bool:
        return worker_id in self.workers and self.workers[worker_id].last_update_s == reported

    def _suspects(self, suspects: Mapping[WorkerId, int], failover_s: float) -> dict[WorkerId, int]:
        """The workers that let a lease expire, with their report at that time, until they report again or renew one.

        A row may outlive its worker by a minute. One known to have lived after its lease was due may have restarted
        during a handoff: it cannot renew until the leader ends that.
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
        """By a report or renewal that cannot be older (`since_s`: monotonic)."""
        return self.alive_s.get(worker_id, -inf) >= since_s

    def still_s(self, lease: Lease) -> float:
        seen = self.leases.get(lease.lease_key)
        return 0.0 if seen is None else self.polled_s - seen.since_s

    def handoff_s(self, lease: Lease) -> float:
        seen = self.leases.get(lease.lease_key)
        return 0.0 if seen is None or seen.handoff is None else self.polled_s - seen.handoff_since_s

    def reporting(self, *, wall_s: float, active_s: float) -> frozenset[WorkerId]:
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
    """Assigned by the old owner or the leader, who also ends handoffs."""
    owner = lease.actual_owner
    ended = before.handoff is not None and lease.checkpoint_owner is None
    return owner is not None and (owner != before.owner or ended)


def _see_worker(worker: WorkerRow, before: WorkerObservation | None, now_s: float) -> WorkerObservation:
    if before is not None and before.last_update_s == worker.last_update_s:
        return before
    return WorkerObservation(worker.last_update_s, now_s, changed=before is not None)


def see_workers(
    workers: Iterable[WorkerRow], before: Mapping[WorkerId, WorkerObservation], now_s: float
) -> dict[WorkerId, WorkerObservation]:
    return {each.worker_id: _see_worker(each, before.get(each.worker_id), now_s) for each in workers}


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """What a daemon writes about itself in the state folder.

    With our boot id it was written on this host since that started. Then the kernel proves a death: a file lock held
    for the life of the process is free, or no process has that pid and start time (`started`, in clock ticks since
    boot). A copied file has another inode or device.
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
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> ProcessRecord | None:
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
    FREE = "free"  # and now ours
    HELD = "held"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ProcessObservation:
    """None means unknown. On a network file system (not `is_local`) a live process can lose its lock."""

    boot_id: str | None
    device: int
    inode: int
    lock: FileLockState
    is_local: bool
    running: bool | None


@dataclass(frozen=True, slots=True)
class ProvenDead:
    reason: str


@dataclass(frozen=True, slots=True)
class Unproven:
    """`may_change`: perhaps only its children still run, so check again soon."""

    reason: str
    may_change: bool = False


def judge_process(record: ProcessRecord, seen: ProcessObservation) -> ProvenDead | Unproven:
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
