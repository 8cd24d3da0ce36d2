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
