"""Takes up at once what daemons that were killed on this host have left: their leases, their lock, their row.

Owns what is known of records in the state folder; `leases.predecessor` judges. Every write is conditional on the row as it
was read, and none is made without a proof: leases of other hosts are never touched. The guard of a killed daemon holds its
lock until its children are gone, so no shard gets a second reader before that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import anyio

from kcl_daemon.coordination.elector import Elector
from kcl_daemon.coordination.timings import Timings
from kcl_daemon.errors import AwsError, Unavailable
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import Lease, WorkerId
from kcl_daemon.leases.predecessor import Dead, ProcessRecord, judge
from kcl_daemon.leases.stats import Incarnation, incarnation_of
from kcl_daemon.leases.table import Row, RowUpdate, Written
from kcl_daemon.ports import Clock, Log, Tables
from kcl_daemon.ports_state import StateFolder

_LOOK_S: Final = 0.1
# A guard ends children a second after their daemon.
_PATIENCE_S: Final = 5.0
_FOLDER_S: Final = 2.0
_RETRY_S: Final = 1.0
_RETRIES_MOST: Final = 10
_WRITES_AT_ONCE: Final = 10
# A write of the dead process may still arrive between our read and our write.
_TRIES_MOST: Final = 3


class Predecessors:
    """Used by one worker, at its start.

    Args:
        folder: None: there is none, and nothing is ever proven.
        room: how many more leases we may hold.
        on_taken: called with each lease that we took, and the monotonic seconds before that write.
        on_same_id: called when there are leases of our own worker id to be found.
    """

    def __init__(
        self,
        *,
        folder: StateFolder | None,
        tables: Tables,
        worker_id: WorkerId,
        mine: Incarnation,
        elector: Elector,
        room: Callable[[], int],
        on_taken: Callable[[Lease, float], None],
        on_same_id: Callable[[], None],
        clock: Clock,
        timings: Timings,
        log: Log,
    ) -> None:
        self._folder = folder
        self._tables = tables
        self._me = worker_id
        self._mine = mine
        self._elector = elector
        self._room = room
        self._on_taken = on_taken
        self._on_same_id = on_same_id
        self._clock = clock
        self._timings = timings
        self._log = log
        self._dead: dict[str, ProcessRecord] = {}
        self._open: set[str] = set()
        self._told: set[str] = set()
        self._confirmed: set[str] = set()
        self._room_left = 0
        self.may_change = False
        """Whether a process is gone of which something is still there, so that its death may be proven soon."""

    def is_dead(self, nonce: str) -> bool:
        """Whether the process with this nonce is proven dead."""
        return any(record.incarnation == nonce for record in self._dead.values())

    async def enter(self) -> None:
        """Leave word of ourselves, and look for others. Never raises; a folder that hangs costs a moment."""
        if self._folder is not None:
            with self._clock.move_on_after(_FOLDER_S):
                await self._folder.enter(self._me, self._mine.nonce)
            await self.look()

    async def leave(self) -> None:
        """We have given everything up."""
        if self._folder is not None:
            with self._clock.move_on_after(_FOLDER_S):
                await self._folder.leave()

    async def look(self) -> None:
        """See who is proven dead by now."""
        self.may_change = False
        if self._folder is None:
            return
        with self._clock.move_on_after(_FOLDER_S):
            for found in await self._folder.look():
                if found.name in self._dead:
                    continue
                verdict = judge(found.record, found.seen)
                if isinstance(verdict, Dead):
                    self._dead[found.name] = found.record
                    self._open.add(found.name)
                    self._log.info(
                        "predecessor_dead", former_worker_id=found.record.worker_id, reason=verdict.reason
                    )
                    continue
                # Only one whose process is gone leaves a lock that others still hold for a moment.
                self.may_change |= verdict.may_change and found.seen.running is not True
                if not verdict.may_change:
                    self._tell_unproven(found.name, found.record, verdict.reason)
                    await self._folder.leave_alone(found.name)

    def _tell_unproven(self, name: str, record: ProcessRecord, reason: str) -> None:
        if name not in self._told:
            self._told.add(name)
            self._log.info("predecessor_not_proven_dead", former_worker_id=record.worker_id, reason=reason)

    async def run(self) -> None:
        """Take up what the dead have left; returns when that is done. Never raises for AWS: what is left expires."""
        ends_s = self._clock.monotonic() + _PATIENCE_S
        failures = 0
        while True:
            for name in sorted(self._open):
                try:
                    await self._succeed(self._dead[name])
                except AwsError as error:
                    failures += 1
                    self._log.warning(
                        "succession_failed", error=str(error), advice="the remaining leases expire"
                    )
                    await self._clock.sleep(_RETRY_S)
                    continue
                self._open.discard(name)
                if self._folder is not None:
                    await self._folder.forget(name)
            is_late = self._clock.monotonic() > ends_s
            if failures >= _RETRIES_MOST or not (self._open or (self.may_change and not is_late)):
                return
            await self._clock.sleep(_LOOK_S)
            await self.look()

    async def _succeed(self, record: ProcessRecord) -> None:
        former = record.worker_id
        # In this order: whoever has taken that worker id since has written its row before anything else.
        rows = await self._tables.leases.scan()
        lock = await self._elector.lock_now()
        if former != self._me and record.incarnation not in self._confirmed:
            if not await self._row_is_of(record):
                return
            self._confirmed.add(record.incarnation)
        if lock is not None and lock.owner == former:
            self._elector.succeed(lock)
        leases = [lease for row in rows if (lease := _held(row)) is not None and lease.actual_owner == former]
        await self._take_all(leases, former)
        if former == self._me:
            self._on_same_id()
        self._log.info("predecessor_succeeded", former_worker_id=former, leases=len(leases))

    async def _row_is_of(self, record: ProcessRecord) -> bool:
        """Whether no other process has taken the worker id since; if so, the row is gone.

        Before anything else: it looks alive for a minute, and a leader would hand leases over to it.
        """
        table, former = self._tables.worker_metrics, record.worker_id
        row = await table.get(former)
        found = None if row is None else incarnation_of(row)
        if found is not None and found.nonce == record.incarnation:
            deleted = await table.delete(former, found.is_that_of_the_row)
            if deleted.applied:
                return True
        reason = "its row is gone" if row is None else "its row now belongs to another process"
        self._log.info("predecessor_has_nothing", former_worker_id=former, reason=reason)
        return False

    async def _take_all(self, leases: list[Lease], former: WorkerId) -> None:
        limiter, failures = anyio.CapacityLimiter(_WRITES_AT_ONCE), list[AwsError]()
        self._room_left = self._room()

        async def take(lease: Lease) -> None:
            async with limiter:
                try:
                    await self._take(lease, former)
                except AwsError as error:
                    failures.append(error)

        async with anyio.create_task_group() as takes:
            for lease in leases:
                # Of our own worker id we find the others by ourselves.
                if former != self._me or lease.checkpoint_owner is not None:
                    takes.start_soon(take, lease)
        if failures:
            raise failures[0]

    async def _take(self, lease: Lease, former: WorkerId) -> None:
        """One lease: ours from now on, or that of whom it was on its way to."""
        for _ in range(_TRIES_MOST):
            began_s = self._clock.monotonic()
            written = await self._update(self._write_for(lease))
            after = None if written.row is None else _held(written.row)
            if after is None:
                return
            if written.applied:
                self._log.info("lease_taken_from_dead", lease_key=lease.lease_key, to=after.lease_owner)
                if after.lease_owner == self._me:
                    self._on_taken(after, began_s)
                return
            if after.actual_owner != former:
                return
            lease = after

    def _write_for(self, lease: Lease) -> RowUpdate:
        if lease.checkpoint_owner is not None and lease.lease_owner is not None:
            return lease_row.assignment(lease, lease.lease_owner, only_if_untouched=True)
        if self._room_left <= 0:
            return lease_row.release(lease)
        self._room_left -= 1
        return lease_row.assignment(lease, self._me, only_if_untouched=True)

    async def _update(self, update: RowUpdate) -> Written:
        with self._clock.move_on_after(self._timings.call_s):
            return await self._tables.leases.update(update)
        raise Unavailable(f"no answer within {self._timings.call_s:g} s", operation="UpdateItem")


def _held(row: Row) -> Lease | None:
    """The lease in a row, if somebody may hold it."""
    if not lease_row.is_lease_row(row):
        return None
    try:
        lease = lease_row.lease_from_row(row)
    except lease_row.MalformedRowError:
        return None  # looks of the leader report it
    return None if lease.is_finished else lease
