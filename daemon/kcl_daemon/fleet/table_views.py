from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, TypeVar, assert_never

from kcl_daemon import faults
from kcl_daemon.context import CallMetrics, Wakeup
from kcl_daemon.errors import Throttled
from kcl_daemon.leases.layout import (
    TABLE_STATUS_CODEC,
    MigrationRow,
    TableLayout,
    TableStatus,
    UnusableState,
    followed,
)
from kcl_daemon.leases.row import Conditions, Row, RowDelete, RowPut, RowUpdate, WriteResult
from kcl_daemon.ports import NO_METERS, Clock, Log, Meters, Table, Tables, TableState

T = TypeVar("T")

# Values of `entityType` (KCL: WorkerMetricStats, CoordinatorState).
WORKER_KINDS: Final = frozenset({"WORKER_METRIC_STATS"})
COORDINATOR_KINDS: Final = frozenset({"LEADER", "CLIENT_VERSION_MIGRATION", "TABLE_MIGRATION", "STREAM"})
_KIND: Final = "entityType"

_WARN_AGAIN_S: Final = 600.0


async def write_row(table: Table, write: RowPut | RowUpdate | RowDelete) -> WriteResult:
    if isinstance(write, RowPut):
        return await table.put(write.row, write.require)
    if isinstance(write, RowUpdate):
        return await table.update(write)
    return await table.delete(write.key, write.require)


class TableWrapper:
    def __init__(self, table: Table) -> None:
        self._table = table

    def route_to(self, table: Table) -> None:
        """Running calls finish on the old table."""
        self._table = table

    @property
    def name(self) -> str:
        return self._table.name

    @property
    def key_attribute(self) -> str:
        return self._table.key_attribute

    async def describe(self) -> TableState | None:
        return await self._table.describe()

    async def ensure(self) -> bool:
        return await self._table.ensure()

    async def add_owner_index(self) -> None:
        await self._table.add_owner_index()

    async def remove_owner_index(self) -> None:
        await self._table.remove_owner_index()

    async def enable_recovery(self) -> None:
        await self._table.enable_recovery()

    async def get(self, key: str) -> Row | None:
        return await self._carry_out(self._table.get(key), "GetItem")

    async def scan(self) -> list[Row]:
        return await self._carry_out(self._table.scan(), "Scan")

    async def owned_keys(self, owner: str) -> list[str]:
        return await self._carry_out(self._table.owned_keys(owner), "Query")

    async def put(self, row: Row, require: Conditions = ()) -> WriteResult:
        return await self._carry_out(self._table.put(row, require), "PutItem")

    async def update(self, update: RowUpdate) -> WriteResult:
        return await self._carry_out(self._table.update(update), "UpdateItem")

    async def delete(self, key: str, require: Conditions = ()) -> WriteResult:
        return await self._carry_out(self._table.delete(key, require), "DeleteItem")

    async def _carry_out(self, call: Awaitable[T], operation: str) -> T:  # noqa: ARG002 - for subclasses
        return await call


class RowKindTable(TableWrapper):
    """Rows of some kinds in a shared table (KCL 3.5: `entityType`); rows without a kind are leases."""

    def __init__(self, table: Table, kinds: frozenset[str]) -> None:
        super().__init__(table)
        self._kinds = kinds

    async def scan(self) -> list[Row]:
        return [row for row in await super().scan() if row.get(_KIND) in self._kinds]


class MonitoredTable(TableWrapper):
    def __init__(self, table: Table, *, clock: Clock, log: Log, meters: Meters = NO_METERS) -> None:
        super().__init__(table)
        self._calls = CallMetrics(meters, "dynamodb")
        self._clock = clock
        self._log = log
        self._warned_s: float | None = None
        self._untold = 0
        self.throttled = 0

    async def _carry_out(self, call: Awaitable[T], operation: str) -> T:
        try:
            return await self._calls.counted(operation, call)
        except Throttled as error:
            self._count(error)
            raise

    def _count(self, error: Throttled) -> None:
        self.throttled += 1
        self._untold += 1
        now_s = self._clock.monotonic()
        if self._warned_s is not None and now_s - self._warned_s < _WARN_AGAIN_S:
            return
        self._log.warning(
            "table_throttled",
            table=self.name,
            calls=self._untold,
            error=str(error),
            advice="raise the capacity of the table and its index, or switch to on-demand; calls are retried "
            "later",
        )
        self._warned_s, self._untold = now_s, 0


class DualTable(TableWrapper):
    """Rows of one kind that move from their own table to the lease table (KCL: WorkerMetricStatsDAO).

    Callers see the old key attribute. Reads try the old table first: rows only move from it. `written` gets new rows.
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
    """Taken only after a check that the lock has not moved; AwsError if `is_here` cannot know."""

    def __init__(
        self, table: Table, is_here: Callable[[], Awaitable[bool]], on_taken: Callable[[], None]
    ) -> None:
        super().__init__(table)
        self._is_here = is_here
        self._on_taken = on_taken

    async def put(self, row: Row, require: Conditions = ()) -> WriteResult:
        """Refused with no row if the lock has moved."""
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
    """`tables` stays valid when routes change. During the move a scan of its `worker_metrics` returns only old rows."""

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
        """KCL: WorkerMetricStatsDAO, CoordinatorStateDAO.

        A worker always writes to the table of its start status, so that rows do not move when leaders change their minds.
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
        """No worker may lead without knowing the status of the move."""
        if self.status is TableStatus.COMPLETE:
            return True
        row = await self.follow()
        if row is None or isinstance(row, UnusableState) or row.state is not TableStatus.COMPLETE:
            return True
        self.switch_over()
        return False
