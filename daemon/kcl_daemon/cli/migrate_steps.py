"""What `kcl-daemon migrate` does to an application's tables (KCL: KclMigrationTool).

Owns the order of reads and writes; `leases.upgrade` decides. Knows nothing of command lines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from kcl_daemon.coordination.overview import latest_of
from kcl_daemon.errors import AwsError, KclError
from kcl_daemon.leases.client_version import CODEC, ClientVersion, VersionRow
from kcl_daemon.leases.lease import Lease
from kcl_daemon.leases.row import OWNER_INDEX, MalformedRowError, is_lease_row, lease_from_row
from kcl_daemon.leases.state_row import Refusal
from kcl_daemon.leases.stats import ACTIVE_REPORTS, WorkerRow, worker_from_row
from kcl_daemon.leases.table import Row
from kcl_daemon.leases.table_migration import CODEC as MOVE
from kcl_daemon.leases.table_migration import MigrationRow
from kcl_daemon.leases.table_migration_survey import survey
from kcl_daemon.leases.upgrade import Readiness, Steering, readiness, rollback, rollforward
from kcl_daemon.ports import Clock, IndexState, Tables

# Somebody else changes the row at the same moment; that happens once, not five times.
_RACES_MOST: Final = 5


class NotSteered(KclError):
    """Raised when the rules, or somebody else's change, stand against what was asked; nothing was written."""


class Direction(Enum):
    """Where a person steers to."""

    ROLLBACK = "rollback"
    ROLLFORWARD = "rollforward"


@dataclass(frozen=True, slots=True)
class TableMove:
    """How far an application is on its way into one table.

    Args:
        is_single: everything is in the lease table.
        row: the row `TableMigration3.5`, or why it cannot be read; None: there is none.
        unsupporting: owners of leases that do not say that they know the single table.
        in_legacy: workers that report to the old table.
    """

    is_single: bool
    row: MigrationRow | Refusal | None
    unsupporting: tuple[str, ...] = ()
    in_legacy: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Status:
    """How far an application is.

    Args:
        row: the row `Migration3.0`, or why it cannot be read; None: there is none.
        index: of the lease table.
        ready: what an upgrade would still wait for.
        workers: all that have a row, with their age in seconds, the latest first.
        leases: so many there are.
        tables: how far the move into one table is.
        active_s: a worker that reported longer ago does not count.
    """

    row: VersionRow | Refusal | None
    index: IndexState
    ready: Readiness
    workers: tuple[tuple[str, float], ...]
    leases: int
    tables: TableMove
    active_s: float


async def status(tables: Tables, *, clock: Clock, report_s: float) -> Status:
    """Read everything once.

    Args:
        tables: of the application.
        clock: for the age of what workers wrote.
        report_s: how often workers report.

    Raises:
        AwsError: a table could not be read.
    """
    stored = CODEC.read(await tables.coordinator.get(CODEC.row_key))
    state = await tables.leases.describe()
    index = IndexState.ABSENT if state is None else state.owner_index
    lease_rows = await tables.leases.scan()
    leases = _leases(lease_rows)
    in_leases = _workers(lease_rows, tables.leases.key_attribute)
    apart: list[WorkerRow] = []
    if not tables.share_one_table:
        apart = _workers(await tables.worker_metrics.scan(), tables.worker_metrics.key_attribute)
    workers = latest_of(apart, in_leases)
    wall_s = clock.wall_ms() / 1000
    ages = sorted((wall_s - worker.last_update_s, str(worker.worker_id)) for worker in workers)
    ready = readiness(
        leases, workers, index_active=index is IndexState.ACTIVE, wall_s=wall_s, report_s=report_s
    )
    seen = survey(
        row=None,
        leases=leases,
        legacy_workers=apart,
        workers=in_leases,
        legacy_rows=(),
        wall_s=wall_s,
        report_s=report_s,
    )
    move = TableMove(
        is_single=tables.share_one_table,
        row=MOVE.read(await tables.coordinator.get(MOVE.row_key)),
        unsupporting=seen.unsupporting,
        in_legacy=seen.in_legacy,
    )
    return Status(
        stored,
        index,
        ready,
        tuple((worker, age_s) for age_s, worker in ages),
        len(leases),
        move,
        ACTIVE_REPORTS * report_s,
    )


async def decide(tables: Tables, direction: Direction, *, clock: Clock) -> Steering:
    """What a steering would do now.

    Raises:
        NotSteered: the rules do not allow it.
        AwsError: the row could not be read.
    """
    stored = CODEC.read(await tables.coordinator.get(CODEC.row_key))
    rule = rollback if direction is Direction.ROLLBACK else rollforward
    decided = rule(stored, now_ms=clock.wall_ms(), key_attribute=tables.coordinator.key_attribute)
    if isinstance(decided, Refusal):
        raise NotSteered(f"{decided.problem}; {decided.advice}")
    return decided


async def steer(tables: Tables, direction: Direction, *, clock: Clock) -> Steering:
    """Decide and write; what was written.

    Raises:
        NotSteered: the rules do not allow it, or the row kept changing.
        AwsError: the row could not be read or written; after Unavailable look at it, it may have been written.
    """
    for _ in range(_RACES_MOST):
        decided = await decide(tables, direction, clock=clock)
        if (await tables.coordinator.update(decided.update)).applied:
            return decided
    raise NotSteered("the row kept changing; check `kcl-daemon migrate status` and try again")


async def remove_index(tables: Tables, after_s: float, *, clock: Clock, say: Callable[[str], None]) -> None:
    """Wait until no worker uses the index by owner any more, then have it deleted.

    Raises:
        NotSteered: the application was rolled forward meanwhile.
        AwsError: the row could not be read, or the index not be deleted; everything else is done.
    """
    say(f"waiting {after_s:.0f} s until no worker uses the index {OWNER_INDEX}")
    await clock.sleep(after_s)
    stored = CODEC.read(await tables.coordinator.get(CODEC.row_key))
    if not (stored is not None and not isinstance(stored, Refusal) and stored.state is ClientVersion.V2X):
        raise NotSteered("the application is no longer rolled back, so the index is kept")
    state = await tables.leases.describe()
    if state is None or state.owner_index is IndexState.ABSENT:
        say("there is no index to delete")
        return
    try:
        await tables.leases.remove_owner_index()
    except AwsError as error:
        raise type(error)(
            f"{error}; the application is rolled back; delete the index of table {tables.leases.name} later"
        ) from error
    say(f"the index {OWNER_INDEX} is being deleted")


def _leases(rows: list[Row]) -> list[Lease]:
    leases: list[Lease] = []
    for row in rows:
        try:
            if is_lease_row(row):
                leases.append(lease_from_row(row))
        except MalformedRowError:
            continue  # `kcl-daemon leases` shows them
    return leases


def _workers(rows: list[Row], key_attribute: str) -> list[WorkerRow]:
    workers = (worker_from_row(row, key_attribute=key_attribute) for row in rows)
    return [worker for worker in workers if worker is not None]
