"""Takes part in the move of an application into one table, and brings it forward while this worker leads.

(KCL: TableMigrationStateMachineImpl.) Owns the pace of the looks and the carrying out of steps; which step is next is
decided in `leases.table_migration_steps`, where rows are is known by `table_routes`. In an application with one table
nothing of this runs.

What is told of the move into one table (KCL: the figures of TableMigrationStateMachineImpl).

Tables while an application moves from three tables to one: rows that may be in either of two, and the leader's lock.

Owns where a row is looked for and written. Knows nothing of how far the move is (`table_routes`).

Where the calls of the loops go: in which table each kind of row is, also while an application moves into one table.

Owns the status of that move as this worker knows it, and the routes that follow from it. Which layout there is at the
start is not decided here (`table_survey`), nor what a leader does to move it on (`table_migrator`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, TypeVar, assert_never

from kcl_daemon.config.tables import TablesSettings
from kcl_daemon.errors import AwsError, Unavailable
from kcl_daemon.fleet.elector import Elector
from kcl_daemon.fleet.monitor import FleetMonitor
from kcl_daemon.fleet.table_views import (
    COORDINATOR_KINDS,
    WORKER_KINDS,
    RoutedTable,
    RowKindTable,
    TableWrapper,
)
from kcl_daemon.fleet.timings import Wakeup
from kcl_daemon.leases.layout import StateRefusal, TableLayout
from kcl_daemon.leases.lease import Lease, WorkerId
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
    routing,
)
from kcl_daemon.migrations.one_table_rules import next_migration_step as step
from kcl_daemon.ports import NO_METERS, Clock, Log, Meters, Table, TablePart, Tables, Transactions

_ORDINALS: Final = {status: number for number, status in enumerate(TableStatus, start=1)}
_UNKNOWN: Final = 0


def record_migration_status(meters: Meters, row: MigrationRow | StateRefusal | None) -> None:
    """How far it is by the row that was just read."""
    match row:
        case None | StateRefusal():
            meters.add(kcl.TABLE_STATUS, _UNKNOWN)
        case _:
            meters.add(kcl.TABLE_STATUS, _ORDINALS[row.state])


def record_migration_phases(meters: Meters, seen: MigrationReadiness, leases: Sequence[Lease]) -> None:
    """How many lease owners do not know the single table, know it, and report to it."""
    owners = {lease.lease_owner for lease in leases if lease.lease_owner is not None}
    before = set(seen.unsupporting)
    first = set(seen.in_legacy) & owners - before
    meters.add(kcl.TABLE_BEFORE, len(before))
    meters.add(kcl.TABLE_PHASE_1, len(first))
    meters.add(kcl.TABLE_PHASE_2, len(owners - before - first))


@contextmanager
def faults(meters: Meters, step: MigrationStep) -> Generator[None, None, None]:
    """Around the writing of a step; an error goes on."""
    match step:
        case RowBatch():
            meters.add(kcl.TABLE_MOVE_BATCHES)
            with meters.operation(kcl.TABLE_MOVE):
                yield
        case _:
            try:
                yield
            except AwsError:
                meters.add(_fault_of(step))
                raise


def _fault_of(step: MigrationStep) -> Metric:
    match step:
        case WithdrawStatusRow():
            return kcl.TABLE_DELETE_FAULT
        case MigrationCompletion():
            return kcl.TABLE_COMPLETE_FAULT
        case _:
            return kcl.TABLE_WRITE_FAULT


class DualTable(TableWrapper):
    """Rows of one kind that are carried from a table of their own into the lease table (KCL: WorkerMetricStatsDAO).

    Rows look as those of the old table wherever they are, also in their key. A row is looked for in the old table
    first: it is only ever carried the other way, so that none is missed.

    Args:
        legacy: the old table.
        leases: the lease table.
        written: which of the two gets new rows.
    """

    def __init__(self, legacy: Table, leases: Table, *, written: Table) -> None:
        super().__init__(legacy)
        self._leases = leases
        self._written = written

    async def get(self, key: str) -> Row | None:
        """As the port says."""
        row = await super().get(key)
        return row if row is not None else self._as_legacy(await self._leases.get(key))

    async def scan(self) -> list[Row]:
        """The rows of the old table only; those of the lease table come with any scan of that one."""
        return await super().scan()

    async def put(self, row: Row, require: Conditions = ()) -> WriteResult:
        """As the port says, for new rows; the conditions are on the table that gets them."""
        if self._written is not self._leases:
            return await super().put(row, require)
        old, new = self._table.key_attribute, self._leases.key_attribute
        renamed = {new if name == old else name: value for name, value in row.items()}
        written = await self._leases.put(renamed, self._as_leases(require))
        return replace(written, row=self._as_legacy(written.row))

    async def update(self, update: RowUpdate) -> WriteResult:
        """As the port says, where the row is; without conditions, where new rows go."""
        in_leases = replace(update, require=self._as_leases(update.require))
        if update.require or self._written is not self._leases:
            written = await super().update(update)
            if written.applied or written.row is not None:
                return written
        written = await self._leases.update(in_leases)
        return replace(written, row=self._as_legacy(written.row))

    async def delete(self, key: str, require: Conditions = ()) -> WriteResult:
        """As the port says, where the row is; without conditions, in both."""
        deleted = await super().delete(key, require)
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


class LeaderLockTable(RoutedTable):
    """The table of the leader's lock, which nobody takes without having seen that the lock is still there.

    Args:
        table: where it is at first.
        is_here: whether the lock is still in the table that calls are led to now; AwsError where that cannot be known.
    """

    def __init__(self, table: Table, is_here: Callable[[], Awaitable[bool]]) -> None:
        super().__init__(table)
        self._is_here = is_here
        self._on_taken: Callable[[], None] | None = None

    def on_taken(self, callback: Callable[[], None]) -> None:
        """Have a function called when the lock was taken, or was found to be elsewhere."""
        self._on_taken = callback

    async def put(self, row: Row, require: Conditions = ()) -> WriteResult:
        """Take the lock; refused without a row where it is elsewhere by now, or was when the caller looked at it."""
        is_here = await self._is_here()
        taken = WriteResult(applied=False, row=None)
        if is_here and self._is_made_for(row, require):
            taken = await super().put(row, require)
        if self._on_taken is not None and (taken.applied or not is_here):
            self._on_taken()
        return taken

    def _is_made_for(self, row: Row, require: Conditions) -> bool:
        """Whether row and conditions are of the table that calls lead to now.

        The condition that there is no lock in the old table would hold in the new one, whoever has it.
        """
        key = self.key_attribute
        return key in row and any(condition.attribute == key for condition in require)


class TableRoutes:
    """The tables of an application as its loops see them.

    Args:
        separate: the three of the separate layout.
        migrate_all: `migrateAllEntitiesToLeaseTable`.

    Attributes:
        tables: for the loops; may be handed out before `route_to` and used after it. While an application moves, a scan
            of `worker_metrics` gives the rows of the old table only.
        lock: the table of the leader's lock.
        reports: the table to which this worker reports.
        separate: the old tables themselves.
        migrate_all: as given.
        status: how far this worker is.
    """

    def __init__(self, separate: Tables, *, migrate_all: bool) -> None:
        self.separate = separate
        self.migrate_all = migrate_all
        self._worker_rows = RoutedTable(separate.worker_metrics)
        self._coordinator_rows = RoutedTable(separate.coordinator)
        self._reports = RoutedTable(separate.worker_metrics)
        self._lock = LeaderLockTable(separate.coordinator, self._lock_is_here)
        self.tables = Tables(separate.leases, self._worker_rows, self._coordinator_rows)
        self.reports: Table = self._reports
        self.status = TableStatus.COMPLETE

    @property
    def lock(self) -> LeaderLockTable:
        """The table of the leader's lock."""
        return self._lock

    def route_to(self, layout: TableLayout, status: TableStatus) -> None:
        """Lead all calls from now on to a layout.

        Args:
            layout: where the rows are.
            status: of this worker at its start; decides where it writes as long as it runs.
        """
        self.status = status
        match layout:
            case TableLayout.SEPARATE:
                self._route_to_separate(routing(status, status).metrics_written)
            case TableLayout.SINGLE:
                self.switch_over()
            case _:
                assert_never(layout)

    async def follow(self) -> MigrationRow | StateRefusal | None:
        """Read the row `TableMigration3.5` and follow it, but for the last step, which `switch_over` makes.

        Returns:
            The row, None where there is none; a Refusal where this worker cannot follow and stays where it is.

        Raises:
            AwsError: the row could not be read.
        """
        row = TABLE_STATUS_CODEC.read(await self.separate.coordinator.get(TABLE_STATUS_CODEC.row_key))
        decided = followed(self.status, row, migrate_all=self.migrate_all)
        if isinstance(decided, StateRefusal):
            return decided
        if decided is not TableStatus.COMPLETE:
            self.status = decided
        return row

    def switch_over(self) -> None:
        """Lead everything to the lease table, for good."""
        leases = self.separate.leases
        workers, coordinator = RowKindTable(leases, WORKER_KINDS), RowKindTable(leases, COORDINATOR_KINDS)
        self.status = TableStatus.COMPLETE
        self._worker_rows.route_to(workers)
        self._reports.route_to(workers)
        self._coordinator_rows.route_to(coordinator)
        self._lock.route_to(coordinator)

    def _route_to_separate(self, written: TableSide) -> None:
        leases, workers, coordinator = (
            self.separate.leases,
            self.separate.worker_metrics,
            self.separate.coordinator,
        )
        to_leases = written is TableSide.LEASES
        self._worker_rows.route_to(DualTable(workers, leases, written=leases if to_leases else workers))
        self._reports.route_to(leases if to_leases else workers)
        self._coordinator_rows.route_to(
            DualTable(coordinator, leases, written=leases if to_leases else coordinator)
        )
        self._lock.route_to(coordinator)

    async def _lock_is_here(self) -> bool:
        """Asked before each attempt to lead, so that nobody leads without knowing the state of the move."""
        if self.status is TableStatus.COMPLETE:
            return True
        row = await self.follow()
        if row is None or isinstance(row, StateRefusal) or row.state is not TableStatus.COMPLETE:
            return True
        self.switch_over()
        return False


_T = TypeVar("_T")

# Who neither leads nor moves anything learns of the end from the lock, which is gone then; this is in case it does not.
_REST_S: Final = 300.0
# While the leader moves rows, and where something failed.
_BUSY_S: Final = 10.0
# A leader that fails to read the row this many times gives up the lock.
_MAX_FAILURES: Final = 3
# What is concluded from must not be older.
_MAX_POLL_S: Final = 30.0
# A batch of 25 rows each; there are a handful.
_MAX_STEPS: Final = 20


@dataclass(frozen=True, slots=True)
class MigrationResources:
    """What a leader carries steps out with.

    Args:
        monitor: what it sees of leases and workers.
        transactions: over the application's tables.
        report: writes this worker's row.
    """

    monitor: FleetMonitor
    transactions: Transactions
    report: Callable[[], Awaitable[object]]


class TableMigrator:
    """One worker's part in the move."""

    def __init__(
        self,
        *,
        routes: TableRoutes,
        settings: TablesSettings,
        elector: Elector,
        means: MigrationResources,
        worker_id: WorkerId,
        clock: Clock,
        call_s: float,
        report_s: float,
        log: Log,
        meters: Meters = NO_METERS,
    ) -> None:
        self._meters = meters
        self._routes = routes
        self._settings = settings
        self._elector = elector
        self._means = means
        self._me = worker_id
        self._clock = clock
        self._call_s = call_s
        self._report_s = report_s
        self._log = log
        self._wakeup = Wakeup(clock)
        self._failures = 0
        self._is_moving = settings.migrate_all
        self._reported: object = None
        self._may_drive: Callable[[], bool] = lambda: True
        routes.lock.on_taken(self._wakeup.wake)

    def only_when(self, may_drive: Callable[[], bool]) -> None:
        """Have it moved on only in an application of which this is true: one that is past its upgrade from 2.x.

        A roll-back to 2.x brings back workers that fail on a lease table with rows of other kinds.
        """
        self._may_drive = may_drive

    async def run(self) -> None:
        """Look now and then, also when this worker begins to lead; returns when all is in the lease table."""
        if self._is_over:
            return
        await self._run_round()
        self._log.info(
            "table_migration_complete",
            advice="when all workers report this, the two old tables can be deleted",
        )
        await self._means.report()  # whoever reported to the old table is not seen there any more

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
                await self._wakeup.wait(self._pause_s())

    async def _poll(self) -> None:
        row = await self._follow()
        record_migration_status(self._meters, row)
        if row is not None and not isinstance(row, StateRefusal) and row.state is TableStatus.COMPLETE:
            await self._switch_over()
        elif self._elector.is_leader and self._may_drive():
            await self._drive(row)
        elif isinstance(row, StateRefusal):
            self._refused(row)

    def _pause_s(self) -> float:
        if self._failures or (self._elector.is_leader and self._means.monitor.age_s is None):
            return _BUSY_S
        if self._elector.is_leader and self._settings.migrate_all:
            return _BUSY_S
        if self._settings.migrate_all:
            return REFRESH_EVERY_S
        return 2 * REFRESH_EVERY_S if self._elector.is_leader else _REST_S

    async def _drive(self, row: MigrationRow | StateRefusal | None) -> None:
        """Step by step until there is nothing to write now."""
        for _ in range(_MAX_STEPS):
            if isinstance(row, StateRefusal):
                self._refused(row)
                return
            seen = await self._survey(row)
            if seen is None:
                return
            # Until somebody asks for a move the steps are bookkeeping, which every application has.
            pending = row is not None and row.state is TableStatus.PENDING
            self._is_moving = self._settings.migrate_all or pending
            record_migration_phases(self._meters, seen, self._means.monitor.leases)
            decided = step(
                seen,
                status=self._routes.status,
                migrate_all=self._settings.migrate_all,
                bake_s=self._settings.complete_bake_s,
                deploy_bake_s=self._settings.deploy_bake_s,
                me=self._me,
                now_ms=self._clock.wall_ms(),
            )
            if not await self._carry_out(decided) or not self._elector.is_leader:
                return
            row = await self._follow()

    async def _survey(self, row: MigrationRow | None) -> MigrationReadiness | None:
        """What is known now; None where the leader has not looked at the fleet lately."""
        monitor = self._means.monitor
        if monitor.age_s is None or monitor.age_s > _MAX_POLL_S:
            return None
        moving = self._settings.migrate_all and row is not None and row.state is not TableStatus.INIT
        return migration_readiness(
            row=row,
            leases=monitor.leases,
            legacy_workers=monitor.workers_apart,
            workers=monitor.workers_in_leases,
            legacy_rows=await self._old_rows() if moving else (),
            wall_s=self._clock.wall_ms() / 1000,
            report_s=self._report_s,
        )

    async def _old_rows(self) -> list[Row]:
        """The rows of the coordinator table. A scan may be behind, so the one that matters is asked for by its key."""
        table = self._routes.separate.coordinator
        with self._clock.move_on_after(2 * self._call_s):
            known = await table.get(CLIENT_VERSION.row_key)
            rows = [row for row in await table.scan() if row[table.key_attribute] != CLIENT_VERSION.row_key]
            return rows if known is None else [known, *rows]
        raise Unavailable(f"no answer within {2 * self._call_s:g} s", operation="Scan")

    async def _carry_out(self, decided: MigrationStep) -> bool:
        """Whether something was written, so that the next step may follow."""
        match decided:
            case NoStep(reason):
                self._report(reason)
            case StateRefusal():
                self._refused(decided)
            case SwitchOver():
                await self._switch_over()
            case _:
                with faults(self._meters, decided):
                    applied = await self._write(decided)
                if applied:
                    report = self._log.info if self._is_moving else self._log.debug
                    report("table_migration_step", reason=decided.reason, **_facts(decided))
                return applied
        return False

    async def _write(
        self, decided: CreateStatusRow | WithdrawStatusRow | AdvanceStatus | RowBatch | MigrationCompletion
    ) -> bool:
        table = self._routes.separate.coordinator
        match decided:
            case CreateStatusRow(creation):
                written = await self._within_timeout(table.put(creation.row, creation.require))
            case WithdrawStatusRow(key, require):
                written = await self._within_timeout(table.delete(key, require))
            case AdvanceStatus(update):
                written = await self._within_timeout(table.update(update))
            case RowBatch(parts) | MigrationCompletion(parts):
                return await self._commit(parts)
            case _:
                assert_never(decided)
        return written.applied

    async def _commit(self, parts: tuple[RowWrite, ...]) -> bool:
        places = {
            TableSide.LEGACY: self._routes.separate.coordinator,
            TableSide.LEASES: self._routes.separate.leases,
        }
        placed = [TablePart(places[part.place], part.what) for part in parts]
        committed = await self._within_timeout(self._means.transactions.commit(placed))
        if not committed.applied:
            self._log.warning(
                "table_migration_step_refused",
                parts=[f"{placed[number].table.name}: {parts[number].what}" for number in committed.refused],
                advice="another leader was faster, or both tables have a row with this key; the daemon tries "
                "again",
            )
        return committed.applied

    async def _switch_over(self) -> None:
        """The lock first: whoever leads by the old one has to give it up."""
        await self._elector.resign()
        self._routes.switch_over()

    async def _follow(self) -> MigrationRow | StateRefusal | None:
        try:
            return await self._within_timeout(self._routes.follow())
        except AwsError:
            self._meters.add(kcl.TABLE_READ_FAULT)
            raise

    async def _within_timeout(self, call: Awaitable[_T]) -> _T:
        with self._clock.move_on_after(self._call_s):
            return await call
        raise Unavailable(f"no answer within {self._call_s:g} s")

    async def _failed(self, error: AwsError) -> None:
        self._failures += 1
        self._log.warning("table_migration_unreadable", error=str(error), failures=self._failures)
        if self._failures >= _MAX_FAILURES and self._elector.is_leader:
            self._failures = 0
            await self._elector.resign()

    def _refused(self, refusal: StateRefusal) -> None:
        if refusal != self._reported:
            self._log.error("table_migration_stuck", error=refusal.problem, advice=refusal.advice)
        self._reported = refusal

    def _report(self, reason: str) -> None:
        """What is waited for, once for each kind of reason: figures in it change with every look."""
        kind = "".join(each for each in reason if not each.isdigit())
        report = self._log.info if self._is_moving and kind != self._reported else self._log.debug
        report("table_migration_waits", reason=reason)
        self._reported = kind


def _facts(
    decided: CreateStatusRow | WithdrawStatusRow | AdvanceStatus | RowBatch | MigrationCompletion,
) -> dict[str, object]:
    """What a step brings about, for the log."""
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
