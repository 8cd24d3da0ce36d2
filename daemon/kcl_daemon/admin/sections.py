"""The parts of the page that are about the fleet: workers and leader, and the last moves of leases.

Pure: a snapshot in, pieces of HTML out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kcl_daemon.admin.markup import Column, table, text
from kcl_daemon.admin.summary import Counts
from kcl_daemon.observe.snapshot import MoveView, Snapshot, WorkerView
from kcl_daemon.observe.words import NONE, about

_WORKERS: Final = (
    Column("Worker"),
    Column("Role"),
    Column("Leases", is_number=True),
    Column("CPU", is_number=True),
    Column("Last report", is_number=True),
)
MOVES_MOST: Final = 8
"""A start moves every lease; more of them would fill the screen."""
_MOVES_CAPTION: Final = f"The last {MOVES_MOST} decisions of this worker as leader; /status.json has more"
_MOVES: Final = (Column("When", is_number=True), Column("Lease"), Column("Reason"))


def fleet_section(snapshot: Snapshot, counted: Counts) -> Iterator[str]:
    """Who leads, how many leases are where, and a row for each worker."""
    yield '<section id="fleet" aria-labelledby="fleet-heading"><h2 id="fleet-heading">Fleet</h2><dl class="facts">'
    for name, value in _facts(snapshot, counted):
        yield f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>"
    yield "</dl>"
    if snapshot.workers:
        yield from table("fleet", "Workers, from DynamoDB", _WORKERS, _worker_rows(snapshot))
    else:
        yield "<p>The tables were not read yet, so the other workers are unknown.</p>"
    yield "</section>"


def _facts(snapshot: Snapshot, counted: Counts) -> Iterator[tuple[str, str]]:
    yield "Leader", leader_text(snapshot)
    yield "Leases", str(counted.leases)
    yield "This worker", str(counted.held)
    yield "Unowned", str(counted.nobody)
    yield "Handing over", str(counted.handing_over)
    yield "Finished", str(counted.finished)
    if snapshot.renewed_s is not None:
        yield "Renewed", f"{about(snapshot.renewed_s)} ago"
    if snapshot.fleet_age_s is not None:
        yield "Fleet as of", f"{about(snapshot.fleet_age_s)} ago"


def leader_text(snapshot: Snapshot) -> str:
    """Who leads, in words."""
    if snapshot.leads:
        return f"{snapshot.worker_id} (this worker)"
    if snapshot.leaderless_s is not None:
        return f"nobody for {about(snapshot.leaderless_s)}"
    return snapshot.leader or "not known"


def role_text(worker: WorkerView, snapshot: Snapshot) -> str:
    """What a worker is to the fleet and to us."""
    leads = snapshot.leads if worker.worker_id == snapshot.worker_id else worker.worker_id == snapshot.leader
    role = "leader" if leads else "follower"
    return f"{role}, this worker" if worker.worker_id == snapshot.worker_id else role


def cpu_text(worker: WorkerView) -> str:
    """Its CPU."""
    return NONE if worker.cpu_percent is None else f"{worker.cpu_percent:.0f} %"


def reported_text(worker: WorkerView) -> str:
    """When it was last heard of."""
    return NONE if worker.reported_s is None else f"{about(worker.reported_s)} ago"


def _worker_rows(snapshot: Snapshot) -> Iterator[str]:
    for worker in sorted(snapshot.workers, key=lambda each: each.worker_id):
        yield (
            f'<tr data-key="{text(worker.worker_id)}"><th scope="row">{text(worker.worker_id)}</th>'
            f"<td>{text(role_text(worker, snapshot))}</td><td class=num>{worker.leases}</td>"
            f"<td class=num>{cpu_text(worker)}</td><td class=num>{reported_text(worker)}</td></tr>"
        )


def moves_section(snapshot: Snapshot) -> Iterator[str]:
    """What the leader has decided last, with its reasons."""
    yield '<section id="moves" aria-labelledby="moves-heading"><h2 id="moves-heading">Last moves</h2>'
    if snapshot.moves:
        yield from table("moves", _MOVES_CAPTION, _MOVES, map(_move_row, snapshot.moves[:MOVES_MOST]))
    elif snapshot.leads:
        yield "<p>This worker has moved no lease since it became leader.</p>"
    else:
        yield "<p>The leader decides moves; its page shows them.</p>"
    yield "</section>"


def move_reason(move: MoveView) -> str:
    """Why, without the name of the shard, which stands beside it."""
    name, colon, reason = move.reason.partition(": ")
    return reason if colon and "shardId-" in name and " " not in name else move.reason


def _move_row(move: MoveView) -> str:
    return (
        f"<tr><td class=num>{about(move.ago_s)} ago</td>"
        f'<th scope="row">{text(move.key)}</th><td>{text(move_reason(move))}</td></tr>'
    )
