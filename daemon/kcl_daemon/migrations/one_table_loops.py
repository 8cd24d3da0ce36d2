"""Advances the move of an application to one table while leading (KCL: TableMigrationStateMachineImpl)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias, assert_never

from kcl_daemon import faults
from kcl_daemon.config.tables import TablesSettings
from kcl_daemon.context import WorkerContext
from kcl_daemon.errors import AwsError
from kcl_daemon.fleet.client_version import CLIENT_VERSION_CODEC as CLIENT_VERSION
from kcl_daemon.fleet.elector import Elector
from kcl_daemon.fleet.monitor import FleetMonitor
from kcl_daemon.fleet.table_views import TableRoutes
from kcl_daemon.leases.layout import MigrationRow, TableStatus, UnusableState
from kcl_daemon.leases.lease import Lease
from kcl_daemon.leases.row import Row
from kcl_daemon.metrics import kcl
from kcl_daemon.metrics.metric import Metric
from kcl_daemon.migrations.one_table_rules import (
    REFRESH_EVERY_S,
    AdvanceStatus,
    CreateStatusRow,
    MigrationCompletion,
    MigrationReadiness,
    MigrationStep,
    NoStep,
    RowBatch,
    RowWrite,
    SwitchOver,
    TableSide,
    WithdrawStatusRow,
    migration_readiness,
)
from kcl_daemon.migrations.one_table_rules import next_migration_step as step
from kcl_daemon.ports import Meters, TablePart, Transactions

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
        """The move advances only while `may_drive`: a rollback to 2.x brings back workers that fail on other rows."""
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
