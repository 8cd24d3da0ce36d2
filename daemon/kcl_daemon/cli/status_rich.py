"""A daemon's status in colours, with `rich`. Imported only where there is a terminal.

Owns the looks. Knows nothing of what the words mean, but for the colour of a state.
"""

from __future__ import annotations

from collections.abc import Iterator
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
# What is cut off first where a terminal is narrow.
_MAY_BE_CUT: Final = frozenset({"waits for", "reason", "last line of stderr", "checkpoint", "worker", "part"})


def renderable(shown: View, *, note: str = "") -> RenderableType:
    """All of it, for a console.

    Args:
        shown: what to draw.
        note: a line above everything; empty: none.
    """
    return Group(*_parts(shown, note))


def _parts(shown: View, note: str) -> Iterator[RenderableType]:
    if note:
        yield Text(note, style="bold red")
    first, *others = shown.lines
    yield Text(first, style="bold")
    yield from map(Text, others)
    for trouble in shown.troubles:
        yield Text(f"not ready: {trouble}", style="bold red")
    for block in shown.blocks:
        yield _table(block) if block.rows else Text(f"\n{block.title}: {block.empty}", style="dim")


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
            min_width=None if heading in _MAY_BE_CUT else min(_width(block, number), 24),
        )
    for number, row in enumerate(block.rows):
        cells = [Text(cell) for cell in row]
        if block.states:
            cells[_STATE_COLUMN].stylize(_STYLES[block.states[number]])
        table.add_row(*cells)
    return table


def _width(block: Block, number: int) -> int:
    return max(len(block.headings[number]), *(len(row[number]) for row in block.rows))
