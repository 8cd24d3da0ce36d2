"""The status page's content for a terminal: plain lines, or colours with `rich`.

Text from the daemon is made safe for a terminal here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kcl_daemon.admin.page import (
    MAX_MOVES,
    QUERY_HEADINGS,
    SHARD_HEADINGS,
    behind_text,
    by_lag,
    cpu_text,
    leader_text,
    memory_text,
    move_reason,
    owner_text,
    query_cells,
    reported_text,
    role_text,
    shard_cells,
    stderr_of,
)
from kcl_daemon.admin.site import StatusDocument
from kcl_daemon.admin.view import (
    DisplayState,
    LeaseCounts,
    LineageEntry,
    ShardEntry,
    count_leases,
    headline,
    not_ready,
    shard_entries,
    time_text,
    trouble_first,
    waits_for,
)
from kcl_daemon.cli.common import aligned
from kcl_daemon.telemetry.snapshot import MoveView, ShardView, Snapshot, SparkView
from kcl_daemon.text import about, duration, on_one_line, rate, short_number

_BARS: Final = "▁▂▃▄▅▆▇█"
_SPARK_CELLS: Final = 15
_LEAST_ROWS: Final = 3
_FRAME_LINES: Final = 6
"""Lines of a table besides its rows: title, headings, rule and others."""


@dataclass(frozen=True, slots=True)
class StatusBlock:
    """`numbers` are right-aligned columns; `left_out` counts dropped rows."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[int]
    states: tuple[DisplayState, ...] = ()
    empty: str = ""
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class StatusView:
    lines: tuple[str, ...]
    troubles: tuple[str, ...]
    blocks: tuple[StatusBlock, ...] = field(default=())


def build_view(status: StatusDocument, *, max_lines: int | None = None) -> StatusView:
    """If `max_lines` is too small, shards in trouble come first and the last tables are dropped."""
    snapshot = status.snapshot
    known = shard_entries(snapshot)
    counted = count_leases(known)
    lines = tuple(map(on_one_line, _lines(snapshot, counted, known)))
    troubles = tuple(map(on_one_line, not_ready(snapshot)))
    blocks = (
        _shards(status, known),
        _workers(snapshot),
        _children(snapshot),
        *_engine(snapshot.spark),
        _moves(snapshot.moves),
    )
    if max_lines is not None:
        blocks = tuple(_in(blocks, max_lines - len(lines) - len(troubles)))
    return StatusView(lines, troubles, blocks)


def _in(blocks: Sequence[StatusBlock], lines: int) -> Iterator[StatusBlock]:
    """The first block may use two thirds of the lines."""
    wanted = [len(each.rows) + _FRAME_LINES for each in blocks]
    for number, block in enumerate(blocks):
        kept = min(sum(wanted[1:]), lines // 3) if number == 0 and lines > 3 * _FRAME_LINES else 0
        rows = lines - kept - _FRAME_LINES
        if number and rows < min(len(block.rows), _LEAST_ROWS):
            return
        shown = _cut(block, max(rows, 1))
        lines -= len(shown.rows) + _FRAME_LINES
        yield shown


def plain_lines(shown: StatusView) -> Iterator[str]:
    yield from shown.lines
    for trouble in shown.troubles:
        yield f"not ready: {trouble}"
    for block in shown.blocks:
        yield ""
        yield f"{block.title}:"
        yield from aligned(block.headings, block.rows, block.numbers) if block.rows else [block.empty]


def _cut(block: StatusBlock, most: int) -> StatusBlock:
    left = max(0, len(block.rows) - most)
    return replace(block, rows=block.rows[:most], states=block.states[:most], left_out=left)


def _lines(snapshot: Snapshot, counted: LeaseCounts, known: Sequence[ShardEntry]) -> Iterator[str]:
    (_, state), (_, lag), (_, throughput), (_, failing), (_, stalled) = headline(snapshot, known)
    yield f"{state}, worst lag {lag}, {throughput}, {failing} failing, {stalled} stalled"
    yield ", ".join(each for each in (snapshot.application, snapshot.place) if each)
    reported = (
        time_text(snapshot),
        f"worker {snapshot.worker_id}",
        f"uptime {duration(snapshot.uptime_s)}",
        f"leader {leader_text(snapshot)}",
        f"kcl-daemon {snapshot.version}",
    )
    yield ", ".join(each for each in reported if each)
    yield (
        f"{counted.leases} leases: {counted.held} of this worker, {counted.nobody} unowned, "
        f"{counted.handing_off} handing over, {counted.finished} finished"
    )


def _workers(snapshot: Snapshot) -> StatusBlock:
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
    return StatusBlock(
        title="Workers",
        headings=("worker", "role", "leases", "cpu", "last report"),
        rows=_fit(rows),
        numbers=frozenset({2, 3, 4}),
        empty="the tables were not read yet",
    )


def _shards(status: StatusDocument, known: Sequence[ShardEntry]) -> StatusBlock:
    placed = list(trouble_first(known))
    return StatusBlock(
        title="Shards",
        headings=("shard", "state", "lag", "throughput", "records", "waits for", "checkpoint", "worker"),
        rows=_fit(_shard_cells(each, status) for each in placed),
        numbers=frozenset({2, 3, 4}),
        states=tuple(each.entry.state for each in placed),
        empty="no lease is known",
    )


def _shard_cells(placed: LineageEntry, status: StatusDocument) -> tuple[str, ...]:
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
    values = [value for _, value in samples[-_SPARK_CELLS:]]
    most = max(values, default=0.0)
    if most <= 0:
        return ""
    return "".join(_BARS[round(value / most * (len(_BARS) - 1))] for value in values)


def _moves(moves: Sequence[MoveView]) -> StatusBlock:
    return StatusBlock(
        title="Last moves",
        headings=("when", "lease", "reason"),
        rows=_fit((f"{about(move.ago_s)} ago", move.key, move_reason(move)) for move in moves[:MAX_MOVES]),
        numbers=frozenset({0}),
        empty="none by this worker",
    )


def _children(snapshot: Snapshot) -> StatusBlock:
    rows = (
        _child_cells(shard)
        for shard in sorted(snapshot.shards, key=lambda each: each.key)
        if shard.child is not None or shard.failures
    )
    return StatusBlock(
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


def _engine(spark: SparkView | None) -> tuple[StatusBlock, ...]:
    if spark is None:
        return ()
    queries = StatusBlock(
        title="Spark queries" if spark.ui is None else f"Spark queries ({on_one_line(spark.ui)})",
        headings=tuple(map(str.lower, QUERY_HEADINGS)),
        rows=_fit(map(query_cells, spark.queries)),
        numbers=frozenset(range(2, len(QUERY_HEADINGS))),
        empty="none",
    )
    shards = StatusBlock(
        title="Shards in Spark",
        headings=tuple(map(str.lower, SHARD_HEADINGS)),
        rows=_fit(map(shard_cells, by_lag(spark))),
        numbers=frozenset(range(1, len(SHARD_HEADINGS))),
        empty="no shard is connected",
    )
    return queries, shards


def _fit(rows: Iterator[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(map(on_one_line, row)) for row in rows)


_STATE_COLUMN: Final = 1
_STYLES: Final = {
    DisplayState.FAILING: "bold red",
    DisplayState.STALLED: "bold red",
    DisplayState.NOBODY: "bold red",
    DisplayState.HANDING_OFF: "yellow",
    DisplayState.UNSETTLED: "yellow",
    DisplayState.STARTING: "yellow",
    DisplayState.WAITING: "yellow",
    DisplayState.READING: "green",
    DisplayState.AT_TIP: "green",
    DisplayState.ELSEWHERE: "dim",
    DisplayState.FINISHED: "dim",
}
# Columns that may shrink, then columns to drop, in order.
_MAY_BE_CUT: Final = frozenset({"waits for", "reason", "last line of stderr", "role"})
_GIVE_UP: Final = ("worker", "checkpoint", "records", "throughput", "waits for")
_CUT_WIDTH: Final = 12
_GAP: Final = 3
_SHORT_BELOW: Final = 110
_SHARD_PREFIX: Final = re.compile(r"shardId-0{0,11}(?=\d)")


def renderable(shown: StatusView, *, width: int, note: str = "") -> RenderableType:
    return Group(*_parts(shown, width, note))


def _parts(shown: StatusView, width: int, note: str) -> Iterator[RenderableType]:
    if note:
        yield _line(note, "bold red")
    first, *others = shown.lines
    yield _line(first, "bold")
    yield from map(_line, others)
    for trouble in shown.troubles:
        yield _line(f"not ready: {trouble}", "bold red")
    for block in shown.blocks:
        yield (
            _table(_narrowed(block, width)) if block.rows else _line(f"\n{block.title}: {block.empty}", "dim")
        )


def _line(words: str, style: str = "") -> Text:
    return Text(words, style=style, no_wrap=True, overflow="ellipsis")


def _narrowed(block: StatusBlock, width: int) -> StatusBlock:
    if width < _SHORT_BELOW:
        rows = tuple(tuple(_SHARD_PREFIX.sub("", cell) for cell in row) for row in block.rows)
        block = replace(block, rows=rows)
    for heading in _GIVE_UP:
        if _least_width(block) <= width:
            break
        if heading in block.headings and heading != block.headings[0]:
            block = _without(block, block.headings.index(heading))
    return block


def _least_width(block: StatusBlock) -> int:
    widths = (
        min(_width(block, number), _CUT_WIDTH) if heading in _MAY_BE_CUT else _width(block, number)
        for number, heading in enumerate(block.headings)
    )
    return sum(widths) + _GAP * len(block.headings)


def _without(block: StatusBlock, place: int) -> StatusBlock:
    return replace(
        block,
        headings=block.headings[:place] + block.headings[place + 1 :],
        rows=tuple(row[:place] + row[place + 1 :] for row in block.rows),
        numbers=frozenset(number - (number > place) for number in block.numbers if number != place),
    )


def _table(block: StatusBlock) -> Table:
    table = Table(
        title=block.title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        caption=f"{block.left_out} more" if block.left_out else None,
        caption_justify="left",
    )
    for number, heading in enumerate(block.headings):
        table.add_column(
            heading,
            justify="right" if number in block.numbers else "left",
            no_wrap=True,
            overflow="ellipsis",
            ratio=None,
            min_width=None if heading in _MAY_BE_CUT else _width(block, number),
        )
    for number, row in enumerate(block.rows):
        cells = [Text(cell) for cell in row]
        if block.states:
            cells[_STATE_COLUMN].stylize(_STYLES[block.states[number]])
        table.add_row(*cells)
    return table


def _width(block: StatusBlock, number: int) -> int:
    return max(len(block.headings[number]), *(len(row[number]) for row in block.rows))
