"""A daemon's status as tables for a terminal: the same that the status page shows.

Pure. Knows nothing of colours; `status_rich` has those. Text from the daemon is made fit for a terminal here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kcl_daemon.admin.document import Status
from kcl_daemon.admin.lineage import Entry, Placed, State, entries, lineage
from kcl_daemon.admin.sections import cpu_text, leader_text, part_text, reported_text
from kcl_daemon.admin.shards import behind_text, memory_text, owner_text, stderr_of
from kcl_daemon.admin.spark import QUERY_HEADINGS, SHARD_HEADINGS, by_lag, query_cells, shard_cells
from kcl_daemon.admin.summary import Counts, counts, in_words, not_ready, waits_for
from kcl_daemon.cli.leases_view import aligned
from kcl_daemon.observe.redact import on_one_line
from kcl_daemon.observe.snapshot import MoveView, ShardView, Snapshot
from kcl_daemon.observe.spark_view import SparkView
from kcl_daemon.observe.words import about, duration, rate, short_number

_BARS: Final = "▁▂▃▄▅▆▇█"
_SPARK_CELLS: Final = 15
_URGENCY: Final = {
    State.FAILING: 0,
    State.STALLED: 0,
    State.NOBODY: 1,
    State.STARTING: 2,
    State.HANDING_OVER: 3,
    State.WAITING: 4,
}
_LEAST_ROWS: Final = 3


@dataclass(frozen=True, slots=True)
class Block:
    """One table.

    Args:
        title: above it.
        headings: of its columns.
        rows: their cells, fit for a terminal.
        numbers: the columns that are flush right.
        states: of each row, where they have one.
        empty: what is said where there are no rows.
        left_out: how many rows there was no room for.
    """

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[int]
    states: tuple[State, ...] = ()
    empty: str = ""
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """All of it.

    Args:
        lines: above the tables.
        troubles: why the worker is not ready; empty: it is.
        blocks: the tables.
    """

    lines: tuple[str, ...]
    troubles: tuple[str, ...]
    blocks: tuple[Block, ...] = field(default=())


def view(status: Status, *, rows_most: int | None = None) -> View:
    """What is shown.

    Args:
        status: of the daemon.
        rows_most: how many rows there is room for over all tables; None: for all. Where that is not enough, the shards
            that need attention come first.
    """
    snapshot = status.snapshot
    known = entries(snapshot)
    counted = counts(known)
    workers, moves, children = _workers(snapshot), _moves(snapshot.moves), _children(snapshot)
    engine = _engine(snapshot.spark)
    if rows_most is not None:
        workers = _cut(workers, max(_LEAST_ROWS, rows_most // 6))
        moves = _cut(moves, max(_LEAST_ROWS, rows_most // 10))
        children = _cut(children, max(_LEAST_ROWS, rows_most // 4))
        engine = tuple(_cut(each, max(_LEAST_ROWS, rows_most // 8)) for each in engine)
        rows_most -= sum(len(each.rows) for each in (workers, moves, children, *engine))
    return View(
        lines=tuple(map(on_one_line, _lines(snapshot, counted))),
        troubles=tuple(map(on_one_line, not_ready(snapshot))),
        blocks=(workers, _shards(status, known, rows_most), moves, children, *engine),
    )


def plain_lines(shown: View) -> Iterator[str]:
    """The lines where there is no terminal, or nothing to draw with."""
    yield from shown.lines
    for trouble in shown.troubles:
        yield f"not ready: {trouble}"
    for block in shown.blocks:
        yield ""
        yield f"{block.title}:"
        yield from aligned(block.headings, block.rows, block.numbers) if block.rows else [block.empty]


def _cut(block: Block, most: int) -> Block:
    left = max(0, len(block.rows) - most)
    return replace(block, rows=block.rows[:most], states=block.states[:most], left_out=left)


def _lines(snapshot: Snapshot, counted: Counts) -> Iterator[str]:
    yield (
        f"{snapshot.application}, worker {snapshot.worker_id}, kcl-daemon {snapshot.version}, "
        f"up for {duration(snapshot.uptime_s)}"
    )
    yield f"{in_words(snapshot, counted)} Leader: {leader_text(snapshot)}."
    yield (
        f"{counted.leases} leases: {counted.held} held here, {counted.nobody} without a reader, "
        f"{counted.handing_over} in hand-off, {counted.finished} finished"
    )


def _workers(snapshot: Snapshot) -> Block:
    rows = (
        (
            worker.worker_id,
            part_text(worker, snapshot),
            str(worker.leases),
            cpu_text(worker),
            reported_text(worker),
        )
        for worker in sorted(snapshot.workers, key=lambda each: each.worker_id)
    )
    return Block(
        title="Workers",
        headings=("worker", "part", "leases", "cpu", "last report"),
        rows=_fit(rows),
        numbers=frozenset({2, 3, 4}),
        empty="the tables have not been read",
    )


def _shards(status: Status, known: Sequence[Entry], most: int | None) -> Block:
    placed = list(lineage(known))
    most = len(placed) if most is None else max(_LEAST_ROWS, most)
    if len(placed) > most:
        placed = [replace(each, lead="") for each in sorted(placed, key=_urgency)]
    block = Block(
        title="Shards",
        headings=("shard", "state", "waits for", "behind", "throughput", "records", "checkpoint", "worker"),
        rows=_fit(_shard_cells(each, status) for each in placed[:most]),
        numbers=frozenset({3, 4, 5}),
        states=tuple(each.entry.state for each in placed[:most]),
        empty="no lease is known",
    )
    return replace(block, left_out=len(placed) - len(block.rows))


def _urgency(placed: Placed) -> tuple[int, float]:
    entry = placed.entry
    last = 9 if entry.state is State.FINISHED else 8 if entry.held is None else 5
    lag_s = 0.0 if entry.held is None else entry.held.lag_s or 0.0
    return _URGENCY.get(entry.state, last), -lag_s


def _shard_cells(placed: Placed, status: Status) -> tuple[str, ...]:
    entry = placed.entry
    name = f"{placed.lead}{entry.shard_id}"
    name = name if entry.stream is None else f"{name} ({entry.stream})"
    held = entry.held
    progress = ("", "", "", "")
    if held is not None:
        bars = spark(status.throughput.get(entry.key, []))
        progress = (
            waits_for(held),
            behind_text(held),
            f"{bars} {rate(held.bytes_per_s)}".strip(),
            str(held.records),
        )
    return (name, entry.state.value, *progress, short_number(entry.checkpoint), owner_text(entry))


def spark(samples: Sequence[tuple[float, float]]) -> str:
    """The last samples as bars, the highest of them full."""
    values = [value for _, value in samples[-_SPARK_CELLS:]]
    most = max(values, default=0.0)
    if most <= 0:
        return ""
    return "".join(_BARS[round(value / most * (len(_BARS) - 1))] for value in values)


def _moves(moves: Sequence[MoveView]) -> Block:
    return Block(
        title="Last moves",
        headings=("when", "lease", "reason"),
        rows=_fit((f"{about(move.ago_s)} ago", move.key, move.reason) for move in moves),
        numbers=frozenset({0}),
        empty="none by this worker",
    )


def _children(snapshot: Snapshot) -> Block:
    rows = (
        _child_cells(shard)
        for shard in sorted(snapshot.shards, key=lambda each: each.key)
        if shard.child is not None or shard.failures
    )
    return Block(
        title="Children",
        headings=("shard", "pid", "memory", "runs for", "restarts", "last line of stderr"),
        rows=_fit(rows),
        numbers=frozenset({1, 2, 3, 4}),
        empty="no child runs",
    )


def _child_cells(shard: ShardView) -> tuple[str, ...]:
    child = shard.child
    runs = ("", "", "")
    if child is not None:
        runs = (str(child.pid), memory_text(child), duration(child.running_s))
    said = stderr_of(shard)
    return (shard.key, *runs, str(shard.restarts), said[-1] if said else "")


def _engine(spark: SparkView | None) -> tuple[Block, ...]:
    """Nothing where there is no engine."""
    if spark is None:
        return ()
    queries = Block(
        title="Spark queries" if spark.ui is None else f"Spark queries ({on_one_line(spark.ui)})",
        headings=tuple(map(str.lower, QUERY_HEADINGS)),
        rows=_fit(map(query_cells, spark.queries)),
        numbers=frozenset(range(2, len(QUERY_HEADINGS))),
        empty="none",
    )
    shards = Block(
        title="Shards in Spark",
        headings=tuple(map(str.lower, SHARD_HEADINGS)),
        rows=_fit(map(shard_cells, by_lag(spark))),
        numbers=frozenset(range(1, len(SHARD_HEADINGS))),
        empty="no shard is connected",
    )
    return queries, shards


def _fit(rows: Iterator[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(map(on_one_line, row)) for row in rows)
