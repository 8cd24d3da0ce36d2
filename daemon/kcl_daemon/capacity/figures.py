"""What workers say about their shards, and what the leader makes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from kcl_daemon.leases.lease import LeaseKey, WorkerId


class Bound(StrEnum):
    """What holds a shard, or a stream, back. Programs may rely on the words."""

    NOTHING = "nothing"
    CHILD = "child"
    """It works all the time, and its host has CPU left."""
    READ_QUOTA = "read quota"
    HOT_KEY = "hot key"
    """One lane, that is one partition key, holds back the others."""
    HOST_CPU = "host cpu"
    MEMORY = "memory"
    PAUSE = "pause"
    LIMIT = "limit"
    DOWNSTREAM = "downstream"
    """A child has asked for a pause, or its letters cannot be stored."""
    FAILING = "failing"
    SHARDS = "too few shards"
    """Of a stream only: each shard is bound by itself, and more workers do not help."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class ShardObservation:
    """What a worker sees of one shard; shares are 0 to 1, of the last ten seconds or more.

    Args:
        behind_s: as in `ShardLoad`.
        busy: the child worked; with lanes, the busiest lane's child.
        refused: reading waited for the shard's quota, or was refused.
        memory: reading waited for memory that other shards hold.
        host_cpu: of the host or container; None: not measured.
        hot_lane: the shard waits for one of its lanes.
        downstream: its child has asked for a pause, or its letters cannot be stored.
        failing: its children fail in a row.
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


@dataclass(frozen=True, slots=True)
class ShardLoad:
    """One shard, by its worker.

    Args:
        behind_s: age of the oldest record not finished; None: not known yet.
        speed: seconds of the stream finished in a second; None: unknown.
        in_bytes: read a second, as `out_bytes` finished.
        busy: share of the time that its child works, 0 to 1.
    """

    key: LeaseKey
    behind_s: float | None
    speed: float | None
    in_bytes: float
    out_bytes: float
    busy: float
    bound: Bound


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """One report of a worker; the shards that are furthest behind come first, and the others may be left out.

    Args:
        at_ms: epoch milliseconds, by the worker's clock.
        cpu: of its host or container, 0 to 1; None: not measured.
        left_out: shards that `shards` does not name; they are at the tip, or less far behind than those.
        quiet_s: since this worker last finished a record.
    """

    worker_id: WorkerId
    at_ms: int
    cpu: float | None
    shards: tuple[ShardLoad, ...]
    left_out: int = 0
    quiet_s: float = 0.0


@dataclass(frozen=True, slots=True)
class CapacityTargets:
    """`serviceLevelMillis` in seconds: how old the oldest unfinished record may be. `scaleToZero`: 0 may be wanted."""

    level_s: float = 60.0
    scale_to_zero: bool = False


@dataclass(frozen=True, slots=True)
class FleetState:
    """What is known at one moment. `leases`: unfinished ones by stream (None: the only one), with those nobody reads.

    Args:
        live: workers that count for assignment.
        silent: those of them without a report, such as Java's or older ones of ours.
    """

    now_ms: int
    loads: tuple[WorkerLoad, ...]
    leases: dict[LeaseKey, str | None]
    live: int
    silent: int


@dataclass(frozen=True, slots=True)
class Alternative:
    """What another number of workers would make of it; `drains_s` None: it never catches up."""

    workers: int
    drains_s: float | None
    words: str


@dataclass(frozen=True, slots=True)
class StreamCapacity:
    """Of one stream, or of the application (`stream` None and `is_whole`).

    Args:
        behind_s: of the shard that is furthest behind; None: unknown.
        speed: of the shard that takes longest to catch up; None: unknown.
        drains_s: until all shards are within the service level; 0: they are; None: never, or unknown.
        binds: what holds back the shard that takes longest.
        hot: keys of shards that are behind while most are not.
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
    """What the leader found at `at_ms`; it is stored, so that it can be read when there is no leader.

    Args:
        wanted: workers; at least 1, unless `scaleToZero`; never above the number of leases.
        reason: for `wanted`, in words.
        sentence: everything on one line, such as `14 min behind, draining at 3.1 x, done at 14:32; a third worker makes it
            9 min; a ninth nothing, there are 8 shards`. Times of day are UTC.
        unknown: what is not known and why, in words; empty: all is known.
        since_ms: when `wanted` was last changed; `falls_since_ms`: since when fewer would be enough (None: not).
        rises: direction of the last change (None: there was none); `turned_ms`: when the direction was last reversed.
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
