"""The move from three tables to one (KCL 3.4 -> 3.5): how far it is, and where each kind of row lives meanwhile.

Owns the row `TableMigration3.5` and what its state means for any worker (KCL: TableMigrationStateMachineImpl). What the
leader does to bring the move forward is in `table_migration_steps`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final, TypeAlias, assert_never

from kcl_daemon.leases.state_row import Refusal, StateCodec, StateRow


class TableStatus(StrEnum):
    """How far the move is; the values are KCL's."""

    INIT = "TABLE_MIGRATION_STATUS_INIT"
    """Some worker may not know the single table."""
    DEPLOYED = "TABLE_MIGRATION_STATUS_DEPLOYED"
    """All workers know it; the move may begin."""
    PENDING = "TABLE_MIGRATION_STATUS_PENDING"
    """Rows are written to the lease table; there is still a way back."""
    COMPLETE = "TABLE_MIGRATION_STATUS_COMPLETE"
    """Only the lease table counts. No way back."""


MigrationRow: TypeAlias = StateRow[TableStatus]

CODEC: Final[StateCodec[TableStatus]] = StateCodec(
    row_key="TableMigration3.5",
    entity="TABLE_MIGRATION",
    attribute="tm",
    states=tuple(TableStatus),
)

LEGACY_KEY: Final = "key"
"""Key attribute of the coordinator table."""

REFRESH_EVERY_S: Final = 30.0
"""Every worker that is not COMPLETE reads the row so often; Java leaders about each second."""


class Place(Enum):
    """A table that may hold rows of workers and of the coordinator."""

    LEGACY = "the table of its own"
    LEASES = "the lease table"


@dataclass(frozen=True, slots=True)
class Routing:
    """Where rows are (KCL: WorkerMetricStatsDAO, CoordinatorStateDAO).

    Args:
        metrics_written: our worker row.
        metrics_read: worker rows; where there are two, what both hold counts together.
        coordinator_written: coordinator rows but the lock and `TableMigration3.5`.
        coordinator_read: the same by key, in this order until one is found.
        lock: the leader's lock.
        migration_row: `TableMigration3.5`; the first is the one that is read.
    """

    metrics_written: Place
    metrics_read: tuple[Place, ...]
    coordinator_written: Place
    coordinator_read: tuple[Place, ...]
    lock: Place
    migration_row: tuple[Place, ...]


_BOTH: Final = (Place.LEGACY, Place.LEASES)
_COMPLETE: Final = Routing(
    Place.LEASES, (Place.LEASES,), Place.LEASES, (Place.LEASES,), Place.LEASES, (Place.LEASES, Place.LEGACY)
)


def routing(started_as: TableStatus, status: TableStatus) -> Routing:
    """Where rows are for a worker.

    Args:
        started_as: its status when it started. What it writes goes there as long as it runs, so that one worker's rows
            do not wander to and fro while leaders change their minds.
        status: its status now. Once that is COMPLETE all is in the lease table. (A Java worker goes on writing to the
            old table if it started that way; then nobody reads its rows, and it is given no leases.)
    """
    if TableStatus.COMPLETE in {started_as, status}:
        return _COMPLETE
    written = Place.LEASES if started_as is TableStatus.PENDING else Place.LEGACY
    return Routing(written, _BOTH, written, _BOTH, Place.LEGACY, (Place.LEGACY,))


def effective_status(
    row: MigrationRow | Refusal | None, *, legacy_table: bool, migrate_all: bool
) -> TableStatus | Refusal:
    """The status of a worker; a Refusal: it cannot start, or not go on leading.

    Args:
        row: the one of the coordinator table.
        legacy_table: whether the coordinator table exists.
        migrate_all: `migrateAllEntitiesToLeaseTable`.
    """
    if not legacy_table:
        return TableStatus.COMPLETE
    if isinstance(row, Refusal):
        return row
    state = TableStatus.INIT if row is None else row.state
    match state:
        case TableStatus.INIT if migrate_all:
            return _too_early(row)
        case TableStatus.DEPLOYED | TableStatus.PENDING:
            return TableStatus.PENDING if migrate_all else TableStatus.DEPLOYED
        case TableStatus.INIT | TableStatus.COMPLETE:
            return state
        case _:
            assert_never(state)


def _too_early(row: MigrationRow | None) -> Refusal:
    found = "does not exist" if row is None else "says that not all workers have been ready for an hour"
    return Refusal(
        f"migrateAllEntitiesToLeaseTable=true, but row {CODEC.row_key} {found}",
        "first start all workers with false, on versions that support the single table; set it when the "
        f"first, on versions that know the single table; set it when the row says {TableStatus.DEPLOYED}",
    )


def followed(
    status: TableStatus, row: MigrationRow | Refusal | None, *, migrate_all: bool
) -> TableStatus | Refusal:
    """The status of a running worker after it read the row again; COMPLETE stays, whatever the row says."""
    if status is TableStatus.COMPLETE:
        return status
    return effective_status(row, legacy_table=True, migrate_all=migrate_all)
