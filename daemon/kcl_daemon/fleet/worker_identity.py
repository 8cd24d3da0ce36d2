"""Takes over from daemons killed on this host, and detects two processes with one worker id.

Both leave the same rows: only proof, or a failover time without change, tells them apart. `Predecessors` needs proof, and ignores
other hosts. The guard of a killed daemon keeps its lock until the children are gone, so no shard gets a second reader.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import anyio

from kcl_daemon import faults
from kcl_daemon.assignment.plan import WorkerLeases
from kcl_daemon.context import WorkerContext, for_each, raise_first
from kcl_daemon.errors import AccessDenied, AwsError, TableNotFound, WorkerIdTaken
from kcl_daemon.fleet.elector import Elector
from kcl_daemon.host_ports import StateFolder
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.expiry import ProcessRecord, ProvenDead, judge_process
from kcl_daemon.leases.leader import LEADER_KEY, lock_from_row
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.row import Row, RowUpdate, WriteResult
from kcl_daemon.leases.worker_row import Incarnation, incarnation_of, worker_from_row
from kcl_daemon.ports import Tables

_POLL_S: Final = 0.1
_PATIENCE_S: Final = 5.0
_FOLDER_S: Final = 2.0
_RETRY_S: Final = 1.0
_MAX_RETRIES: Final = 10
_MAX_PARALLEL_WRITES: Final = 10
# A write of the dead process may still arrive between our read and our write.
_MAX_ATTEMPTS: Final = 3


class Predecessors:
    """Without a `folder` nothing is ever proven. `held`: our own leases."""

    def __init__(
        self,
        context: WorkerContext,
        *,
        folder: StateFolder | None,
        tables: Tables,
        mine: Incarnation,
        elector: Elector,
        held: Callable[[], WorkerLeases],
        on_taken: Callable[[Lease, float], None],
        on_same_id: Callable[[], None],
    ) -> None:
        self._context = context
        self._folder = folder
        self._tables = tables
        self._me = context.worker_id
        self._mine = mine
        self._elector = elector
        self._held = held
        self._on_taken = on_taken
        self._on_same_id = on_same_id
        self._clock = context.clock
        self._log = context.log
        self._dead: dict[str, ProcessRecord] = {}
        self._open: set[str] = set()
        self._reported: set[str] = set()
        self._confirmed: set[str] = set()
        self.may_change = False
        """A process has ended but its lock is still held: proof may come soon."""

    def is_dead(self, nonce: str) -> bool:
        return any(record.incarnation == nonce for record in self._dead.values())

    async def enter(self) -> None:
        """Never raises; a hanging folder delays it only briefly."""
        if self._folder is not None:
            with self._clock.move_on_after(_FOLDER_S):
                await self._folder.enter(self._me, self._mine.nonce)
            await self.poll()

    async def leave(self) -> None:
        if self._folder is not None:
            with self._clock.move_on_after(_FOLDER_S):
                await self._folder.leave()

    async def poll(self) -> None:
        self.may_change = False
        if self._folder is None:
            return
        with self._clock.move_on_after(_FOLDER_S):
            for found in await self._folder.poll():
                if found.name in self._dead:
                    continue
                verdict = judge_process(found.record, found.seen)
                if isinstance(verdict, ProvenDead):
                    self._dead[found.name] = found.record
                    self._open.add(found.name)
                    self._log.info(
                        "predecessor_dead", former_worker_id=found.record.worker_id, reason=verdict.reason
                    )
                    continue
                self.may_change |= verdict.may_change and found.seen.running is not True
                if not verdict.may_change:
                    self._log_unproven(found.name, found.record, verdict.reason)
                    await self._folder.leave_alone(found.name)

    def _log_unproven(self, name: str, record: ProcessRecord, reason: str) -> None:
        if name not in self._reported:
            self._reported.add(name)
            self._log.info("predecessor_not_proven_dead", former_worker_id=record.worker_id, reason=reason)

    async def run(self) -> None:
        """Never raises for AWS: other leases expire."""
        ends_s = self._clock.monotonic() + _PATIENCE_S
        failures = 0
        while True:
            for name in sorted(self._open):
                try:
                    await self._take_over_from(self._dead[name])
                except AwsError as error:
                    failures += 1
                    self._log.warning(
                        "predecessor_takeover_failed", error=str(error), advice="the remaining leases expire"
                    )
                    await self._clock.sleep(_RETRY_S)
                    continue
                self._open.discard(name)
                if self._folder is not None:
                    await self._folder.forget(name)
            is_late = self._clock.monotonic() > ends_s
            if failures >= _MAX_RETRIES or not (self._open or (self.may_change and not is_late)):
                return
            await self._clock.sleep(_POLL_S)
            await self.poll()

    async def _take_over_from(self, record: ProcessRecord) -> None:
        former = record.worker_id
        # In this order: a new process under that worker id writes its row first.
        rows = await self._tables.leases.scan()
        lock = await self._elector.read_lock()
        if former != self._me and record.incarnation not in self._confirmed:
            if not await self._row_is_of(record):
                return
            self._confirmed.add(record.incarnation)
        if lock is not None and lock.owner == former:
            self._elector.take_over_from(lock)
        leases = [
            lease for row in rows if (lease := _unfinished(row)) is not None and lease.actual_owner == former
        ]
        await self._take_all(leases, former)
        if former == self._me:
            self._on_same_id()
        self._log.info("predecessor_taken_over", former_worker_id=former, leases=len(leases))

    async def _row_is_of(self, record: ProcessRecord) -> bool:
        """Then its row is deleted, first of all: it looks alive for a minute, and a leader would assign leases to it."""
        table, former = self._tables.worker_metrics, record.worker_id
        row = await table.get(former)
        found = None if row is None else incarnation_of(row)
        if found is not None and found.nonce == record.incarnation:
            deleted = await table.delete(former, found.is_that_of_the_row)
            if deleted.applied:
                faults.maybe("after-dead-row-deleted")
                return True
        reason = "its row is gone" if row is None else "its row now belongs to another process"
        self._log.info("predecessor_has_nothing", former_worker_id=former, reason=reason)
        return False

    async def _take_all(self, leases: list[Lease], former: WorkerId) -> None:
        mine = self._held()
        theirs = [lease for lease in leases if former != self._me or lease.checkpoint_owner is not None]
        raise_first(
            await for_each(
                theirs, lambda lease: self._take(lease, former, mine), at_once=_MAX_PARALLEL_WRITES
            )
        )

    async def _take(self, lease: Lease, former: WorkerId, mine: WorkerLeases) -> None:
        for _ in range(_MAX_ATTEMPTS):
            began_s = self._clock.monotonic()
            written = await self._update(self._write_for(lease, mine))
            after = _unfinished(written.row)
            if after is None:
                return
            if written.applied:
                faults.maybe("after-lease-taken-from-dead")
                self._log.info("lease_taken_from_dead", lease_key=lease.lease_key, to=after.lease_owner)
                if after.lease_owner == self._me:
                    self._on_taken(after, began_s)
                return
            if after.actual_owner != former:
                return
            lease = after

    def _write_for(self, lease: Lease, mine: WorkerLeases) -> RowUpdate:
        if lease.checkpoint_owner is not None and lease.lease_owner is not None:
            return self._assignment(lease, lease.lease_owner)
        if not mine.has_room(lease):
            return lease_row.release(lease)
        mine.count(lease)
        return self._assignment(lease, self._me)

    def _assignment(self, lease: Lease, to: WorkerId) -> RowUpdate:
        update = lease_row.assignment(lease, to, only_if_untouched=True)
        return lease_row.claimed(update, lease, self._context.service_ms) if to == self._me else update

    async def _update(self, update: RowUpdate) -> WriteResult:
        return await self._context.call(self._tables.leases.update(update), "UpdateItem")


def _unfinished(row: Row | None) -> Lease | None:
    lease = lease_row.readable_lease(row)
    return None if lease is None or lease.is_finished else lease


# An older row is a dead process's, even if clocks differ by minutes.
_OLD_S: Final = 600
_MAX_LEASES: Final = 5
# Children and lock of a killed daemon are gone after about a second.
_CONFIRM_S: Final = 5.0
_SOON_S: Final = 0.2
_LOG_AGAIN_S: Final = 60.0
_FORGOTTEN_S: Final = 600.0
_APART_S: Final = 1.0
_ADVICE: Final = (
    "each running worker needs its own workerId: remove workerId from the properties file so that one "
    "is generated, or stop the other process"
)

_ALLOW: Final = "grant dynamodb:GetItem on the three tables; kcl-daemon iam-policy prints the policy"


@dataclass(frozen=True, slots=True)
class _WorkerActivity:
    incarnation: Incarnation | None
    reported_s: int
    lock_version: str | None
    counters: tuple[tuple[LeaseKey, int], ...]


class DuplicateWorkerDetector:
    def __init__(
        self,
        context: WorkerContext,
        *,
        tables: Tables,
        mine: Incarnation,
        predecessors: Predecessors,
        on_newer_worker: Callable[[WorkerIdTaken], None],
        refuses: bool = False,
    ) -> None:
        self._tables = tables
        self._me = context.worker_id
        self._mine = mine
        self._predecessors = predecessors
        self._clock = context.clock
        self._timings = context.timings
        self._log = context.log
        self._on_younger = on_newer_worker
        self._refuses = refuses
        self._reported_s: float | None = None
        self._lost_s: float | None = None
        self.stands_aside = False

    async def settle(self, stop: anyio.Event) -> None:
        """Return when no other process with our worker id lives, or on `stop`.

        Without proof that the writer is dead, wait for a failover time without change.

        Raises:
            WorkerIdTaken: another process lives, and this one `refuses` to wait.
        """
        seen, since_s, waits = None, 0.0, False
        patient_until_s = self._clock.monotonic() + _CONFIRM_S
        while not stop.is_set():
            now_s = self._clock.monotonic()
            try:
                traces = await self._traces()
            except AccessDenied as error:
                self._log.warning("worker_id_not_checked", error=str(error), advice=_ALLOW)
                return
            if traces is None or self._is_dead(traces.incarnation):
                return
            if seen is None or traces != seen:
                if seen is not None and self._refuses:
                    raise WorkerIdTaken(f"workerId {self._me} is used by another running process")
                if seen is not None:
                    self._report(
                        f"it is active: {_difference(seen, traces)}",
                        does="this one waits until the other has ended",
                    )
                seen, since_s = traces, now_s
            elif now_s - since_s > self._timings.failover_s:
                self._log.info("worker_id_free", still_s=round(now_s - since_s, 1))
                return
            if not waits:
                waits = True
                self._log.info("worker_id_in_doubt", waits_s=self._timings.failover_s)
            soon = self._predecessors.may_change and now_s < patient_until_s
            with self._clock.move_on_after(_SOON_S if soon else self._timings.poll_s / 2):
                await stop.wait()
            if soon:
                await self._predecessors.poll()

    def is_seen(self, other: Incarnation) -> bool:
        """Whether we stop: the process that started later does."""
        self.stands_aside = self.stands_aside or other < self._mine
        if not self.stands_aside:
            self._report(
                "it has written this worker's row",
                does="this one continues: the other started later and stops",
            )
            return False
        self._report("it has written this worker's row", does="this one started later and stops")
        self._on_younger(WorkerIdTaken(f"workerId {self._me} is used by another running process"))
        return True

    def lease_lost(self) -> None:
        """For each lease lost to our own worker id; the first may be chance."""
        now_s, before_s = self._clock.monotonic(), self._lost_s
        if before_s is not None and now_s - before_s < _APART_S:
            return
        self._lost_s = now_s
        if before_s is not None and now_s - before_s < _FORGOTTEN_S:
            self._report(
                "it has written leases that this one holds", does="both keep taking each other's leases"
            )

    def _is_dead(self, incarnation: Incarnation | None) -> bool:
        return incarnation is not None and self._predecessors.is_dead(incarnation.nonce)

    def _report(self, seen: str, *, does: str) -> None:
        now_s = self._clock.monotonic()
        if self._reported_s is None or now_s - self._reported_s >= _LOG_AGAIN_S:
            self._reported_s = now_s
            self._log.error("worker_id_used_twice", seen=seen, does=does, advice=_ADVICE)

    async def _traces(self) -> _WorkerActivity | None:
        table = self._tables.worker_metrics
        row = await table.get(self._me)
        worker = None if row is None else worker_from_row(row, key_attribute=table.key_attribute)
        if row is None or worker is None or abs(self._clock.wall_ms() / 1000 - worker.last_update_s) > _OLD_S:
            return None
        lock = lock_from_row(await self._tables.coordinator.get(LEADER_KEY))
        return _WorkerActivity(
            incarnation_of(row),
            worker.last_update_s,
            lock.version if lock is not None and lock.owner == self._me else None,
            await self._counters(),
        )

    async def _counters(self) -> tuple[tuple[LeaseKey, int], ...]:
        found: list[tuple[LeaseKey, int]] = []
        for key in await self._keys():
            row = await self._tables.leases.get(key)
            lease = _unfinished(row)
            if lease is not None and lease.actual_owner == self._me:
                found.append((lease.lease_key, lease.lease_counter))
        return tuple(found)

    async def _keys(self) -> list[str]:
        try:
            return sorted(await self._tables.leases.owned_keys(self._me))[:_MAX_LEASES]
        except TableNotFound:
            return []


def _difference(before: _WorkerActivity, after: _WorkerActivity) -> str:
    if before.counters != after.counters:
        return "it has renewed a lease"
    if before.lock_version != after.lock_version:
        return "it has renewed the leader's lock"
    return "it has written this worker's row"
