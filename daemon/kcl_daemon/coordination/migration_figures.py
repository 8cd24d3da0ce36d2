"""What is told of the move into one table (KCL: the figures of TableMigrationStateMachineImpl)."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Final

from kcl_daemon.errors import AwsError
from kcl_daemon.leases.lease import Lease
from kcl_daemon.leases.state_row import Refusal
from kcl_daemon.leases.table_migration import MigrationRow, TableStatus
from kcl_daemon.leases.table_migration_moves import Complete, Move
from kcl_daemon.leases.table_migration_steps import Step, Withdraw
from kcl_daemon.leases.table_migration_survey import Survey
from kcl_daemon.metrics import kcl
from kcl_daemon.metrics.metric import Metric
from kcl_daemon.ports_metrics import Meters

_ORDINALS: Final = {status: number for number, status in enumerate(TableStatus, start=1)}
_UNKNOWN: Final = 0


def tell_status(meters: Meters, row: MigrationRow | Refusal | None) -> None:
    """How far it is by the row that was just read."""
    match row:
        case None | Refusal():
            meters.add(kcl.TABLE_STATUS, _UNKNOWN)
        case _:
            meters.add(kcl.TABLE_STATUS, _ORDINALS[row.state])


def tell_phases(meters: Meters, seen: Survey, leases: Sequence[Lease]) -> None:
    """How many lease owners do not know the single table, know it, and report to it."""
    owners = {lease.lease_owner for lease in leases if lease.lease_owner is not None}
    before = set(seen.unsupporting)
    first = set(seen.in_legacy) & owners - before
    meters.add(kcl.TABLE_BEFORE, len(before))
    meters.add(kcl.TABLE_PHASE_1, len(first))
    meters.add(kcl.TABLE_PHASE_2, len(owners - before - first))


@contextmanager
def faults(meters: Meters, step: Step) -> Generator[None, None, None]:
    """Around the writing of a step; an error goes on."""
    match step:
        case Move():
            meters.add(kcl.TABLE_MOVE_BATCHES)
            with meters.operation(kcl.TABLE_MOVE):
                yield
        case _:
            try:
                yield
            except AwsError:
                meters.add(_fault_of(step))
                raise


def _fault_of(step: Step) -> Metric:
    match step:
        case Withdraw():
            return kcl.TABLE_DELETE_FAULT
        case Complete():
            return kcl.TABLE_COMPLETE_FAULT
        case _:
            return kcl.TABLE_WRITE_FAULT
