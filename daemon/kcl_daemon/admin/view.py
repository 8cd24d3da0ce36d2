"""Readiness, shard states, lineage, lease counts and throughput history of a snapshot.

Probes, page and terminal share these rules.
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
"""A shard further behind is in trouble."""
MAX_DEPTH: Final = 8
"""Deeper generations are not indented further."""


class DisplayState(Enum):
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
    """`held` is None if this worker does not hold the lease.

    `stream` is a name, or an identity if several streams share the name; None in single-stream mode.
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
    """`depth` is 0 without a known parent. `lead` is drawn before the name."""

    entry: ShardEntry
    depth: int
    lead: str


def shard_entries(snapshot: Snapshot) -> list[ShardEntry]:
    return with_distinct_names(list(entries_of_snapshot(snapshot)))


def entries_of_snapshot(snapshot: Snapshot) -> Iterator[ShardEntry]:
    """Finish the list with `with_distinct_names`."""
    held = {shard.key: shard for shard in snapshot.shards}
    for lease in snapshot.fleet:
        yield _of_lease(lease, held.get(lease.key), snapshot.worker_id)
    listed = {lease.key for lease in snapshot.fleet}
    for key, shard in held.items():
        if key not in listed:
            yield _of_held(shard, snapshot.worker_id)


def with_distinct_names(known: list[ShardEntry]) -> list[ShardEntry]:
    """Streams of two accounts, or a deleted stream and its successor, may share a name."""
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
        return DisplayState.UNSETTLED  # the table was read just before a change
    return DisplayState.NOBODY if lease.owner is None else DisplayState.ELSEWHERE


_TROUBLE: Final = {DisplayState.FAILING: 0, DisplayState.STALLED: 1, DisplayState.NOBODY: 2}


def trouble_first(known: Sequence[ShardEntry]) -> Iterator[LineageEntry]:
    """Failing, stalled, unowned and late shards come first, the rest by lineage."""
    troubled = sorted((entry for entry in known if is_trouble(entry)), key=urgency)
    yield from (LineageEntry(entry, 0, "") for entry in troubled)
    yield from lineage([entry for entry in known if not is_trouble(entry)])


def is_trouble(entry: ShardEntry) -> bool:
    return entry.state in _TROUBLE or _lag_s(entry) >= LATE_S


def urgency(entry: ShardEntry) -> tuple[int, float, str]:
    last = 5 if entry.state is DisplayState.FINISHED else 4 if entry.held is None else 3
    return _TROUBLE.get(entry.state, last), -_lag_s(entry), entry.key


def _lag_s(entry: ShardEntry) -> float:
    return 0.0 if entry.held is None else entry.held.lag_s or 0.0


def lineage(known: Sequence[ShardEntry]) -> Iterator[LineageEntry]:
    """Each entry comes once, parents before children.

    A shard with two parents is listed below the first by name.
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
    # Damaged rows may name each other as parents.
    for entry in known:
        if entry.key not in drawn:
            yield from _drawn([entry], below, drawn)


def _drawn(
    roots: Sequence[ShardEntry], below: Mapping[str, Sequence[ShardEntry]], drawn: set[str]
) -> Iterator[LineageEntry]:
    """An explicit stack: a lineage may have thousands of generations."""
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
"""Shorter waits are usual between batches."""


@dataclass(frozen=True, slots=True)
class LeaseCounts:
    """`held`, `stalled` and `failing` count only this worker's."""

    leases: int
    held: int
    stalled: int
    failing: int
    nobody: int
    handing_off: int
    finished: int


def count_leases(known: Sequence[ShardEntry]) -> LeaseCounts:
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
    """Returns nothing if the worker is ready."""
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
    next_try = "" if shard.next_try_s is None else f", next try in {about(shard.next_try_s)}"
    said = f" ({shard.stderr_tail[-1]})" if shard.stderr_tail else ""
    return f"{shard.failures} in a row{next_try}: {shard.last_error}{said}"


def waits_for(shard: ShardView) -> str:
    """Such as `kinesis for 12 s (throttled)`; empty for a short wait."""
    what = shard.cause.value
    if shard.waits_s < WAIT_SHOWN_S and not (shard.stalled or shard.is_failing):
        return ""
    if shard.waits_s >= 1:
        what = f"{what} for {about(shard.waits_s)}"
    return f"{what} ({shard.detail})" if shard.detail else what


def in_words(snapshot: Snapshot, counted: LeaseCounts) -> str:
    """Leaves out figures that change all the time, for screen readers."""
    state = "stopping" if snapshot.stopping else "running" if snapshot.started else "starting"
    shards = "1 shard" if counted.held == 1 else f"{counted.held} shards"
    failing = f", {counted.failing} failing" if counted.failing else ""
    stalled = f", {counted.stalled} stalled" if counted.stalled else ""
    leader = "is the leader" if snapshot.leads else "is a follower"
    return f"This worker is {state}, {leader} and holds {shards}{failing}{stalled}."


def headline(snapshot: Snapshot, known: Sequence[ShardEntry]) -> tuple[tuple[str, str], ...]:
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
    """Such as `2026-11-22 12:03:51 UTC`; empty if unknown."""
    if not snapshot.at_ms:
        return ""
    return f"{datetime.fromtimestamp(snapshot.at_ms // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


MAX_SAMPLES: Final = 40
WATCHED_EVERY_S: Final = 2.0
UNWATCHED_EVERY_S: Final = 15.0
WATCHED_FOR_S: Final = 10.0
"""A viewer counts as present this long after a poll."""


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    bytes_per_s: Mapping[str, float]


class ThroughputHistory:
    """Keeps the last `MAX_SAMPLES` samples."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self._polled_s: float | None = None

    def checked(self, now_s: float) -> None:
        """Notes that somebody views the page."""
        self._polled_s = now_s

    def is_due(self, now_s: float, *, late_s: float = 0.0) -> bool:
        """Whether a sample is overdue by `late_s` seconds; a negative value allows an early one."""
        return not self._samples or now_s - self._samples[-1].at_s >= self.every_s(now_s) + late_s

    def every_s(self, now_s: float) -> float:
        watched = self._polled_s is not None and now_s - self._polled_s < WATCHED_FOR_S
        return WATCHED_EVERY_S if watched else UNWATCHED_EVERY_S

    def remember(self, snapshot: Snapshot, now_s: float) -> None:
        self._samples.append(Sample(now_s, {shard.key: shard.bytes_per_s for shard in snapshot.shards}))

    def ages_s(self, now_s: float) -> list[float]:
        return [now_s - sample.at_s for sample in self._samples]

    def values(self, key: str) -> list[float | None]:
        """Bytes a second; None if the lease was not held."""
        return [sample.bytes_per_s.get(key) for sample in self._samples]

    def of(self, key: str, now_s: float) -> list[tuple[float, float]]:
        """Seconds ago and bytes a second, oldest first."""
        both = zip(self.ages_s(now_s), self.values(key), strict=True)
        return [(age_s, value) for age_s, value in both if value is not None]
