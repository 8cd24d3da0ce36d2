"""The shards of a snapshot in the order in which they came out of each other, with what is known of each.

Pure. Puts together what this worker knows of its own leases and what the table told of all. Shared by the page and the
terminal; knows nothing of how it is drawn.

What a snapshot means: whether the worker is ready and why not, and how many leases are where.

Pure. The same judgement for the probes, the page and the terminal.

The throughput of each shard over the last minutes, for the sparklines; bounded.

Owns how much is remembered. Knows no clock and asks nobody: it is told.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import Enum
from typing import Final

from kcl_daemon.progress.watchdog import state_of
from kcl_daemon.telemetry.snapshot import LeaseView, ShardState, ShardView, Snapshot
from kcl_daemon.text import NONE, about, duration, rate, short_shard

SHARD_END: Final = "SHARD_END"
LATE_S: Final = 60.0
"""A shard that is further behind stands above those that are not."""
MAX_DEPTH: Final = 8
"""Deeper generations are drawn no further to the right."""


class DisplayState(Enum):
    """What goes on with a shard, in a word."""

    FAILING = "failing"
    STALLED = "stalled"
    READING = "reading"
    WAITING = "waiting"
    STARTING = "starting"
    AT_TIP = "caught up"
    ELSEWHERE = "elsewhere"
    HANDING_OFF = "handing over"
    UNSETTLED = "changing"
    NOBODY = "unowned"
    FINISHED = "finished"


_OF_HELD: Final = {
    ShardState.FAILING: DisplayState.FAILING,
    ShardState.STALLED: DisplayState.STALLED,
    ShardState.STARTING: DisplayState.STARTING,
    ShardState.WAITING: DisplayState.WAITING,
    ShardState.READING: DisplayState.READING,
    ShardState.CAUGHT_UP: DisplayState.AT_TIP,
    ShardState.FINISHED: DisplayState.FINISHED,
}


@dataclass(frozen=True, slots=True)
class ShardEntry:
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
    state: DisplayState
    held: ShardView | None
    stream_id: str | None


@dataclass(frozen=True, slots=True)
class LineageEntry:
    """An entry, and where in the tree it stands.

    Args:
        entry: the lease.
        depth: 0 for a shard whose parents are not known any more.
        lead: what is drawn before its name, such as `|  `- `; empty at depth 0.
    """

    entry: ShardEntry
    depth: int
    lead: str


def shard_entries(snapshot: Snapshot) -> list[ShardEntry]:
    """Every lease that is known: of the table where it was read, and those that this worker holds."""
    return with_distinct_names(list(entries_of_snapshot(snapshot)))


def entries_of_snapshot(snapshot: Snapshot) -> Iterator[ShardEntry]:
    """The entries one by one, so that the caller can pause between them; `told_apart` makes the list complete."""
    held = {shard.key: shard for shard in snapshot.shards}
    for lease in snapshot.fleet:
        yield _of_lease(lease, held.get(lease.key), snapshot.worker_id)
    listed = {lease.key for lease in snapshot.fleet}
    for key, shard in held.items():
        if key not in listed:
            yield _of_held(shard, snapshot.worker_id)


def with_distinct_names(known: list[ShardEntry]) -> list[ShardEntry]:
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


def _of_lease(lease: LeaseView, held: ShardView | None, me: str) -> ShardEntry:
    return ShardEntry(
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


def _of_held(shard: ShardView, me: str) -> ShardEntry:
    return ShardEntry(
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


def _state(lease: LeaseView | None, held: ShardView | None, me: str) -> DisplayState:
    if held is not None and (held.is_failing or held.stalled):
        return DisplayState.FAILING if held.is_failing else DisplayState.STALLED
    if lease is not None and lease.next_owner is not None:
        return DisplayState.HANDING_OFF
    if held is not None:
        finished = held.checkpoint == SHARD_END
        return _OF_HELD[state_of(held.cause, failures=held.failures, stalled=held.stalled, finished=finished)]
    if lease is None or lease.checkpoint == SHARD_END:
        return DisplayState.FINISHED
    if lease.owner == me:
        return (
            DisplayState.UNSETTLED
        )  # the table was read a moment before we took it, lost it, or finished it
    return DisplayState.NOBODY if lease.owner is None else DisplayState.ELSEWHERE


_TROUBLE: Final = {DisplayState.FAILING: 0, DisplayState.STALLED: 1, DisplayState.NOBODY: 2}


def trouble_first(known: Sequence[ShardEntry]) -> Iterator[LineageEntry]:
    """Each entry once: failing, stalled, unowned, then those that are a minute behind or more, the latest first; the rest by lineage."""
    troubled = sorted((entry for entry in known if is_trouble(entry)), key=urgency)
    yield from (LineageEntry(entry, 0, "") for entry in troubled)
    yield from lineage([entry for entry in known if not is_trouble(entry)])


def is_trouble(entry: ShardEntry) -> bool:
    """Whether somebody should look at it."""
    return entry.state in _TROUBLE or _lag_s(entry) >= LATE_S


def urgency(entry: ShardEntry) -> tuple[int, float, str]:
    """What sorts entries by how much they need attention, finished ones last."""
    last = 5 if entry.state is DisplayState.FINISHED else 4 if entry.held is None else 3
    return _TROUBLE.get(entry.state, last), -_lag_s(entry), entry.key


def _lag_s(entry: ShardEntry) -> float:
    return 0.0 if entry.held is None else entry.held.lag_s or 0.0


def lineage(known: Sequence[ShardEntry]) -> Iterator[LineageEntry]:
    """Each entry once, stream by stream: first the oldest, below it what came out of it.

    A shard that came out of two stands below the first of them by name.
    """
    streams: dict[tuple[str, str], list[ShardEntry]] = defaultdict(list)
    for entry in known:
        streams[entry.stream or "", entry.stream_id or ""].append(entry)
    for stream in sorted(streams):
        yield from _of_stream(sorted(streams[stream], key=lambda entry: (entry.shard_id, entry.key)))


def _of_stream(known: Sequence[ShardEntry]) -> Iterator[LineageEntry]:
    by_id = {entry.shard_id: entry for entry in known}
    below: dict[str, list[ShardEntry]] = defaultdict(list)
    roots: list[ShardEntry] = []
    for entry in known:
        above = min((parent for parent in entry.parents if parent in by_id), default=None)
        (roots if above is None else below[above]).append(entry)
    drawn: set[str] = set()
    yield from _drawn(roots, below, drawn)
    # Rows that name each other as parents, which no stream has and a damaged table can.
    for entry in known:
        if entry.key not in drawn:
            yield from _drawn([entry], below, drawn)


def _drawn(
    roots: Sequence[ShardEntry], below: Mapping[str, Sequence[ShardEntry]], drawn: set[str]
) -> Iterator[LineageEntry]:
    """Trees with an explicit stack: lineages may be thousands of generations deep."""
    stack = [(root, 0, "", "") for root in reversed(roots)]
    while stack:
        entry, depth, lead, indent = stack.pop()
        if entry.key in drawn:
            continue
        drawn.add(entry.key)
        yield LineageEntry(entry, depth, lead)
        children = below.get(entry.shard_id, ())
        for number, child in reversed(list(enumerate(children, start=1))):
            is_last = number == len(children)
            deeper = depth + 1 < MAX_DEPTH
            stack.append(
                (
                    child,
                    depth + 1,
                    f"{indent}{'└─ ' if is_last else '├─ '}",
                    f"{indent}{'   ' if is_last else '│  '}" if deeper else indent,
                )
            )


_NAMED_MOST = 5
WAIT_SHOWN_S: Final = 5.0
"""Shorter waits are those of a healthy shard, between one batch and the next."""


@dataclass(frozen=True, slots=True)
class LeaseCounts:
    """How many leases are where; all but `held`, `stalled` and `failing` are of the whole application, as far as it is known."""

    leases: int
    held: int
    stalled: int
    failing: int
    nobody: int
    handing_off: int
    finished: int


def count_leases(known: Sequence[ShardEntry]) -> LeaseCounts:
    """Count."""
    states = [entry.state for entry in known]
    return LeaseCounts(
        leases=len(known),
        held=sum(entry.held is not None for entry in known),
        stalled=states.count(DisplayState.STALLED),
        failing=states.count(DisplayState.FAILING),
        nobody=states.count(DisplayState.NOBODY),
        handing_off=states.count(DisplayState.HANDING_OFF),
        finished=states.count(DisplayState.FINISHED),
    )


def not_ready(snapshot: Snapshot) -> tuple[str, ...]:
    """Why this worker is not ready, in words; empty: it is."""
    return tuple(_reasons(snapshot))


def _reasons(snapshot: Snapshot) -> Iterator[str]:
    if snapshot.stopping:
        yield "it is stopping"
    elif not snapshot.started:
        yield "it has not started yet: tables or streams do not exist"
    failing = [shard for shard in snapshot.shards if shard.is_failing]
    for shard in failing[:_NAMED_MOST]:
        yield f"{shard.key} is failing: {failure_of(shard)}"
    if len(failing) > _NAMED_MOST:
        yield f"{len(failing) - _NAMED_MOST} more shards are failing"
    stalled = [shard for shard in snapshot.shards if shard.stalled and not shard.is_failing]
    for shard in stalled[:_NAMED_MOST]:
        yield f"{shard.key} makes no progress: {waits_for(shard)}"
    if len(stalled) > _NAMED_MOST:
        yield f"{len(stalled) - _NAMED_MOST} more shards make no progress"


def failure_of(shard: ShardView) -> str:
    """How its children fail: `8 in a row, next try in 12 s: child ended with exit code 70 (ValueError: not an order)`."""
    next_try = "" if shard.next_try_s is None else f", next try in {about(shard.next_try_s)}"
    said = f" ({shard.stderr_tail[-1]})" if shard.stderr_tail else ""
    return f"{shard.failures} in a row{next_try}: {shard.last_error}{said}"


def waits_for(shard: ShardView) -> str:
    """What a shard waits for, and for how long: `kinesis for 12 s (throttled)`; empty while that is as short as usual."""
    what = shard.cause.value
    if shard.waits_s < WAIT_SHOWN_S and not (shard.stalled or shard.is_failing):
        return ""
    if shard.waits_s >= 1:
        what = f"{what} for {about(shard.waits_s)}"
    return f"{what} ({shard.detail})" if shard.detail else what


def in_words(snapshot: Snapshot, counted: LeaseCounts) -> str:
    """The state of the worker in one sentence without figures that change all the while: for those who listen to it."""
    state = "stopping" if snapshot.stopping else "running" if snapshot.started else "starting"
    shards = "1 shard" if counted.held == 1 else f"{counted.held} shards"
    failing = f", {counted.failing} failing" if counted.failing else ""
    stalled = f", {counted.stalled} stalled" if counted.stalled else ""
    leader = "is the leader" if snapshot.leads else "is a follower"
    return f"This worker is {state}, {leader} and holds {shards}{failing}{stalled}."


def headline(snapshot: Snapshot, known: Sequence[ShardEntry]) -> tuple[tuple[str, str], ...]:
    """The figures that tell how it goes, as names and values, the most important first."""
    states = [entry.state for entry in known]
    late = max(
        (shard for shard in snapshot.shards if shard.lag_s is not None), key=_summary_lag_s, default=None
    )
    lag = NONE
    if late is not None:
        lag = (
            duration(_summary_lag_s(late))
            if _summary_lag_s(late) == 0
            else f"{duration(_summary_lag_s(late))} (shard {_name(late)})"
        )
    return (
        ("State", _summary_state(snapshot)),
        ("Worst lag", lag),
        ("Throughput", rate(sum(shard.bytes_per_s for shard in snapshot.shards))),
        ("Failing", str(states.count(DisplayState.FAILING))),
        ("Stalled", str(states.count(DisplayState.STALLED))),
    )


def _summary_state(snapshot: Snapshot) -> str:
    word = "stopping" if snapshot.stopping else "running" if snapshot.started else "starting"
    return "not ready" if word == "running" and not_ready(snapshot) else word


def _summary_lag_s(shard: ShardView) -> float:
    return shard.lag_s or 0.0


def _name(shard: ShardView) -> str:
    number = short_shard(shard.shard_id)
    return number if shard.stream is None else f"{number} of {shard.stream}"


def time_text(snapshot: Snapshot) -> str:
    """When this was, so that a picture of it can be dated: `2026-11-22 12:03:51 UTC`; empty where it is not known."""
    if not snapshot.at_ms:
        return ""
    return f"{datetime.fromtimestamp(snapshot.at_ms // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


MAX_SAMPLES: Final = 40
WATCHED_EVERY_S: Final = 2.0
UNWATCHED_EVERY_S: Final = 15.0
WATCHED_FOR_S: Final = 10.0
"""How long after the last look somebody is believed to look still."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment.

    Args:
        at_s: by the clock of whoever tells.
        bytes_per_s: of each lease that was held.
    """

    at_s: float
    bytes_per_s: Mapping[str, float]


class ThroughputHistory:
    """Remembers at most `SAMPLES_MOST` moments; what of a lease that is held no more goes with the moments."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self._polled_s: float | None = None

    def checked(self, now_s: float) -> None:
        """Somebody looks."""
        self._polled_s = now_s

    def is_due(self, now_s: float, *, late_s: float = 0.0) -> bool:
        """Whether it is time for the next moment.

        Args:
            now_s: by the clock of the moments.
            late_s: how much later than at its time; below zero: earlier.
        """
        return not self._samples or now_s - self._samples[-1].at_s >= self.every_s(now_s) + late_s

    def every_s(self, now_s: float) -> float:
        """How far moments lie apart: near each other while somebody looks."""
        watched = self._polled_s is not None and now_s - self._polled_s < WATCHED_FOR_S
        return WATCHED_EVERY_S if watched else UNWATCHED_EVERY_S

    def remember(self, snapshot: Snapshot, now_s: float) -> None:
        """Add this moment."""
        self._samples.append(Sample(now_s, {shard.key: shard.bytes_per_s for shard in snapshot.shards}))

    def ages_s(self, now_s: float) -> list[float]:
        """How long ago each moment was; the oldest first."""
        return [now_s - sample.at_s for sample in self._samples]

    def values(self, key: str) -> list[float | None]:
        """Of one lease at each moment, bytes a second; None: it was not held."""
        return [sample.bytes_per_s.get(key) for sample in self._samples]

    def of(self, key: str, now_s: float) -> list[tuple[float, float]]:
        """Of one lease: how many seconds ago, and bytes a second; the oldest first."""
        both = zip(self.ages_s(now_s), self.values(key), strict=True)
        return [(age_s, value) for age_s, value in both if value is not None]
