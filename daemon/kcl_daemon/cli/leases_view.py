"""What was seen of an application, as lines for people.

Pure. Text that came out of a table is made fit for a terminal here. Scripts use `leases_json`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from math import ceil
from typing import Final

from kcl_daemon.assignment.explain import explain
from kcl_daemon.cli.leases_seen import (
    Explained,
    Lag,
    Leader,
    Seen,
    WorkerView,
    summary,
    worker_views,
)
from kcl_daemon.leases.lease import Lease
from kcl_daemon.observe.redact import on_one_line, shown
from kcl_daemon.observe.words import about, duration, numbered
from kcl_protocol.sequence import ExtendedSequenceNumber

_NONE: Final = "-"
_LEASE_HEADINGS: Final = (
    "shard",
    "owner",
    "handoff to",
    "checkpoint",
    "counter",
    "switches",
    "throughput",
    "lag",
)
_LEASE_NUMBERS: Final = frozenset({4, 5, 6, 7})
_LAG_COLUMN: Final = 7
_WORKER_HEADINGS: Final = ("worker", "state", "last report", "cpu", "leases", "")
_WORKER_NUMBERS: Final = frozenset({2, 3, 4})
_CHECKPOINT_START, _CHECKPOINT_END = 6, 12
_LAG_MOST: Final = 40


def list_lines(seen: Seen, *, with_finished: bool) -> tuple[str, ...]:
    """Leases, workers, rows that cannot be read, and a summary; finished leases only if asked for."""
    leases = [lease for lease in seen.leases if with_finished or not lease.is_finished]
    width = len(_LEASE_HEADINGS) if seen.lags is not None else _LAG_COLUMN
    rows = [_lease_cells(lease, seen)[:width] for lease in leases]
    return _paragraphs(
        [_origin_line(seen)],
        aligned(_LEASE_HEADINGS[:width], rows, _LEASE_NUMBERS) if rows else ["no leases to show"],
        _worker_lines(worker_views(seen)),
        _unreadable_lines(seen),
        [_summary_line(seen, with_finished=with_finished)],
    )


def explain_lines(explained: Explained) -> tuple[str, ...]:
    """The fleet as its leader judges it, each move with its reason, and what one had better know about it."""
    seen, plan = explained.seen, explained.plan
    decided = explain(seen.fleet, plan, ema_alpha=explained.ema_alpha)
    return _paragraphs(
        [_origin_line(seen), _leader_text(seen.leader)],
        map(on_one_line, decided),
        _unreadable_lines(seen),
        (*_timing_lines(explained), *(f"note: {note}" for note in notes(seen))),
    )


def notes(seen: Seen) -> tuple[str, ...]:
    """What one had better know: that nobody works, and what this way of looking cannot show."""
    return (*_of_workers(seen), *_of_watching(seen))


def _of_workers(seen: Seen) -> Iterator[str]:
    if seen.fleet.unfinished and not seen.fleet.workers:
        yield "no worker is alive: there is no leader and nothing is read"


def _of_watching(seen: Seen) -> Iterator[str]:
    if seen.could_tell_abandoned:
        return
    looked = "a single check" if seen.watched_s <= 0 else f"{seen.watched_s:.0f} s of watching"
    limit = f"a lease is abandoned after {seen.failover_s:g} s without a change"
    advice = f"use --watch {ceil(1.4 * seen.failover_s)}"
    yield f"{looked} cannot show which owners are silent: {limit}; {advice}"


def aligned(headings: Sequence[str], rows: Iterable[Sequence[str]], numbers: Collection[int]) -> list[str]:
    """A table as lines: columns two spaces apart, those of numbers flush right, nothing at the end of a line."""
    table = [list(headings), *([on_one_line(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if number in numbers else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def shortened(checkpoint: ExtendedSequenceNumber) -> str:
    """A checkpoint without the middle of its 56 digits; the end is what differs within a shard."""
    text = str(checkpoint.sequence_number)
    if len(text) > _CHECKPOINT_START + _CHECKPOINT_END + 3:
        text = f"{text[:_CHECKPOINT_START]}...{text[-_CHECKPOINT_END:]}"
    return f"{text}/{checkpoint.sub_sequence_number}" if checkpoint.sub_sequence_number else text


def _paragraphs(*paragraphs: Iterable[str]) -> tuple[str, ...]:
    """Those that have lines, an empty line between two."""
    lines: list[str] = []
    for paragraph in map(list, paragraphs):
        if paragraph:
            lines += ["", *paragraph] if lines else paragraph
    return tuple(lines)


def _lease_cells(lease: Lease, seen: Seen) -> tuple[str, ...]:
    return (
        lease.lease_key,
        _owner_cell(lease, seen),
        _handoff_cell(lease, seen),
        shortened(lease.checkpoint),
        str(lease.lease_counter),
        str(lease.owner_switches_since_checkpoint),
        _NONE if lease.throughput_kbps is None else f"{lease.throughput_kbps:.1f} KiB/s",
        _lag_cell(seen.lags.get(lease.lease_key)) if seen.lags is not None else "",
    )


def _owner_cell(lease: Lease, seen: Seen) -> str:
    owner = lease.actual_owner or _NONE
    if lease.lease_key in seen.fleet.abandoned:
        owner += " (silent)"
    return owner if lease.degraded_by is None else f"{owner} (failing on {lease.degraded_by})"


def _handoff_cell(lease: Lease, seen: Seen) -> str:
    if lease.checkpoint_owner is None:
        return _NONE
    to = lease.lease_owner or "nobody"
    return f"{to} (overdue)" if lease.lease_key in seen.fleet.overdue else to


def _lag_cell(lag: Lag | None) -> str:
    if lag is None:
        return _NONE
    return shown(lag.unknown_because)[:_LAG_MOST] if lag.millis is None else duration(lag.millis / 1000)


def _worker_lines(workers: Sequence[WorkerView]) -> list[str]:
    if not workers:
        return ["no workers: none reports or owns a lease"]
    return aligned(_WORKER_HEADINGS, map(_worker_cells, workers), _WORKER_NUMBERS)


def _worker_cells(worker: WorkerView) -> tuple[str, ...]:
    cpu = _NONE if worker.cpu_percent is None else f"{worker.cpu_percent:.0f} %"
    age_s = worker.report_age_s
    return (
        worker.worker_id,
        "alive" if worker.alive else "silent" if age_s is not None else "no row",
        _NONE if age_s is None else f"{about(age_s)} ago",
        "failed" if worker.cpu_failed else cpu,
        str(worker.leases),
        "leader" if worker.leads else "",
    )


def _origin_line(seen: Seen) -> str:
    origin = seen.origin
    tables = ", ".join(origin.tables)
    return on_one_line(
        f"application {origin.application}, stream {origin.stream}; layout {origin.layout.value}: {tables}"
    )


def _leader_text(leader: Leader | None) -> str:
    if leader is None:
        return "leader: none; the next worker to take the lock decides"
    name = on_one_line(leader.worker)
    if leader.released:
        return f"leader: none, {name} released the lock; the next worker to take it decides"
    if not leader.leads:
        return f"leader: {name}, but its lock was not renewed for {duration(leader.silent_s)}"
    return f"leader: {name}"


def _unreadable_lines(seen: Seen) -> Iterator[str]:
    for row in seen.unreadable:
        yield f"unreadable row {on_one_line(row.key)} of table {row.table}: {shown(row.problem)}"
    if seen.unreadable:
        yield "workers ignore these rows: repair or delete them"


def _summary_line(seen: Seen, *, with_finished: bool) -> str:
    counts, workers = summary(seen), worker_views(seen)
    hidden = " (shown with --all)" if counts.finished and not with_finished else ""
    of_leases = ", ".join(
        (
            f"{numbered(counts.leases, 'lease')}: {counts.owned} with an owner",
            f"{counts.unowned} without",
            f"{counts.handing_off} in handoff",
            f"{counts.finished} finished{hidden}",
        )
    )
    alive = sum(worker.alive for worker in workers)
    return f"{of_leases}; {numbered(len(workers), 'worker')}, {alive} alive; {_leader_text(seen.leader)}"


def _timing_lines(explained: Explained) -> Iterator[str]:
    moves = explained.plan.moves
    at_once = sum(map(explained.is_at_once, moves))
    if at_once:
        yield f"at its next check: {at_once} of these moves"
    if at_once < len(moves):
        yield (
            f"at the next balancing: {len(moves) - at_once} of these moves; that is every "
            f"{explained.balance_s:g} s and when workers come or go"
        )
