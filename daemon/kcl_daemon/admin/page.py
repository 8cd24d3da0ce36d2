"""The page as a whole: its frame, which is the same for ever, and the part that is renewed all the while.

Pure. The style sheet and the script are in the page, named by their hashes in its policy: it loads nothing else.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Final

from kcl_daemon.admin.history import History
from kcl_daemon.admin.lineage import Entry, gathered, told_apart
from kcl_daemon.admin.markup import text
from kcl_daemon.admin.sections import fleet_section, moves_section
from kcl_daemon.admin.shards import children_section, shards_section
from kcl_daemon.admin.spark import spark_section
from kcl_daemon.admin.summary import counts, headline, in_words, not_ready, time_text
from kcl_daemon.observe.snapshot import Snapshot
from kcl_daemon.observe.words import duration

_SECTIONS: Final = (
    ("fleet", "Fleet"),
    ("shards", "Shards"),
    ("children", "Children"),
)
_MOVES: Final = ("moves", "Last moves")
_SPARK: Final = ("spark", "Spark")
_PAUSE_AFTER: Final = 100
"""Entries: some tenths of a millisecond."""
_DOCUMENTS: Final = ("/status.json", "/metrics", "/readyz", "/livez")


@dataclass(frozen=True, slots=True)
class Assets:
    """What is in every page.

    Args:
        style: CSS.
        script: JavaScript.
        policy: the Content-Security-Policy under which these two and nothing else may run.
    """

    style: str
    script: str
    policy: str


@cache
def assets() -> Assets:
    """Read once, at the first page."""
    folder = files("kcl_daemon.admin") / "assets"
    style, script = (folder.joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    policy = "; ".join(
        (
            "default-src 'none'",
            f"style-src '{_hash(style)}'",
            f"script-src '{_hash(script)}'",
            "connect-src 'self'",
            "img-src data:",  # the icon that is none, so that nobody is asked for one
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
    return Assets(style, script, policy)


def _hash(inline: str) -> str:
    return f"sha256-{b64encode(sha256(inline.encode()).digest()).decode()}"


def page(snapshot: Snapshot, history: History, *, now_s: float, every_s: float) -> Iterator[str]:
    """The document in pieces.

    Args:
        snapshot: what to show.
        history: for the sparklines.
        now_s: by the clock of the history.
        every_s: how long the page is to wait before it asks for the live part again.
    """
    given = assets()
    title = f"{snapshot.application}: {snapshot.worker_id}"
    sections = (*_SECTIONS, *([] if snapshot.spark is None else [_SPARK]), _MOVES)
    links = "".join(f'<li><a href="#{name}">{words}</a></li>' for name, words in sections)
    yield (
        '<!DOCTYPE html><html lang="en" class="first"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{text(title)}</title><link rel="icon" href="data:,"><style>{given.style}</style></head><body>'
        '<a class="skip" href="#main">Skip to the content</a>'
        f"<header><h1>{text(snapshot.application)} <small>{text(snapshot.worker_id)}</small></h1>"
        f'<nav aria-label="Sections"><ul>{links}</ul></nav>'
        '<p class="controls"><button type="button" id="pause" aria-pressed="false" hidden>Pause updates</button>'
        '<span id="connection" role="status"></span></p>'
        "<noscript><p>Without JavaScript this page stands still; load it again for news.</p></noscript></header>"
        '<main id="main" tabindex="-1">'
    )
    yield from live_part(snapshot, history, now_s=now_s, every_s=every_s)
    documents = "".join(f'<li><a href="{path}">{path}</a></li>' for path in _DOCUMENTS)
    yield (
        f'</main><footer><nav aria-label="For programs"><ul>{documents}</ul></nav>'
        f"<p>kcl-daemon {text(snapshot.version)}</p></footer><script>{given.script}</script></body></html>"
    )


def live_part(snapshot: Snapshot, history: History, *, now_s: float, every_s: float) -> Iterator[str]:
    """What changes, in pieces; the arguments as of `page`."""
    yield f'<div id="live" data-every="{every_s:.1f}"><p class="place">{text(_place(snapshot))}</p>'
    found: list[Entry] = []
    for entry in gathered(snapshot):
        found.append(entry)
        if not len(found) % _PAUSE_AFTER:
            yield ""  # whoever sends the pieces may pause between them
    known = told_apart(found)
    counted = counts(known)
    yield f'<dl class="headline">{_headline(snapshot, known)}</dl>'
    yield f'<p id="summary" role="status">{text(in_words(snapshot, counted))}</p>'
    reasons = not_ready(snapshot)
    if reasons:
        items = "".join(f"<li>{text(reason)}</li>" for reason in reasons)
        yield f'<div id="trouble" class="trouble"><p>Not ready:</p><ul>{items}</ul></div>'
    yield from fleet_section(snapshot, counted)
    yield from shards_section(known, history, now_s)
    yield from children_section(snapshot)
    yield from spark_section(snapshot.spark)
    yield from moves_section(snapshot)
    yield "</div>"


def _place(snapshot: Snapshot) -> str:
    """Stream, region, account, time and uptime."""
    told = (snapshot.place, time_text(snapshot), f"uptime {duration(snapshot.uptime_s)}")
    return ", ".join(each for each in told if each)


def _headline(snapshot: Snapshot, known: Sequence[Entry]) -> str:
    """The figures, coloured where they are bad."""
    found: list[str] = []
    for name, value in headline(snapshot, known):
        is_bad = (name in {"Failing", "Stalled"} and value != "0") or value == "not ready"
        found.append(f"<div><dt>{name}</dt><dd{' class=bad' if is_bad else ''}>{text(value)}</dd></div>")
    return "".join(found)
