"""What workers say about their shards, and what the leader makes of it; both as texts of rows.

`bound_of`: what holds a shard back, from what its worker sees of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, MsgspecError, Struct

from kcl_daemon.leases.lease import LeaseKey, WorkerId

AT_TIP_S: Final = 5.0
"""Reading waits a second or two between reads, so a shard that keeps up is a few seconds behind."""
_FULL_CPU: Final = 0.9
_BUSY: Final = 0.8
_WAITS: Final = 0.3
MOST_BYTES: Final = 4096
VERSION: Final = 1
_MOST: Final = 10**18
_SHARD: Final = re.compile(r"(.*)shardId-([0-9]{12})", re.ASCII | re.DOTALL)
_UNDERSCORE: Final = re.compile(r"_([a-z])")
_CAPITAL: Final = re.compile(r"([A-Z])")
_ENCODER: Final = msgspec.json.Encoder()


class Bound(StrEnum):
    """What holds a shard, or a stream, back. Programs may rely on the words."""

    NOTHING = "nothing"
    CHILD = "child"
    """It works all the time, and its host has CPU left."""
    READ_QUOTA = "read quota"
    HOT_KEY = "hot key"
    """One lane, which is one partition key, holds back the others."""
    HOST_CPU = "host cpu"
    MEMORY = "memory"
    PAUSE = "pause"
    LIMIT = "limit"
    DOWNSTREAM = "downstream"
    """A child has asked for a pause, or its letters cannot be stored."""
    FAILING = "failing"
    HANGING = "hanging child"
    REFUSED = "refused reads"
    """AWS does not answer, or refuses: the stream is gone, a permission is missing."""
    SHARDS = "too few shards"
    """Of a stream only: each shard is held back by itself."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ShardObservation:
    """Shares are of the last ten seconds or more.

    Args:
        busy: the child worked; with lanes, the busiest lane's child.
        refused: reading waited for the shard's quota.
        memory: reading waited for memory that other shards hold.
        host_cpu: of the host or container.
    """

    behind_s: float | None
    busy: float
    refused: float
    memory: float
    host_cpu: float | None
    hot_lane: bool = False
    paused: bool = False
    limited: bool = False
    downstream: bool = False
    failing: bool = False
    hanging: bool = False
    not_read: bool = False


@dataclass(frozen=True, slots=True)
class ShardLoad:
    """`in_bytes` are read a second, `out_bytes` finished."""

    key: LeaseKey
    behind_s: float | None
    speed: float | None
    in_bytes: float
    out_bytes: float
    busy: float
    bound: Bound


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """One report of a worker.

    Args:
        at_ms: epoch milliseconds, by the worker's clock.
        left_out: how many `shards` does not name; those are less far behind.
        quiet_s: since it last finished a record.
    """

    worker_id: WorkerId
    at_ms: int
    cpu: float | None
    shards: tuple[ShardLoad, ...]
    left_out: int = 0
    quiet_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CapacityTargets:
    level_s: float = 60.0
    scale_to_zero: bool = False


@dataclass(frozen=True, slots=True)
class FleetState:
    """What is known at one moment.

    Args:
        leases: unfinished ones, with their stream (None: the only one), also those nobody reads.
        live: workers that count for assignment.
        silent: those of them without a report.
    """

    now_ms: int
    loads: tuple[WorkerLoad, ...]
    leases: dict[LeaseKey, str | None]
    live: int
    silent: int


@dataclass(frozen=True, slots=True)
class Alternative:
    workers: int
    drains_s: float | None
    words: str


@dataclass(frozen=True, slots=True)
class StreamCapacity:
    """Of one stream, or of the application (`stream` None).

    Args:
        behind_s: of the shard that is furthest behind.
        speed: of the shard that takes longest to catch up; `binds` is what holds it back.
        drains_s: until all shards are within the service level.
        hot: shards that are behind while most are not.
    """

    stream: str | None
    shards: int
    behind_s: float | None
    speed: float | None
    drains_s: float | None
    binds: Bound
    why: str
    in_bytes: float
    out_bytes: float
    hot: tuple[LeaseKey, ...] = ()


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the leader found at `at_ms`.

    Args:
        sentence: everything on one line; times of day are UTC.
        unknown: what is not known and why, in words; empty: all is known.
        since_ms: when `wanted` was last changed; `falls_since_ms`: since when fewer would be enough (None: not).
        rises: direction of the last change (None: there was none); `turned_ms`: when it was last reversed.
        unread: shards that nobody reads, a line for each cause.
    """

    at_ms: int
    by: WorkerId
    workers: int
    silent: int
    wanted: int
    reason: str
    sentence: str
    unknown: str
    whole: StreamCapacity
    streams: tuple[StreamCapacity, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    since_ms: int = 0
    falls_since_ms: int | None = None
    rises: bool | None = None
    turned_ms: int = 0
    targets: CapacityTargets = field(default_factory=CapacityTargets)
    unread: tuple[str, ...] = ()


def bound_of(seen: ShardObservation) -> Bound:
    """First what holds it on purpose or by failures, then the host, then the shard itself."""
    held = _held(seen)
    if held is not None:
        return held
    if seen.behind_s is None:
        return Bound.UNKNOWN
    if seen.behind_s < AT_TIP_S:
        return Bound.NOTHING
    if seen.host_cpu is not None and seen.host_cpu >= _FULL_CPU and seen.refused < _WAITS:
        return Bound.HOST_CPU
    return _own(seen)


def _held(seen: ShardObservation) -> Bound | None:
    held = {
        Bound.PAUSE: seen.paused,
        Bound.FAILING: seen.failing,
        Bound.REFUSED: seen.not_read,
        Bound.HANGING: seen.hanging,
        Bound.DOWNSTREAM: seen.downstream,
        Bound.LIMIT: seen.limited,
    }
    return next((bound for bound, is_so in held.items() if is_so), None)


def _own(seen: ShardObservation) -> Bound:
    if seen.hot_lane:
        return Bound.HOT_KEY
    if seen.refused >= _WAITS and seen.refused >= seen.memory:
        return Bound.READ_QUOTA
    if seen.memory >= _WAITS:
        return Bound.MEMORY
    if seen.busy >= _BUSY and seen.host_cpu is not None:
        return Bound.CHILD
    return Bound.UNKNOWN


_BOUNDS: Final = {each.value: each for each in Bound}

_Count = Annotated[int, Meta(ge=0, le=2**53)]
_Figure = Annotated[float, Meta(ge=0, le=1e15)]
_Share = Annotated[float, Meta(ge=0, le=1)]


class _Row(Struct, array_like=True):
    """`shard`: a whole lease key, or 3 for `shardId-000000000003` behind a prefix, which stands at `prefix` in the list."""

    prefix: _Count
    shard: Annotated[int, Meta(ge=0, lt=10**12)] | str
    behind_s: _Figure | None
    speed: _Figure | None
    in_bytes: _Figure
    out_bytes: _Figure
    busy: _Share
    bound: str


class _Report(Struct, array_like=True):
    version: int
    at_ms: _Count
    cpu: _Share | None
    left_out: _Count
    quiet_s: _Figure
    prefixes: list[str]
    rows: list[_Row]


_DECODER: Final = msgspec.json.Decoder(_Report)


def load_text(load: WorkerLoad) -> str:
    """As many shards as fit into `MOST_BYTES`: those furthest behind first."""
    prefixes: dict[str, int] = {}
    report = _Report(VERSION, max(load.at_ms, 0), _share(load.cpu), 0, _figure(load.quiet_s), [], [])
    room = MOST_BYTES - len(_ENCODER.encode(report)) - 8  # more digits of `left_out`
    for shard in sorted(load.shards, key=lambda each: (-(each.behind_s or 0), -each.out_bytes)):
        row = _row(shard, prefixes)
        new = list(prefixes)[len(report.prefixes) :]
        room -= len(_ENCODER.encode(row)) + sum(len(_ENCODER.encode(each)) + 1 for each in new) + 1
        if room < 0:
            break
        report.prefixes.extend(new)
        report.rows.append(row)
    report.left_out = load.left_out + len(load.shards) - len(report.rows)
    return _ENCODER.encode(report).decode()


def _row(shard: ShardLoad, prefixes: dict[str, int]) -> _Row:
    match = _SHARD.fullmatch(shard.key)
    prefix, name = (match[1], int(match[2])) if match else ("", shard.key)
    return _Row(
        prefixes.setdefault(prefix, len(prefixes)),
        name,
        None if shard.behind_s is None else _figure(shard.behind_s),
        None if shard.speed is None else _figure(shard.speed, 3),
        _figure(shard.in_bytes, 0),
        _figure(shard.out_bytes, 0),
        _share(shard.busy) or 0.0,
        shard.bound.value,
    )


def _figure(value: float, digits: int = 1) -> float:
    rounded = round(min(max(value, 0.0), 1e15), digits) if isfinite(value) else 0.0
    return int(rounded) if rounded == int(rounded) else rounded


def _share(value: float | None) -> float | None:
    return None if value is None else min(_figure(value, 2), 1)


def load_from(text: str, worker_id: WorkerId) -> WorkerLoad | None:
    """None for malformed text and for a version that is not known here."""
    try:
        report = _DECODER.decode(text)
        shards = tuple(_loads(report.rows, report.prefixes))
    except (MsgspecError, UnicodeError, IndexError, RecursionError):
        return None
    if report.version != VERSION:
        return None
    return WorkerLoad(worker_id, report.at_ms, report.cpu, shards, report.left_out, report.quiet_s)


def _loads(rows: Iterable[_Row], prefixes: list[str]) -> Iterable[ShardLoad]:
    for row in rows:
        prefix = prefixes[row.prefix]
        key = f"{prefix}shardId-{row.shard:012d}" if isinstance(row.shard, int) else row.shard
        bound = _BOUNDS.get(row.bound, Bound.UNKNOWN)  # a newer version may have more
        yield ShardLoad(LeaseKey(key), row.behind_s, row.speed, row.in_bytes, row.out_bytes, row.busy, bound)


def capacity_text(capacity: Capacity) -> str:
    """JSON with the names of `Capacity` in camelCase; programs may rely on them."""
    named = _renamed(
        msgspec.to_builtins(capacity), lambda name: _UNDERSCORE.sub(lambda found: found[1].upper(), name)
    )
    return msgspec.json.encode({"format": VERSION, **named}).decode()


def capacity_from(text: str) -> Capacity | None:
    """None as for `load_from`."""
    try:
        named = msgspec.json.decode(text, type=dict[str, Any])
        if named.pop("format", None) != VERSION:
            return None
        if not _are_figures(named):
            return None
        plain = _renamed(named, lambda name: _CAPITAL.sub(lambda found: f"_{found[1].lower()}", name))
        return msgspec.convert(plain, Capacity)
    except (MsgspecError, UnicodeError, RecursionError):
        return None


def _are_figures(value: Any) -> bool:
    if isinstance(value, dict | list):
        return all(map(_are_figures, value.values() if isinstance(value, dict) else value))
    return not isinstance(value, int | float) or 0 <= value <= _MOST


def _renamed(value: Any, rename: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {rename(name): _renamed(each, rename) for name, each in value.items()}
    return [_renamed(each, rename) for each in value] if isinstance(value, list | tuple) else value
