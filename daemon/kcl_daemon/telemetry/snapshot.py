"""What a worker is doing, at one moment: plain values that the page, the metrics and the commands read.

Owns the shape only. Durations are seconds at the moment of the snapshot, so that nobody needs the worker's clock.

What the Spark engine of this host is doing, at one moment: a part of the snapshot.

Owns the shape only; durations are seconds at the moment of the snapshot. What is counted is counted from the start of
the engine's process.
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
        name: of it.
        running: whether it runs; one that failed waits to be started again.
        failures: counted.
        batch: the newest that it has committed; None: none yet.
        since_commit_s: since its last commit; since the engine saw it first where there was none.
        input_rows_per_s: that came in, as Spark told last; None: not yet.
        processed_rows_per_s: that it worked through, likewise.
        batch_s: how long its last batch with records took, likewise.
        state_rows: rows in the state of its windows and joins; None: it keeps none.
        late_rows: that Spark has dropped as later than the watermark, counted; None: it keeps no state.
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
    """One shard that the engine is fed, by this host or another.

    Args:
        shard_id: of it.
        behind_ms: behind the tip, as its daemon told last; None: not yet.
        rows: written to the spool, counted.
        data_bytes: of their files, counted.
        committed: rows that all queries have committed, counted.
        redelivered: rows that came once more and were dropped, counted since its relay came.
        waiting: rows that are there and that some query has not committed yet.
        lag_s: since the oldest of these came; 0: there is none.
        spooled_bytes: what the spool holds of it.
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
    """The engine.

    Args:
        ui: where Spark shows more; None: nowhere.
        queries: by name.
        shards: by id.
    """

    ui: str | None
    queries: tuple[SparkQueryView, ...]
    shards: tuple[SparkShardView, ...]


SparkSource: TypeAlias = Callable[[], SparkView | None]
"""How the engine is now; None: there is none on this host, or it has not been heard of lately."""


def no_spark() -> SparkView | None:
    """Where there is no engine."""
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
    """A shard's child process.

    Args:
        pid: of the process.
        rss_bytes: resident memory of it; None where this machine does not tell.
        running_s: since it was started.
        restarts: how many children this shard had before it, since the lease was taken.
        stderr: its last lines, the newest at the end.
    """

    pid: int
    rss_bytes: int | None
    running_s: float
    restarts: int
    stderr: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ShardView:
    """One lease that this worker holds.

    Args:
        key: of the lease.
        shard_id: of the shard.
        stream: its name; None where there is one only.
        parents: shard ids.
        cause: what it waits for.
        waits_s: for how long it has waited for that.
        detail: more words on it: the error of the last call, the parents that are not finished.
        idle_s: since the last progress: a batch that was done, a checkpoint, or an answer with nothing new.
        stalled: past the limit of its cause; the log has said so.
        behind_ms: how far the last answer of Kinesis was behind the tip, whatever has become of its records since; None: it
            has not told yet.
        checkpoint: as stored.
        records: handed over and done since the lease was taken.
        data_bytes: of those.
        bytes_per_s: lately.
        child: None while there is none.
        failures: children that failed since the last progress.
        stream_id: its stream's identity, `account:name:creationEpoch`; None where there is one only.
        state: in a word, trouble first; None: a daemon of before tells none.
        lag_s: the age of the oldest record that is not done; 0: all are; None: not known yet.
        restarts: how many children it had before the present or the last one, since the lease was taken.
        last_error: how the last of the children that `failures` counts failed; empty: none did.
        stderr_tail: the last lines of that child's stderr, the newest at the end.
        next_try_s: in how many seconds the next child is started; None: one runs, or none will.
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
        """Whether its children fail one after the other."""
        return self.failures >= FAILING_FROM


@dataclass(frozen=True, slots=True)
class LeaseView:
    """One lease of the application, whoever holds it, as the lease table was when it was last read.

    Args:
        key: of the lease.
        shard_id: of the shard.
        stream: its name; None where there is one only.
        owner: worker id; None: nobody.
        checkpoint: as stored.
        parents: shard ids.
        children: shard ids, once the shard has ended.
        next_owner: to whom it is being handed over; None: no hand-off.
        stream_id: its stream's identity, `account:name:creationEpoch`; None where there is one only.
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
    """One worker of the fleet, as the tables tell.

    Args:
        worker_id: its name.
        leases: how many it holds.
        cpu_percent: None where it reports none.
        reported_s: since its last report was seen to change; None: not known.
    """

    worker_id: str
    leases: int
    cpu_percent: float | None
    reported_s: float | None


@dataclass(frozen=True, slots=True)
class MoveView:
    """One decision of the leader, newest first where they are listed.

    Args:
        ago_s: since it was made.
        key: of the lease.
        reason: in words: `shardId-7: w-3 -> w-9, cpu 81 % -> 44 %`.
    """

    ago_s: float
    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A worker at one moment.

    Args:
        application: name of it.
        worker_id: of this worker.
        version: of the daemon.
        uptime_s: since the worker was built.
        started: whether it works: tables and streams are there.
        stopping: whether a stop was asked for.
        leads: whether this worker is the leader.
        leader: who is, as far as known.
        leaderless_s: since when nobody is, as far as known; None: somebody is.
        renewed_s: since all leases were last renewed; None: it holds none.
        shards: the leases that it holds.
        fleet: all leases; empty where this worker has not read the table (it reads it as leader, or when asked).
        workers: of the fleet, likewise.
        moves: the last decisions of this worker as leader.
        fleet_age_s: how old `fleet` and `workers` are; None: never read.
        loop_lag_s: by how much the event loop was late when that was last measured, every two seconds.
        spark: the engine of this host; None: there is none, or it is silent.
        place: the stream, region and account that it works with, in words; empty: a daemon of before tells none.
        at_ms: when this was, in epoch milliseconds by this worker's clock; 0: a daemon of before tells none.
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
    """Where snapshots come from; both calls are for the event loop's thread."""

    def now(self) -> Snapshot:
        """The worker at this moment, with the fleet as it was last read. No I/O, never waits, never raises."""
        ...

    async def asked(self) -> Snapshot:
        """The same for somebody who looks: a worker that does not lead reads the tables first, at most every few seconds.

        Where they cannot be read, the fleet is as old as `fleet_age_s` says; never raises for AWS. May be cancelled.
        """
        ...
