"""Small pieces of HTML: text made safe, tables that screen readers can walk, sparklines.

Pure. Everything that is not written in this package goes through `text`. Secrets are masked in the snapshot already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from typing import Final

from kcl_daemon.observe.redact import on_one_line
from kcl_daemon.observe.words import about, rate

_SPARK_WIDTH: Final = 120
_SPARK_HEIGHT: Final = 24
_SPARK_SECONDS_LEAST: Final = 60.0


@lru_cache(maxsize=4096)
def text(value: str) -> str:
    """A text from anywhere as HTML, for elements and for attributes in double quotes: escaped, on one line."""
    return escape(on_one_line(value))


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Args:
        heading: plain text.
        is_number: flush right.
    """

    heading: str
    is_number: bool = False


def table(name: str, caption: str, columns: Sequence[Column], rows: Iterator[str]) -> Iterator[str]:
    """A table in a part of the page that scrolls by itself, in pieces of a row each.

    Args:
        name: of its section; the id of the caption is made from it.
        caption: HTML.
        columns: of it.
        rows: HTML, a `tr` each.
    """
    heads = "".join(
        f'<th scope="col"{" class=num" if each.is_number else ""}>{text(each.heading)}</th>'
        for each in columns
    )
    yield (
        f'<div class="scroll" role="region" aria-labelledby="{name}-caption" tabindex="0"><table>'
        f'<caption id="{name}-caption">{caption}</caption><thead><tr>{heads}</tr></thead><tbody>'
    )
    yield from rows
    yield "</tbody></table></div>"


def sparkline(samples: Sequence[tuple[float, float]]) -> str:
    """A line of throughput over time; nothing where there are not two samples.

    Args:
        samples: how many seconds ago, and bytes a second; the oldest first.
    """
    if len(samples) < 2:
        return ""
    span_s = max(samples[0][0], _SPARK_SECONDS_LEAST)
    most = max(value for _, value in samples)
    scale = (_SPARK_HEIGHT - 3) / most if most > 0 else 0.0
    per_s = (_SPARK_WIDTH - 2) / span_s
    points = " ".join(
        f"{_SPARK_WIDTH - 1 - ago_s * per_s:.0f},{_SPARK_HEIGHT - 1.5 - value * scale:.1f}"
        for ago_s, value in samples
    )
    label = f"throughput in the last {about(span_s)}, at most {rate(most)}"
    return (
        f'<svg class="spark" role="img" aria-label="{text(label)}" width="{_SPARK_WIDTH}" '
        f'height="{_SPARK_HEIGHT}" viewBox="0 0 {_SPARK_WIDTH} {_SPARK_HEIGHT}">'
        f'<polyline points="{points}"/></svg>'
    )
