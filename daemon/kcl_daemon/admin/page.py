"""The HTML of the status page: a fixed frame and a live part, which the script reloads.

All outside text goes through `text`. The Content-Security-Policy allows only what is inline.
"""

from __future__ import annotations

from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from itertools import chain
from typing import Final

from kcl_daemon.admin import view
from kcl_daemon.metrics.metric import Cells, Column, StatusTable
from kcl_daemon.telemetry.helper_views import (
    LandingView,
    SparkView,
    landing_table,
    query_table,
    spark_shard_table,
)
from kcl_daemon.telemetry.shards import CHILDREN
from kcl_daemon.telemetry.snapshot import Snapshot
from kcl_daemon.text import NONE, about, duration, on_one_line, rate, short_shard

_MOVES_CAPTION: Final = f"The last {view.MAX_MOVES} decisions of this worker as leader; /status.json has more"
_WIDTH: Final = 120
_HEIGHT: Final = 24
_SECONDS_LEAST: Final = 60.0
_STEPS: Final = 10 * (_HEIGHT - 3)
# y coordinates as text, lowest first.
_HEIGHTS: Final = tuple(f"{_HEIGHT - 1.5 - step / 10:.1f}" for step in range(_STEPS + 1))
MAX_ROWS: Final = 2000
"""Larger applications show only this worker's leases."""
MAX_SHARDS: Final = 100
_SECTIONS: Final[tuple[tuple[str, str], ...]] = (
    ("shards", "Shards"),
    ("fleet", "Fleet"),
    ("lanes", "Lanes"),
    ("children", "Children"),
    ("spark", "Spark"),
    ("landing", "Landing log"),
    ("moves", "Last moves"),
)
_PAUSE_AFTER: Final = 100
_TILES_OF_TROUBLE: Final = ("Failing", "Stalled", "Unread")
_DOCUMENTS: Final = ("/status.json", "/metrics", "/readyz", "/livez")


@lru_cache(maxsize=4096)
def text(value: str) -> str:
    """Escapes for elements and double-quoted attributes."""
    return escape(on_one_line(value))


def _section(name: str, heading: str, content: Iterable[str]) -> Iterator[str]:
    yield f'<section id="{name}" aria-labelledby="{name}-heading"><h2 id="{name}-heading">{heading}</h2>'
    yield from content
    yield "</section>"


def _table(name: str, caption: str, shown: StatusTable, rows: Iterable[str] | None = None) -> Iterator[str]:
    heads = "".join(
        f'<th scope="col"{" class=num" if each.number else ""}>{text(each.heading)}</th>'
        for each in shown.columns
    )
    yield (
        f'<div class="scroll" role="region" aria-labelledby="{name}-caption" tabindex="0"><table>'
        f'<caption id="{name}-caption">{caption}</caption><thead><tr>{heads}</tr></thead><tbody>'
    )
    yield from (_row(shown.columns, cells) for cells in shown.rows) if rows is None else rows
    yield "</tbody></table></div>"


def _row(columns: Sequence[Column], cells: Cells, last: str = "") -> str:
    """The first cell names the row; `last` is HTML."""
    first, *others = columns
    name, reported = text(cells[first.name]), "".join([_cell(each, cells[each.name]) for each in others])
    return f'<tr data-key="{name}"><th scope="row">{name}</th>{reported}{last}</tr>'


def _cell(column: Column, cell: str) -> str:
    """Numbers need no escapes."""
    return f"<td class=num>{cell}</td>" if column.number else f"<td>{text(cell)}</td>"


def _fleet(snapshot: Snapshot, states: Counter[view.DisplayState]) -> Iterator[str]:
    yield '<dl class="facts">'
    for name, value in _facts(snapshot, states):
        yield f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>"
    yield "</dl>"
    if snapshot.workers:
        yield from _table("fleet", "Workers, from DynamoDB", view.worker_table(snapshot))
    else:
        yield "<p>The tables were not read yet, so the other workers are unknown.</p>"


def _facts(snapshot: Snapshot, states: Counter[view.DisplayState]) -> Iterator[tuple[str, str]]:
    yield "Leader", view.leader_text(snapshot)
    if snapshot.capacity is not None:
        yield "Capacity", view.capacity_text(snapshot)
    yield "Leases", str(states.total())
    yield "This worker", view.held_text(snapshot)
    yield "Unowned", str(states[view.DisplayState.NOBODY])
    yield "Handing over", str(states[view.DisplayState.HANDING_OFF])
    yield "Finished", str(states[view.DisplayState.FINISHED])
    if snapshot.renewed_s is not None:
        yield "Renewed", f"{about(snapshot.renewed_s)} ago"
    if snapshot.violations:
        yield f"Bugs found ({snapshot.violations})", snapshot.last_violation
    if snapshot.fleet_age_s is not None:
        yield "Fleet as of", f"{about(snapshot.fleet_age_s)} ago"


def _moves(snapshot: Snapshot) -> Iterator[str]:
    if snapshot.moves:
        shown = view.moves_table(snapshot)
        yield from _table("moves", _MOVES_CAPTION, shown, map(_move_row, shown.rows))
    elif snapshot.leads:
        yield "<p>This worker has moved no lease since it became leader.</p>"
    else:
        yield "<p>The leader decides moves; its page shows them.</p>"


def _move_row(cells: Cells) -> str:
    when, key, reason = (text(cells[each.name]) for each in view.MOVES.columns)
    return f'<tr><td class=num>{when}</td><th scope="row">{key}</th><td>{reason}</td></tr>'


def sparklines(history: view.ThroughputHistory, now_s: float) -> Callable[[str], str]:
    ages_s = history.ages_s(now_s)
    per_s = (_WIDTH - 2) / max(ages_s[0] if ages_s else 0.0, _SECONDS_LEAST)
    places = [f"{_WIDTH - 1 - age_s * per_s:.0f}," for age_s in ages_s]

    def draw(key: str) -> str:
        values = history.values(key)
        samples = [(place, value) for place, value in zip(places, values, strict=True) if value is not None]
        if len(samples) < 2:
            return ""
        most = max(value for _, value in samples)
        if most > 0:
            scale = _STEPS / most
            points = " ".join([place + _HEIGHTS[int(value * scale)] for place, value in samples])
        else:
            points = f"{samples[0][0]}{_HEIGHTS[0]} {samples[-1][0]}{_HEIGHTS[0]}"
        since_s = next(age_s for age_s, value in zip(ages_s, values, strict=True) if value is not None)
        said = f"throughput in the last {about(max(since_s, _SECONDS_LEAST))}, at most {rate(most)}"
        return (
            f'<svg class="spark" role="img" aria-label="{text(said)}" width="{_WIDTH}" '
            f'height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}"><polyline points="{points}"/></svg>'
        )

    return draw


def _shards(known: Sequence[view.ShardEntry], history: view.ThroughputHistory, now_s: float) -> Iterator[str]:
    shown = known if len(known) <= MAX_ROWS else [entry for entry in known if entry.held is not None]
    if len(shown) < len(known):
        yield (
            f"<p>There are {len(known)} leases; here are the {len(shown)} of this worker. "
            '<a href="/status.json">status.json</a> has all.</p>'
        )
    if shown:
        caption = "Shards that need attention first, the others below the shards that they came out of"
        draw = sparklines(history, now_s)
        rows = (_shard_row(each, draw) for each in view.trouble_first(shown))
        yield from _table("shards", caption, view.SHARDS.of(()), rows)
    else:
        yield "<p>This worker holds no lease, and the lease table was not read yet.</p>"


def _shard_row(placed: view.LineageEntry, draw: Callable[[str], str]) -> str:
    entry = placed.entry
    lead = f'<span class="lead" aria-hidden="true">{placed.lead}</span>' if placed.lead else ""
    came = (
        f'<span class="vh">, came out of {text(" and ".join(entry.parents))}</span>' if entry.parents else ""
    )
    stream = f' <span class="stream">{text(entry.stream)}</span>' if entry.stream is not None else ""
    line = "" if entry.held is None else draw(entry.key)
    cells = view.SHARDS.cells(entry)
    waits = cells["waits_for"]
    own = {
        "state": f'<td><span class="state {view.TONES[entry.state]}">{cells["state"]}</span></td>',
        "latency": f'<td class="num two">{_kept_together(cells["latency"])}</td>',
        "throughput": f'<td class="num two">{line} {_kept_together(cells["throughput"])}</td>',
        "waits_for": f"<td{' class=why' if waits else ''}>{text(waits)}</td>",
        "checkpoint": f"<td class=name><code>{text(cells['checkpoint'])}</code></td>",
        "worker": f"<td class=name>{text(cells['worker'])}</td>",
    }
    reported = "".join(
        [own.get(each.name) or _cell(each, cells[each.name]) for each in view.SHARDS.columns[1:]]
    )
    return (
        f'<tr data-key="{text(entry.key)}"><th scope="row">{lead}{shard_name(entry.shard_id)}{stream}{came}</th>'
        f"{reported}</tr>"
    )


def _kept_together(figures: str) -> str:
    """A line may end only between two of them."""
    return figures.replace(" ", "\u00a0").replace(",\u00a0", ", ")


def shard_name(shard_id: str) -> str:
    number = short_shard(shard_id)
    most = (
        ""
        if number == shard_id or not shard_id.endswith(number)
        else f'<span class="most">{text(shard_id.removesuffix(number))}</span>'
    )
    return f"{most}{text(number)}"


def _children(snapshot: Snapshot) -> Iterator[str]:
    shown = view.shards_with_children(snapshot)
    first = next(shown, None)
    if first is None:
        yield "<p>No child is running.</p>"
        return
    *columns, stderr = CHILDREN.columns
    rows = (_row(columns, CHILDREN.cells(shard), _stderr(shard.stderr)) for shard in chain([first], shown))
    whose = "shard" if all(shard.lanes is None for shard in snapshot.shards) else "shard or lane"
    caption = f"Child processes of this worker, one per {whose}"
    headed = replace(CHILDREN.of(()), columns=(*columns, replace(stderr, heading="Last lines of stderr")))
    yield from _table("children", caption, headed, rows)


def _stderr(said: tuple[str, ...]) -> str:
    if not said:
        return "<td>none</td>"
    lines = "\n".join(map(text, said))
    many = "1 line" if len(said) == 1 else f"{len(said)} lines"
    return f'<td><details><summary>{many}</summary><pre tabindex="0">{lines}</pre></details></td>'


def _first(name: str, caption: str, shown: StatusTable, which: str = "") -> Iterator[str]:
    """`which`: those that are shown of very many."""
    if which and len(shown.rows) > MAX_SHARDS:
        caption += f": of {len(shown.rows)} those {which}"
    yield from _table(name, caption, replace(shown, rows=shown.rows[:MAX_SHARDS]))


def _lanes(shown: StatusTable) -> Iterator[str]:
    caption = "Shards with several children, and the lane that holds the checkpoint back"
    return _first("lanes", caption, shown, "where it does so longest")


def _set_aside(shown: StatusTable) -> Iterator[str]:
    return _first("set-aside", "Records that were not processed: stored as dead letters, or skipped", shown)


def _spark(engine: SparkView) -> Iterator[str]:
    if engine.ui is not None:
        yield f"<p>Spark's own page: {text(engine.ui)}</p>"
    yield from _table("spark-queries", "Queries", query_table(engine))
    caption = "Shards, as all queries together have them"
    yield from _first("spark-shards", caption, spark_shard_table(engine), "that wait longest")


def _landing(lander: LandingView) -> Iterator[str]:
    if lander.trouble is not None:
        yield f"<p>The store takes nothing: {text(str(lander.trouble))}</p>"
    caption = "Shards, since the lander began"
    yield from _first("landing-shards", caption, landing_table(lander), "that wait longest")


@dataclass(frozen=True, slots=True)
class Assets:
    style: str
    script: str
    policy: str


@cache
def assets() -> Assets:
    folder = files("kcl_daemon.admin") / "assets"
    style, script = (folder.joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    policy = "; ".join(
        (
            "default-src 'none'",
            f"style-src '{_hash(style)}'",
            f"script-src '{_hash(script)}'",
            "connect-src 'self'",
            "img-src data:",  # an empty icon: browsers request none
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )
    return Assets(style, script, policy)


def _hash(inline: str) -> str:
    return f"sha256-{b64encode(sha256(inline.encode()).digest()).decode()}"


def page(
    snapshot: Snapshot, history: view.ThroughputHistory, *, now_s: float, every_s: float
) -> Iterator[str]:
    """`now_s` is on the history's clock; `every_s` is the reload interval."""
    given = assets()
    title = f"{snapshot.application}: {snapshot.worker_id}"
    absent = {name for name in ("spark", "landing") if getattr(snapshot, name) is None}
    if all(shard.lanes is None for shard in snapshot.shards):
        absent.add("lanes")
    sections = (each for each in _SECTIONS if each[0] not in absent)
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


def live_part(
    snapshot: Snapshot, history: view.ThroughputHistory, *, now_s: float, every_s: float
) -> Iterator[str]:
    yield f'<div id="live" data-every="{every_s:.1f}"><p class="place">{text(_place(snapshot))}</p>'
    found: list[view.ShardEntry] = []
    for entry in view.entries_of_snapshot(snapshot):
        found.append(entry)
        if not len(found) % _PAUSE_AFTER:
            yield ""  # the sender may pause here
    known = view.with_distinct_names(found)
    states = view.count_states(known)
    yield f'<dl class="headline">{_headline(snapshot, states)}</dl>'
    yield f'<p id="summary" role="status">{text(view.in_words(snapshot, states))}</p>'
    yield from _listed("trouble", "Not ready", view.not_ready(snapshot))
    yield from _listed("attention", "Needs attention", view.needs_attention(snapshot))
    yield from _section("shards", "Shards", _shards(known, history, now_s))
    yield from _section("fleet", "Fleet", _fleet(snapshot, states))
    if (lanes := view.lane_table(snapshot)) is not None:
        yield from _section("lanes", "Lanes", _lanes(lanes))
    if (aside := view.set_aside_table(snapshot)) is not None:
        yield from _section("aside", "Records set aside", _set_aside(aside))
    yield from _section("children", "Children", _children(snapshot))
    if snapshot.spark is not None:
        yield from _section("spark", "Spark", _spark(snapshot.spark))
    if snapshot.landing is not None:
        yield from _section("landing", "Landing log", _landing(snapshot.landing))
    yield from _section("moves", "Last moves", _moves(snapshot))
    yield "</div>"


def _listed(name: str, heading: str, lines: Iterable[str]) -> Iterator[str]:
    if items := "".join(f"<li>{text(line)}</li>" for line in lines):
        yield f'<div id="{name}" class="{name}"><p>{heading}:</p><ul>{items}</ul></div>'


def _place(snapshot: Snapshot) -> str:
    reported = (snapshot.place, view.time_text(snapshot), f"uptime {duration(snapshot.uptime_s)}")
    return ", ".join(each for each in reported if each)


def _headline(snapshot: Snapshot, states: Counter[view.DisplayState]) -> str:
    found: list[str] = []
    for name, value in view.headline(snapshot, states):
        is_bad = value == "not ready" or (name in _TILES_OF_TROUBLE and value not in {"0", NONE})
        found.append(f"<div><dt>{name}</dt><dd{' class=bad' if is_bad else ''}>{text(value)}</dd></div>")
    return "".join(found)
