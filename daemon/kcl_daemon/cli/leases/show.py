"""Observed leases, plan and lineage, as lines or as JSON.

docs/operations-leases.md describes the JSON: names keep their meaning, and `schema` counts breaking changes.
Text from a table is made safe for a terminal here.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from math import ceil
from typing import Final, TypeAlias

from kcl_daemon.assignment.load import FleetLoad, WorkerLoad, measure_fleet, metric_title
from kcl_daemon.assignment.plan import AssignmentPlan, Fleet, LeaseMove
from kcl_daemon.cli.common import aligned
from kcl_daemon.cli.leases.look import (
    ExplainedPlan,
    LeaderView,
    LeaseLag,
    ObservedFleet,
    ObservedWorker,
    summarize_leases,
    worker_views,
)
from kcl_daemon.leases.lease import Lease, ShardId, StreamIdentity, WorkerId
from kcl_daemon.leases.worker_row import CPU, WorkerRow
from kcl_daemon.text import about, duration, numbered, on_one_line, shown
from kcl_protocol.sequence import ExtendedSequenceNumber

_MAX_LISTED = 4
_HEADINGS = ("worker", "leases", "cpu", "throughput", "headroom", "")


def explain_plan(fleet: Fleet, plan: AssignmentPlan, *, ema_alpha: float = 0.5) -> tuple[str, ...]:
    """What the leader sees and would do.

    Lease counts include current handoffs. Headroom is how far a worker's most loaded metric is below its fair
    share.
    """
    state = measure_fleet(fleet, alpha=ema_alpha)
    rows = [_HEADINGS, *(_row(worker, state, fleet) for worker in sorted(_workers(fleet)))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    return (*(_line(row, widths) for row in rows), "", *_measures(state), *_moves(plan))


def _measures(state: FleetLoad) -> Iterator[str]:
    if len(state.loads) < 2:
        return
    by: dict[str, list[str]] = {}
    for _, load in sorted(state.loads.items()):
        by.setdefault(metric_title(load.leading), []).append(load.describe(load.leading))
    reported = "; ".join(f"{name} ({_listed(values)})" for name, values in sorted(by.items()))
    yield f"balanced by {reported}, then by number of leases"
    for sharing in state.hosts:
        yield f"{_listed(list(sharing))} report the CPU of one host, so they share by number of leases"
    yield ""


def _listed(values: list[str]) -> str:
    if len(values) > _MAX_LISTED:
        return f"{', '.join(values[:_MAX_LISTED])} and {len(values) - _MAX_LISTED} more"
    return " and ".join(filter(None, (", ".join(values[:-1]), values[-1])))


def _workers(fleet: Fleet) -> frozenset[WorkerId]:
    owners = (lease.actual_owner for lease in fleet.unfinished)
    return fleet.workers | {owner for owner in owners if owner is not None}


def _row(worker: WorkerId, state: FleetLoad, fleet: Fleet) -> tuple[str, ...]:
    row = fleet.stats.get(worker)
    cpu = _cpu(row)
    load = state.loads.get(worker)
    if load is None:
        leases = sum(fleet.future_owner(lease) == worker for lease in fleet.unfinished)
        return worker, str(leases), cpu, "", "", _why_not(worker, fleet)
    return worker, str(load.leases), cpu, f"{load.throughput_kbps:.0f} KiB/s", _headroom(load), ""


def _cpu(row: WorkerRow | None) -> str:
    averages = () if row is None else row.metrics.get(CPU, ())
    if not averages:
        return "-"
    return f"{averages[-1]:.0f} %" if averages[-1] >= 0 else "failed"


def _headroom(load: WorkerLoad) -> str:
    return f"{(1 - load.relative) * 100:+.0f} % of its share of {metric_title(load.leading)}"


def _why_not(worker: WorkerId, fleet: Fleet) -> str:
    if worker not in fleet.workers:
        silent = {lease.actual_owner for lease in fleet.unfinished if lease.lease_key in fleet.abandoned}
        return "is silent" if worker in silent and worker in fleet.stats else "does not report"
    return "could not measure itself"


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    texts, numbers = cells[:1] + cells[4:], cells[1:4]
    padded = chain(
        (texts[0].ljust(widths[0]),),
        (cell.rjust(width) for cell, width in zip(numbers, widths[1:4], strict=True)),
        (cell.ljust(width) for cell, width in zip(texts[1:], widths[4:], strict=True)),
    )
    return "  ".join(padded).rstrip()


def _moves(plan: AssignmentPlan) -> Iterator[str]:
    if not plan.moves:
        yield "nothing to move"
    for move in plan.moves:
        yield f"{move.how.value}: {move.reason}"
    for key in plan.unplaced:
        yield f"{key}: no worker has room for it"


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


def list_lines(seen: ObservedFleet, *, with_finished: bool) -> tuple[str, ...]:
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


def explain_lines(explained: ExplainedPlan) -> tuple[str, ...]:
    seen, plan = explained.seen, explained.plan
    decided = explain_plan(seen.fleet, plan, ema_alpha=explained.ema_alpha)
    return _paragraphs(
        [_origin_line(seen), _leader_text(seen.leader)],
        map(on_one_line, decided),
        _unreadable_lines(seen),
        (*_timing_lines(explained), *(f"note: {note}" for note in notes(seen))),
    )


def notes(seen: ObservedFleet) -> tuple[str, ...]:
    return (*_of_workers(seen), *_of_watching(seen))


def _of_workers(seen: ObservedFleet) -> Iterator[str]:
    if seen.fleet.unfinished and not seen.fleet.workers:
        yield "no worker is alive: there is no leader and nothing is read"


def _of_watching(seen: ObservedFleet) -> Iterator[str]:
    if seen.knows_abandoned:
        return
    checked = "a single check" if seen.watched_s <= 0 else f"{seen.watched_s:.0f} s of watching"
    limit = f"a lease is abandoned after {seen.failover_s:g} s without a change"
    advice = f"use --watch {ceil(1.4 * seen.failover_s)}"
    yield f"{checked} cannot show which owners are silent: {limit}; {advice}"


def shortened(checkpoint: ExtendedSequenceNumber) -> str:
    """Cuts the middle of the 56 digits; checkpoints of a shard differ at the end."""
    text = str(checkpoint.sequence_number)
    if len(text) > _CHECKPOINT_START + _CHECKPOINT_END + 3:
        text = f"{text[:_CHECKPOINT_START]}...{text[-_CHECKPOINT_END:]}"
    return f"{text}/{checkpoint.sub_sequence_number}" if checkpoint.sub_sequence_number else text


def _paragraphs(*paragraphs: Iterable[str]) -> tuple[str, ...]:
    lines: list[str] = []
    for paragraph in map(list, paragraphs):
        if paragraph:
            lines += ["", *paragraph] if lines else paragraph
    return tuple(lines)


def _lease_cells(lease: Lease, seen: ObservedFleet) -> tuple[str, ...]:
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


def _owner_cell(lease: Lease, seen: ObservedFleet) -> str:
    owner = lease.actual_owner or _NONE
    if lease.lease_key in seen.fleet.abandoned:
        owner += " (silent)"
    return owner if lease.degraded_by is None else f"{owner} (failing on {lease.degraded_by})"


def _handoff_cell(lease: Lease, seen: ObservedFleet) -> str:
    if lease.checkpoint_owner is None:
        return _NONE
    to = lease.lease_owner or "nobody"
    return f"{to} (overdue)" if lease.lease_key in seen.fleet.overdue else to


def _lag_cell(lag: LeaseLag | None) -> str:
    if lag is None:
        return _NONE
    return shown(lag.unknown_because)[:_LAG_MOST] if lag.millis is None else duration(lag.millis / 1000)


def _worker_lines(workers: Sequence[ObservedWorker]) -> list[str]:
    if not workers:
        return ["no workers: none reports or owns a lease"]
    return aligned(_WORKER_HEADINGS, map(_worker_cells, workers), _WORKER_NUMBERS)


def _worker_cells(worker: ObservedWorker) -> tuple[str, ...]:
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


def _origin_line(seen: ObservedFleet) -> str:
    origin = seen.origin
    tables = ", ".join(origin.tables)
    return on_one_line(
        f"application {origin.application}, stream {origin.stream}; layout {origin.layout.value}: {tables}"
    )


def _leader_text(leader: LeaderView | None) -> str:
    if leader is None:
        return "leader: none; the next worker to take the lock decides"
    name = on_one_line(leader.worker)
    if leader.released:
        return f"leader: none, {name} released the lock; the next worker to take it decides"
    if not leader.leads:
        return f"leader: {name}, but its lock was not renewed for {duration(leader.silent_s)}"
    return f"leader: {name}"


def _unreadable_lines(seen: ObservedFleet) -> Iterator[str]:
    for row in seen.unreadable:
        yield f"unreadable row {on_one_line(row.key)} of table {row.table}: {shown(row.problem)}"
    if seen.unreadable:
        yield "workers ignore these rows: repair or delete them"


def _summary_line(seen: ObservedFleet, *, with_finished: bool) -> str:
    counts, workers = summarize_leases(seen), worker_views(seen)
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


def _timing_lines(explained: ExplainedPlan) -> Iterator[str]:
    moves = explained.plan.moves
    at_once = sum(map(explained.is_at_once, moves))
    if at_once:
        yield f"at its next check: {at_once} of these moves"
    if at_once < len(moves):
        yield (
            f"at the next balancing: {len(moves) - at_once} of these moves; that is every "
            f"{explained.balance_s:g} s and when workers come or go"
        )


def tree_lines(seen: ObservedFleet) -> tuple[str, ...]:
    """A shard with two parents is drawn below the first and mentioned below the second."""
    if not seen.leases:
        return ("no leases to show",)
    streams = dict.fromkeys(lease.stream for lease in seen.leases)
    return tuple(line for stream in streams for line in _stream_lines(seen, stream))


def _stream_lines(seen: ObservedFleet, stream: StreamIdentity | None) -> Iterator[str]:
    if stream is not None:
        yield f"{stream}:"
    by_id = {lease.shard_id: lease for lease in seen.leases if lease.stream == stream}
    below = _children(by_id)
    roots = [shard_id for shard_id, lease in by_id.items() if not _known_parents(lease, by_id)]
    drawing = _Drawing(seen, by_id, below)
    for root in roots:
        yield from drawing.lines(root, "", "")


def _known_parents(lease: Lease, by_id: Mapping[ShardId, Lease]) -> list[ShardId]:
    return sorted(parent for parent in lease.parent_shard_ids if parent in by_id)


def _children(by_id: Mapping[ShardId, Lease]) -> Mapping[ShardId, Sequence[ShardId]]:
    below: dict[ShardId, list[ShardId]] = defaultdict(list)
    for shard_id, lease in by_id.items():
        for parent in _known_parents(lease, by_id):
            below[parent].append(shard_id)
    return below


class _Drawing:
    def __init__(
        self, seen: ObservedFleet, by_id: Mapping[ShardId, Lease], below: Mapping[ShardId, Sequence[ShardId]]
    ) -> None:
        self._seen = seen
        self._by_id = by_id
        self._below = below
        self._drawn: set[ShardId] = set()

    def lines(self, root: ShardId, lead: str, indent: str) -> Iterator[str]:
        """An explicit stack: a lineage may have thousands of generations."""
        stack = [(root, lead, indent)]
        while stack:
            shard_id, lead, indent = stack.pop()
            if shard_id in self._drawn:
                yield f"{lead}{shard_id}, see above"
                continue
            self._drawn.add(shard_id)
            yield f"{lead}{shard_id}  {self._state(self._by_id[shard_id])}"
            children = self._below.get(shard_id, ())
            for number, child in reversed(list(enumerate(children, start=1))):
                is_last = number == len(children)
                stack.append(
                    (
                        child,
                        f"{indent}{'`- ' if is_last else '|- '}",
                        f"{indent}{'   ' if is_last else '|  '}",
                    )
                )

    def _state(self, lease: Lease) -> str:
        return on_one_line(", ".join(self._words(lease)))

    def _words(self, lease: Lease) -> Iterator[str]:
        if lease.is_finished:
            yield "finished"
            return
        waits_for = [
            parent for parent in _known_parents(lease, self._by_id) if not self._by_id[parent].is_finished
        ]
        if waits_for:
            yield f"waits for {' and '.join(waits_for)}"
        yield f"at {shortened(lease.checkpoint)}"
        if lease.actual_owner is None:
            yield "no worker reads it"
        else:
            silent = " (silent)" if lease.lease_key in self._seen.fleet.abandoned else ""
            yield f"{lease.actual_owner}{silent}"
        if lease.checkpoint_owner is not None:
            yield f"moving to {lease.lease_owner}"
        lag = None if self._seen.lags is None else self._seen.lags.get(lease.lease_key)
        if lag is not None:
            yield _behind(lag)


def _behind(lag: LeaseLag) -> str:
    if lag.millis is None:
        return f"lag unknown: {lag.unknown_because}"
    return f"{duration(lag.millis / 1000)} behind"


SCHEMA: Final = 1

_Document: TypeAlias = dict[str, object]


def list_json(seen: ObservedFleet, *, with_finished: bool) -> str:
    leases = [lease for lease in seen.leases if with_finished or not lease.is_finished]
    return _text({**_common(seen), "leases": [_lease(lease, seen) for lease in leases]})


def explain_json(explained: ExplainedPlan) -> str:
    seen = explained.seen
    return _text(
        {
            **_common(seen),
            "watched_s": round(seen.watched_s, 3),
            "failover_s": seen.failover_s,
            "balance_s": explained.balance_s,
            "abandoned": sorted(seen.fleet.abandoned),
            "overdue": sorted(seen.fleet.overdue),
            "moves": [_move(move, explained) for move in explained.plan.moves],
            "unplaced": sorted(explained.plan.unplaced),
            "notes": list(notes(seen)),
        }
    )


def _common(seen: ObservedFleet) -> _Document:
    origin, leader = seen.origin, seen.leader
    return {
        "schema": SCHEMA,
        "application": origin.application,
        "stream": origin.stream,
        "layout": origin.layout.value,
        "layout_reason": origin.reason,
        "tables": list(origin.tables),
        "leader": None
        if leader is None
        else {
            "worker": leader.worker,
            "leads": leader.leads,
            "released": leader.released,
            "lease_s": leader.lease_s,
            "silent_s": round(leader.silent_s, 3),
        },
        "summary": asdict(summarize_leases(seen)),
        "workers": [_worker(worker) for worker in worker_views(seen)],
        "unreadable_rows": [asdict(row) for row in seen.unreadable],
    }


def _worker(worker: ObservedWorker) -> _Document:
    return {
        "worker": worker.worker_id,
        "alive": worker.alive,
        "leader": worker.leads,
        "leases": worker.leases,
        "last_report_s": worker.last_report_s,
        "report_age_s": None if worker.report_age_s is None else round(worker.report_age_s, 3),
        "cpu_percent": worker.cpu_percent,
        "cpu_failed": worker.cpu_failed,
    }


def _lease(lease: Lease, seen: ObservedFleet) -> _Document:
    hashes = lease.hash_range
    pending = lease.pending_checkpoint
    lag = None if seen.lags is None else seen.lags.get(lease.lease_key)
    return {
        "lease": lease.lease_key,
        "owner": lease.actual_owner,
        "handoff_to": None if lease.checkpoint_owner is None else lease.lease_owner,
        "abandoned": lease.lease_key in seen.fleet.abandoned if seen.knows_abandoned else None,
        "finished": lease.is_finished,
        "degraded_by": lease.degraded_by,
        "checkpoint": str(lease.checkpoint.sequence_number),
        "sub_sequence_number": lease.checkpoint.sub_sequence_number,
        "pending_checkpoint": None if pending is None else str(pending),
        "counter": lease.lease_counter,
        "owner_switches_since_checkpoint": lease.owner_switches_since_checkpoint,
        "throughput_kib_per_s": lease.throughput_kbps,
        "lag_ms": None if lag is None else lag.millis,
        "lag_unknown_because": None if lag is None or lag.millis is not None else lag.unknown_because,
        "parents": sorted(lease.parent_shard_ids),
        "children": sorted(lease.child_shard_ids),
        # As text: most languages round JSON numbers of this size.
        "hash_range": None if hashes is None else [str(hashes.start), str(hashes.end)],
    }


def _move(move: LeaseMove, explained: ExplainedPlan) -> _Document:
    return {
        "lease": move.lease.lease_key,
        "from": move.lease.actual_owner,
        "to": move.to,
        "how": move.how.value,
        "when": "next look" if explained.is_at_once(move) else "next balancing",
        "reason": move.reason,
    }


def _text(document: _Document) -> str:
    return json.dumps(document, indent=2)
