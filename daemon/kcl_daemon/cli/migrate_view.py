"""How `kcl-daemon migrate status` looks: as text, and as JSON for scripts. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import orjson

from kcl_daemon.cli.migrate_steps import Status, TableMove
from kcl_daemon.leases.client_version import CODEC, ClientVersion
from kcl_daemon.leases.state_row import Refusal
from kcl_daemon.leases.table_migration import TableStatus
from kcl_daemon.observe.redact import on_one_line
from kcl_daemon.observe.words import numbered

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


def status_lines(seen: Status) -> Iterator[str]:
    """The state, where it came from, and what an upgrade waits for."""
    row = seen.row
    if row is None:
        yield f"no row {CODEC.row_key}: no 3.x worker has started, or all are in phase 1"
    elif isinstance(row, Refusal):
        yield f"{on_one_line(row.problem)}; {row.advice}"
    else:
        yield f"{row.state}: {_MEANING.get(row.state, '')}"
        yield f"  since {_date(row.at_ms)}, set by {on_one_line(row.by)}"
        for past in row.history:
            yield f"  before: {on_one_line(past.state)}, {_date(past.at_ms)}, {on_one_line(past.by)}"
    yield f"index by owner: {seen.index.value}"
    yield f"{numbered(seen.leases, 'lease')}, {len(seen.ready.unowned)} of them without an owner"
    for key in seen.ready.unowned:
        yield f"  {on_one_line(key)}: no owner"
    upgrading = isinstance(row, Refusal) or row is None or row.state is not ClientVersion.V3X
    silent = frozenset[str](seen.ready.silent if upgrading else ())
    known = {worker for worker, _ in seen.workers}
    for worker, age_s in seen.workers:
        lacks = "; owns leases, so the upgrade waits for it" if worker in silent else ""
        yield f"  {on_one_line(worker)}: reported {age_s:.0f} s ago{lacks}"
    for owner in sorted(silent - known):
        yield f"  {on_one_line(owner)}: owns leases but has never reported; the upgrade waits for it"
    if upgrading:
        yield ("ready for 3.x" if seen.ready.is_met else f"not ready: {on_one_line(seen.ready.missing)}")
    yield from _move_lines(seen.tables)


def _move_lines(move: TableMove) -> Iterator[str]:
    row = move.row
    if move.is_single:
        yield "tables: one, all rows are in the lease table"
    elif row is None:
        yield "tables: separate; no migration to one table is in progress"
    elif isinstance(row, Refusal):
        yield f"tables: separate; {on_one_line(row.problem)}; {row.advice}"
    else:
        yield f"tables: separate; {row.state}: {_MOVE_MEANING[row.state]}"
    if row is not None and not isinstance(row, Refusal):
        yield f"  since {_date(row.at_ms)}, set by {on_one_line(row.by)}"
        for past in row.history:
            yield f"  before: {on_one_line(past.state)}, {_date(past.at_ms)}, {on_one_line(past.by)}"
    if not move.is_single:
        for owner in move.unsupporting:
            yield f"  {on_one_line(owner)}: owns leases but does not report support for the single table"
        for worker in move.in_legacy:
            yield f"  {on_one_line(worker)}: writes its row to the old table"


def status_json(seen: Status) -> str:
    """One document."""
    row = seen.row
    readable = row if row is not None and not isinstance(row, Refusal) else None
    document = {
        "clientVersion": None if readable is None else str(readable.state),
        "problem": row.problem if isinstance(row, Refusal) else None,
        "modifiedBy": None if readable is None else readable.by,
        "modifiedMillis": None if readable is None else readable.at_ms,
        "history": [
            {"clientVersion": past.state, "modifiedBy": past.by, "modifiedMillis": past.at_ms}
            for past in (() if readable is None else readable.history)
        ],
        "index": seen.index.value,
        "leases": seen.leases,
        "ready": seen.ready.is_met,
        "leasesWithoutOwner": list(seen.ready.unowned),
        "ownersThatDoNotReport": list(seen.ready.silent),
        "workers": [
            {"workerId": worker, "reportedSecondsAgo": round(age_s), "active": age_s < seen.active_s}
            for worker, age_s in seen.workers
        ],
        "tables": _move_document(seen.tables),
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def _move_document(move: TableMove) -> dict[str, object]:
    row = move.row
    readable = row if row is not None and not isinstance(row, Refusal) else None
    return {
        "layout": "single" if move.is_single else "separate",
        "migration": None if readable is None else str(readable.state),
        "problem": row.problem if isinstance(row, Refusal) else None,
        "modifiedBy": None if readable is None else readable.by,
        "modifiedMillis": None if readable is None else readable.at_ms,
        "history": [
            {"migration": past.state, "modifiedBy": past.by, "modifiedMillis": past.at_ms}
            for past in (() if readable is None else readable.history)
        ],
        "ownersThatDoNotKnowTheSingleTable": list(move.unsupporting),
        "workersThatReportToTheOldTable": list(move.in_legacy),
    }


def _date(at_ms: int) -> str:
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"
