"""The parts of the page that are about shards: the lineage with the state of each, and the children.

Pure: a snapshot in, pieces of HTML out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from kcl_daemon.admin.history import History
from kcl_daemon.admin.lineage import Entry, Placed, State, trouble_first
from kcl_daemon.admin.markup import Column, table, text
from kcl_daemon.admin.sparklines import Sparklines
from kcl_daemon.admin.summary import waits_for
from kcl_daemon.observe.snapshot import ChildView, ShardView, Snapshot
from kcl_daemon.observe.words import NONE, duration, rate, short_number, short_shard, size

ROWS_MOST: Final = 2000
"""Of a larger application only the leases that this worker holds are shown."""
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
    State.FAILING: "bad",
    State.STALLED: "bad",
    State.NOBODY: "bad",
    State.HANDING_OVER: "busy",
    State.UNSETTLED: "busy",
    State.STARTING: "busy",
    State.WAITING: "busy",
    State.READING: "good",
    State.AT_TIP: "good",
    State.ELSEWHERE: "calm",
    State.FINISHED: "calm",
}


def shown_entries(known: Sequence[Entry]) -> Sequence[Entry]:
    """What there is room for."""
    return known if len(known) <= ROWS_MOST else [entry for entry in known if entry.held is not None]


def shards_section(known: Sequence[Entry], history: History, now_s: float) -> Iterator[str]:
    """A row for each lease, below the shards that it came out of."""
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


def _shard_row(placed: Placed, lines: Sparklines) -> str:
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
    """A shard id, of which the style sheet leaves the number where there is little room."""
    number = short_shard(shard_id)
    most = "" if number == shard_id else f'<span class="most">{text(shard_id.removesuffix(number))}</span>'
    return f"{most}{text(number)}"


def behind_text(held: ShardView) -> str:
    """The age of the oldest record that is not done."""
    return NONE if held.lag_s is None else duration(held.lag_s)


def owner_text(entry: Entry) -> str:
    """Who reads it, and who will."""
    owner = entry.owner or NONE
    return owner if entry.next_owner is None else f"{owner}, then {entry.next_owner}"


def children_section(snapshot: Snapshot) -> Iterator[str]:
    """A row for each child process of this worker, and for each shard whose last one failed."""
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
    """The last lines of its child; of the one that died, until another one gets further."""
    if shard.failures:
        return shard.stderr_tail
    return () if shard.child is None else shard.child.stderr


def memory_text(child: ChildView) -> str:
    """Its resident memory."""
    return NONE if child.rss_bytes is None else size(child.rss_bytes)


def _stderr(said: tuple[str, ...]) -> str:
    if not said:
        return "none"
    lines = "\n".join(map(text, said))
    many = "1 line" if len(said) == 1 else f"{len(said)} lines"
    return f'<details><summary>{many}</summary><pre tabindex="0">{lines}</pre></details>'
