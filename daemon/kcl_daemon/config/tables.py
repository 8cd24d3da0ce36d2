"""The properties of the tables: their names, how they are made, and in which layout.

Pure data, part of the table in `keys`. Java's beans for the two metadata tables can be written out as a prefix.

What a properties file says about the tables: where they are, and what they are like when they are made.

Pure values, part of `Settings`. A table that exists stays as it is, but for point-in-time recovery.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from kcl_daemon.config.kinds import INT_MAX, LONG_MAX, Key, ValueKind, choice, name, tags, truth, whole_number
from kcl_daemon.leases.layout import TableLayout


class BillingMode(Enum):
    """How a new table is paid for; the values are DynamoDB's."""

    PAY_PER_REQUEST = "PAY_PER_REQUEST"
    PROVISIONED = "PROVISIONED"


@dataclass(frozen=True, slots=True)
class TableOptions:
    """What one table shall be.

    Args:
        name: None: derived from the application's name.
        billing_mode: of a new table.
        read_capacity: read units of a new table that is PROVISIONED; 0: not given.
        write_capacity: write units, likewise.
        point_in_time_recovery: whether it is turned on at each start, as KCL does; also for a table that exists.
        deletion_protection: of a new table.
        tags: of a new table, as pairs of key and value.
    """

    name: str | None = None
    billing_mode: BillingMode = BillingMode.PAY_PER_REQUEST
    read_capacity: int = 0
    write_capacity: int = 0
    point_in_time_recovery: bool = False
    deletion_protection: bool = False
    tags: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class TablesSettings:
    """The three tables of an application.

    Args:
        layout: of an application that has no tables yet; tables that exist win.
        leases: the lease table; KCL's default capacities are 10 and 10.
        worker_metrics: the table of worker rows, where it is separate.
        coordinator: the table of the leader's lock, where it is separate.
        migrate_all: whether an application with separate tables is moved into its lease table.
        complete_bake_s: so long the lease table is used alone before the move is final.
        deploy_bake_s: so long all workers must have known the single table before a move may begin. KCL's; there is no
            property for it.
    """

    layout: TableLayout = TableLayout.SEPARATE
    leases: TableOptions = field(default_factory=lambda: TableOptions(read_capacity=10, write_capacity=10))
    worker_metrics: TableOptions = field(default_factory=TableOptions)
    coordinator: TableOptions = field(default_factory=TableOptions)
    migrate_all: bool = False
    complete_bake_s: int = 86_400
    deploy_bake_s: int = 3_600


_TABLE_NAME: Final = name(r"[A-Za-z0-9_.-]{3,255}", "3 to 255 letters, digits, dots, dashes and underscores")
_BILLING_MODE: Final = choice({mode.value: mode for mode in BillingMode})
_LEASE_CAPACITY: Final = whole_number(1, INT_MAX, "units")
_CAPACITY: Final = whole_number(0, LONG_MAX, "units")


def _metadata_table_keys(prefix: str, bean: str, target: str, *, what: str, suffix: str) -> tuple[Key, ...]:
    """The seven keys of a metadata table (KCL: DdbTableConfig).

    Args:
        prefix: of their names.
        bean: Java's path to them.
        target: the section of `Settings`.
        what: the table, for people.
        suffix: of its default name.
    """

    def key(ending: str, kind: ValueKind, attribute: str, meaning: str, default: str | None = None) -> Key:
        return Key(
            f"{prefix}{ending}",
            kind,
            f"tables.{target}.{attribute}",
            meaning,
            aliases=(f"{bean}.{prefix}{ending}",),
            default=default,
            blank_is_absent=attribute in {"name", "tags"},
        )

    return (
        key("TableName", _TABLE_NAME, "name", f"Name of {what}.", f"`applicationName` and `{suffix}`"),
        key("BillingMode", _BILLING_MODE, "billing_mode", f"Billing mode of {what} when it is created."),
        key(
            "ReadCapacity",
            _CAPACITY,
            "read_capacity",
            f"Read capacity of {what} if it is created as PROVISIONED.",
        ),
        key(
            "WriteCapacity",
            _CAPACITY,
            "write_capacity",
            f"Write capacity of {what} if it is created as PROVISIONED.",
        ),
        key(
            "PointInTimeRecoveryEnabled",
            truth(),
            "point_in_time_recovery",
            f"Whether to turn on point-in-time recovery of {what}, also if the table exists.",
        ),
        key(
            "DeletionProtectionEnabled",
            truth(),
            "deletion_protection",
            f"Whether {what} gets deletion protection when it is created.",
        ),
        key("Tags", tags(), "tags", f"Tags of {what} when it is created.", "none"),
    )


LAYOUT: Final = Key(
    "metadataTableLayout",
    choice({layout.value.upper(): layout for layout in TableLayout}),
    "tables.layout",
    "Where a new application stores worker rows and the leader lock: in separate tables (KCL 3.0 - "
    "3.4), or in the lease table (KCL 3.5). Existing tables take precedence.",
    extension=True,
)

LEASE_BILLING_MODE: Final = Key(
    "leaseTableBillingMode",
    _BILLING_MODE,
    "tables.leases.billing_mode",
    "Billing mode of the lease table when it is created.",
    extension=True,
)

_LEASE_TABLE_KEYS: Final[tuple[Key, ...]] = (
    Key(
        "tableName",
        _TABLE_NAME,
        "tables.leases.name",
        "Name of the lease table.",
        default="`applicationName`",
        blank_is_absent=True,
    ),
    LEASE_BILLING_MODE,
    Key(
        "initialLeaseTableReadCapacity",
        _LEASE_CAPACITY,
        "tables.leases.read_capacity",
        "Read capacity of the lease table and its index if it is created as PROVISIONED "
        "(`leaseTableBillingMode`).",
    ),
    Key(
        "initialLeaseTableWriteCapacity",
        _LEASE_CAPACITY,
        "tables.leases.write_capacity",
        "Write capacity of the lease table and its index if it is created as PROVISIONED.",
    ),
    Key(
        "leaseTablePitrEnabled",
        truth(),
        "tables.leases.point_in_time_recovery",
        "Whether to turn on point-in-time recovery of the lease table, also if the table exists.",
    ),
    Key(
        "leaseTableDeletionProtectionEnabled",
        truth(),
        "tables.leases.deletion_protection",
        "Whether the lease table gets deletion protection when it is created.",
    ),
    Key(
        "leaseTableTags",
        tags(),
        "tables.leases.tags",
        "Tags of the lease table when it is created.",
        default="none",
        blank_is_absent=True,
        extension=True,
    ),
)
_WORKER_TABLE_KEYS: Final = _metadata_table_keys(
    "workerMetrics",
    "workerMetricStatsTableConfigBean",
    "worker_metrics",
    what="the worker metrics table",
    suffix="-WorkerMetricStats",
)
_COORDINATOR_TABLE_KEYS: Final = _metadata_table_keys(
    "coordinatorState",
    "coordinatorStateTableConfigBean",
    "coordinator",
    what="the coordinator table",
    suffix="-CoordinatorState",
)

MIGRATION_BAKE_TIME: Final = Key(
    "tableMigrationCompleteBakeTimeSeconds",
    whole_number(0, LONG_MAX, "seconds"),
    "tables.complete_bake_s",
    "How long the lease table is used alone before the migration is final: an hour to seven days. "
    "Values outside are adjusted, and 0 means the default. Until then "
    "`migrateAllEntitiesToLeaseTable=false` rolls back.",
)

_MIGRATION_KEYS: Final[tuple[Key, ...]] = (
    Key(
        "migrateAllEntitiesToLeaseTable",
        truth(),
        "tables.migrate_all",
        "Whether to migrate an application with separate tables to one lease table (KCL 3.4 -> 3.5). "
        "Set it only when `kcl-daemon migrate status` says that it is safe.",
    ),
    MIGRATION_BAKE_TIME,
)

TABLE_KEYS: Final[tuple[Key, ...]] = (
    *_LEASE_TABLE_KEYS,
    LAYOUT,
    *_MIGRATION_KEYS,
    *_WORKER_TABLE_KEYS,
    *_COORDINATOR_TABLE_KEYS,
)


def _ending(keys: tuple[Key, ...], ending: str) -> Key:
    (found,) = (key for key in keys if key.name.endswith(ending))
    return found


@dataclass(frozen=True, slots=True)
class Sizing:
    """The keys that say how much a table may be read and written."""

    billing_mode: Key
    read_capacity: Key
    write_capacity: Key

    @staticmethod
    def among(keys: tuple[Key, ...]) -> Sizing:
        """Those of one table's keys."""
        return Sizing(
            _ending(keys, "BillingMode"), _ending(keys, "ReadCapacity"), _ending(keys, "WriteCapacity")
        )


SIZINGS: Final = tuple(
    Sizing.among(keys) for keys in (_LEASE_TABLE_KEYS, _WORKER_TABLE_KEYS, _COORDINATOR_TABLE_KEYS)
)
