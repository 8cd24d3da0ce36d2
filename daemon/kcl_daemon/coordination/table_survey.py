"""What tables an application has when a worker starts, and the layout that follows from it. Reads only.

Owns the order of the looks; `leases.layout` and `leases.table_migration` judge.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import anyio

from kcl_daemon.errors import ConfigurationError, KclError, TableNotFound
from kcl_daemon.leases.layout import Found, LeaseTableHolds, TableLayout, decide_layout, lease_table_holds
from kcl_daemon.leases.leader import LEADER_KEY
from kcl_daemon.leases.state_row import Refusal
from kcl_daemon.leases.table import Row
from kcl_daemon.leases.table_migration import CODEC, TableStatus, effective_status
from kcl_daemon.ports import IndexState, Table, Tables, TableState

T = TypeVar("T")

# Rows that tell the single layout without a scan; where none of them is, the scan decides.
_TELLING_KEYS: Final = (LEADER_KEY, "Migration3.0")


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found and decided.

    Args:
        layout: where the metadata rows are.
        reason: why, for people.
        warning: what an operator had better know.
        has_coordinator_table: whether the decision knew one.
        index: of the lease table.
        states: of the lease, worker and coordinator table; None: there is none.
        status: how far a worker with these settings is on the way into one table.
    """

    layout: TableLayout
    reason: str
    warning: str | None
    has_coordinator_table: bool
    index: IndexState
    states: tuple[TableState | None, TableState | None, TableState | None]
    status: TableStatus


async def survey(tables: Tables, *, wished: TableLayout, migrate_all: bool) -> Survey:
    """Look at the tables and decide.

    Args:
        tables: the three of the separate layout.
        wished: the layout of an application that has no tables yet.
        migrate_all: `migrateAllEntitiesToLeaseTable`.

    Raises:
        ConfigurationError: the row `TableMigration3.5` does not let this worker start.
        AwsError: a table could not be looked at.
    """
    # The lease table first: others make it last, so that whoever sees it sees their other tables as well.
    leases = await tables.leases.describe()
    coordinator, workers = await both(tables.coordinator.describe, tables.worker_metrics.describe)
    migration_row = None if coordinator is None else await _get(tables.coordinator, CODEC.row_key)
    holds = LeaseTableHolds.NO_TABLE
    if leases is not None:
        holds = await _lease_table_holds(tables.leases, may_scan=coordinator is None)
    found = Found(coordinator is not None, workers is not None, holds, migration_row is not None)
    decision = decide_layout(found, wished, migrate_all=migrate_all)
    layout, reason = decision.layout, decision.reason
    status = TableStatus.COMPLETE if layout is TableLayout.SINGLE else TableStatus.INIT
    if coordinator is not None:
        told = effective_status(CODEC.read(migration_row), legacy_table=True, migrate_all=migrate_all)
        if isinstance(told, Refusal):
            raise ConfigurationError(f"{told.problem}; {told.advice}")
        status = told
        if status is TableStatus.COMPLETE:
            layout, reason = TableLayout.SINGLE, f"row {CODEC.row_key} says {status}"
    return Survey(
        layout,
        reason,
        decision.warning,
        coordinator is not None,
        IndexState.ABSENT if leases is None else leases.owner_index,
        (leases, workers, coordinator),
        status,
    )


async def both(one: Callable[[], Awaitable[T]], other: Callable[[], Awaitable[T]]) -> tuple[T, T]:
    """Two calls at the same time; the first error ends the other and is raised."""
    results: dict[int, T] = {}

    async def call(number: int, each: Callable[[], Awaitable[T]]) -> None:
        """Keep the result of one in its place."""
        results[number] = await each()

    await together(lambda: call(0, one), lambda: call(1, other))
    return results[0], results[1]


async def together(*calls: Callable[[], Awaitable[None]]) -> None:
    """Calls at the same time; the first error on purpose ends the others and is raised."""
    failures: list[KclError] = []

    async def make(call: Callable[[], Awaitable[None]]) -> None:
        """One call; our errors are kept from the task group, which would wrap them."""
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


async def _lease_table_holds(table: Table, *, may_scan: bool) -> LeaseTableHolds:
    told = [row for key in _TELLING_KEYS if (row := await _get(table, key)) is not None]
    if told or not may_scan:
        return lease_table_holds(told)
    try:
        return lease_table_holds(await table.scan())
    except TableNotFound:
        return LeaseTableHolds.NOTHING  # somebody is making it just now


async def _get(table: Table, key: str) -> Row | None:
    """The row; None also of a table that is being made or deleted just now."""
    try:
        return await table.get(key)
    except TableNotFound:
        return None
