"""A daemon's status in colours, with `rich`. Imported only where there is a terminal.

Owns the looks. Knows nothing of what the words mean, but for the colour of a state.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kcl_daemon.admin.lineage import State
from kcl_daemon.cli.status_view import Block, View

_STATE_COLUMN: Final = 1
_STYLES: Final = {
    State.FAILING: "bold red",
    State.STALLED: "bold red",
    State.NOBODY: "bold red",
    State.HANDING_OVER: "yellow",
    State.UNSETTLED: "yellow",
    State.STARTING: "yellow",
    State.WAITING: "yellow",
    State.READING: "green",
    State.AT_TIP: "green",
    State.ELSEWHERE: "dim",
    State.FINISHED: "dim",
}
# What is cut off where a terminal is narrow, and which columns go then, one after the other.
_MAY_BE_CUT: Final = frozenset({"waits for", "reason", "last line of stderr", "role"})
_GIVE_UP: Final = ("worker", "checkpoint", "records", "throughput", "waits for")
_CUT_WIDTH: Final = 12
_GAP: Final = 3
_SHORT_BELOW: Final = 110
_SHARD_PREFIX: Final = re.compile(r"shardId-0{0,11}(?=\d)")


def renderable(shown: View, *, width: int, note: str = "") -> RenderableType:
    """All of it, for a console.

    Args:
        shown: what to draw.
        width: of the console, in cells.
        note: a line above everything; empty: none.
    """
    return Group(*_parts(shown, width, note))


def _parts(shown: View, width: int, note: str) -> Iterator[RenderableType]:
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


def _narrowed(block: Block, width: int) -> Block:
    """The same with short shard ids and fewer columns, as far as the width asks for it."""
    if width < _SHORT_BELOW:
        rows = tuple(tuple(_SHARD_PREFIX.sub("", cell) for cell in row) for row in block.rows)
        block = replace(block, rows=rows)
    for heading in _GIVE_UP:
        if _least_width(block) <= width:
            break
        if heading in block.headings and heading != block.headings[0]:
            block = _without(block, block.headings.index(heading))
    return block


def _least_width(block: Block) -> int:
    """What the columns need, where those that may be cut are."""
    widths = (
        min(_width(block, number), _CUT_WIDTH) if heading in _MAY_BE_CUT else _width(block, number)
        for number, heading in enumerate(block.headings)
    )
    return sum(widths) + _GAP * len(block.headings)


def _without(block: Block, place: int) -> Block:
    return replace(
        block,
        headings=block.headings[:place] + block.headings[place + 1 :],
        rows=tuple(row[:place] + row[place + 1 :] for row in block.rows),
        numbers=frozenset(number - (number > place) for number in block.numbers if number != place),
    )


def _table(block: Block) -> Table:
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


def _width(block: Block, number: int) -> int:
    return max(len(block.headings[number]), *(len(row[number]) for row in block.rows))
