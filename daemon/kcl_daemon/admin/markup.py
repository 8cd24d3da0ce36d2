"""Small pieces of HTML: text made safe, tables that screen readers can walk.

Pure. Everything that is not written in this package goes through `text`. Secrets are masked in the snapshot already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from html import escape

from kcl_daemon.observe.redact import on_one_line


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
