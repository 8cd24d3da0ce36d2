"""What a leader sees of an application that moves into one table, summed up for its next step (KCL: MigrationAwareLAMDataManager).

The rules of who counts as active and who is known to understand the single table are here; what follows from them is in
`table_migration_steps`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kcl_daemon.leases.leader import LEADER_KEY
from kcl_daemon.leases.lease import Lease, WorkerId
from kcl_daemon.leases.stats import ACTIVE_REPORTS, SUPPORT_REPORTS, WorkerRow
from kcl_daemon.leases.table import Row
from kcl_daemon.leases.table_migration import CODEC, LEGACY_KEY, MigrationRow


@dataclass(frozen=True, slots=True)
class Survey:
    """What a leader has read.

    Args:
        row: the row `TableMigration3.5` of the coordinator table, by a consistent read.
        support_code: the least of all lease owners; 1 and more: all know the single table.
        unsupporting: owners without a fresh support code of 1 or more.
        silent: owners without a fresh worker row in either table.
        in_legacy: workers with a fresh row in the old table.
        legacy_rows: rows of the coordinator table, the lock and `TableMigration3.5` left out.
    """

    row: MigrationRow | None
    support_code: int
    unsupporting: tuple[WorkerId, ...] = ()
    silent: tuple[WorkerId, ...] = ()
    in_legacy: tuple[WorkerId, ...] = ()
    legacy_rows: tuple[Row, ...] = ()


def fleet_support(
    leases: Iterable[Lease], workers: Iterable[WorkerRow], *, wall_s: float, report_s: float
) -> tuple[int, tuple[WorkerId, ...]]:
    """The least support code of all lease owners (0 without any), and the owners that stand in the way.

    Args:
        leases: all of the table.
        workers: rows of both tables.
        wall_s: epoch seconds.
        report_s: how often workers report.
    """
    codes = dict.fromkeys(_owners(leases), 0)
    for worker in workers:
        if worker.worker_id in codes and _supports(worker, wall_s, report_s):
            codes[worker.worker_id] = max(codes[worker.worker_id], worker.support_code or 0)
    lacking = tuple(sorted(owner for owner, code in codes.items() if code < 1))
    return min(codes.values(), default=0), lacking


def survey(
    *,
    row: MigrationRow | None,
    leases: Sequence[Lease],
    legacy_workers: Sequence[WorkerRow],
    workers: Sequence[WorkerRow],
    legacy_rows: Iterable[Row],
    wall_s: float,
    report_s: float,
) -> Survey:
    """Sums up what was read.

    Args:
        row: of the coordinator table.
        leases: all of the lease table.
        legacy_workers: rows of the old table of workers.
        workers: worker rows of the lease table.
        legacy_rows: all rows of the coordinator table, by a consistent scan; only needed where the row says DEPLOYED
            and this worker migrates, or PENDING.
        wall_s: epoch seconds, compared with what the workers' own clocks wrote.
        report_s: how often workers report.
    """
    code, unsupporting = fleet_support(leases, (*legacy_workers, *workers), wall_s=wall_s, report_s=report_s)
    in_legacy = _active(legacy_workers, wall_s, report_s)
    return Survey(
        row=row,
        support_code=code,
        unsupporting=unsupporting,
        silent=tuple(sorted(_owners(leases) - in_legacy - _active(workers, wall_s, report_s))),
        in_legacy=tuple(sorted(in_legacy)),
        legacy_rows=tuple(
            each for each in legacy_rows if each.get(LEGACY_KEY) not in {LEADER_KEY, CODEC.row_key}
        ),
    )


def _owners(leases: Iterable[Lease]) -> set[WorkerId]:
    """Whoever has work: a Java worker that has left may own finished leases for long (KCL's leader gives those away)."""
    return {lease.lease_owner for lease in leases if lease.lease_owner is not None and not lease.is_finished}


def _active(workers: Iterable[WorkerRow], wall_s: float, report_s: float) -> set[WorkerId]:
    return {
        worker.worker_id for worker in workers if wall_s - worker.last_update_s <= ACTIVE_REPORTS * report_s
    }


def _supports(worker: WorkerRow, wall_s: float, report_s: float) -> bool:
    return (
        worker.support_update_s is not None and wall_s - worker.support_update_s <= SUPPORT_REPORTS * report_s
    )
