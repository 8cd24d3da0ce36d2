"""Figures as Markdown tables, for the terminal and for the documents.

Owns the layout only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

COLUMNS: Final = ("UpdateItem", "Query", "Scan", "GetItem")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def requests_table(rows: Iterable[tuple[int, int, Mapping[str, float], Mapping[str, float]]]) -> str:
    """Requests per minute; each row is shards, workers, ours and the Java worker's by operation."""
    head = ("shards", "workers", *COLUMNS, "total", "Java, total", "ratio to Java")
    return table(head, [_requests_row(*row) for row in rows])


def _requests_row(
    shards: int, workers: int, ours: Mapping[str, float], java: Mapping[str, float]
) -> list[str]:
    own, theirs = sum(ours.values()), sum(java.values())
    cells = [f"{ours.get(name, 0.0):,.1f}" for name in COLUMNS]
    return [f"{shards:,}", f"{workers}", *cells, f"{own:,.1f}", f"{theirs:,.1f}", f"{own / theirs:.2f}"]
