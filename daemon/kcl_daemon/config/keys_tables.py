"""The properties of the tables: their names, how they are made, and in which layout.

Pure data, part of the table in `keys`. Java's beans for the two metadata tables can be written out as a prefix.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kcl_daemon.config.key import Key
from kcl_daemon.config.kinds import INT_MAX, LONG_MAX, Kind, choice, name, tags, truth, whole_number
from kcl_daemon.config.table_settings import BillingMode
from kcl_daemon.leases.layout import TableLayout

_TABLE_NAME: Final = name(r"[A-Za-z0-9_.-]{3,255}", "3 to 255 letters, digits, dots, dashes and underlines")
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

    def key(ending: str, kind: Kind, attribute: str, meaning: str, default: str | None = None) -> Key:
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
        key("BillingMode", _BILLING_MODE, "billing_mode", f"How {what} is paid for when it is made."),
        key("ReadCapacity", _CAPACITY, "read_capacity", f"Read units of {what} when it is made PROVISIONED."),
        key(
            "WriteCapacity",
            _CAPACITY,
            "write_capacity",
            f"Write units of {what} when it is made PROVISIONED.",
        ),
        key(
            "PointInTimeRecoveryEnabled",
            truth(),
            "point_in_time_recovery",
            f"Whether point-in-time recovery of {what} is turned on, also where the table exists.",
        ),
        key(
            "DeletionProtectionEnabled",
            truth(),
            "deletion_protection",
            f"Whether {what} is protected against deletion when it is made.",
        ),
        key("Tags", tags(), "tags", f"Tags of {what} when it is made.", "none"),
    )


LAYOUT: Final = Key(
    "metadataTableLayout",
    choice({layout.value.upper(): layout for layout in TableLayout}),
    "tables.layout",
    "Where a new application keeps worker rows and the leader's lock: in tables of their own (KCL 3.0 - 3.4), or all in "
    "the lease table (KCL 3.5). Tables that exist win.",
    extension=True,
)

LEASE_BILLING_MODE: Final = Key(
    "leaseTableBillingMode",
    _BILLING_MODE,
    "tables.leases.billing_mode",
    "How the lease table is paid for when it is made.",
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
        "Read units of the lease table, and of its index, when it is made PROVISIONED (`leaseTableBillingMode`).",
    ),
    Key(
        "initialLeaseTableWriteCapacity",
        _LEASE_CAPACITY,
        "tables.leases.write_capacity",
        "Write units of the lease table, and of its index, when it is made PROVISIONED.",
    ),
    Key(
        "leaseTablePitrEnabled",
        truth(),
        "tables.leases.point_in_time_recovery",
        "Whether point-in-time recovery of the lease table is turned on, also where the table exists.",
    ),
    Key(
        "leaseTableDeletionProtectionEnabled",
        truth(),
        "tables.leases.deletion_protection",
        "Whether the lease table is protected against deletion when it is made.",
    ),
    Key(
        "leaseTableTags",
        tags(),
        "tables.leases.tags",
        "Tags of the lease table when it is made.",
        default="none",
        blank_is_absent=True,
        extension=True,
    ),
)
_WORKER_TABLE_KEYS: Final = _metadata_table_keys(
    "workerMetrics",
    "workerMetricStatsTableConfigBean",
    "worker_metrics",
    what="the table of workers",
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
    "How long the lease table is used alone before the move into it is final; an hour to seven days, other values are "
    "brought there, and 0 is the default. Until then `migrateAllEntitiesToLeaseTable=false` takes it back.",
)

_MIGRATION_KEYS: Final[tuple[Key, ...]] = (
    Key(
        "migrateAllEntitiesToLeaseTable",
        truth(),
        "tables.migrate_all",
        "Whether an application with separate tables is moved into its lease table (KCL 3.4 -> 3.5). Only once "
        "`kcl-daemon migrate status` says that it may.",
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
