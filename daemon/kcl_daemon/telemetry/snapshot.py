"""What a worker and its Spark engine do at one moment, for the page, the metrics and the commands.

Durations are seconds before the snapshot. Spark counters start with the engine's process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from kcl_daemon.progress.progress import WaitReason
from kcl_daemon.progress.watchdog import FAILING_FROM, ShardState


@dataclass(frozen=True, slots=True)
class SparkQueryView:
    """One streaming query.

    Args:
        batch: the newest committed.
        since_commit_s: since the last commit, or since it was first seen.
        state_rows: in windows and joins; None: stateless.
        late_rows: dropped behind the watermark; None: stateless.
    """

    name: str
    running: bool
    failures: int
    batch: int | None
    since_commit_s: float
    input_rows_per_s: float | None
    processed_rows_per_s: float | None
    batch_s: float | None
    state_rows: int | None
    late_rows: int | None


@dataclass(frozen=True, slots=True)
class SparkShardView:
    """One shard that the engine reads, through any host.

    Args:
        committed: rows that all queries committed.
        redelivered: duplicates dropped since its relay connected.
        waiting: rows that some query has not committed.
        lag_s: age of the oldest of these.
    """

    shard_id: str
    behind_ms: int | None
    rows: int
    data_bytes: int
    committed: int
    redelivered: int
    waiting: int
    lag_s: float
    spooled_bytes: int


@dataclass(frozen=True, slots=True)
class SparkView:
    ui: str | None
    queries: tuple[SparkQueryView, ...]
    shards: tuple[SparkShardView, ...]


SparkSource: TypeAlias = Callable[[], SparkView | None]
"""Returns None if there is no engine, or it is silent."""


def no_spark() -> SparkView | None:
    return None


__all__ = [
    "ChildView",
    "LeaseView",
    "MoveView",
    "ShardState",
    "ShardView",
    "Snapshot",
    "SnapshotSource",
    "WorkerView",
]


@dataclass(frozen=True, slots=True)
class ChildView:
    """`restarts` counts earlier children since the lease was taken; `stderr` ends with the newest line."""

    pid: int
    rss_bytes: int | None
    running_s: float
    restarts: int
    stderr: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShardView:
    """One lease that this worker holds; `stream` and `stream_id` are None in single-stream mode.

    Args:
        idle_s: since the last batch, checkpoint or empty answer.
        behind_ms: of the last Kinesis answer, whatever became of its records.
        records: processed since the lease was taken, as `data_bytes`.
        failures: failed children since the last progress.
        stream_id: `account:name:creationEpoch`.
        state: None from an older daemon.
        lag_s: age of the oldest unfinished record; 0: none; None: unknown.
        restarts: earlier children since the lease was taken.
        last_error: of the last failed child, as `stderr_tail`.
        next_try_s: until the next child starts; None: one runs, or none will.
    """

    key: str
    shard_id: str
    stream: str | None
    parents: tuple[str, ...]
    cause: WaitReason
    waits_s: float
    detail: str
    idle_s: float
    stalled: bool
    behind_ms: int | None
    checkpoint: str
    records: int
    data_bytes: int
    bytes_per_s: float
    child: ChildView | None
    failures: int = 0
    stream_id: str | None = None
    state: ShardState | None = None
    lag_s: float | None = None
    restarts: int = 0
    last_error: str = ""
    stderr_tail: tuple[str, ...] = ()
    next_try_s: float | None = None

    @property
    def is_failing(self) -> bool:
        return self.failures >= FAILING_FROM


@dataclass(frozen=True, slots=True)
class LeaseView:
    """One lease of the application, as of the last table read.

    `children` are known once the shard has ended.
    """

    key: str
    shard_id: str
    stream: str | None
    owner: str | None
    checkpoint: str
    parents: tuple[str, ...]
    children: tuple[str, ...]
    next_owner: str | None
    stream_id: str | None = None


@dataclass(frozen=True, slots=True)
class WorkerView:
    """`reported_s` is the time since the report changed."""

    worker_id: str
    leases: int
    cpu_percent: float | None
    reported_s: float | None


@dataclass(frozen=True, slots=True)
class MoveView:
    """A decision of the leader, such as `shardId-7: w-3 -> w-9, cpu 81 % -> 44 %`."""

    ago_s: float
    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A worker at one moment.

    Args:
        started: tables and streams are ready.
        leaderless_s: how long no leader is known.
        renewed_s: since all leases were renewed; None: no leases.
        fleet: all leases; empty until this worker reads the table, as leader or for a viewer.
        fleet_age_s: age of `fleet` and `workers`; None: never read.
        loop_lag_s: delay of the event loop.
        spark: None: no engine, or it is silent.
        place: stream, region and account; empty from an older daemon.
        at_ms: epoch milliseconds; 0 from an older daemon.
    """

    application: str
    worker_id: str
    version: str
    uptime_s: float
    started: bool
    stopping: bool
    leads: bool
    leader: str | None
    leaderless_s: float | None
    renewed_s: float | None
    shards: tuple[ShardView, ...]
    fleet: tuple[LeaseView, ...] = ()
    workers: tuple[WorkerView, ...] = ()
    moves: tuple[MoveView, ...] = ()
    fleet_age_s: float | None = None
    loop_lag_s: float = 0.0
    spark: SparkView | None = None
    place: str = ""
    at_ms: int = 0


class SnapshotSource(Protocol):
    """Call both methods in the event loop's thread."""

    def now(self) -> Snapshot:
        """The fleet is as last read; no I/O, never waits, never raises."""
        ...

    async def asked(self) -> Snapshot:
        """For a viewer: a worker that is not the leader first reads the tables, every few seconds at most.

        On an AWS error the fleet stays as old as `fleet_age_s` says. May be cancelled.
        """
        ...
