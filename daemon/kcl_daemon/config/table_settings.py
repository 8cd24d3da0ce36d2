"""What a properties file says about the tables: where they are, and what they are like when they are made.

Pure values, part of `Settings`. A table that exists stays as it is, but for point-in-time recovery.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

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
