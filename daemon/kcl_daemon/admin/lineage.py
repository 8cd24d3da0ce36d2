"""The shards of a snapshot in the order in which they came out of each other, with what is known of each.

Pure. Puts together what this worker knows of its own leases and what the table told of all. Shared by the page and the
terminal; knows nothing of how it is drawn.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from kcl_daemon.observe.snapshot import LeaseView, ShardState, ShardView, Snapshot
from kcl_daemon.progress.rules import state_of

SHARD_END: Final = "SHARD_END"
LATE_S: Final = 60.0
"""A shard that is further behind stands above those that are not."""
DEPTH_MOST: Final = 8
"""Deeper generations are drawn no further to the right."""


class State(Enum):
    """What goes on with a shard, in a word."""

    FAILING = "failing"
    STALLED = "stalled"
    READING = "reading"
    WAITING = "waiting"
    STARTING = "starting"
    AT_TIP = "caught up"
    ELSEWHERE = "elsewhere"
    HANDING_OVER = "handing over"
    UNSETTLED = "changing"
    NOBODY = "unowned"
    FINISHED = "finished"


_OF_HELD: Final = {
    ShardState.FAILING: State.FAILING,
    ShardState.STALLED: State.STALLED,
    ShardState.STARTING: State.STARTING,
    ShardState.WAITING: State.WAITING,
    ShardState.READING: State.READING,
    ShardState.CAUGHT_UP: State.AT_TIP,
    ShardState.FINISHED: State.FINISHED,
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One lease, and the shard it is for.

    Args:
        key: of the lease.
        shard_id: of the shard.
        stream: what it is called for people: its name, or its identity where several have that name; None where there
            is one only.
        parents: shard ids.
        checkpoint: as stored.
        owner: worker id; None: nobody.
        next_owner: to whom it is being handed over; None: no hand-off.
        state: what goes on.
        held: what this worker knows of it; None where another one holds it, or nobody.
        stream_id: its stream's identity; None where there is one only.
    """

    key: str
    shard_id: str
    stream: str | None
    parents: tuple[str, ...]
    checkpoint: str
    owner: str | None
    next_owner: str | None
    state: State
    held: ShardView | None
    stream_id: str | None


@dataclass(frozen=True, slots=True)
class Placed:
    """An entry, and where in the tree it stands.

    Args:
        entry: the lease.
        depth: 0 for a shard whose parents are not known any more.
        lead: what is drawn before its name, such as `|  `- `; empty at depth 0.
    """

    entry: Entry
    depth: int
    lead: str


def entries(snapshot: Snapshot) -> list[Entry]:
    """Every lease that is known: of the table where it was read, and those that this worker holds."""
    return told_apart(list(gathered(snapshot)))


def gathered(snapshot: Snapshot) -> Iterator[Entry]:
    """The entries one by one, so that the caller can pause between them; `told_apart` makes the list complete."""
    held = {shard.key: shard for shard in snapshot.shards}
    for lease in snapshot.fleet:
        yield _of_lease(lease, held.get(lease.key), snapshot.worker_id)
    listed = {lease.key for lease in snapshot.fleet}
    for key, shard in held.items():
        if key not in listed:
            yield _of_held(shard, snapshot.worker_id)


def told_apart(known: list[Entry]) -> list[Entry]:
    """Streams of two accounts may have one name, and so may a stream and the one that was deleted before it."""
    names: dict[str, set[str | None]] = defaultdict(set)
    for entry in known:
        if entry.stream is not None:
            names[entry.stream].add(entry.stream_id)
    shared = {name for name, found in names.items() if len(found) > 1}
    if not shared:
        return known
    return [
        replace(entry, stream=entry.stream_id or entry.stream) if entry.stream in shared else entry
        for entry in known
    ]


def _of_lease(lease: LeaseView, held: ShardView | None, me: str) -> Entry:
    return Entry(
        key=lease.key,
        shard_id=lease.shard_id,
        stream=lease.stream,
        parents=lease.parents,
        checkpoint=lease.checkpoint if held is None else held.checkpoint,
        owner=lease.owner if held is None else me,
        next_owner=lease.next_owner,
        state=_state(lease, held, me),
        held=held,
        stream_id=lease.stream_id,
    )


def _of_held(shard: ShardView, me: str) -> Entry:
    return Entry(
        key=shard.key,
        shard_id=shard.shard_id,
        stream=shard.stream,
        parents=shard.parents,
        checkpoint=shard.checkpoint,
        owner=me,
        next_owner=None,
        state=_state(None, shard, me),
        held=shard,
        stream_id=shard.stream_id,
    )


def _state(lease: LeaseView | None, held: ShardView | None, me: str) -> State:
    if held is not None and (held.is_failing or held.stalled):
        return State.FAILING if held.is_failing else State.STALLED
    if lease is not None and lease.next_owner is not None:
        return State.HANDING_OVER
    if held is not None:
        finished = held.checkpoint == SHARD_END
        return _OF_HELD[state_of(held.cause, failures=held.failures, stalled=held.stalled, finished=finished)]
    if lease is None or lease.checkpoint == SHARD_END:
        return State.FINISHED
    if lease.owner == me:
        return State.UNSETTLED  # the table was read a moment before we took it, lost it, or finished it
    return State.NOBODY if lease.owner is None else State.ELSEWHERE


_TROUBLE: Final = {State.FAILING: 0, State.STALLED: 1, State.NOBODY: 2}


def trouble_first(known: Sequence[Entry]) -> Iterator[Placed]:
    """Each entry once: failing, stalled, unowned, then those that are a minute behind or more, the latest first; the rest by lineage."""
    troubled = sorted((entry for entry in known if is_trouble(entry)), key=urgency)
    yield from (Placed(entry, 0, "") for entry in troubled)
    yield from lineage([entry for entry in known if not is_trouble(entry)])


def is_trouble(entry: Entry) -> bool:
    """Whether somebody should look at it."""
    return entry.state in _TROUBLE or _lag_s(entry) >= LATE_S


def urgency(entry: Entry) -> tuple[int, float, str]:
    """What sorts entries by how much they need attention, finished ones last."""
    last = 5 if entry.state is State.FINISHED else 4 if entry.held is None else 3
    return _TROUBLE.get(entry.state, last), -_lag_s(entry), entry.key


def _lag_s(entry: Entry) -> float:
    return 0.0 if entry.held is None else entry.held.lag_s or 0.0


def lineage(known: Sequence[Entry]) -> Iterator[Placed]:
    """Each entry once, stream by stream: first the oldest, below it what came out of it.

    A shard that came out of two stands below the first of them by name.
    """
    streams: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for entry in known:
        streams[entry.stream or "", entry.stream_id or ""].append(entry)
    for stream in sorted(streams):
        yield from _of_stream(sorted(streams[stream], key=lambda entry: (entry.shard_id, entry.key)))


def _of_stream(known: Sequence[Entry]) -> Iterator[Placed]:
    by_id = {entry.shard_id: entry for entry in known}
    below: dict[str, list[Entry]] = defaultdict(list)
    roots: list[Entry] = []
    for entry in known:
        above = min((parent for parent in entry.parents if parent in by_id), default=None)
        (roots if above is None else below[above]).append(entry)
    drawn: set[str] = set()
    yield from _drawn(roots, below, drawn)
    # Rows that name each other as parents, which no stream has and a damaged table can.
    for entry in known:
        if entry.key not in drawn:
            yield from _drawn([entry], below, drawn)


def _drawn(roots: Sequence[Entry], below: Mapping[str, Sequence[Entry]], drawn: set[str]) -> Iterator[Placed]:
    """Trees with an explicit stack: lineages may be thousands of generations deep."""
    stack = [(root, 0, "", "") for root in reversed(roots)]
    while stack:
        entry, depth, lead, indent = stack.pop()
        if entry.key in drawn:
            continue
        drawn.add(entry.key)
        yield Placed(entry, depth, lead)
        children = below.get(entry.shard_id, ())
        for number, child in reversed(list(enumerate(children, start=1))):
            is_last = number == len(children)
            deeper = depth + 1 < DEPTH_MOST
            stack.append(
                (
                    child,
                    depth + 1,
                    f"{indent}{'└─ ' if is_last else '├─ '}",
                    f"{indent}{'   ' if is_last else '│  '}" if deeper else indent,
                )
            )
