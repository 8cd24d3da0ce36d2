from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, TypeVar

from kcl_daemon.call_metrics import CallMetrics
from kcl_daemon.errors import Throttled
from kcl_daemon.leases.row import Conditions, Row, RowDelete, RowPut, RowUpdate, WriteResult
from kcl_daemon.ports import NO_METERS, Clock, Log, Meters, Table, TableState

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
