"""docs/operations-leases.md describes the JSON: names keep their meaning, `schema` counts breaking changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Final, TypeAlias

from kcl_daemon.admin.view import cpu_text, draw_lineage, reported_text
from kcl_daemon.assignment.load import FleetLoad, measure_fleet, metric_title
from kcl_daemon.assignment.plan import AssignmentPlan, Fleet, LeaseMove
from kcl_daemon.cli.common import aligned, json_text
from kcl_daemon.cli.leases.look import LeaseLag, ObservedFleet
from kcl_daemon.coverage import Unread
from kcl_daemon.hold_words import follows_holds, hold_json, hold_text, not_held
from kcl_daemon.leases.holds import Hold
from kcl_daemon.leases.lease import Lease, LeaseKey, StreamIdentity, WorkerId
from kcl_daemon.shards.lineage import InitialPosition, StartAt
from kcl_daemon.telemetry.snapshot import WorkerView, worker_views
from kcl_daemon.text import NONE, duration, numbered, on_one_line, short_number, short_shards, shown
from kcl_protocol.sequence import ExtendedSequenceNumber

_MAX_LISTED = 4
_HEADINGS = ("worker", "leases", "cpu", "throughput", "headroom", "")
_COLUMNS: Final = ("shard", "owner", "handoff to", "checkpoint", "counter", "switches", "throughput", "lag")
_COLUMN_NUMBERS: Final = frozenset({4, 5, 6, 7})
_LAG_COLUMN: Final = 7
_WORKER_HEADINGS: Final = ("worker", "state", "last report", "cpu", "leases", "")
_WORKER_NUMBERS: Final = frozenset({2, 3, 4})
_LAG_MOST: Final = 40
SCHEMA: Final = 1


@dataclass(frozen=True, slots=True)
class ExplainedPlan:
    """Moves in `at_once` happen at the next poll, the others at the next balancing."""

    seen: ObservedFleet
    plan: AssignmentPlan
    at_once: frozenset[LeaseKey]
    balance_s: float
    ema_alpha: float


def explain_plan(fleet: Fleet, plan: AssignmentPlan, *, ema_alpha: float = 0.5) -> tuple[str, ...]:
    """Lease counts include handoffs under way."""
    state = measure_fleet(fleet, alpha=ema_alpha)
    workers = worker_views(fleet.stats.values(), fleet.unfinished, lambda _: None, also=fleet.workers)
    shown_workers = (each for each in workers if each.leases or each.worker_id in fleet.workers)
    rows = [_row(worker, state, fleet) for worker in shown_workers]
    return (*aligned(_HEADINGS, rows, {1, 2, 3}), "", *_measures(state), *_moves(plan))


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


def _row(view: WorkerView, state: FleetLoad, fleet: Fleet) -> tuple[str, ...]:
    worker = WorkerId(view.worker_id)
    load = state.loads.get(worker)
    if load is None:
        leases = sum(fleet.future_owner(lease) == worker for lease in fleet.unfinished)
        return worker, str(leases), cpu_text(view), "", "", _why_not(worker, fleet)
    throughput = f"{load.throughput_kbps:.0f} KiB/s"
    headroom = f"{(1 - load.relative) * 100:+.0f} % of its share of {metric_title(load.leading)}"
    return worker, str(load.leases), cpu_text(view), throughput, headroom, ""


def _why_not(worker: WorkerId, fleet: Fleet) -> str:
    if worker not in fleet.workers:
        silent = {lease.actual_owner for lease in fleet.unfinished if lease.lease_key in fleet.abandoned}
        return "is silent" if worker in silent and worker in fleet.stats else "does not report"
    return "could not measure itself"


def _moves(plan: AssignmentPlan) -> Iterator[str]:
    if not plan.moves:
        yield "nothing to move"
    for move in plan.moves:
        yield f"{move.how.value}: {move.reason}"
    for key in plan.unplaced:
        yield f"{key}: no worker has room for it"


def list_lines(seen: ObservedFleet, *, with_finished: bool) -> tuple[str, ...]:
    leases = [lease for lease in seen.leases if with_finished or not lease.is_finished]
    width = len(_COLUMNS) if seen.lags is not None else _LAG_COLUMN
    rows = [_lease_cells(lease, seen)[:width] for lease in leases]
    return _paragraphs(
        [_origin_line(seen)],
        aligned(_COLUMNS[:width], rows, _COLUMN_NUMBERS) if rows else ["no leases to show"],
        _worker_lines(seen),
        (hold_text(hold, _unheld(hold, seen)) for hold in seen.holds),
        _unreadable_lines(seen),
        _unread_lines(seen),
        [_summary_line(seen, with_finished=with_finished)],
    )


def is_any_unread(seen: ObservedFleet) -> bool:
    """Or a row is broken."""
    is_broken = any(each.cause is Unread.UNREADABLE for each in seen.covered.values())
    return is_broken or next(_unread_lines(seen), None) is not None


def _unread_lines(seen: ObservedFleet) -> Iterator[str]:
    unread: dict[str, list[str]] = {}
    for lease in seen.leases:
        each = seen.covered.get(lease.lease_key)
        if each is not None and each.cause is not None:
            unread.setdefault(f"{each.why} ({each.cause})", []).append(each.key)
    for why, keys in unread.items():
        yield f"nobody reads {short_shards(keys)}: {on_one_line(why)}"
    if unread:
        yield "`kcl-daemon watch` says since when, and which shards have no lease"


def explain_lines(explained: ExplainedPlan) -> tuple[str, ...]:
    seen, plan = explained.seen, explained.plan
    decided = explain_plan(seen.fleet, plan, ema_alpha=explained.ema_alpha)
    return _paragraphs(
        [_origin_line(seen), _leader_text(seen)],
        map(on_one_line, decided),
        _unreadable_lines(seen),
        (*_timing_lines(explained), *(f"note: {note}" for note in notes(seen))),
    )


def notes(seen: ObservedFleet) -> Iterator[str]:
    if seen.fleet.unfinished and not seen.fleet.workers:
        yield "no worker is alive: there is no leader and nothing is read"
    if not seen.knows_abandoned:
        checked = "a single check" if seen.watched_s <= 0 else f"{seen.watched_s:.0f} s of watching"
        limit = f"a lease is abandoned after {seen.failover_s:g} s without a change"
        advice = f"use --watch {ceil(1.4 * seen.failover_s)}"
        yield f"{checked} cannot show which owners are silent: {limit}; {advice}"


def reset_words(position: InitialPosition, behind: Collection[LeaseLag], *, now_s: float) -> Iterator[str]:
    known = [each.millis / 1000 for each in behind if each.millis is not None]
    if len(known) < len(behind):
        yield f"how far behind {numbered(len(behind) - len(known), 'shard')} is, is not known"
    match position.at:
        case StartAt.TRIM_HORIZON:
            yield f"all that the stream still holds comes again, from {numbered(len(behind), 'shard')}"
        case StartAt.LATEST if known and max(known) >= 1.0:
            yield f"records that were not processed yet are skipped, of up to {duration(max(known))}"
        case StartAt.TIMESTAMP if known and position.timestamp_s is not None:
            age_s = now_s - position.timestamp_s
            if age_s > min(known):
                yield f"records of up to {duration(age_s - min(known))} come again"
            if age_s < max(known):
                yield f"records that were not processed yet are skipped, of up to {duration(max(known) - age_s)}"
        case _:
            pass


def shortened(checkpoint: ExtendedSequenceNumber, shard_id: str = "") -> str:
    """A shard's checkpoints differ at the end."""
    text = short_number(str(checkpoint.sequence_number), shard_id)
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
        shortened(lease.checkpoint, lease.shard_id),
        str(lease.lease_counter),
        str(lease.owner_switches_since_checkpoint),
        NONE if lease.throughput_kbps is None else f"{lease.throughput_kbps:.1f} KiB/s",
        _lag_cell(seen.lags.get(lease.lease_key)) if seen.lags is not None else "",
    )


def _owner_cell(lease: Lease, seen: ObservedFleet) -> str:
    owner = lease.actual_owner or NONE
    if lease.lease_key in seen.fleet.abandoned:
        owner += " (silent)"
    if _is_paused(lease, seen):
        owner += " (paused)"
    return owner if lease.degraded_by is None else f"{owner} (failing on {lease.degraded_by})"


def _unheld(hold: Hold, seen: ObservedFleet) -> str:
    return not_held(hold, seen.fleet.leases, seen.fleet.stats)


def _is_paused(lease: Lease, seen: ObservedFleet) -> bool | None:
    """None: a pause covers it, but nobody knows whether its owner follows it."""
    covered = any(hold.is_pause and hold.covers(lease) for hold in seen.holds)
    return covered and follows_holds(lease, seen.fleet.stats)


def _handoff_cell(lease: Lease, seen: ObservedFleet) -> str:
    if lease.checkpoint_owner is None:
        return NONE
    to = lease.lease_owner or "nobody"
    return f"{to} (overdue)" if lease.lease_key in seen.fleet.overdue else to


def _lag_cell(lag: LeaseLag | None) -> str:
    if lag is None:
        return NONE
    return shown(lag.unknown_because)[:_LAG_MOST] if lag.millis is None else duration(lag.millis / 1000)


def _workers(seen: ObservedFleet) -> tuple[WorkerView, ...]:
    also = (*seen.fleet.workers, *([] if seen.leading is None else [seen.leading]))
    return worker_views(seen.fleet.stats.values(), seen.fleet.leases, seen.report_age_s, also=also)


def _worker_lines(seen: ObservedFleet) -> list[str]:
    rows = [_worker_cells(worker, seen) for worker in _workers(seen)]
    return (
        aligned(_WORKER_HEADINGS, rows, _WORKER_NUMBERS)
        if rows
        else ["no workers: none reports or owns a lease"]
    )


def _worker_cells(worker: WorkerView, seen: ObservedFleet) -> tuple[str, ...]:
    is_silent = "silent" if worker.reported_s is not None else "no row"
    return (
        worker.worker_id,
        "alive" if worker.worker_id in seen.fleet.workers else is_silent,
        reported_text(worker),
        cpu_text(worker),
        str(worker.leases),
        "leader" if worker.worker_id == seen.leading else "",
    )


def _origin_line(seen: ObservedFleet) -> str:
    origin = seen.origin
    tables = ", ".join(origin.tables)
    return on_one_line(
        f"application {origin.application}, stream {origin.stream}; layout {origin.layout.value}: {tables}"
    )


def _leader_text(seen: ObservedFleet) -> str:
    leader = seen.leader
    if leader is None:
        return "leader: none; the next worker to take the lock decides"
    name = on_one_line(leader.worker)
    if leader.released:
        return f"leader: none, {name} released the lock; the next worker to take it decides"
    if seen.leading is None:
        return f"leader: {name}, but its lock was not renewed for {duration(leader.silent_s)}"
    return f"leader: {name}"


def _unreadable_lines(seen: ObservedFleet) -> Iterator[str]:
    for row in seen.unreadable:
        yield f"unreadable row {on_one_line(row.key)} of table {row.table}: {shown(row.problem)}"
    if seen.unreadable:
        yield "workers ignore these rows: repair or delete them"


def _summary(seen: ObservedFleet) -> dict[str, int | None]:
    unfinished = seen.fleet.unfinished
    owned = [lease for lease in unfinished if lease.actual_owner is not None]
    abandoned = sum(lease.lease_key in seen.fleet.abandoned for lease in owned)
    return {
        "leases": len(seen.fleet.leases),
        "owned": len(owned),
        "unowned": len(unfinished) - len(owned),
        "abandoned": abandoned if seen.knows_abandoned else None,
        "handing_off": sum(lease.checkpoint_owner is not None for lease in owned),
        "finished": len(seen.fleet.leases) - len(unfinished),
    }


def _summary_line(seen: ObservedFleet, *, with_finished: bool) -> str:
    counts, workers = _summary(seen), _workers(seen)
    hidden = " (shown with --all)" if counts["finished"] and not with_finished else ""
    of_leases = (
        f"{numbered(len(seen.fleet.leases), 'lease')}: {counts['owned']} with an owner, "
        f"{counts['unowned']} without, {counts['handing_off']} in handoff, {counts['finished']} finished{hidden}"
    )
    of_workers = f"{numbered(len(workers), 'worker')}, {len(seen.fleet.workers)} alive"
    return f"{of_leases}; {of_workers}; {_leader_text(seen)}"


def _timing_lines(explained: ExplainedPlan) -> Iterator[str]:
    moves = explained.plan.moves
    at_once = sum(move.lease.lease_key in explained.at_once for move in moves)
    if at_once:
        yield f"at its next check: {at_once} of these moves"
    if at_once < len(moves):
        yield (
            f"at the next balancing: {len(moves) - at_once} of these moves; that is every "
            f"{explained.balance_s:g} s and when workers come or go"
        )


def tree_lines(seen: ObservedFleet) -> tuple[str, ...]:
    if not seen.leases:
        return ("no leases to show",)
    streams = dict.fromkeys(lease.stream for lease in seen.leases)
    return tuple(line for stream in streams for line in _stream_lines(seen, stream))


def _stream_lines(seen: ObservedFleet, stream: StreamIdentity | None) -> Iterator[str]:
    if stream is not None:
        yield f"{stream}:"
    by_id: dict[str, Lease] = {lease.shard_id: lease for lease in seen.leases if lease.stream == stream}
    for branch in draw_lineage({name: _known_parents(lease, by_id) for name, lease in by_id.items()}):
        state = ", ".join(_state(by_id[branch.name], by_id, seen))
        yield on_one_line(f"{branch.lead}{branch.name}{', see above' if branch.again else f'  {state}'}")


def _known_parents(lease: Lease, by_id: Mapping[str, Lease]) -> list[str]:
    return sorted(parent for parent in lease.parent_shard_ids if parent in by_id)


def _state(lease: Lease, by_id: Mapping[str, Lease], seen: ObservedFleet) -> Iterator[str]:
    if lease.is_finished:
        yield "finished"
        return
    waits_for = [parent for parent in _known_parents(lease, by_id) if not by_id[parent].is_finished]
    if waits_for:
        yield f"waits for {' and '.join(waits_for)}"
    yield f"at {shortened(lease.checkpoint, lease.shard_id)}"
    if lease.actual_owner is None:
        yield "no worker reads it"
    else:
        silent = " (silent)" if lease.lease_key in seen.fleet.abandoned else ""
        yield f"{lease.actual_owner}{silent}"
    if lease.checkpoint_owner is not None:
        yield f"moving to {lease.lease_owner}"
    lag = None if seen.lags is None else seen.lags.get(lease.lease_key)
    if lag is not None:
        yield _behind(lag)


def _behind(lag: LeaseLag) -> str:
    if lag.millis is None:
        return f"lag unknown: {lag.unknown_because}"
    return f"{duration(lag.millis / 1000)} behind"


_Document: TypeAlias = dict[str, object]


def list_json(seen: ObservedFleet, *, with_finished: bool) -> str:
    leases = [lease for lease in seen.leases if with_finished or not lease.is_finished]
    return json_text({**_common(seen), "leases": [_lease(lease, seen) for lease in leases]})


def explain_json(explained: ExplainedPlan) -> str:
    seen = explained.seen
    return json_text(
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
            "leads": seen.leading is not None,
            "released": leader.released,
            "lease_s": leader.lease_s,
            "silent_s": round(leader.silent_s, 3),
        },
        "summary": _summary(seen),
        "workers": [_worker(worker, seen) for worker in _workers(seen)],
        "unreadable_rows": list(seen.unreadable),
        "holds": [hold_json(hold, _unheld(hold, seen)) for hold in seen.holds],
    }


def _worker(worker: WorkerView, seen: ObservedFleet) -> _Document:
    row = seen.fleet.stats.get(WorkerId(worker.worker_id))
    return {
        "worker": worker.worker_id,
        "alive": worker.worker_id in seen.fleet.workers,
        "leader": worker.worker_id == seen.leading,
        "leases": worker.leases,
        "last_report_s": None if row is None else row.last_update_s,
        "report_age_s": None if worker.reported_s is None else round(worker.reported_s, 3),
        "cpu_percent": worker.cpu_percent,
        "cpu_failed": worker.cpu_failed,
    }


def _lease(lease: Lease, seen: ObservedFleet) -> _Document:
    hashes = lease.hash_range
    pending = lease.pending_checkpoint
    lag = None if seen.lags is None else seen.lags.get(lease.lease_key)
    covered = seen.covered.get(lease.lease_key)
    return {
        "lease": lease.lease_key,
        "owner": lease.actual_owner,
        "handoff_to": None if lease.checkpoint_owner is None else lease.lease_owner,
        "abandoned": lease.lease_key in seen.fleet.abandoned if seen.knows_abandoned else None,
        "finished": lease.is_finished,
        "paused": _is_paused(lease, seen),
        "degraded_by": lease.degraded_by,
        "unread": None if covered is None else covered.cause,
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
        # As text: most languages round such numbers.
        "hash_range": None if hashes is None else [str(hashes.start), str(hashes.end)],
    }


def _move(move: LeaseMove, explained: ExplainedPlan) -> _Document:
    return {
        "lease": move.lease.lease_key,
        "from": move.lease.actual_owner,
        "to": move.to,
        "how": move.how.value,
        "when": "next look" if move.lease.lease_key in explained.at_once else "next balancing",
        "reason": move.reason,
    }
