"""A daemon's status as tables for a terminal: the same that the status page shows.

Pure. Knows nothing of colours; `status_rich` has those. Text from the daemon is made fit for a terminal here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kcl_daemon.admin.document import Status
from kcl_daemon.admin.lineage import Entry, Placed, State, entries, trouble_first
from kcl_daemon.admin.sections import MOVES_MOST, cpu_text, leader_text, move_reason, reported_text, role_text
from kcl_daemon.admin.shards import behind_text, memory_text, owner_text, stderr_of
from kcl_daemon.admin.spark import QUERY_HEADINGS, SHARD_HEADINGS, by_lag, query_cells, shard_cells
from kcl_daemon.admin.summary import Counts, counts, headline, not_ready, time_text, waits_for
from kcl_daemon.cli.leases_view import aligned
from kcl_daemon.observe.redact import on_one_line
from kcl_daemon.observe.snapshot import MoveView, ShardView, Snapshot
from kcl_daemon.observe.spark_view import SparkView
from kcl_daemon.observe.words import about, duration, rate, short_number

_BARS: Final = "▁▂▃▄▅▆▇█"
_SPARK_CELLS: Final = 15
_LEAST_ROWS: Final = 3
_FRAME_LINES: Final = 6
"""Of a table on a terminal: title, headings, rule, an empty line, and how many rows were left out."""


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


def view(status: Status, *, lines_most: int | None = None) -> View:
    """What is shown.

    Args:
        status: of the daemon.
        lines_most: how many lines there is room for; None: for all. Where that is not enough, the shards that need
            attention come first, and the last tables are left out.
    """
    snapshot = status.snapshot
    known = entries(snapshot)
    counted = counts(known)
    lines = tuple(map(on_one_line, _lines(snapshot, counted, known)))
    troubles = tuple(map(on_one_line, not_ready(snapshot)))
    blocks = (
        _shards(status, known),
        _workers(snapshot),
        _children(snapshot),
        *_engine(snapshot.spark),
        _moves(snapshot.moves),
    )
    if lines_most is not None:
        blocks = tuple(_in(blocks, lines_most - len(lines) - len(troubles)))
    return View(lines, troubles, blocks)


def _in(blocks: Sequence[Block], lines: int) -> Iterator[Block]:
    """As many of them, and of their rows, as there are lines for; the first has a right to two thirds."""
    wanted = [len(each.rows) + _FRAME_LINES for each in blocks]
    for number, block in enumerate(blocks):
        kept = min(sum(wanted[1:]), lines // 3) if number == 0 and lines > 3 * _FRAME_LINES else 0
        rows = lines - kept - _FRAME_LINES
        if number and rows < min(len(block.rows), _LEAST_ROWS):
            return
        shown = _cut(block, max(rows, 1))
        lines -= len(shown.rows) + _FRAME_LINES
        yield shown


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


def _lines(snapshot: Snapshot, counted: Counts, known: Sequence[Entry]) -> Iterator[str]:
    (_, state), (_, lag), (_, throughput), (_, failing), (_, stalled) = headline(snapshot, known)
    yield f"{state}, worst lag {lag}, {throughput}, {failing} failing, {stalled} stalled"
    yield ", ".join(each for each in (snapshot.application, snapshot.place) if each)
    told = (
        time_text(snapshot),
        f"worker {snapshot.worker_id}",
        f"uptime {duration(snapshot.uptime_s)}",
        f"leader {leader_text(snapshot)}",
        f"kcl-daemon {snapshot.version}",
    )
    yield ", ".join(each for each in told if each)
    yield (
        f"{counted.leases} leases: {counted.held} of this worker, {counted.nobody} unowned, "
        f"{counted.handing_over} handing over, {counted.finished} finished"
    )


def _workers(snapshot: Snapshot) -> Block:
    rows = (
        (
            worker.worker_id,
            role_text(worker, snapshot),
            str(worker.leases),
            cpu_text(worker),
            reported_text(worker),
        )
        for worker in sorted(snapshot.workers, key=lambda each: each.worker_id)
    )
    return Block(
        title="Workers",
        headings=("worker", "role", "leases", "cpu", "last report"),
        rows=_fit(rows),
        numbers=frozenset({2, 3, 4}),
        empty="the tables were not read yet",
    )


def _shards(status: Status, known: Sequence[Entry]) -> Block:
    placed = list(trouble_first(known))
    return Block(
        title="Shards",
        headings=("shard", "state", "lag", "throughput", "records", "waits for", "checkpoint", "worker"),
        rows=_fit(_shard_cells(each, status) for each in placed),
        numbers=frozenset({2, 3, 4}),
        states=tuple(each.entry.state for each in placed),
        empty="no lease is known",
    )


def _shard_cells(placed: Placed, status: Status) -> tuple[str, ...]:
    entry = placed.entry
    name = f"{placed.lead}{entry.shard_id}"
    name = name if entry.stream is None else f"{name} ({entry.stream})"
    held = entry.held
    progress = ("", "", "", "")
    if held is not None:
        bars = spark(status.throughput.get(entry.key, []))
        progress = (
            behind_text(held),
            f"{bars} {rate(held.bytes_per_s)}".strip(),
            str(held.records),
            waits_for(held),
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
        rows=_fit((f"{about(move.ago_s)} ago", move.key, move_reason(move)) for move in moves[:MOVES_MOST]),
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
        headings=("shard", "pid", "memory", "uptime", "restarts", "last line of stderr"),
        rows=_fit(rows),
        numbers=frozenset({1, 2, 3, 4}),
        empty="no child is running",
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
