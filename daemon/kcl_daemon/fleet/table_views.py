"""Tables over tables: the same port with something between caller and table.

Owns routing, the rows of one kind in a shared table, and the watch on throttling. Knows nothing of what decides the
layout.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, TypeVar

from kcl_daemon.call_metrics import CallMetrics
from kcl_daemon.errors import Throttled
from kcl_daemon.leases.row import Conditions, Row, RowUpdate, WriteResult
from kcl_daemon.ports import NO_METERS, Clock, Log, Meters, Table, TableState

T = TypeVar("T")

# Values of `entityType` (KCL: WorkerMetricStats, CoordinatorState).
WORKER_KINDS: Final = frozenset({"WORKER_METRIC_STATS"})
COORDINATOR_KINDS: Final = frozenset({"LEADER", "CLIENT_VERSION_MIGRATION", "TABLE_MIGRATION", "STREAM"})
_KIND: Final = "entityType"

# A throttled table says so in each of hundreds of calls; a person needs to hear it now and then.
_WARN_AGAIN_S: Final = 600.0


class TableWrapper:
    """Passes everything on to another table; subclasses change one thing."""

    def __init__(self, table: Table) -> None:
        self._table = table

    @property
    def name(self) -> str:
        """As the port says."""
        return self._table.name

    @property
    def key_attribute(self) -> str:
        """As the port says."""
        return self._table.key_attribute

    async def describe(self) -> TableState | None:
        """As the port says."""
        return await self._table.describe()

    async def ensure(self) -> bool:
        """As the port says."""
        return await self._table.ensure()

    async def add_owner_index(self) -> None:
        """As the port says."""
        await self._table.add_owner_index()

    async def remove_owner_index(self) -> None:
        """As the port says."""
        await self._table.remove_owner_index()

    async def enable_recovery(self) -> None:
        """As the port says."""
        await self._table.enable_recovery()

    async def get(self, key: str) -> Row | None:
        """As the port says."""
        return await self._carry_out(self._table.get(key), "GetItem")

    async def scan(self) -> list[Row]:
        """As the port says."""
        return await self._carry_out(self._table.scan(), "Scan")

    async def owned_keys(self, owner: str) -> list[str]:
        """As the port says."""
        return await self._carry_out(self._table.owned_keys(owner), "Query")

    async def put(self, row: Row, require: Conditions = ()) -> WriteResult:
        """As the port says."""
        return await self._carry_out(self._table.put(row, require), "PutItem")

    async def update(self, update: RowUpdate) -> WriteResult:
        """As the port says."""
        return await self._carry_out(self._table.update(update), "UpdateItem")

    async def delete(self, key: str, require: Conditions = ()) -> WriteResult:
        """As the port says."""
        return await self._carry_out(self._table.delete(key, require), "DeleteItem")

    async def _carry_out(self, call: Awaitable[T], operation: str) -> T:  # noqa: ARG002 - for subclasses
        """Every call on rows goes through here."""
        return await call


class RoutedTable(TableWrapper):
    """A table that can be another one from one call to the next; who holds it need not know."""

    def route_to(self, table: Table) -> None:
        """All calls from now on are calls on this table; those under way stay where they are."""
        self._table = table


class RowKindTable(TableWrapper):
    """The rows of some kinds in a table that has others too (KCL 3.5: `entityType`). Rows without a kind are leases."""

    def __init__(self, table: Table, kinds: frozenset[str]) -> None:
        super().__init__(table)
        self._kinds = kinds

    async def scan(self) -> list[Row]:
        """Only the rows of these kinds; it reads the whole table for them."""
        return [row for row in await super().scan() if row.get(_KIND) in self._kinds]


class MonitoredTable(TableWrapper):
    """Counts what DynamoDB refuses for its rate, and says so once in a while. The caller gets the error as before.

    Args:
        table: what is called.
        clock: for the while.
        log: for the word.
        meters: for every call.
    """

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
