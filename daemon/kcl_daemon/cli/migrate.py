"""KCL: KclMigrationTool. The rules are in `kcl_daemon.migrations`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from typing import Final, TypeVar

import click

from kcl_daemon.cli.application import on_application
from kcl_daemon.cli.common import NotChanged, as_json_option, ask, json_text, with_settings, yes_option
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import AwsError
from kcl_daemon.fleet.client_version import CLIENT_VERSION_CODEC, ClientVersion, VersionRow
from kcl_daemon.fleet.monitor import latest_of
from kcl_daemon.leases.layout import TABLE_STATUS_CODEC as MOVE
from kcl_daemon.leases.layout import MigrationRow, StateRow, TableStatus, UnusableState
from kcl_daemon.leases.row import OWNER_INDEX, readable_lease
from kcl_daemon.leases.worker_row import ACTIVE_REPORTS, WorkerRow, workers_of
from kcl_daemon.migrations.kcl2_rules import (
    UpgradeReadiness,
    VersionChange,
    rollback,
    rollforward,
    upgrade_readiness,
)
from kcl_daemon.migrations.one_table_rules import MigrationReadiness, migration_readiness
from kcl_daemon.ports import Clock, IndexState, Tables
from kcl_daemon.system import SystemClock
from kcl_daemon.text import numbered, on_one_line

_Result = TypeVar("_Result")

# A race is lost only to a concurrent write.
_MAX_LOST_RACES: Final = 5
_MEANING = {
    ClientVersion.UPGRADE_FROM_2X: "workers take leases as in KCL 2.x; when everything is ready for ten minutes, the fleet switches to "
    "3.x by itself",
    ClientVersion.V3X_WITH_ROLLBACK: "the leader assigns leases; rollback is possible until a worker starts with CLIENT_VERSION_CONFIG_3X",
    ClientVersion.V2X: "rolled back: workers take leases as in KCL 2.x until `rollforward`",
    ClientVersion.V3X: "the leader assigns leases; no upgrade is in progress",
}
_MOVE_MEANING = {
    TableStatus.INIT: "no migration to one table is in progress; one can start when all workers have supported the single "
    "table for an hour",
    TableStatus.DEPLOYED: "no migration to one table is in progress; to start one, deploy all workers with "
    "migrateAllEntitiesToLeaseTable=true",
    TableStatus.PENDING: "rows are in the lease table, the leader lock is still in the old one; to roll back, deploy with "
    "migrateAllEntitiesToLeaseTable=false",
    TableStatus.COMPLETE: "the migration is complete; workers follow within a minute",
}
_EPILOG: Final = """\b
Exit codes:
  0  done
  1  not allowed in this state, not confirmed, or AWS did not answer or refused
  2  wrong command line, properties file or environment
"""


class Direction(Enum):
    ROLLBACK = "rollback"
    ROLLFORWARD = "rollforward"


@dataclass(frozen=True, slots=True)
class MigrationStatus:
    """Of an unreadable row `version` and `move` are an `UnusableState`.

    `workers` have the age of their rows in seconds.
    """

    version: VersionRow | UnusableState | None
    index: IndexState
    ready: UpgradeReadiness
    workers: tuple[tuple[str, float], ...]
    leases: int
    active_s: float
    is_single: bool
    move: MigrationRow | UnusableState | None
    move_ready: MigrationReadiness


async def migration_status(tables: Tables, *, clock: Clock, report_s: float) -> MigrationStatus:
    version = await _version(tables)
    state = await tables.leases.describe()
    index = IndexState.ABSENT if state is None else state.owner_index
    lease_rows = await tables.leases.scan()
    leases = [lease for row in lease_rows if (lease := readable_lease(row)) is not None]
    in_leases = workers_of(lease_rows, tables.leases.key_attribute)
    apart: list[WorkerRow] = []
    if not tables.share_one_table:
        apart = workers_of(await tables.worker_metrics.scan(), tables.worker_metrics.key_attribute)
    workers = latest_of(apart, in_leases)
    wall_s = clock.wall_ms() / 1000
    ages = sorted((wall_s - worker.last_update_s, str(worker.worker_id)) for worker in workers)
    return MigrationStatus(
        version=version,
        index=index,
        ready=upgrade_readiness(
            leases, workers, index_active=index is IndexState.ACTIVE, wall_s=wall_s, report_s=report_s
        ),
        workers=tuple((worker, age_s) for age_s, worker in ages),
        leases=len(leases),
        active_s=ACTIVE_REPORTS * report_s,
        is_single=tables.share_one_table,
        move=MOVE.read(await tables.coordinator.get(MOVE.row_key)),
        move_ready=migration_readiness(
            row=None,
            leases=leases,
            legacy_workers=apart,
            workers=in_leases,
            legacy_rows=(),
            wall_s=wall_s,
            report_s=report_s,
        ),
    )


async def _version(tables: Tables) -> VersionRow | UnusableState | None:
    return CLIENT_VERSION_CODEC.read(await tables.coordinator.get(CLIENT_VERSION_CODEC.row_key))


async def decide(tables: Tables, direction: Direction, *, clock: Clock) -> VersionChange:
    stored = await _version(tables)
    rule = rollback if direction is Direction.ROLLBACK else rollforward
    decided = rule(stored, now_ms=clock.wall_ms(), key_attribute=tables.coordinator.key_attribute)
    if isinstance(decided, UnusableState):
        raise NotChanged(f"{decided.problem}; {decided.advice}")
    return decided


async def change_version(tables: Tables, direction: Direction, *, clock: Clock) -> VersionChange:
    """NotChanged if the rules forbid it, or the row kept changing. After Unavailable it may have been written."""
    for _ in range(_MAX_LOST_RACES):
        decided = await decide(tables, direction, clock=clock)
        if (await tables.coordinator.update(decided.update)).applied:
            return decided
    raise NotChanged("the row kept changing; check `kcl-daemon migrate status` and try again")


async def remove_index(tables: Tables, after_s: float, *, clock: Clock, say: Callable[[str], None]) -> None:
    """NotChanged if the application was rolled forward meanwhile."""
    say(f"waiting {after_s:.0f} s until no worker uses the index {OWNER_INDEX}")
    await clock.sleep(after_s)
    stored = await _version(tables)
    if not isinstance(stored, StateRow) or stored.state is not ClientVersion.V2X:
        raise NotChanged("the application is no longer rolled back, so the index is kept")
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


def status_lines(seen: MigrationStatus) -> Iterator[str]:
    row = seen.version
    if row is None:
        yield f"no row {CLIENT_VERSION_CODEC.row_key}: no 3.x worker has started, or all are in phase 1"
    elif isinstance(row, UnusableState):
        yield f"{on_one_line(row.problem)}; {row.advice}"
    else:
        yield f"{row.state}: {_MEANING.get(row.state, '')}"
        yield from _history_lines(row)
    yield f"index by owner: {seen.index.value}"
    yield f"{numbered(seen.leases, 'lease')}, {len(seen.ready.unowned)} of them without an owner"
    for key in seen.ready.unowned:
        yield f"  {on_one_line(key)}: no owner"
    upgrading = not isinstance(row, StateRow) or row.state is not ClientVersion.V3X
    silent = frozenset[str](seen.ready.silent if upgrading else ())
    known = {worker for worker, _ in seen.workers}
    for worker, age_s in seen.workers:
        lacks = "; owns leases, so the upgrade waits for it" if worker in silent else ""
        yield f"  {on_one_line(worker)}: reported {age_s:.0f} s ago{lacks}"
    for owner in sorted(silent - known):
        yield f"  {on_one_line(owner)}: owns leases but has never reported; the upgrade waits for it"
    if upgrading:
        yield ("ready for 3.x" if seen.ready.is_met else f"not ready: {on_one_line(seen.ready.missing)}")
    yield from _move_lines(seen)


def _move_lines(seen: MigrationStatus) -> Iterator[str]:
    row = seen.move
    if seen.is_single:
        yield "tables: one, all rows are in the lease table"
    elif row is None:
        yield "tables: separate; no migration to one table is in progress"
    elif isinstance(row, UnusableState):
        yield f"tables: separate; {on_one_line(row.problem)}; {row.advice}"
    else:
        yield f"tables: separate; {row.state}: {_MOVE_MEANING[row.state]}"
    if isinstance(row, StateRow):
        yield from _history_lines(row)
    if not seen.is_single:
        for owner in seen.move_ready.unsupporting:
            yield f"  {on_one_line(owner)}: owns leases but does not report support for the single table"
        for worker in seen.move_ready.in_legacy:
            yield f"  {on_one_line(worker)}: writes its row to the old table"


def _history_lines(row: VersionRow | MigrationRow) -> Iterator[str]:
    yield f"  since {_date(row.at_ms)}, set by {on_one_line(row.by)}"
    for past in row.history:
        yield f"  before: {on_one_line(past.state)}, {_date(past.at_ms)}, {on_one_line(past.by)}"


def status_json(seen: MigrationStatus) -> str:
    workers = [
        {"worker": worker, "report_age_s": round(age_s), "alive": age_s < seen.active_s}
        for worker, age_s in seen.workers
    ]
    return json_text(
        {
            **_row_document(seen.version, "client_version"),
            "index": seen.index.value,
            "leases": seen.leases,
            "ready": seen.ready.is_met,
            "leases_without_owner": list(seen.ready.unowned),
            "owners_that_do_not_report": list(seen.ready.silent),
            "workers": workers,
            "tables": {
                "layout": "single" if seen.is_single else "separate",
                **_row_document(seen.move, "migration"),
                "owners_that_do_not_know_the_single_table": list(seen.move_ready.unsupporting),
                "workers_that_report_to_the_old_table": list(seen.move_ready.in_legacy),
            },
        }
    )


def _row_document(row: VersionRow | MigrationRow | UnusableState | None, state: str) -> dict[str, object]:
    readable = row if isinstance(row, StateRow) else None
    return {
        state: None if readable is None else str(readable.state),
        "problem": row.problem if isinstance(row, UnusableState) else None,
        "modified_by": None if readable is None else readable.by,
        "modified_ms": None if readable is None else readable.at_ms,
        "history": [
            {state: past.state, "modified_by": past.by, "modified_ms": past.at_ms}
            for past in (() if readable is None else readable.history)
        ],
    }


def _date(at_ms: int) -> str:
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"


@click.group("migrate", help="Show and control the migration of an application from KCL 2.x to 3.x.")
def migrate() -> None:
    """The group."""


@migrate.command(
    "status", short_help="Show the state, its history, and what the upgrade waits for.", epilog=_EPILOG
)
@with_settings
@as_json_option
def show(settings: Settings, *, as_json: bool) -> None:
    """Show the client version of the application, its history, and what the upgrade waits for. Writes nothing.

    Also shows the state of the migration from three tables to one.
    """
    report_s = settings.leases.worker_metrics_report_ms / 1000
    seen = _on_tables(settings, partial(migration_status, clock=SystemClock(), report_s=report_s))
    click.echo(status_json(seen) if as_json else "\n".join(status_lines(seen)))


@migrate.command("rollback", short_help="Roll the fleet back to KCL 2.x mode.", epilog=_EPILOG)
@with_settings
@yes_option
@click.option(
    "--no-index-deletion", is_flag=True, help="Keep the index by owner, and do not wait two minutes."
)
def roll_back(settings: Settings, *, yes: bool, no_index_deletion: bool) -> None:
    """Roll the whole fleet back to KCL 2.x mode, wait until all workers follow, then delete the index by owner.

    Workers keep running. When it is done, you can deploy 2.x workers.
    """
    _steer(settings, Direction.ROLLBACK, yes=yes, keep_index=no_index_deletion)


@migrate.command("rollforward", short_help="Resume an upgrade that was rolled back.", epilog=_EPILOG)
@with_settings
@yes_option
def roll_forward(settings: Settings, *, yes: bool) -> None:
    """Resume an upgrade that was rolled back. All workers must be 3.x again."""
    _steer(settings, Direction.ROLLFORWARD, yes=yes, keep_index=True)


def _steer(settings: Settings, direction: Direction, *, yes: bool, keep_index: bool) -> None:
    clock = SystemClock()
    planned = _on_tables(settings, lambda tables: decide(tables, direction, clock=clock))
    deletes = planned.remove_index_after_s is not None and not keep_index
    also = " and delete the index by owner two minutes later" if deletes else ""
    ask(f"{direction.value} of {settings.application_name} ({planned.reason}){also}?", yes=yes)

    async def carry_out(tables: Tables) -> None:
        done = await change_version(tables, direction, clock=clock)
        click.echo(f"{direction.value} written ({on_one_line(done.reason)}); workers follow within 90 s")
        if done.remove_index_after_s is not None and not keep_index:
            await remove_index(tables, done.remove_index_after_s, clock=clock, say=click.echo)

    _on_tables(settings, carry_out)


def _on_tables(settings: Settings, act: Callable[[Tables], Awaitable[_Result]]) -> _Result:
    return on_application(settings, lambda application: act(application.opened.tables))
