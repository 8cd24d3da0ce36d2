"""An existing table stays as it is, except for point-in-time recovery."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from kcl_daemon.config.kinds import (
    INT_MAX,
    LONG_MAX,
    Key,
    ValueKind,
    choice,
    java,
    keys,
    member,
    name,
    ours,
    tags,
    truth,
    whole_number,
)
from kcl_daemon.leases.layout import TableLayout

_MIN_COMPLETE_BAKE_S: Final = 3_600
_MAX_COMPLETE_BAKE_S: Final = 604_800
_TABLE_NAME: Final = name(r"[A-Za-z0-9_.-]{3,255}", "3 to 255 letters, digits, dots, dashes and underscores")
_CAPACITY: Final = whole_number(0, LONG_MAX, "units")
_LAYOUT: Final = choice({layout.value.upper(): layout for layout in TableLayout})
_ENDINGS: Final = {
    "name": "TableName",
    "billing_mode": "BillingMode",
    "read_capacity": "ReadCapacity",
    "write_capacity": "WriteCapacity",
    "point_in_time_recovery": "PointInTimeRecoveryEnabled",
    "deletion_protection": "DeletionProtectionEnabled",
    "tags": "Tags",
}
_LEASE_TABLE: Final = {
    "name": "tableName",
    "billing_mode": "leaseTableBillingMode",
    "read_capacity": "initialLeaseTableReadCapacity",
    "write_capacity": "initialLeaseTableWriteCapacity",
    "point_in_time_recovery": "leaseTablePitrEnabled",
    "deletion_protection": "leaseTableDeletionProtectionEnabled",
    "tags": "leaseTableTags",
}
_EXTENSIONS: Final = ("leaseTableBillingMode", "leaseTableTags")


def complete_bake_s(setting_s: int) -> int:
    return min(max(setting_s, _MIN_COMPLETE_BAKE_S), _MAX_COMPLETE_BAKE_S)


class BillingMode(Enum):
    PAY_PER_REQUEST = "PAY_PER_REQUEST"
    PROVISIONED = "PROVISIONED"


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Recovery is also turned on for an existing table, as in KCL. 0: no capacity."""

    name: str | None = None
    billing_mode: BillingMode = BillingMode.PAY_PER_REQUEST
    read_capacity: int = 0
    write_capacity: int = 0
    point_in_time_recovery: bool = False
    deletion_protection: bool = False
    tags: tuple[tuple[str, str], ...] = ()


def _table(
    what: str,
    names: Mapping[str, str],
    capacity: ValueKind[int],
    *,
    default_name: str,
    bean: str = "",
    index: str = "",
) -> Mapping[str, object]:
    """KCL: DdbTableConfig."""
    provisioned = f"capacity of {what}{index} if it is created as PROVISIONED (`{names['billing_mode']}`)."
    recovery = f"Whether to turn on point-in-time recovery of {what}, also if the table exists."
    rows: dict[str, tuple[ValueKind[object], str]] = {
        "name": (_TABLE_NAME, f"Name of {what}."),
        "billing_mode": (member(BillingMode), f"Billing mode of {what} when it is created."),
        "read_capacity": (capacity, f"Read {provisioned}"),
        "write_capacity": (capacity, f"Write {provisioned}"),
        "point_in_time_recovery": (truth(), recovery),
        "deletion_protection": (truth(), f"Whether {what} gets deletion protection when it is created."),
        "tags": (tags(), f"Tags of {what} when it is created."),
    }
    defaults = {"name": default_name, "tags": "none"}
    declared = (
        Key(
            names[target],
            kind,
            target,
            meaning,
            aliases=(f"{bean}.{names[target]}",) if bean else (),
            default=defaults.get(target),
            blank_is_absent=target in defaults,
            extension=names[target] in _EXTENSIONS,
        )
        for target, (kind, meaning) in rows.items()
    )
    return keys(*declared)


def _metadata_table(prefix: str, bean: str, what: str, suffix: str) -> Mapping[str, object]:
    names = {target: f"{prefix}{ending}" for target, ending in _ENDINGS.items()}
    return _table(what, names, _CAPACITY, default_name=f"`applicationName` and `{suffix}`", bean=bean)


@dataclass(frozen=True, slots=True)
class TablesSettings:
    leases: TableOptions = field(
        default_factory=lambda: TableOptions(read_capacity=10, write_capacity=10),
        metadata=_table(
            "the lease table",
            _LEASE_TABLE,
            whole_number(1, INT_MAX, "units"),
            default_name="`applicationName`",
            index=" and its index",
        ),
    )
    layout: TableLayout = ours("metadataTableLayout", _LAYOUT, TableLayout.SEPARATE)
    """Where a new application stores worker rows and the leader lock: in separate tables (KCL 3.0 - 3.4), or
    in the lease table (KCL 3.5). Existing tables take precedence."""
    migrate_all: bool = java("migrateAllEntitiesToLeaseTable", truth(), default=False)
    """Whether to migrate an application with separate tables to one lease table (KCL 3.4 -> 3.5). Set it only
    when `kcl-daemon migrate status` says that it is safe."""
    complete_bake_s: int = java(
        "tableMigrationCompleteBakeTimeSeconds", whole_number(0, LONG_MAX, "seconds"), 86_400
    )
    """How long the lease table is used alone before the migration is final: an hour to seven days. Values
    outside are adjusted, and 0 means the default. Until then `migrateAllEntitiesToLeaseTable=false` rolls
    back."""
    worker_metrics: TableOptions = field(
        default_factory=TableOptions,
        metadata=_metadata_table(
            "workerMetrics",
            "workerMetricStatsTableConfigBean",
            "the worker metrics table",
            "-WorkerMetricStats",
        ),
    )
    coordinator: TableOptions = field(
        default_factory=TableOptions,
        metadata=_metadata_table(
            "coordinatorState",
            "coordinatorStateTableConfigBean",
            "the coordinator table",
            "-CoordinatorState",
        ),
    )
    deploy_bake_s: int = 3_600
    """How long all workers must know the single table before a move (KCL)."""
