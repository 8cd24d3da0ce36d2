"""The status page's content for a terminal: plain lines, or colours with `rich`.

Text from the daemon is made safe for a terminal here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Final

from kcl_daemon.admin import view
from kcl_daemon.admin.site import StatusDocument
from kcl_daemon.cli.common import aligned
from kcl_daemon.metrics.metric import Column, StatusTable
from kcl_daemon.telemetry.helper_views import landing_table, query_table, spark_shard_table
from kcl_daemon.telemetry.shards import CHILDREN
from kcl_daemon.telemetry.snapshot import Snapshot
from kcl_daemon.text import duration, on_one_line

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

_BARS: Final = "▁▂▃▄▅▆▇█"
_SPARK_CELLS: Final = 15
_LEAST_ROWS: Final = 3
_FRAME_LINES: Final = 6
"""Lines of a table besides its rows."""
_STYLES: Final = {"bad": "bold red", "busy": "yellow", "good": "green", "calm": "dim"}
_CUT_WIDTH: Final = 30
_GAP: Final = 3
_SHORT_BELOW: Final = 110
_SHARD_PREFIX: Final = re.compile(r"shardId-0{0,11}(?=\d)")


@dataclass(frozen=True, slots=True)
class StatusView:
    lines: tuple[str, ...]
    troubles: tuple[str, ...]
    blocks: tuple[StatusTable, ...]


def build_view(status: StatusDocument, *, max_lines: int | None = None, width: int = 80) -> StatusView:
    """If `max_lines` is too small, shards in trouble come first and the last tables are dropped."""
    snapshot = status.snapshot
    known = view.shard_entries(snapshot)
    lines = tuple(map(on_one_line, _lines(snapshot, view.count_states(known))))
    reasons = (f"not ready: {reason}" for reason in view.not_ready(snapshot))
    troubles = tuple(map(on_one_line, chain(reasons, view.needs_attention(snapshot))))
    spark = () if snapshot.spark is None else (query_table(snapshot.spark), spark_shard_table(snapshot.spark))
    landing = () if snapshot.landing is None else (landing_table(snapshot.landing),)
    lanes, aside = view.lane_table(snapshot), view.set_aside_table(snapshot)
    tables = (
        _shards(status, known),
        *(each for each in (lanes, aside) if each is not None),
        view.worker_table(snapshot),
        CHILDREN.of(view.shards_with_children(snapshot)),
        *spark,
        *landing,
        view.moves_table(snapshot),
    )
    blocks: Iterable[StatusTable] = map(_printable, tables)
    if max_lines is not None:
        blocks = _in(tuple(blocks), max_lines - len(lines) - sum(1 + len(each) // width for each in troubles))
    return StatusView(lines, troubles, tuple(blocks))


def _printable(table: StatusTable) -> StatusTable:
    rows = tuple({name: on_one_line(cell) for name, cell in row.items()} for row in table.rows)
    return replace(table, title=on_one_line(table.title), rows=rows)


def _in(blocks: Sequence[StatusTable], lines: int) -> Iterator[StatusTable]:
    wanted = [len(each.rows) + _FRAME_LINES for each in blocks]
    for number, block in enumerate(blocks):
        kept = min(sum(wanted[1:]), lines // 3) if number == 0 and lines > 3 * _FRAME_LINES else 0
        rows = lines - kept - _FRAME_LINES
        if number and rows < min(len(block.rows), _LEAST_ROWS):
            return
        most = max(rows, 1)
        shown = replace(block, rows=block.rows[:most], left_out=max(0, len(block.rows) - most))
        lines -= len(shown.rows) + _FRAME_LINES
        yield shown


def plain_lines(shown: StatusView) -> Iterator[str]:
    yield from shown.lines[:1] + shown.troubles + shown.lines[1:]
    for block in shown.blocks:
        yield ""
        yield f"{block.title}:"
        yield from _aligned(block) if block.rows else [block.empty]


def _aligned(block: StatusTable) -> list[str]:
    numbers = {place for place, each in enumerate(block.columns) if each.number}
    rows = [[row[each.name] for each in block.columns] for row in block.rows]
    return aligned([each.heading.lower() for each in block.columns], rows, numbers)


def _lines(snapshot: Snapshot, states: Counter[view.DisplayState]) -> Iterator[str]:
    state, lag, throughput, failing, stalled, unread, paused = (
        value for _, value in view.headline(snapshot, states)
    )
    held_back = "" if paused == "0" else f", {paused} paused"
    known = "" if snapshot.unread is None else f", {unread} unread"
    yield f"{state}, worst lag {lag}, {throughput}, {failing} failing, {stalled} stalled{known}{held_back}"
    yield ", ".join(each for each in (snapshot.application, snapshot.place) if each)
    reported = (
        view.time_text(snapshot),
        f"worker {snapshot.worker_id}",
        f"uptime {duration(snapshot.uptime_s)}",
        f"leader {view.leader_text(snapshot)}",
        f"kcl-daemon {snapshot.version}",
    )
    yield ", ".join(each for each in reported if each)
    yield (
        f"{states.total()} leases: {view.held_text(snapshot)} of this worker, "
        f"{states[view.DisplayState.NOBODY]} unowned, {states[view.DisplayState.HANDING_OFF]} in handoff, "
        f"{states[view.DisplayState.FINISHED]} finished"
    )
    if snapshot.capacity is not None:
        yield f"capacity: {view.capacity_text(snapshot)}"
    if snapshot.violations:
        yield f"bugs found: {snapshot.violations}, the last in {snapshot.last_violation}"


def _shards(status: StatusDocument, known: Sequence[view.ShardEntry]) -> StatusTable:
    rows = tuple(_shard_cells(each, status) for each in view.trouble_first(known))
    return replace(view.SHARDS.of(()), rows=rows)


def _shard_cells(placed: view.LineageEntry, status: StatusDocument) -> dict[str, str]:
    entry, cells = placed.entry, view.SHARDS.cells(placed.entry)
    stream = "" if entry.stream is None else f" ({entry.stream})"
    bars = "" if entry.held is None else spark(status.throughput.get(entry.key, []))
    throughput = f"{bars} {cells['throughput']}".strip()
    return cells | {"shard": f"{placed.lead}{entry.shard_id}{stream}", "throughput": throughput}


def spark(samples: Sequence[tuple[float, float]]) -> str:
    values = [value for _, value in samples[-_SPARK_CELLS:]]
    most = max(values, default=0.0)
    if most <= 0:
        return ""
    return "".join(_BARS[round(value / most * (len(_BARS) - 1))] for value in values)


def renderable(shown: StatusView, *, width: int, note: str = "") -> RenderableType:
    from rich.console import Group  # an extra; so below

    return Group(*_parts(shown, width, note))


def _parts(shown: StatusView, width: int, note: str) -> Iterator[RenderableType]:
    from rich.text import Text

    if note:
        yield _line(note, "bold red")
    first, *others = shown.lines
    yield Text(first, style="bold")
    for trouble in shown.troubles:
        yield Text(trouble, style="bold red" if trouble.startswith("not ready") else "bold yellow")
    yield from map(_line, others)
    for block in shown.blocks:
        empty = _line(f"\n{block.title}: {block.empty}", "dim")
        yield _table(_narrowed(block, width), width) if block.rows else empty


def _line(words: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(words, style=style, no_wrap=True, overflow="ellipsis")


def _narrowed(block: StatusTable, width: int) -> StatusTable:
    if width < _SHORT_BELOW:
        rows = tuple({name: _SHARD_PREFIX.sub("", cell) for name, cell in row.items()} for row in block.rows)
        block = replace(block, rows=rows)
    for column in sorted(block.columns, key=lambda each: each.drops):
        if column.drops and _least_width(block) > width:
            block = replace(block, columns=tuple(each for each in block.columns if each is not column))
    return block


def _least_width(block: StatusTable) -> int:
    widths = (
        min(_width(block, each), _CUT_WIDTH) if each.shortened else _width(block, each)
        for each in block.columns
    )
    return sum(widths) + _GAP * len(block.columns)


def _table(block: StatusTable, width: int) -> Table:
    from rich import box
    from rich.table import Table

    cut = width - _least_width(block) + _CUT_WIDTH
    table = Table(
        title=block.title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        caption=f"{block.left_out} more" if block.left_out else None,
        caption_justify="left",
    )
    for column in block.columns:
        table.add_column(
            column.heading.lower(),
            justify="right" if column.number else "left",
            no_wrap=True,
            overflow="ellipsis",
            min_width=None if column.shortened else _width(block, column),
            max_width=max(cut, _CUT_WIDTH) if column.shortened else None,
        )
    for row in block.rows:
        table.add_row(*(_styled(each.name, row[each.name]) for each in block.columns))
    return table


def _styled(name: str, cell: str) -> Text:
    styled = _line(cell)
    if name == "state":
        styled.stylize(_STYLES[view.TONES[view.DisplayState(cell)]])
    return styled


def _width(block: StatusTable, column: Column) -> int:
    return max(len(column.heading), *(len(row[column.name]) for row in block.rows))
