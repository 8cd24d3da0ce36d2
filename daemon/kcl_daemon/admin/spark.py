"""The part of the page that is about the Spark engine of this host: its queries, and how far they are with each shard.

Pure: a view in, pieces of HTML out. The words for figures are used by the terminal's view, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kcl_daemon.admin.markup import Column, table, text
from kcl_daemon.observe.spark_view import SparkQueryView, SparkShardView, SparkView
from kcl_daemon.observe.words import NONE, about

QUERY_HEADINGS: Final = (
    "Query",
    "State",
    "Batch",
    "Last commit",
    "Rows in",
    "Rows done",
    "Batch took",
    "Rows in state",
    "Dropped as late",
)
SHARD_HEADINGS: Final = ("Shard", "Rows", "Committed", "Waiting", "Oldest waits")
_NAMES: Final = frozenset({0})
_WORDS: Final = frozenset({0, 1})
SHARDS_MOST: Final = 100
"""So many are shown: those that wait longest."""


def spark_section(view: SparkView | None) -> Iterator[str]:
    """Nothing where there is no engine."""
    if view is None:
        return
    yield '<section id="spark" aria-labelledby="spark-heading"><h2 id="spark-heading">Spark</h2>'
    if view.ui is not None:
        yield f"<p>Spark's own page: {text(view.ui)}</p>"
    queries = [Column(name, is_number=number not in _WORDS) for number, name in enumerate(QUERY_HEADINGS)]
    rows = (_row(query_cells(each), _WORDS) for each in view.queries)
    yield from table("spark-queries", "Queries", queries, rows)
    shards = [Column(name, is_number=number > 0) for number, name in enumerate(SHARD_HEADINGS)]
    shown = by_lag(view)
    caption = "Shards, as all queries together have them"
    if len(shown) > SHARDS_MOST:
        caption += f": of {len(shown)} those that wait longest"
    rows = (_row(shard_cells(each), _NAMES) for each in shown[:SHARDS_MOST])
    yield from table("spark-shards", caption, shards, rows)
    yield "</section>"


def by_lag(view: SparkView) -> list[SparkShardView]:
    """The shards, those that wait longest first."""
    return sorted(view.shards, key=lambda each: (-each.lag_s, each.shard_id))


def query_cells(query: SparkQueryView) -> tuple[str, ...]:
    """A query in words, one for each of `QUERY_HEADINGS`."""
    return (
        query.name,
        "running" if query.running else "failed, starts again",
        NONE if query.batch is None else str(query.batch),
        f"{about(query.since_commit_s)} ago",
        _rate(query.input_rows_per_s),
        _rate(query.processed_rows_per_s),
        NONE if query.batch_s is None else f"{query.batch_s:.2f} s",
        NONE if query.state_rows is None else str(query.state_rows),
        NONE if query.late_rows is None else str(query.late_rows),
    )


def shard_cells(shard: SparkShardView) -> tuple[str, ...]:
    """A shard in words, one for each of `SHARD_HEADINGS`."""
    waits = NONE if not shard.waiting else about(shard.lag_s)
    return shard.shard_id, str(shard.rows), str(shard.committed), str(shard.waiting), waits


def _rate(rows_per_s: float | None) -> str:
    return NONE if rows_per_s is None else f"{rows_per_s:.0f}/s"


def _row(cells: tuple[str, ...], words: frozenset[int]) -> str:
    first, *others = cells
    told = "".join(
        f"<td>{text(each)}</td>" if number in words else f"<td class=num>{text(each)}</td>"
        for number, each in enumerate(others, 1)
    )
    return f'<tr data-key="{text(first)}"><th scope="row">{text(first)}</th>{told}</tr>'
