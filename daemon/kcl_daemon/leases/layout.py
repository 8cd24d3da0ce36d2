"""In which tables an application keeps what is no lease: worker rows and the leader's lock.

Decides once, when a worker starts. What exists wins over what is set, so that all workers of an application decide
alike; only an application without tables goes by its settings. How far a migration between the two has come is not
known here (`table_migration`).

To leave other workers no doubt, a fresh application in separate tables makes those two before its lease table: a Java
worker makes the lease table first and then looks for the coordinator table.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from kcl_daemon.leases.row import KEY
from kcl_daemon.leases.state_row import ENTITY
from kcl_daemon.leases.table import Row

_LEASE = "LEASE"
_KEYS_OF_COORDINATOR_ROWS = frozenset({"Leader", "Migration3.0", "TableMigration3.5"})


class TableLayout(Enum):
    """The two layouts, as `metadataTableLayout` names them."""

    SEPARATE = "separate"
    """Two more tables (KCL 3.0 - 3.4). How far a migration has come is told by a row of the coordinator table."""
    SINGLE = "single"
    """All in the lease table (KCL 3.5)."""


class LeaseTableHolds(Enum):
    """What the lease table tells of those who wrote it."""

    NO_TABLE = "does not exist"
    NOTHING = "is empty"
    PLAIN_LEASES = "holds leases as written by KCL up to 3.4"
    TYPED_LEASES = "holds leases with entityType"
    OTHER_ROWS = "holds rows that are no leases"


@dataclass(frozen=True, slots=True)
class Found:
    """What exists when a worker starts.

    Args:
        coordinator_table: whether it exists.
        metrics_table: whether the table of worker rows exists.
        lease_table: what it holds; needs no scan where the coordinator table exists.
        migration_row: whether the coordinator table has the row `TableMigration3.5`.
    """

    coordinator_table: bool
    metrics_table: bool
    lease_table: LeaseTableHolds
    migration_row: bool = False


@dataclass(frozen=True, slots=True)
class LayoutDecision:
    """The layout, why, and what an operator had better know (None: nothing)."""

    layout: TableLayout
    reason: str
    warning: str | None = None


def lease_table_holds(rows: Iterable[Row] | None) -> LeaseTableHolds:
    """What the rows of the lease table tell; None: there is no such table."""
    if rows is None:
        return LeaseTableHolds.NO_TABLE
    holds = LeaseTableHolds.NOTHING
    for row in rows:
        entity = row.get(ENTITY)
        if row.get(KEY) in _KEYS_OF_COORDINATOR_ROWS or (entity is not None and entity != _LEASE):
            return LeaseTableHolds.OTHER_ROWS
        if entity is not None:
            holds = LeaseTableHolds.TYPED_LEASES
        elif holds is LeaseTableHolds.NOTHING:
            holds = LeaseTableHolds.PLAIN_LEASES
    return holds


def decide_layout(found: Found, asked: TableLayout, *, migrate_all: bool) -> LayoutDecision:
    """The layout of an application.

    Args:
        found: what exists.
        asked: `metadataTableLayout`.
        migrate_all: `migrateAllEntitiesToLeaseTable`; a fresh application begins where it would end.
    """
    existing = _by_what_exists(found)
    if existing is None:
        return _by_settings(found, asked, migrate_all=migrate_all)
    layout, reason = existing
    return LayoutDecision(layout, reason, _warning(found, layout, asked, migrate_all=migrate_all))


def _by_what_exists(found: Found) -> tuple[TableLayout, str] | None:
    if found.coordinator_table:
        return TableLayout.SEPARATE, "the coordinator table exists"
    if found.lease_table is LeaseTableHolds.OTHER_ROWS:
        return TableLayout.SINGLE, f"the lease table {found.lease_table.value}"
    if found.metrics_table:
        return TableLayout.SEPARATE, "the table of worker rows exists"
    if found.lease_table is LeaseTableHolds.TYPED_LEASES:
        # Workers of KCL 3.5 in phase 1 of an upgrade from 2.x leave nothing else.
        return TableLayout.SINGLE, f"the lease table {found.lease_table.value} and there is no other table"
    return None


def _by_settings(found: Found, asked: TableLayout, *, migrate_all: bool) -> LayoutDecision:
    where = f"there is no table of worker rows or of the leader's lock, and the lease table {found.lease_table.value}"
    if asked is TableLayout.SINGLE or migrate_all:
        setting = (
            "metadataTableLayout=single"
            if asked is TableLayout.SINGLE
            else "migrateAllEntitiesToLeaseTable=true"
        )
        old = found.lease_table is LeaseTableHolds.PLAIN_LEASES
        warning = (
            "workers up to KCL 3.4 fail on rows that are not leases; start this one only after all of them "
            "have stopped"
        )
        return LayoutDecision(TableLayout.SINGLE, f"{where}; {setting}", warning if old else None)
    return LayoutDecision(TableLayout.SEPARATE, f"{where}; metadataTableLayout=separate")


def _warning(found: Found, layout: TableLayout, asked: TableLayout, *, migrate_all: bool) -> str | None:
    if layout is TableLayout.SEPARATE:
        if found.lease_table is LeaseTableHolds.OTHER_ROWS and not found.migration_row:
            return (
                "the lease table has rows of a fleet that uses only this table, but there are separate "
                "tables too: two leaders are possible. Stop all workers, delete the tables that you do "
                "not want, then start the workers again"
            )
        if asked is TableLayout.SINGLE and not migrate_all:
            return (
                "metadataTableLayout=single does not migrate existing tables; "
                "migrateAllEntitiesToLeaseTable=true does, once every worker supports it"
            )
    return None
