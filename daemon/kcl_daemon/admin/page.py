"""The HTML of the status page: a fixed frame and a live part, which the script reloads.

All outside text goes through `text`. The Content-Security-Policy allows only the inline style sheet and
script.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Final

from kcl_daemon.admin.view import (
    DisplayState,
    LeaseCounts,
    LineageEntry,
    ShardEntry,
    ThroughputHistory,
    count_leases,
    entries_of_snapshot,
    headline,
    in_words,
    not_ready,
    time_text,
    trouble_first,
    waits_for,
    with_distinct_names,
)
from kcl_daemon.telemetry.snapshot import (
    ChildView,
    MoveView,
    ShardView,
    Snapshot,
    SparkQueryView,
    SparkShardView,
    SparkView,
    WorkerView,
)
from kcl_daemon.text import NONE, about, duration, on_one_line, rate, short_number, short_shard, size


@lru_cache(maxsize=4096)
def text(value: str) -> str:
    """Escapes for elements and double-quoted attributes."""
    return escape(on_one_line(value))


@dataclass(frozen=True, slots=True)
class Column:
    heading: str
    is_number: bool = False


def table(name: str, caption: str, columns: Sequence[Column], rows: Iterator[str]) -> Iterator[str]:
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


_WORKERS: Final = (
    Column("Worker"),
    Column("Role"),
    Column("Leases", is_number=True),
    Column("CPU", is_number=True),
    Column("Last report", is_number=True),
)
MAX_MOVES: Final = 8
"""A start moves every lease, so there may be many."""
_MOVES_CAPTION: Final = f"The last {MAX_MOVES} decisions of this worker as leader; /status.json has more"
_SECTIONS_MOVES: Final = (Column("When", is_number=True), Column("Lease"), Column("Reason"))


def fleet_section(snapshot: Snapshot, counted: LeaseCounts) -> Iterator[str]:
    yield '<section id="fleet" aria-labelledby="fleet-heading"><h2 id="fleet-heading">Fleet</h2><dl class="facts">'
    for name, value in _facts(snapshot, counted):
        yield f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>"
    yield "</dl>"
    if snapshot.workers:
        yield from table("fleet", "Workers, from DynamoDB", _WORKERS, _worker_rows(snapshot))
    else:
        yield "<p>The tables were not read yet, so the other workers are unknown.</p>"
    yield "</section>"


def _facts(snapshot: Snapshot, counted: LeaseCounts) -> Iterator[tuple[str, str]]:
    yield "Leader", leader_text(snapshot)
    yield "Leases", str(counted.leases)
    yield "This worker", str(counted.held)
    yield "Unowned", str(counted.nobody)
    yield "Handing over", str(counted.handing_off)
    yield "Finished", str(counted.finished)
    if snapshot.renewed_s is not None:
        yield "Renewed", f"{about(snapshot.renewed_s)} ago"
    if snapshot.fleet_age_s is not None:
        yield "Fleet as of", f"{about(snapshot.fleet_age_s)} ago"


def leader_text(snapshot: Snapshot) -> str:
    if snapshot.leads:
        return f"{snapshot.worker_id} (this worker)"
    if snapshot.leaderless_s is not None:
        return f"nobody for {about(snapshot.leaderless_s)}"
    return snapshot.leader or "not known"


def role_text(worker: WorkerView, snapshot: Snapshot) -> str:
    leads = snapshot.leads if worker.worker_id == snapshot.worker_id else worker.worker_id == snapshot.leader
    role = "leader" if leads else "follower"
    return f"{role}, this worker" if worker.worker_id == snapshot.worker_id else role


def cpu_text(worker: WorkerView) -> str:
    return NONE if worker.cpu_percent is None else f"{worker.cpu_percent:.0f} %"


def reported_text(worker: WorkerView) -> str:
    return NONE if worker.reported_s is None else f"{about(worker.reported_s)} ago"


def _worker_rows(snapshot: Snapshot) -> Iterator[str]:
    for worker in sorted(snapshot.workers, key=lambda each: each.worker_id):
        yield (
            f'<tr data-key="{text(worker.worker_id)}"><th scope="row">{text(worker.worker_id)}</th>'
            f"<td>{text(role_text(worker, snapshot))}</td><td class=num>{worker.leases}</td>"
            f"<td class=num>{cpu_text(worker)}</td><td class=num>{reported_text(worker)}</td></tr>"
        )


def moves_section(snapshot: Snapshot) -> Iterator[str]:
    yield '<section id="moves" aria-labelledby="moves-heading"><h2 id="moves-heading">Last moves</h2>'
    if snapshot.moves:
        yield from table("moves", _MOVES_CAPTION, _SECTIONS_MOVES, map(_move_row, snapshot.moves[:MAX_MOVES]))
    elif snapshot.leads:
        yield "<p>This worker has moved no lease since it became leader.</p>"
    else:
        yield "<p>The leader decides moves; its page shows them.</p>"
    yield "</section>"


def move_reason(move: MoveView) -> str:
    name, colon, reason = move.reason.partition(": ")
    return reason if colon and "shardId-" in name and " " not in name else move.reason


def _move_row(move: MoveView) -> str:
    return (
        f"<tr><td class=num>{about(move.ago_s)} ago</td>"
        f'<th scope="row">{text(move.key)}</th><td>{text(move_reason(move))}</td></tr>'
    )


_WIDTH: Final = 120
_HEIGHT: Final = 24
_SECONDS_LEAST: Final = 60.0
_STEPS: Final = 10 * (_HEIGHT - 3)
# The y coordinates as text, lowest first.
_HEIGHTS: Final = tuple(f"{_HEIGHT - 1.5 - step / 10:.1f}" for step in range(_STEPS + 1))


class Sparklines:
    def __init__(self, history: ThroughputHistory, now_s: float) -> None:
        self._history = history
        self._ages_s = history.ages_s(now_s)
        per_s = (_WIDTH - 2) / max(self._ages_s[0] if self._ages_s else 0.0, _SECONDS_LEAST)
        self._places = [f"{_WIDTH - 1 - age_s * per_s:.0f}," for age_s in self._ages_s]

    def of(self, key: str) -> str:
        """Returns nothing for fewer than two samples."""
        values = self._history.values(key)
        samples = [
            (place, value) for place, value in zip(self._places, values, strict=True) if value is not None
        ]
        if len(samples) < 2:
            return ""
        most = max(value for _, value in samples)
        if most > 0:
            scale = _STEPS / most
            points = " ".join([place + _HEIGHTS[int(value * scale)] for place, value in samples])
        else:
            points = f"{samples[0][0]}{_HEIGHTS[0]} {samples[-1][0]}{_HEIGHTS[0]}"
        since_s = next(age_s for age_s, value in zip(self._ages_s, values, strict=True) if value is not None)
        return _drawn(
            points, f"throughput in the last {about(max(since_s, _SECONDS_LEAST))}, at most {rate(most)}"
        )


def _drawn(points: str, label: str) -> str:
    return (
        f'<svg class="spark" role="img" aria-label="{text(label)}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}"><polyline points="{points}"/></svg>'
    )


MAX_ROWS: Final = 2000
"""Larger applications show only this worker's leases."""
_SHARDS: Final = (
    Column("Shard"),
    Column("State"),
    Column("Lag", is_number=True),
    Column("Throughput", is_number=True),
    Column("Records", is_number=True),
    Column("Waits for"),
    Column("Checkpoint"),
    Column("Worker"),
)
_CHILDREN: Final = (
    Column("Shard"),
    Column("Process", is_number=True),
    Column("Memory", is_number=True),
    Column("Uptime", is_number=True),
    Column("Restarts", is_number=True),
    Column("Last lines of its stderr"),
)
_CLASSES: Final = {
    DisplayState.FAILING: "bad",
    DisplayState.STALLED: "bad",
    DisplayState.NOBODY: "bad",
    DisplayState.HANDING_OFF: "busy",
    DisplayState.UNSETTLED: "busy",
    DisplayState.STARTING: "busy",
    DisplayState.WAITING: "busy",
    DisplayState.READING: "good",
    DisplayState.AT_TIP: "good",
    DisplayState.ELSEWHERE: "calm",
    DisplayState.FINISHED: "calm",
}


def shown_entries(known: Sequence[ShardEntry]) -> Sequence[ShardEntry]:
    return known if len(known) <= MAX_ROWS else [entry for entry in known if entry.held is not None]


def shards_section(known: Sequence[ShardEntry], history: ThroughputHistory, now_s: float) -> Iterator[str]:
    yield '<section id="shards" aria-labelledby="shards-heading"><h2 id="shards-heading">Shards</h2>'
    shown = shown_entries(known)
    if len(shown) < len(known):
        yield (
            f"<p>There are {len(known)} leases; here are the {len(shown)} of this worker. "
            '<a href="/status.json">status.json</a> has all.</p>'
        )
    if shown:
        caption = "Shards that need attention first, the others below the shards that they came out of"
        lines = Sparklines(history, now_s)
        rows = (_shard_row(placed, lines) for placed in trouble_first(shown))
        yield from table("shards", caption, _SHARDS, rows)
    else:
        yield "<p>This worker holds no lease, and the lease table was not read yet.</p>"
    yield "</section>"


def _shard_row(placed: LineageEntry, lines: Sparklines) -> str:
    entry = placed.entry
    lead = f'<span class="lead" aria-hidden="true">{placed.lead}</span>' if placed.lead else ""
    came = (
        f'<span class="vh">, came out of {text(" and ".join(entry.parents))}</span>' if entry.parents else ""
    )
    stream = f' <span class="stream">{text(entry.stream)}</span>' if entry.stream is not None else ""
    return (
        f'<tr data-key="{text(entry.key)}"><th scope="row">{lead}{shard_name(entry.shard_id)}{stream}{came}</th>'
        f'<td><span class="state {_CLASSES[entry.state]}">{entry.state.value}</span></td>'
        f"{_progress_cells(entry.held, lines)}"
        f"<td><code>{text(short_number(entry.checkpoint))}</code></td><td class=name>{text(owner_text(entry))}</td></tr>"
    )


def _progress_cells(held: ShardView | None, lines: Sparklines) -> str:
    if held is None:
        return "<td class=num></td><td class=num></td><td class=num></td><td></td>"
    return (
        f"<td class=num>{behind_text(held)}</td>"
        f"<td class=num>{lines.of(held.key)} {rate(held.bytes_per_s)}</td>"
        f"<td class=num>{held.records}</td>"
        f"<td>{text(waits_for(held))}</td>"
    )


def shard_name(shard_id: str) -> str:
    """Marks the part of a shard id that narrow screens hide."""
    number = short_shard(shard_id)
    most = "" if number == shard_id else f'<span class="most">{text(shard_id.removesuffix(number))}</span>'
    return f"{most}{text(number)}"


def behind_text(held: ShardView) -> str:
    return NONE if held.lag_s is None else duration(held.lag_s)


def owner_text(entry: ShardEntry) -> str:
    owner = entry.owner or NONE
    return owner if entry.next_owner is None else f"{owner}, then {entry.next_owner}"


def children_section(snapshot: Snapshot) -> Iterator[str]:
    yield '<section id="children" aria-labelledby="children-heading"><h2 id="children-heading">Children</h2>'
    shown = [shard for shard in snapshot.shards if shard.child is not None or shard.failures]
    if shown:
        shown.sort(key=lambda shard: shard.key)
        rows = map(_child_row, shown)
        yield from table("children", "Child processes of this worker, one per shard", _CHILDREN, rows)
    else:
        yield "<p>No child is running.</p>"
    yield "</section>"


def _child_row(shard: ShardView) -> str:
    child = shard.child
    runs = "<td class=num></td><td class=num></td><td class=num></td>"
    if child is not None:
        runs = (
            f"<td class=num>{child.pid}</td><td class=num>{memory_text(child)}</td>"
            f"<td class=num>{duration(child.running_s)}</td>"
        )
    return (
        f'<tr data-key="{text(shard.key)}"><th scope="row">{text(shard.key)}</th>{runs}'
        f"<td class=num>{shard.restarts}</td><td>{_stderr(stderr_of(shard))}</td></tr>"
    )


def stderr_of(shard: ShardView) -> tuple[str, ...]:
    """The lines of a failed child stay until its successor makes progress."""
    if shard.failures:
        return shard.stderr_tail
    return () if shard.child is None else shard.child.stderr


def memory_text(child: ChildView) -> str:
    return NONE if child.rss_bytes is None else size(child.rss_bytes)


def _stderr(said: tuple[str, ...]) -> str:
    if not said:
        return "none"
    lines = "\n".join(map(text, said))
    many = "1 line" if len(said) == 1 else f"{len(said)} lines"
    return f'<details><summary>{many}</summary><pre tabindex="0">{lines}</pre></details>'


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
MAX_SHARDS: Final = 100
"""Shards with the highest lag are shown."""


def spark_section(view: SparkView | None) -> Iterator[str]:
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
    if len(shown) > MAX_SHARDS:
        caption += f": of {len(shown)} those that wait longest"
    rows = (_row(shard_cells(each), _NAMES) for each in shown[:MAX_SHARDS])
    yield from table("spark-shards", caption, shards, rows)
    yield "</section>"


def by_lag(view: SparkView) -> list[SparkShardView]:
    return sorted(view.shards, key=lambda each: (-each.lag_s, each.shard_id))


def query_cells(query: SparkQueryView) -> tuple[str, ...]:
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
    waits = NONE if not shard.waiting else about(shard.lag_s)
    return shard.shard_id, str(shard.rows), str(shard.committed), str(shard.waiting), waits


def _rate(rows_per_s: float | None) -> str:
    return NONE if rows_per_s is None else f"{rows_per_s:.0f}/s"


def _row(cells: tuple[str, ...], words: frozenset[int]) -> str:
    first, *others = cells
    reported = "".join(
        f"<td>{text(each)}</td>" if number in words else f"<td class=num>{text(each)}</td>"
        for number, each in enumerate(others, 1)
    )
    return f'<tr data-key="{text(first)}"><th scope="row">{text(first)}</th>{reported}</tr>'


_SECTIONS: Final = (
    ("fleet", "Fleet"),
    ("shards", "Shards"),
    ("children", "Children"),
)
_MOVES: Final = ("moves", "Last moves")
_SPARK: Final = ("spark", "Spark")
_PAUSE_AFTER: Final = 100
"""So many entries take less than a millisecond."""
_DOCUMENTS: Final = ("/status.json", "/metrics", "/readyz", "/livez")


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


def page(snapshot: Snapshot, history: ThroughputHistory, *, now_s: float, every_s: float) -> Iterator[str]:
    """`now_s` is on the history's clock; `every_s` is the reload interval."""
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


def live_part(
    snapshot: Snapshot, history: ThroughputHistory, *, now_s: float, every_s: float
) -> Iterator[str]:
    yield f'<div id="live" data-every="{every_s:.1f}"><p class="place">{text(_place(snapshot))}</p>'
    found: list[ShardEntry] = []
    for entry in entries_of_snapshot(snapshot):
        found.append(entry)
        if not len(found) % _PAUSE_AFTER:
            yield ""  # the sender may pause here
    known = with_distinct_names(found)
    counted = count_leases(known)
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
    reported = (snapshot.place, time_text(snapshot), f"uptime {duration(snapshot.uptime_s)}")
    return ", ".join(each for each in reported if each)


def _headline(snapshot: Snapshot, known: Sequence[ShardEntry]) -> str:
    found: list[str] = []
    for name, value in headline(snapshot, known):
        is_bad = (name in {"Failing", "Stalled"} and value != "0") or value == "not ready"
        found.append(f"<div><dt>{name}</dt><dd{' class=bad' if is_bad else ''}>{text(value)}</dd></div>")
    return "".join(found)
