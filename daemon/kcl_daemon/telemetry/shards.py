"""A shard that this worker holds, from its progress to what is shown of it.

A new figure is a field of `ShardView`, which says where it comes from, and a row of a table below: its column, its metric, or
both. The fields are those of `/status.json`, an API: they are only added. An older daemon does not tell those that are `later`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, fields
from typing import Final, NamedTuple, TypeVar

from kcl_daemon.metrics.kcl import SHARD_BEHIND
from kcl_daemon.metrics.metric import Shown, Table, families, sample, words
from kcl_daemon.progress.progress import HELD, ActiveLease, WaitReason
from kcl_daemon.progress.watchdog import (
    AHEAD_S,
    FAILING_FROM,
    ShardState,
    StallStatus,
    Watchdog,
    lag_s,
    stall_status,
    state_of,
    uncheckpointed_s,
)
from kcl_daemon.text import NONE, about, duration, masked, on_one_line, rate, size

_M: Final = families(
    """
    gauge shard_idle_seconds{shard_id,stream}: Time since a shard's last progress: a finished batch, a checkpoint, or an answer with no new records.
    gauge shard_stalled{shard_id,stream}: Whether a shard makes no progress for longer than allowed, whatever the cause: 1 or 0.
    gauge shard_paused{shard_id,stream}: Whether a shard is given no records because of a pause, of an operator or of its child: 1 or 0.
    gauge shard_uncheckpointed_seconds{shard_id,stream}: The age of the oldest record of a shard that its stored checkpoint does not cover; it would come again. Never less than `kcl_shard_behind_latest_seconds`.
    gauge shard_waiting_records{shard_id,stream}: Records of a shard that were read and are not finished.
    gauge shard_waiting_bytes{shard_id,stream}: Data of the records of a shard that were read and are not finished.
    counter shard_read_records{shard_id,stream}: Records of a shard that were read for its child since its lease was taken, some perhaps twice.
    counter shard_read_bytes{shard_id,stream}: Data of the records of a shard that were read for its child since its lease was taken.
    gauge shard_arrivals_ahead_seconds{shard_id,stream}: How far in the future the last records of a shard arrived, by the clock of this host; none up to two seconds.
    gauge shard_read_behind_seconds{shard_id,stream}: How far the last answer of Kinesis for a shard was behind the tip, whether or not its records are done.
    gauge shard_failures{shard_id,stream}: Children of a shard that failed in a row without progress; from 2 the shard is failing.
    counter child_restarts{shard_id,stream}: Restarts of a shard's child since its lease was taken.
    gauge child_resident_memory_bytes{shard_id,stream}: Resident memory of a shard's child, or of all its children with `shardConcurrency`.
    gauge shard_lanes_started{shard_id,stream}: With `shardConcurrency` above 1: children of a shard that were started.
    gauge shard_checkpoint_held_back_seconds{shard_id,stream}: With `shardConcurrency` above 1: how long the same record of one lane has held back the checkpoint of its shard; 0: none does.
    gauge shard_window_bytes{shard_id,stream}: With `shardConcurrency` above 1: records of a shard kept until its children have checkpointed them.
    """,
    from_snapshot=True,
)
WAIT_SHOWN_S: Final = 5.0
"""Shorter waits are usual between batches."""
_LINE_CHARACTERS: Final = 500
_TAKEN: Final = "taken"
G = TypeVar("G")
T = TypeVar("T")
View = TypeVar("View", "ShardView", "LaneView")


class StderrLines:
    """Safe to show; cached by process id, or by the name of lease or lane once the child failed."""

    def __init__(self) -> None:
        self._known: dict[int | str, tuple[tuple[str, ...], tuple[str, ...]]] = {}

    def shown(self, whose: int | str, lines: tuple[str, ...]) -> tuple[str, ...]:
        known = self._known.get(whose)
        if known is None or known[0] != lines:
            known = self._known[whose] = (lines, tuple(map(safe_line, lines)))
        return known[1]

    def keep(self, wanted: AbstractSet[int | str]) -> None:
        self._known = {whose: known for whose, known in self._known.items() if whose in wanted}


def safe_line(text: str) -> str:
    return on_one_line(masked(text))[:_LINE_CHARACTERS] if text else text


@dataclass(frozen=True, slots=True)
class Look:
    """At all shards at one moment; `memory` by process id."""

    watchdog: Watchdog
    now_s: float
    memory: Mapping[int, int | None]
    stderr: StderrLines


class SeenLease:
    """A shard, or one of its lanes; `not_done` of a lane: its records, and their bytes.

    Waits and failures are of a lane that is in more trouble than its shard, or works while the shard has nothing new.
    """

    def __init__(self, held: ActiveLease, look: Look, not_done: tuple[int, int] = (0, 0)) -> None:
        self.held, self.look, self.not_done = held, look, not_done
        self.lease, self.progress, self.now_s = held.lease, held.progress, look.now_s
        self.watchdog = watchdog = look.watchdog
        worst = self._worst()
        of_worst, of_lane = worst.progress, "" if worst is held else f"lane {worst.progress.lane}: "
        self.status, self.failures = self._status(worst), of_worst.failures
        self.stalled, self.detail = watchdog.is_stalled(worst), safe_line(f"{of_lane}{self.status.detail}")
        self.last_error = safe_line(of_worst.failure) if self.failures else ""
        self.stderr_tail = look.stderr.shown(name_of(worst), of_worst.stderr_tail if self.failures else ())
        self.next_try_s = None if of_worst.next_try_s is None else max(0.0, of_worst.next_try_s - self.now_s)
        known = (held, *self.progress.lanes.values())
        self.restarts = sum(max(0, each.progress.children - 1) for each in known)
        self.lag_s = lag_s(self.progress, watchdog.limits, self.now_s)
        self.rates, self.waiting = watchdog.rates(held.key), self.progress.waiting

    def _status(self, held: ActiveLease) -> StallStatus:
        return stall_status(held.progress, self.watchdog.limits, self.now_s)

    def _worst(self) -> ActiveLease:
        def trouble(each: ActiveLease) -> tuple[bool, bool]:
            return each.progress.failures >= FAILING_FROM, self.watchdog.is_stalled(each)

        lanes, window = self.progress.lanes, self.progress.window
        if not lanes:
            return self.held
        worst = max((self.held, *lanes.values()), key=trouble)
        slowest = None if window is None or window.slowest is None else lanes.get(window.slowest)
        if worst is not self.held or slowest is None or slowest.progress.cause is WaitReason.KINESIS:
            return worst
        return slowest if self._status(self.held).cause is WaitReason.NOTHING_NEW else worst

    @property
    def state(self) -> ShardState:
        cause, finished = self.status.cause, self.lease.is_finished
        return state_of(cause, failures=self.failures, stalled=self.stalled, finished=finished)

    @property
    def child(self) -> ChildView | None:
        progress, child = self.progress, self.progress.child
        if child is None:
            return None
        running_s, stderr = self.now_s - progress.child_since_s, child.stderr_tail
        memory, said = self.look.memory.get(child.pid), self.look.stderr.shown(child.pid, stderr)
        return ChildView(child.pid, memory, running_s, progress.children - 1, said)

    @property
    def lanes(self) -> LanesView | None:
        progress, window = self.progress, self.progress.window
        if window is None:
            return None
        slowest = window.holds_mark
        key_hash = None if slowest is None else window.first_key_hash(slowest)
        seen = (SeenLease(lane, self.look, window.not_done(n)) for n, lane in sorted(progress.lanes.items()))
        return LanesView(
            count=window.lane_count,
            slowest=slowest,
            key_hash=None if key_hash is None else f"{key_hash:08x}",
            held_s=None if progress.held_back_s is None else self.now_s - progress.held_back_s,
            window_bytes=window.size_bytes,
            lanes=tuple(seen_as(LaneView, each) for each in seen),
        )


def name_of(held: ActiveLease) -> str:
    lane = held.progress.lane
    return held.key if lane is None else f"{held.key} lane {lane}"


def _maybe(given: G | None, what: Callable[[G], T]) -> T | None:
    return None if given is None else what(given)


def taken(source: Callable[[SeenLease], T]) -> T:
    """A field that comes from there, as `later`."""
    found: T = field(metadata={_TAKEN: source})
    return found


def later(default: T, source: Callable[[SeenLease], T]) -> T:
    return field(default=default, metadata={_TAKEN: source})


@dataclass(frozen=True, slots=True)
class ChildView:
    """`restarts` counts earlier children since the lease was taken."""

    pid: int
    rss_bytes: int | None
    running_s: float
    restarts: int
    stderr: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LaneView:
    """One of several children; `records` and `kept_bytes` are not checkpointed, the others as in `ShardView`."""

    number: int = taken(lambda seen: seen.progress.lane or 0)
    records: int = taken(lambda seen: seen.not_done[0])
    kept_bytes: int = taken(lambda seen: seen.not_done[1])
    cause: WaitReason = taken(lambda seen: seen.status.cause)
    waits_s: float = taken(lambda seen: seen.status.waits_s)
    detail: str = taken(lambda seen: seen.detail)
    stalled: bool = taken(lambda seen: seen.stalled)
    child: ChildView | None = taken(lambda seen: seen.child)
    failures: int = taken(lambda seen: seen.failures)
    restarts: int = taken(lambda seen: seen.restarts)
    last_error: str = taken(lambda seen: seen.last_error)
    stderr_tail: tuple[str, ...] = taken(lambda seen: seen.stderr_tail)
    next_try_s: float | None = taken(lambda seen: seen.next_try_s)


@dataclass(frozen=True, slots=True)
class LanesView:
    """The children of a shard with `shardConcurrency` above 1.

    Args:
        lanes: those that were started, of `count`.
        slowest: the lane that holds the checkpoint back; None: none does.
        key_hash: of its first record that is not done, 8 hex digits; None: its data is not kept.
        held_s: how long this record has held it back.
    """

    count: int
    slowest: int | None
    key_hash: str | None
    held_s: float | None
    window_bytes: int
    lanes: tuple[LaneView, ...]

    @property
    def of_slowest(self) -> LaneView | None:
        return next((each for each in self.lanes if each.number == self.slowest), None)


@dataclass(frozen=True, slots=True)
class ShardView:
    """One lease that this worker holds; `stream` and `stream_id` are None in single-stream mode.

    Args:
        behind_ms: of the last answer of Kinesis.
        records: processed since the lease was taken, as `data_bytes`; `read_records` were read for it.
        failures: children since the last progress; `last_error` and `stderr_tail` are of the last.
        stream_id: `account:name:creationEpoch`.
        lag_s: age of the oldest unfinished record; 0: none; None: unknown.
        uncheckpointed_s: age of the oldest record that the stored checkpoint does not cover, as `lag_s`.
        p50_s: from arrival to finished, as `p99_s`, in the last minutes; None: nothing was finished.
        speed: as in `FlowRates`.
        ahead_s: how far in the future the last records arrived; ages are too small by as much.
        next_try_s: until the next child starts; None: one runs, or none will.
        lanes: None: the shard has one child. Else `child` is None, `restarts` counts those of all lanes, and waits and
            failures may be those of one lane.
        set_aside: records that were not processed, by cause; `last_set_aside` says why.
    """

    key: str = taken(lambda seen: seen.held.key)
    shard_id: str = taken(lambda seen: seen.lease.shard_id)
    stream: str | None = taken(lambda seen: _maybe(seen.lease.stream, lambda stream: stream.name))
    parents: tuple[str, ...] = taken(lambda seen: tuple(sorted(seen.lease.parent_shard_ids)))
    cause: WaitReason = taken(lambda seen: seen.status.cause)
    waits_s: float = taken(lambda seen: seen.status.waits_s)
    detail: str = taken(lambda seen: seen.detail)
    idle_s: float = taken(lambda seen: seen.now_s - seen.progress.progressed_s)
    stalled: bool = taken(lambda seen: seen.stalled)
    behind_ms: int | None = taken(lambda seen: seen.progress.last_fetch.behind_ms)
    checkpoint: str = taken(lambda seen: str(seen.lease.checkpoint))
    records: int = taken(lambda seen: seen.progress.records)
    data_bytes: int = taken(lambda seen: seen.progress.data_bytes)
    bytes_per_s: float = taken(lambda seen: seen.rates.out_bytes)
    child: ChildView | None = taken(lambda seen: seen.child)
    failures: int = later(0, lambda seen: seen.failures)
    stream_id: str | None = later(None, lambda seen: _maybe(seen.lease.stream, str))
    state: ShardState | None = later(None, lambda seen: seen.state)
    lag_s: float | None = later(None, lambda seen: seen.lag_s)
    restarts: int = later(0, lambda seen: seen.restarts)
    last_error: str = later("", lambda seen: seen.last_error)
    stderr_tail: tuple[str, ...] = later((), lambda seen: seen.stderr_tail)
    next_try_s: float | None = later(None, lambda seen: seen.next_try_s)
    lanes: LanesView | None = later(None, lambda seen: seen.lanes)
    set_aside: dict[str, int] = field(
        default_factory=dict[str, int], metadata={_TAKEN: lambda seen: dict(seen.progress.set_aside.by_cause)}
    )
    last_set_aside: str = later("", lambda seen: safe_line(seen.progress.set_aside.last))
    uncheckpointed_s: float | None = later(
        None, lambda seen: uncheckpointed_s(seen.held, seen.lag_s, seen.now_s)
    )
    p50_s: float | None = later(None, lambda seen: seen.watchdog.p50_and_p99(seen.held.key)[0])
    p99_s: float | None = later(None, lambda seen: seen.watchdog.p50_and_p99(seen.held.key)[1])
    speed: float | None = later(None, lambda seen: seen.rates.speed)
    records_per_s: float = later(0.0, lambda seen: seen.rates.out_records)
    in_records_per_s: float = later(0.0, lambda seen: seen.rates.in_records)
    in_bytes_per_s: float = later(0.0, lambda seen: seen.rates.in_bytes)
    read_records: int = later(0, lambda seen: seen.progress.flow.read_records)
    read_bytes: int = later(0, lambda seen: seen.progress.flow.read_bytes)
    waiting_records: int = later(0, lambda seen: seen.waiting[0])
    waiting_bytes: int = later(0, lambda seen: seen.waiting[1])
    ahead_s: float = later(0.0, lambda seen: s if (s := seen.progress.last_fetch.ahead_s) > AHEAD_S else 0.0)

    @property
    def children(self) -> tuple[ChildView, ...]:
        of_lanes = () if self.lanes is None else self.lanes.lanes
        return tuple(each for each in (self.child, *(lane.child for lane in of_lanes)) if each is not None)

    @property
    def is_failing(self) -> bool:
        return self.failures >= FAILING_FROM

    @property
    def waits_for(self) -> str:
        """Such as `kinesis for 12 s (throttled)`; empty for a short wait."""
        what = self.cause.value
        if self.waits_s < WAIT_SHOWN_S and not (self.stalled or self.is_failing or self.cause in HELD):
            return ""
        if self.waits_s >= 1:
            what = f"{what} for {about(self.waits_s)}"
        return f"{what} ({self.detail})" if self.detail else what

    @property
    def stderr(self) -> tuple[str, ...]:
        """Kept for a failed child until its successor makes progress."""
        if self.failures:
            return self.stderr_tail
        return () if self.child is None else self.child.stderr


_SOURCES: Final = {
    view: tuple(each.metadata[_TAKEN] for each in fields(view)) for view in (LaneView, ShardView)
}


def seen_as(view: type[View], seen: SeenLease) -> View:
    return view(*[source(seen) for source in _SOURCES[view]])


class LanedShard(NamedTuple):
    shard: ShardView
    lanes: LanesView


def _uncheckpointed(shard: ShardView) -> str:
    age_s = shard.uncheckpointed_s
    return "" if age_s is None or age_s <= (shard.lag_s or 0.0) else duration(age_s)


def _latency(shard: ShardView) -> str:
    if shard.p50_s is None or shard.p99_s is None:
        return ""
    return f"{duration(shard.p50_s)}, {duration(shard.p99_s)}"


def _memory(shard: ShardView) -> float | None:
    known = [child.rss_bytes for child in shard.children if child.rss_bytes is not None]
    return sum(known) if known else None


def _of_child(text: Callable[[ChildView], str]) -> Callable[[ShardView], str]:
    return lambda shard: "" if shard.child is None else text(shard.child)


def _of_slowest(text: Callable[[LanesView, LaneView], str]) -> Callable[[LanedShard], str]:
    return lambda laned: NONE if (lane := laned.lanes.of_slowest) is None else text(laned.lanes, lane)


FIGURES: Final[Table[ShardView]] = Table(
    "Shards",
    (
        sample(_M["shard_idle_seconds"], lambda shard: shard.idle_s),
        sample(_M["shard_stalled"], lambda shard: shard.stalled),
        sample(_M["shard_paused"], lambda shard: shard.cause is WaitReason.PAUSED),
        Shown("Lag", lambda shard: shard.lag_s, duration, SHARD_BEHIND),
        Shown(
            "Not checkpointed",
            lambda shard: shard.uncheckpointed_s,
            metric=_M["shard_uncheckpointed_seconds"],
            text=_uncheckpointed,
            drops=5,
        ),
        Shown("p50, p99", text=_latency, drops=1, name="latency"),
        Shown("Throughput", lambda shard: shard.bytes_per_s, rate, drops=4, name="throughput"),
        Shown("Waiting", lambda shard: shard.waiting_records, metric=_M["shard_waiting_records"], drops=3),
        sample(_M["shard_waiting_bytes"], lambda shard: shard.waiting_bytes),
        sample(_M["shard_read_records"], lambda shard: shard.read_records),
        sample(_M["shard_read_bytes"], lambda shard: shard.read_bytes),
        sample(_M["shard_arrivals_ahead_seconds"], lambda shard: shard.ahead_s or None),
        sample(_M["shard_read_behind_seconds"], lambda shard: _maybe(shard.behind_ms, lambda ms: ms / 1000)),
        sample(_M["shard_failures"], lambda shard: shard.failures),
        sample(_M["child_restarts"], lambda shard: shard.restarts),
        sample(_M["child_resident_memory_bytes"], _memory),
        words("Waits for", lambda shard: shard.waits_for, shortened=True, drops=7, name="waits_for"),
    ),
)
LANES: Final[Table[LanedShard]] = Table(
    "Lanes",
    (
        words("Shard", lambda laned: laned.shard.key),
        Shown(
            "Started",
            lambda laned: len(laned.lanes.lanes),
            metric=_M["shard_lanes_started"],
            text=lambda laned: f"{len(laned.lanes.lanes)} of {laned.lanes.count}",
        ),
        words("Slowest", _of_slowest(lambda _, lane: f"lane {lane.number}")),
        words("Key hash", _of_slowest(lambda lanes, _: lanes.key_hash or NONE)),
        Shown(
            "Holds the checkpoint",
            lambda laned: laned.lanes.held_s or 0.0,
            metric=_M["shard_checkpoint_held_back_seconds"],
            text=_of_slowest(lambda lanes, _: _maybe(lanes.held_s, about) or NONE),
        ),
        Shown("Not done", text=_of_slowest(lambda _, lane: str(lane.records))),
        Shown("Bytes of it", text=_of_slowest(lambda _, lane: size(lane.kept_bytes))),
        Shown("Bytes of all", lambda laned: laned.lanes.window_bytes, size, _M["shard_window_bytes"]),
        Shown("Restarts", lambda laned: laned.shard.restarts),
    ),
)
CHILDREN: Final[Table[ShardView]] = Table(
    "Children",
    (
        words("Shard", lambda shard: shard.key),
        Shown("PID", text=_of_child(lambda child: str(child.pid))),
        Shown("Memory", text=_of_child(lambda child: _maybe(child.rss_bytes, size) or NONE)),
        Shown("Uptime", text=_of_child(lambda child: duration(child.running_s))),
        Shown("Restarts", lambda shard: shard.restarts),
        words("Last line of stderr", lambda shard: "".join(shard.stderr[-1:]), shortened=True),
    ),
    "no child is running",
)
