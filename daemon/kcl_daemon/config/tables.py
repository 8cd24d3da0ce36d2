"""Settings and properties of the tables: names, creation, layout.

An existing table stays as it is, except for point-in-time recovery.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from kcl_daemon.config.kinds import INT_MAX, LONG_MAX, Key, ValueKind, choice, name, tags, truth, whole_number
from kcl_daemon.leases.layout import TableLayout

_MIN_COMPLETE_BAKE_S: Final = 3_600


_MAX_COMPLETE_BAKE_S: Final = 604_800


def complete_bake_s(setting_s: int) -> int:
    """From `tableMigrationCompleteBakeTimeSeconds`, limited to an hour to seven days."""
    return min(max(setting_s, _MIN_COMPLETE_BAKE_S), _MAX_COMPLETE_BAKE_S)


class BillingMode(Enum):
    PAY_PER_REQUEST = "PAY_PER_REQUEST"
    PROVISIONED = "PROVISIONED"


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Options of a new table. Recovery is also turned on for an existing one, as in KCL.

    `name` None: from the application's name. Capacities are for PROVISIONED; 0: not set.
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
    """Existing tables win over `layout`. KCL's default capacities are 10 and 10.

    Args:
        complete_bake_s: how long the lease table is used alone before the move is final.
        deploy_bake_s: how long all workers must know the single table before a move; KCL's, no property.
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
    """KCL: DdbTableConfig; `bean` is Java's path."""

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
    billing_mode: Key
    read_capacity: Key
    write_capacity: Key

    @staticmethod
    def among(keys: tuple[Key, ...]) -> Sizing:
        return Sizing(
            _ending(keys, "BillingMode"), _ending(keys, "ReadCapacity"), _ending(keys, "WriteCapacity")
        )


SIZINGS: Final = tuple(
    Sizing.among(keys) for keys in (_LEASE_TABLE_KEYS, _WORKER_TABLE_KEYS, _COORDINATOR_TABLE_KEYS)
)
