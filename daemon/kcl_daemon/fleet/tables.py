"""Opens an application's tables: finds their layout, creates or completes what is missing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar, assert_never

import anyio

from kcl_daemon import faults
from kcl_daemon.config.tables import TableOptions, TablesSettings
from kcl_daemon.errors import AccessDenied, AwsError, ConfigurationError, KclError, TableNotFound
from kcl_daemon.fleet.table_views import MonitoredTable, TableRoutes
from kcl_daemon.leases.layout import (
    TABLE_STATUS_CODEC,
    FoundTables,
    LeaseTableContents,
    TableLayout,
    TableStatus,
    UnusableState,
    decide_layout,
    effective_status,
    lease_table_contents,
)
from kcl_daemon.leases.leader import LEADER_KEY
from kcl_daemon.leases.row import OWNER_INDEX, Row
from kcl_daemon.metrics import kcl
from kcl_daemon.ports import NO_METERS, Clock, IndexState, Log, Meters, Table, Tables, TableState

T = TypeVar("T")

_TELLING_KEYS: Final = (LEADER_KEY, "Migration3.0")


@dataclass(frozen=True, slots=True)
class TableInspection:
    """`warning` is for operators; `states` are lease, worker and coordinator table, None if missing.

    `status` is that of the migration to one table, under these settings.
    """

    layout: TableLayout
    reason: str
    warning: str | None
    has_coordinator_table: bool
    index: IndexState
    states: tuple[TableState | None, TableState | None, TableState | None]
    status: TableStatus


async def inspect_tables(tables: Tables, *, wished: TableLayout, migrate_all: bool) -> TableInspection:
    """`wished` applies to an application without tables.

    Raises:
        ConfigurationError: the row `TableMigration3.5` does not let this worker start.
        AwsError: a table could not be read.
    """
    # Others create the lease table last: whoever sees it sees their other tables.
    leases = await tables.leases.describe()
    coordinator, workers = await run_both(tables.coordinator.describe, tables.worker_metrics.describe)
    migration_row = (
        None if coordinator is None else await _get(tables.coordinator, TABLE_STATUS_CODEC.row_key)
    )
    holds = LeaseTableContents.NO_TABLE
    if leases is not None:
        holds = await _lease_table_holds(tables.leases, may_scan=coordinator is None)
    found = FoundTables(coordinator is not None, workers is not None, holds, migration_row is not None)
    decision = decide_layout(found, wished, migrate_all=migrate_all)
    layout, reason = decision.layout, decision.reason
    status = TableStatus.COMPLETE if layout is TableLayout.SINGLE else TableStatus.INIT
    if coordinator is not None:
        reported = effective_status(TABLE_STATUS_CODEC.read(migration_row), migrate_all=migrate_all)
        if isinstance(reported, UnusableState):
            raise ConfigurationError(f"{reported.problem}; {reported.advice}")
        status = reported
        if status is TableStatus.COMPLETE:
            layout, reason = TableLayout.SINGLE, f"row {TABLE_STATUS_CODEC.row_key} says {status}"
    return TableInspection(
        layout,
        reason,
        decision.warning,
        coordinator is not None,
        IndexState.ABSENT if leases is None else leases.owner_index,
        (leases, workers, coordinator),
        status,
    )


async def run_both(one: Callable[[], Awaitable[T]], other: Callable[[], Awaitable[T]]) -> tuple[T, T]:
    """The first error cancels the other and is raised."""
    results: dict[int, T] = {}

    async def call(number: int, each: Callable[[], Awaitable[T]]) -> None:
        results[number] = await each()

    await start_concurrently(lambda: call(0, one), lambda: call(1, other))
    return results[0], results[1]


async def start_concurrently(*calls: Callable[[], Awaitable[None]]) -> None:
    """The first `KclError` cancels the others and is raised."""
    failures: list[KclError] = []

    async def make(call: Callable[[], Awaitable[None]]) -> None:
        try:
            await call()
        except KclError as error:
            failures.append(error)
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for call in calls:
            group.start_soon(make, call)
    if failures:
        raise failures[0]


async def _lease_table_holds(table: Table, *, may_scan: bool) -> LeaseTableContents:
    reported = [row for key in _TELLING_KEYS if (row := await _get(table, key)) is not None]
    if reported or not may_scan:
        return lease_table_contents(reported)
    try:
        return lease_table_contents(await table.scan())
    except TableNotFound:
        return LeaseTableContents.NOTHING


async def _get(table: Table, key: str) -> Row | None:
    try:
        return await table.get(key)
    except TableNotFound:
        return None


_FIRST_POLL_S: Final = 0.02
_FIRST_PAUSE_S: Final = 1.0
_MAX_PAUSE_S: Final = 30.0
_MAX_FAILURES: Final = 24
_INDEX: Final = "the index by owner"
_RECOVERY: Final = "point-in-time recovery"
_ADVICE: Final = {
    _INDEX: "until then leases are found by scans, which cost more reads: grant dynamodb:UpdateTable and "
    f"restart, or add the index {OWNER_INDEX} yourself: leaseOwner (S, HASH), leaseKey (S, RANGE), "
    "KEYS_ONLY",
    _RECOVERY: "grant dynamodb:UpdateContinuousBackups and restart, turn it on yourself, or remove the property",
}


class ApplicationTables:
    def __init__(
        self,
        separate: Tables,
        *,
        settings: TablesSettings,
        clock: Clock,
        log: Log,
        meters: Meters = NO_METERS,
    ) -> None:
        self._meters = meters
        self._leases, self._workers, self._coordinator = (
            MonitoredTable(table, clock=clock, log=log, meters=meters)
            for table in (separate.leases, separate.worker_metrics, separate.coordinator)
        )
        self._settings = settings
        self._clock = clock
        self._log = log
        self._in_use: tuple[MonitoredTable, ...] = ()
        self._waits_for_index = False
        self.routes = TableRoutes(Tables(*self._separate), migrate_all=settings.migrate_all, clock=clock)
        self.tables = self.routes.tables

    @property
    def throttled(self) -> dict[str, int]:
        return {table.name: table.throttled for table in self._separate}

    async def are_new(self) -> bool:
        return await self._leases.describe() is None

    async def open(self, check: Callable[[bool], Awaitable[None]] | None = None) -> None:
        """May be called again after an error.

        `check` comes before anything is written; it is told whether there is no lease table yet.

        Raises:
            ConfigurationError: a table is of another kind, or a migration does not let this worker start.
            AwsError: a table could not be read or created.
        """
        decided = await self._decide()
        if check is not None:
            await check(decided.states[0] is None)
        await self._make(decided)
        alone = decided.layout is TableLayout.SINGLE and not decided.has_coordinator_table
        if alone and await self._coordinator.describe() is not None:
            # Perhaps another worker with other settings started at the same moment.
            await self._make(await self._decide())

    async def complete_index(self) -> None:
        """Never raises for AWS."""
        # A fleet that went back to 2.x has removed it.
        await self._persist(_INDEX, self._leases, self._index_step)

    async def complete_recovery(self) -> None:
        """Never raises for AWS."""
        async with anyio.create_task_group() as jobs:
            for table in self._in_use:
                if self._options(table).point_in_time_recovery:
                    jobs.start_soon(self._persist, _RECOVERY, table, self._recovery_step)

    async def _decide(self) -> TableInspection:
        try:
            with self._meters.operation(kcl.TABLE_INITIALIZE):
                found = await inspect_tables(
                    Tables(*self._separate),
                    wished=self._settings.layout,
                    migrate_all=self._settings.migrate_all,
                )
        except AwsError:
            self._meters.add(kcl.TABLE_INITIALIZE_FAULT)
            raise
        self._log.info("table_layout_chosen", layout=found.layout.value, reason=found.reason)
        if found.warning is not None:
            self._log.warning("table_layout_doubtful", layout=found.layout.value, advice=found.warning)
        self._in_use = self._separate if found.layout is TableLayout.SEPARATE else (self._leases,)
        self.routes.route_to(found.layout, found.status)
        for table, state in zip(self._separate, found.states, strict=True):
            if table in self._in_use and state is not None and state.differences:
                self._log.warning(
                    "table_left_as_it_is",
                    table=table.name,
                    differences=list(state.differences),
                    advice="if you want the change, make it yourself; these properties apply to new tables only",
                )
        return found

    @property
    def _separate(self) -> tuple[MonitoredTable, MonitoredTable, MonitoredTable]:
        return self._leases, self._workers, self._coordinator

    async def _make(self, found: TableInspection) -> None:
        is_new = found.states[0] is None

        async def make(table: MonitoredTable) -> None:
            if is_new and table is self._leases:
                await self._until_others_exist()
            if await table.ensure():
                faults.maybe("after-table-created")
                self._log.info("table_created", table=table.name)

        await start_concurrently(*(partial(make, table) for table in self._in_use))

    async def _until_others_exist(self) -> None:
        """A Java worker creates the lease table, then looks for a coordinator table: it must find ours."""
        pause_s = _FIRST_POLL_S
        for table in self._in_use:
            while table is not self._leases and await table.describe() is None:
                await self._clock.sleep(pause_s)
                pause_s = min(2 * pause_s, _FIRST_PAUSE_S)

    async def _persist(
        self, what: str, table: MonitoredTable, step: Callable[[MonitoredTable], Awaitable[bool]]
    ) -> None:
        pause_s, failures = _FIRST_PAUSE_S, 0
        while True:
            try:
                if await step(table):
                    return
                failures = 0
            except AwsError as error:
                failures += 1
                if isinstance(error, AccessDenied) or failures >= _MAX_FAILURES:
                    self._log.warning(
                        "table_not_completed",
                        table=table.name,
                        lacks=what,
                        error=str(error),
                        advice=_ADVICE[what],
                    )
                    return
                self._log.debug("table_completion_failed", table=table.name, lacks=what, error=str(error))
            await self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    async def _index_step(self, table: MonitoredTable) -> bool:
        state = await table.describe()
        if state is None:
            raise TableNotFound(f"table {table.name} does not exist", operation="DescribeTable")
        match state.owner_index:
            case IndexState.ACTIVE:
                if self._waits_for_index:
                    self._log.info("owner_index_ready", table=table.name)
                self._waits_for_index = False
                return True
            case IndexState.ABSENT:
                await table.add_owner_index()
                faults.maybe("after-owner-index-added")
                self._log.info("owner_index_added", table=table.name, index=OWNER_INDEX)
            case IndexState.BUILDING:
                pass
            case _:
                assert_never(state.owner_index)
        self._waits_for_index = True
        return False

    async def _recovery_step(self, table: MonitoredTable) -> bool:
        await table.enable_recovery()
        faults.maybe("after-recovery-enabled")
        self._log.info("point_in_time_recovery_enabled", table=table.name)
        return True

    def _options(self, table: MonitoredTable) -> TableOptions:
        settings = self._settings
        options = (settings.leases, settings.worker_metrics, settings.coordinator)
        return options[self._separate.index(table)]
