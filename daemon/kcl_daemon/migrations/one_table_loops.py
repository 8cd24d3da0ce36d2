"""Takes part in the move of an application to one table, and advances it while leading.

KCL: TableMigrationStateMachineImpl.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias, assert_never

from kcl_daemon import faults
from kcl_daemon.config.tables import TablesSettings
from kcl_daemon.context import Wakeup, WorkerContext
from kcl_daemon.errors import AwsError
from kcl_daemon.fleet.elector import Elector
from kcl_daemon.fleet.monitor import FleetMonitor
from kcl_daemon.fleet.table_views import COORDINATOR_KINDS, WORKER_KINDS, RowKindTable, TableWrapper
from kcl_daemon.leases.layout import TableLayout, UnusableState
from kcl_daemon.leases.lease import Lease
from kcl_daemon.leases.row import Conditions, Row, RowUpdate, WriteResult
from kcl_daemon.metrics import kcl
from kcl_daemon.metrics.metric import Metric
from kcl_daemon.migrations.kcl2_rules import CLIENT_VERSION_CODEC as CLIENT_VERSION
from kcl_daemon.migrations.one_table_rules import (
    REFRESH_EVERY_S,
    TABLE_STATUS_CODEC,
    AdvanceStatus,
    CreateStatusRow,
    MigrationCompletion,
    MigrationReadiness,
    MigrationRow,
    MigrationStep,
    NoStep,
    RowBatch,
    RowWrite,
    SwitchOver,
    TableSide,
    TableStatus,
    WithdrawStatusRow,
    followed,
    migration_readiness,
)
from kcl_daemon.migrations.one_table_rules import next_migration_step as step
from kcl_daemon.ports import Clock, Meters, Table, TablePart, Tables, Transactions

_ORDINALS: Final = {status: number for number, status in enumerate(TableStatus, start=1)}
_UNKNOWN: Final = 0
_Write: TypeAlias = CreateStatusRow | WithdrawStatusRow | AdvanceStatus | RowBatch | MigrationCompletion
_FAULTS: Final[Mapping[type[_Write], Metric]] = {
    WithdrawStatusRow: kcl.TABLE_DELETE_FAULT,
    MigrationCompletion: kcl.TABLE_COMPLETE_FAULT,
}


def record_migration_status(meters: Meters, row: MigrationRow | UnusableState | None) -> None:
    status = _UNKNOWN if row is None or isinstance(row, UnusableState) else _ORDINALS[row.state]
    meters.add(kcl.TABLE_STATUS, status)


def record_migration_phases(meters: Meters, seen: MigrationReadiness, leases: Sequence[Lease]) -> None:
    owners = {lease.lease_owner for lease in leases if lease.lease_owner is not None}
    before = set(seen.unsupporting)
    first = set(seen.in_legacy) & owners - before
    meters.add(kcl.TABLE_BEFORE, len(before))
    meters.add(kcl.TABLE_PHASE_1, len(first))
    meters.add(kcl.TABLE_PHASE_2, len(owners - before - first))


class DualTable(TableWrapper):
    """Rows of one kind that move from their own table to the lease table (KCL: WorkerMetricStatsDAO).

    Callers see the key attribute of the old table. Reads try the old table first: rows only move from it to the
    lease table, so none is missed. `written` gets new rows.
    """

    def __init__(self, legacy: Table, leases: Table, *, written: Table) -> None:
        super().__init__(legacy)
        self._leases = leases
        self._written = written

    async def get(self, key: str) -> Row | None:
        row = await super().get(key)
        return row if row is not None else self._as_legacy(await self._leases.get(key))

    async def put(self, row: Row, require: Conditions = ()) -> WriteResult:
        if self._written is not self._leases:
            return await super().put(row, require)
        old, new = self._table.key_attribute, self._leases.key_attribute
        renamed = {new if name == old else name: value for name, value in row.items()}
        written = await self._leases.put(renamed, self._as_leases(require))
        return replace(written, row=self._as_legacy(written.row))

    async def update(self, update: RowUpdate) -> WriteResult:
        """Update the row where it is; without conditions, where new rows go."""
        in_leases = replace(update, require=self._as_leases(update.require))
        if update.require or self._written is not self._leases:
            written = await super().update(update)
            if written.applied or written.row is not None:
                return written
        written = await self._leases.update(in_leases)
        return replace(written, row=self._as_legacy(written.row))

    async def delete(self, key: str, require: Conditions = ()) -> WriteResult:
        """Delete the row where it is; without conditions, in both tables."""
        deleted = await super().delete(key, require)
        faults.maybe("after-old-row-deleted")
        if require and deleted.applied:
            return deleted
        in_leases = await self._leases.delete(key, self._as_leases(require))
        if deleted.row is not None and not in_leases.applied:
            return deleted
        return replace(in_leases, row=self._as_legacy(in_leases.row))

    def _as_leases(self, require: Conditions) -> Conditions:
        old, new = self._table.key_attribute, self._leases.key_attribute
        return tuple(
            replace(condition, attribute=new) if condition.attribute == old else condition
            for condition in require
        )

    def _as_legacy(self, row: Row | None) -> Row | None:
        if row is None:
            return None
        old, new = self._table.key_attribute, self._leases.key_attribute
        return {old if name == new else name: value for name, value in row.items()}


class LeaderLockTable(TableWrapper):
    """The lock is taken only after a check that it has not moved; AwsError if `is_here` cannot know."""

    def __init__(
        self, table: Table, is_here: Callable[[], Awaitable[bool]], on_taken: Callable[[], None]
    ) -> None:
        super().__init__(table)
        self._is_here = is_here
        self._on_taken = on_taken

    async def put(self, row: Row, require: Conditions = ()) -> WriteResult:
        """Refused with no row if the lock has moved, or had moved when the caller read it."""
        is_here = await self._is_here()
        taken = WriteResult(applied=False, row=None)
        if is_here and self._is_made_for(row, require):
            taken = await super().put(row, require)
        if taken.applied or not is_here:
            self._on_taken()
        return taken

    def _is_made_for(self, row: Row, require: Conditions) -> bool:
        """In the new table the condition that there is no lock would always hold."""
        key = self.key_attribute
        return key in row and any(condition.attribute == key for condition in require)


class TableRoutes:
    """The tables of an application as its loops see them.

    `tables` stays valid when routes change. During the move a scan of its `worker_metrics` returns only rows
    of the old table.
    """

    def __init__(self, separate: Tables, *, migrate_all: bool, clock: Clock) -> None:
        self.separate = separate
        self.migrate_all = migrate_all
        self.lock_taken = Wakeup(clock)
        """This worker took the lock, or found that it has moved."""
        self._worker_rows = TableWrapper(separate.worker_metrics)
        self._coordinator_rows = TableWrapper(separate.coordinator)
        self._reports = TableWrapper(separate.worker_metrics)
        self.lock = LeaderLockTable(separate.coordinator, self._lock_is_here, self.lock_taken.wake)
        self.tables = Tables(separate.leases, self._worker_rows, self._coordinator_rows)
        self.reports: Table = self._reports
        self.status = TableStatus.COMPLETE

    def route_to(self, layout: TableLayout, status: TableStatus) -> None:
        """`status` is this worker's at its start and decides where it writes."""
        self.status = status
        match layout:
            case TableLayout.SEPARATE:
                self._route_to_separate(to_leases=status in {TableStatus.PENDING, TableStatus.COMPLETE})
            case TableLayout.SINGLE:
                self.switch_over()
            case _:
                assert_never(layout)

    async def follow(self) -> MigrationRow | UnusableState | None:
        """Follow the row, except for the last step (`switch_over`). A UnusableState changes nothing."""
        row = TABLE_STATUS_CODEC.read(await self.separate.coordinator.get(TABLE_STATUS_CODEC.row_key))
        decided = followed(self.status, row, migrate_all=self.migrate_all)
        if isinstance(decided, UnusableState):
            return decided
        if decided is not TableStatus.COMPLETE:
            self.status = decided
        return row

    def switch_over(self) -> None:
        leases = self.separate.leases
        workers, coordinator = RowKindTable(leases, WORKER_KINDS), RowKindTable(leases, COORDINATOR_KINDS)
        self.status = TableStatus.COMPLETE
        self._worker_rows.route_to(workers)
        self._reports.route_to(workers)
        self._coordinator_rows.route_to(coordinator)
        self.lock.route_to(coordinator)

    def _route_to_separate(self, *, to_leases: bool) -> None:
        """Where rows are while there are several tables (KCL: WorkerMetricStatsDAO, CoordinatorStateDAO).

        A worker always writes to the table of its start status, so that rows do not move when leaders change
        their minds.
        """
        leases, workers, coordinator = (
            self.separate.leases,
            self.separate.worker_metrics,
            self.separate.coordinator,
        )
        self._worker_rows.route_to(DualTable(workers, leases, written=leases if to_leases else workers))
        self._reports.route_to(leases if to_leases else workers)
        self._coordinator_rows.route_to(
            DualTable(coordinator, leases, written=leases if to_leases else coordinator)
        )
        self.lock.route_to(coordinator)

    async def _lock_is_here(self) -> bool:
        """Runs before each attempt to lead: no worker may lead without knowing the status of the move."""
        if self.status is TableStatus.COMPLETE:
            return True
        row = await self.follow()
        if row is None or isinstance(row, UnusableState) or row.state is not TableStatus.COMPLETE:
            return True
        self.switch_over()
        return False


# The lock disappears at the end; this poll is for workers that do not lead.
_IDLE_POLL_S: Final = 300.0
_MOVING_POLL_S: Final = 10.0
# After so many failed reads a leader releases the lock.
_MAX_FAILURES: Final = 3
_MAX_POLL_S: Final = 30.0
_MAX_STEPS: Final = 20


class TableMigrator:
    def __init__(
        self,
        context: WorkerContext,
        *,
        routes: TableRoutes,
        settings: TablesSettings,
        elector: Elector,
        monitor: FleetMonitor,
        transactions: Transactions,
        report: Callable[[], Awaitable[object]],
        may_drive: Callable[[], bool],
    ) -> None:
        """The move advances only while `may_drive` is true: after the upgrade from 2.x.

        A rollback to 2.x brings back workers that fail on other rows in the lease table.
        """
        self._meters = context.meters
        self._routes = routes
        self._settings = settings
        self._elector = elector
        self._monitor = monitor
        self._transactions = transactions
        self._report_worker = report
        self._may_drive = may_drive
        self._context = context
        self._report_s = context.timings.report_s
        self._log = context.log
        self._failures = 0
        self._is_moving = settings.migrate_all
        self._reported: object = None

    async def run(self) -> None:
        if self._is_over:
            return
        await self._run_round()
        self._log.info(
            "table_migration_complete",
            advice="when all workers report this, the two old tables can be deleted",
        )
        await self._report_worker()  # the old table is no longer read

    @property
    def _is_over(self) -> bool:
        return self._routes.status is TableStatus.COMPLETE

    async def _run_round(self) -> None:
        while not self._is_over:
            try:
                with self._meters.operation(kcl.TABLE):
                    await self._poll()
                self._failures = 0
            except AwsError as error:
                await self._failed(error)
            if not self._is_over:
                await self._routes.lock_taken.wait(self._pause_s())

    async def _poll(self) -> None:
        row = await self._follow()
        record_migration_status(self._meters, row)
        if row is not None and not isinstance(row, UnusableState) and row.state is TableStatus.COMPLETE:
            await self._switch_over()
        elif self._elector.is_leader and self._may_drive():
            await self._drive(row)
        elif isinstance(row, UnusableState):
            self._refused(row)

    def _pause_s(self) -> float:
        if self._failures or (self._elector.is_leader and self._monitor.age_s is None):
            return _MOVING_POLL_S
        if self._elector.is_leader and self._settings.migrate_all:
            return _MOVING_POLL_S
        if self._settings.migrate_all:
            return REFRESH_EVERY_S
        return 2 * REFRESH_EVERY_S if self._elector.is_leader else _IDLE_POLL_S

    async def _drive(self, row: MigrationRow | UnusableState | None) -> None:
        for _ in range(_MAX_STEPS):
            if isinstance(row, UnusableState):
                self._refused(row)
                return
            seen = await self._survey(row)
            if seen is None:
                return
            # Without a request for a move the steps are bookkeeping of every application.
            pending = row is not None and row.state is TableStatus.PENDING
            self._is_moving = self._settings.migrate_all or pending
            record_migration_phases(self._meters, seen, self._monitor.leases)
            decided = step(
                seen,
                status=self._routes.status,
                migrate_all=self._settings.migrate_all,
                bake_s=self._settings.complete_bake_s,
                deploy_bake_s=self._settings.deploy_bake_s,
                me=self._context.worker_id,
                now_ms=self._context.clock.wall_ms(),
            )
            if not await self._carry_out(decided) or not self._elector.is_leader:
                return
            row = await self._follow()

    async def _survey(self, row: MigrationRow | None) -> MigrationReadiness | None:
        monitor = self._monitor
        reports = monitor.reports()
        if monitor.age_s is None or monitor.age_s > _MAX_POLL_S or reports is None:
            return None
        moving = self._settings.migrate_all and row is not None and row.state is not TableStatus.INIT
        return migration_readiness(
            row=row,
            leases=monitor.leases,
            legacy_workers=reports[0],
            workers=reports[1],
            legacy_rows=await self._old_rows() if moving else (),
            wall_s=self._context.clock.wall_ms() / 1000,
            report_s=self._report_s,
        )

    async def _old_rows(self) -> list[Row]:
        """A scan may be stale, so the important row is read by key."""
        table = self._routes.separate.coordinator

        async def read() -> list[Row]:
            known = await table.get(CLIENT_VERSION.row_key)
            rows = [row for row in await table.scan() if row[table.key_attribute] != CLIENT_VERSION.row_key]
            return rows if known is None else [known, *rows]

        return await self._context.call(read(), "Scan", timeout_s=2 * self._context.timings.call_s)

    async def _carry_out(self, decided: MigrationStep) -> bool:
        match decided:
            case NoStep(reason):
                self._report(reason)
            case UnusableState():
                self._refused(decided)
            case SwitchOver():
                await self._switch_over()
            case _:
                applied = await self._counted(decided)
                if applied:
                    report = self._log.info if self._is_moving else self._log.debug
                    report("table_migration_step", reason=decided.reason, **_facts(decided))
                return applied
        return False

    async def _counted(self, decided: _Write) -> bool:
        if isinstance(decided, RowBatch):
            self._meters.add(kcl.TABLE_MOVE_BATCHES)
            with self._meters.operation(kcl.TABLE_MOVE):
                return await self._write(decided)
        try:
            return await self._write(decided)
        except AwsError:
            self._meters.add(_FAULTS.get(type(decided), kcl.TABLE_WRITE_FAULT))
            raise

    async def _write(self, decided: _Write) -> bool:
        table = self._routes.separate.coordinator
        match decided:
            case CreateStatusRow(creation):
                written = await self._context.call(table.put(creation.row, creation.require))
            case WithdrawStatusRow(key, require):
                written = await self._context.call(table.delete(key, require))
            case AdvanceStatus(update):
                written = await self._context.call(table.update(update))
            case RowBatch(parts) | MigrationCompletion(parts):
                return await self._commit(parts)
            case _:
                assert_never(decided)
        faults.maybe("after-table-move-step")
        return written.applied

    async def _commit(self, parts: tuple[RowWrite, ...]) -> bool:
        places = {
            TableSide.LEGACY: self._routes.separate.coordinator,
            TableSide.LEASES: self._routes.separate.leases,
        }
        placed = [TablePart(places[part.place], part.what) for part in parts]
        committed = await self._context.call(self._transactions.commit(placed))
        faults.maybe("after-rows-moved")
        if not committed.applied:
            self._log.warning(
                "table_migration_step_refused",
                parts=[f"{placed[number].table.name}: {parts[number].what}" for number in committed.refused],
                advice="another leader was faster, or both tables have a row with this key; the daemon tries "
                "again",
            )
        return committed.applied

    async def _switch_over(self) -> None:
        """Release the lock first: a leader by the old lock must stop."""
        await self._elector.resign()
        self._routes.switch_over()

    async def _follow(self) -> MigrationRow | UnusableState | None:
        try:
            return await self._context.call(self._routes.follow())
        except AwsError:
            self._meters.add(kcl.TABLE_READ_FAULT)
            raise

    async def _failed(self, error: AwsError) -> None:
        self._failures += 1
        self._log.warning("table_migration_unreadable", error=str(error), failures=self._failures)
        if self._failures >= _MAX_FAILURES and self._elector.is_leader:
            self._failures = 0
            await self._elector.resign()

    def _refused(self, refusal: UnusableState) -> None:
        if refusal != self._reported:
            self._log.error("table_migration_stuck", error=refusal.problem, advice=refusal.advice)
        self._reported = refusal

    def _report(self, reason: str) -> None:
        kind = "".join(each for each in reason if not each.isdigit())
        report = self._log.info if self._is_moving and kind != self._reported else self._log.debug
        report("table_migration_waits", reason=reason)
        self._reported = kind


def _facts(decided: _Write) -> dict[str, object]:
    match decided:
        case CreateStatusRow():
            return {"to": str(TableStatus.INIT)}
        case AdvanceStatus(_, to):
            return {"to": str(to)}
        case MigrationCompletion():
            return {"to": str(TableStatus.COMPLETE)}
        case WithdrawStatusRow(key):
            return {"deleted": key}
        case RowBatch(_, keys):
            return {"moved": list(keys)}
        case _:
            assert_never(decided)
