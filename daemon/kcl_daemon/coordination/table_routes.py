"""Where the calls of the loops go: in which table each kind of row is, also while an application moves into one table.

Owns the status of that move as this worker knows it, and the routes that follow from it. Which layout there is at the
start is not decided here (`table_survey`), nor what a leader does to move it on (`table_migrator`).
"""

from __future__ import annotations

from typing import assert_never

from kcl_daemon.coordination.moving_tables import LockTable, TwoTables
from kcl_daemon.coordination.table_views import COORDINATOR_KINDS, WORKER_KINDS, Routed, RowsOfKind
from kcl_daemon.leases.layout import TableLayout
from kcl_daemon.leases.state_row import Refusal
from kcl_daemon.leases.table_migration import (
    CODEC,
    MigrationRow,
    Place,
    TableStatus,
    followed,
    routing,
)
from kcl_daemon.ports import Table, Tables


class TableRoutes:
    """The tables of an application as its loops see them.

    Args:
        separate: the three of the separate layout.
        migrate_all: `migrateAllEntitiesToLeaseTable`.

    Attributes:
        tables: for the loops; may be handed out before `lead_to` and used after it. While an application moves, a scan
            of `worker_metrics` gives the rows of the old table only.
        lock: the table of the leader's lock.
        reports: the table to which this worker reports.
        separate: the old tables themselves.
        migrate_all: as given.
        status: how far this worker is.
    """

    def __init__(self, separate: Tables, *, migrate_all: bool) -> None:
        self.separate = separate
        self.migrate_all = migrate_all
        self._worker_rows = Routed(separate.worker_metrics)
        self._coordinator_rows = Routed(separate.coordinator)
        self._reports = Routed(separate.worker_metrics)
        self._lock = LockTable(separate.coordinator, self._lock_is_here)
        self.tables = Tables(separate.leases, self._worker_rows, self._coordinator_rows)
        self.reports: Table = self._reports
        self.status = TableStatus.COMPLETE

    @property
    def lock(self) -> LockTable:
        """The table of the leader's lock."""
        return self._lock

    def lead_to(self, layout: TableLayout, status: TableStatus) -> None:
        """Lead all calls from now on to a layout.

        Args:
            layout: where the rows are.
            status: of this worker at its start; decides where it writes as long as it runs.
        """
        self.status = status
        match layout:
            case TableLayout.SEPARATE:
                self._lead_to_separate(routing(status, status).metrics_written)
            case TableLayout.SINGLE:
                self.switch_over()
            case _:
                assert_never(layout)

    async def follow(self) -> MigrationRow | Refusal | None:
        """Read the row `TableMigration3.5` and follow it, but for the last step, which `switch_over` makes.

        Returns:
            The row, None where there is none; a Refusal where this worker cannot follow and stays where it is.

        Raises:
            AwsError: the row could not be read.
        """
        row = CODEC.read(await self.separate.coordinator.get(CODEC.row_key))
        decided = followed(self.status, row, migrate_all=self.migrate_all)
        if isinstance(decided, Refusal):
            return decided
        if decided is not TableStatus.COMPLETE:
            self.status = decided
        return row

    def switch_over(self) -> None:
        """Lead everything to the lease table, for good."""
        leases = self.separate.leases
        workers, coordinator = RowsOfKind(leases, WORKER_KINDS), RowsOfKind(leases, COORDINATOR_KINDS)
        self.status = TableStatus.COMPLETE
        self._worker_rows.lead_to(workers)
        self._reports.lead_to(workers)
        self._coordinator_rows.lead_to(coordinator)
        self._lock.lead_to(coordinator)

    def _lead_to_separate(self, written: Place) -> None:
        leases, workers, coordinator = (
            self.separate.leases,
            self.separate.worker_metrics,
            self.separate.coordinator,
        )
        to_leases = written is Place.LEASES
        self._worker_rows.lead_to(TwoTables(workers, leases, written=leases if to_leases else workers))
        self._reports.lead_to(leases if to_leases else workers)
        self._coordinator_rows.lead_to(
            TwoTables(coordinator, leases, written=leases if to_leases else coordinator)
        )
        self._lock.lead_to(coordinator)

    async def _lock_is_here(self) -> bool:
        """Asked before each attempt to lead, so that nobody leads without knowing the state of the move."""
        if self.status is TableStatus.COMPLETE:
            return True
        row = await self.follow()
        if row is None or isinstance(row, Refusal) or row.state is not TableStatus.COMPLETE:
            return True
        self.switch_over()
        return False
