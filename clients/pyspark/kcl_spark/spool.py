"""The engine's spool: a bounded cache of received but uncommitted records.

Whatever the spool loses, the daemon delivers again from the last checkpoint.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from kcl_landing.control import monotonic_s
from kcl_landing.positions import START, Position, Positions
from kcl_landing.records import SCHEMA, RecordBatch
from kcl_spark.segments import OPEN_MS, Segment, end_within, read_arrivals
from kcl_spark.stores import FolderStore, Grant


@dataclass(frozen=True, slots=True)
class ShardFigures:
    """Counters of one shard; rows delivered twice count twice.

    Args:
        waiting: rows here that some query has not committed.
        lag_s: age of the oldest waiting row.
    """

    rows: int
    size_bytes: int
    committed: int
    waiting: int
    lag_s: float
    spooled_bytes: int


class SpoolCounters:
    def __init__(self) -> None:
        self._rows = 0
        self._size_bytes = 0
        self._committed = 0
        self._waiting: deque[tuple[Segment, float]] = deque()
        """With the arrival of the segment's oldest row."""
        self._young_rows = 0
        self._young_since_s = 0.0

    def arrived(self, rows: int, now_s: float) -> None:
        if not self._young_rows:
            self._young_since_s = now_s
        self._young_rows += rows

    def written(self, segment: Segment) -> None:
        self._waiting.append((segment, self._young_since_s))
        self._rows += segment.rows
        self._size_bytes += segment.size_bytes
        self._young_rows = 0

    def forgotten(self) -> None:
        self._young_rows = 0

    def kept(self, segments: Iterable[Segment], now_s: float) -> None:
        known = dict(self._waiting)
        self.forgotten()
        self._waiting.clear()
        for each in segments:
            if each not in known:
                self._rows += each.rows
                self._size_bytes += each.size_bytes
            self._waiting.append((each, known.get(each, now_s)))

    def done(self, last: Position) -> None:
        while self._waiting and self._waiting[0][0].last <= last:
            self._committed += self._waiting.popleft()[0].rows

    def figures(self, now_s: float, spooled_bytes: int) -> ShardFigures:
        oldest_s = self._waiting[0][1] if self._waiting else self._young_since_s
        waiting = sum(each.rows for each, _ in self._waiting) + self._young_rows
        return ShardFigures(
            rows=self._rows,
            size_bytes=self._size_bytes,
            committed=self._committed,
            waiting=waiting,
            lag_s=max(0.0, now_s - oldest_s) if waiting else 0.0,
            spooled_bytes=spooled_bytes,
        )


SEGMENT_BYTES: Final = 4 * 1024 * 1024
LINGER_S: Final = 0.05
_HORIZON_S: Final = 0.1
_AGAIN_S: Final = 1.0
_REVOKED_KEPT_S: Final = 30.0


class NotHeld(Exception): ...


@dataclass(eq=False, slots=True)
class ShardSpool:
    """One shard's part of the spool.

    Attributes:
        mark: the last record received; redelivered records at or before it are dropped.
        flushed: the last record on disk.
        revoked_s: when the lease went; None while it is held.
    """

    shard_id: str
    mark: Position = START
    flushed: Position = START
    segments: list[Segment] = field(default_factory=list[Segment])
    buffer: list[RecordBatch] = field(default_factory=list)
    buffered_bytes: int = 0
    since_s: float = 0.0
    revoked_s: float | None = None
    holder: object = None
    reached_ms: int | None = None
    tally: SpoolCounters = field(default_factory=SpoolCounters)

    @property
    def size_bytes(self) -> int:
        return self.buffered_bytes + sum(each.size_bytes for each in self.segments)

    def taken_ms(self, done: Position) -> int | None:
        return next((each.first_ms - 1 for each in self.segments if each.last > done), self.reached_ms)


@dataclass(frozen=True, slots=True)
class ArrivalStatus:
    reached_ms: int | None
    all_on_disk: bool
    is_full: bool = False


class Spool:
    """Thread-safe. Above `max_bytes`, shards that use more than their share must wait.

    Attributes:
        trouble: what the disk refused last. Shards wait, and `flush_aged` tries again.
    """

    def __init__(self, store: FolderStore, *, max_bytes: int) -> None:
        self.store = store
        self._max_bytes = max_bytes
        self._lock = threading.RLock()
        self.changed = threading.Condition(self._lock)
        self._shards: dict[str, ShardSpool] = {}
        self._committed: Positions = {}
        self._planned: Positions = {}
        self._unwritten: dict[str, Grant] = {}
        self.trouble: OSError | None = None
        self._failed_s = 0.0
        self._horizon_ms: int | None = None
        self._horizon_set_s = 0.0
        self._recover()

    def _recover(self) -> None:
        self.store.recover()
        for shard_id, stored in self.store.poll().items():
            if stored.segments:
                segments, now_s = list(stored.segments), monotonic_s()
                self._shards[shard_id] = ShardSpool(shard_id, segments=segments, revoked_s=now_s)

    def grant(self, shard_id: str, checkpoint: Position, holder: object) -> Position:
        """Accept the records of a shard after the returned mark; the previous holder may add nothing more.

        Spooled segments stay if they continue the committed records without a gap.
        """
        with self._lock:
            shard = self._shards.setdefault(shard_id, ShardSpool(shard_id))
            shard.buffer, shard.buffered_bytes = [], 0
            reached = max(checkpoint, self._committed.get(shard_id, START))
            kept: list[Segment] = []
            for each in shard.segments:
                if each.after <= reached:
                    reached = max(reached, each.last)
                    kept.append(each)
                else:
                    self.store.drop(each)
            shard.segments, shard.revoked_s, shard.holder = kept, None, holder
            shard.mark = shard.flushed = reached
            shard.reached_ms = kept[-1].last_ms if kept else None
            done = max(checkpoint, self._committed.get(shard_id, START))
            shard.tally.kept([each for each in kept if each.last > done], monotonic_s())
            self._note(shard_id, Grant(held=True, after=checkpoint))
            return reached

    def holds(self, shard_id: str, holder: object) -> bool:
        with self._lock:
            shard = self._shards.get(shard_id)
            return shard is not None and shard.holder is holder

    def is_free(self, shard_id: str) -> bool:
        return self.holds(shard_id, None) or shard_id not in self._shards

    def add(self, shard_id: str, batch: RecordBatch, last: Position, holder: object) -> None:
        """NotHeld if another relay serves the shard; these records may then leave a gap."""
        with self._lock:
            shard = self._shards[shard_id]
            if shard.holder is not holder:
                raise NotHeld(shard_id)
            now_s = monotonic_s()
            if not shard.buffer:
                shard.since_s = now_s
            shard.tally.arrived(batch.num_rows, now_s)
            shard.buffer.append(batch)
            shard.buffered_bytes += batch.nbytes
            shard.mark = last
            if shard.buffered_bytes >= SEGMENT_BYTES:
                self._flush(shard)

    def flush(self, shard_id: str) -> None:
        with self._lock:
            if shard_id in self._shards:
                self._flush(self._shards[shard_id])

    def flush_aged(self) -> None:
        """Call it again and again."""
        with self._lock:
            now_s = monotonic_s()
            if self.trouble is not None and now_s - self._failed_s < _AGAIN_S:
                return
            self.trouble = None
            self._write_notes()
            for shard in self._shards.values():
                if shard.buffer and now_s - shard.since_s >= LINGER_S:
                    self._flush(shard)

    def revoke(self, shard_id: str, holder: object) -> None:
        """The lease is gone: no new batch may take the shard's records, a planned one still may.

        Idempotent.
        """
        with self._lock:
            if not self.holds(shard_id, holder):
                return
            shard = self._shards[shard_id]
            shard.holder = None
            shard.buffer, shard.buffered_bytes = [], 0
            shard.tally.forgotten()
            shard.revoked_s = monotonic_s()
            self._note(shard_id, Grant(held=False))
            self.changed.notify_all()

    def mark(self, shard_id: str) -> Position:
        with self._lock:
            return self._shards[shard_id].mark

    def must_wait(self, shard_id: str) -> bool:
        """Memory is bounded while the disk takes nothing."""
        with self._lock:
            return self.is_full_for(shard_id) or bool(self.trouble and self._shards[shard_id].buffer)

    def is_full_for(self, shard_id: str) -> bool:
        """Whether a shard has had its share; never while a planned batch needs more of it."""
        with self._lock:
            shard = self._shards[shard_id]
            if sum(each.size_bytes for each in self._shards.values()) < self._max_bytes:
                return False
            active = sum(1 for each in self._shards.values() if each.size_bytes)
            share = self._max_bytes // max(1, active)
            return shard.size_bytes >= share and shard.mark >= self._planned.get(shard_id, START)

    def reported(self, planned: Positions, committed: Positions) -> None:
        with self._lock:
            self._planned, self._committed = planned, committed
            for shard in self._shards.values():
                done = committed.get(shard.shard_id, START)
                shard.tally.done(done)
                while shard.segments and shard.segments[0].last <= done:
                    self.store.drop(shard.segments.pop(0))
                self._drop_unplanned(shard)
            self.changed.notify_all()

    def arrived(self, shard_id: str) -> ArrivalStatus:
        with self._lock:
            shard = self._shards.get(shard_id)
            if shard is None:
                return ArrivalStatus(None, all_on_disk=False)
            return ArrivalStatus(
                shard.reached_ms, all_on_disk=not shard.buffer, is_full=self.is_full_for(shard_id)
            )

    def taken_ms(self) -> dict[str, int | None]:
        """For shards without a lease, the arrival time that all queries have committed."""
        with self._lock:
            return {
                name: shard.taken_ms(self._committed.get(name, START))
                for name, shard in self._shards.items()
                if shard.holder is None
            }

    def set_horizon(self, arrived_ms: int) -> None:
        """No new batch takes later arrivals. Rises within 0.1 s are ignored, so repeat the call."""
        with self._lock:
            now_s = monotonic_s()
            rises = self._horizon_ms is not None and arrived_ms > self._horizon_ms
            if arrived_ms == self._horizon_ms or (rises and now_s - self._horizon_set_s < _HORIZON_S):
                return
            try:
                self.store.set_horizon(arrived_ms)
            except OSError as error:
                if not rises:
                    raise  # batches would run ahead of a shard
                self._fails(error)
                return
            self._horizon_ms, self._horizon_set_s = arrived_ms, now_s

    def within_horizon(self, shard_id: str) -> Position:
        with self._lock:
            shard = self._shards[shard_id]
            if self._horizon_ms is None or self._horizon_ms == OPEN_MS:
                return shard.mark
            done = self._committed.get(shard_id, START)
            return end_within(
                shard.segments, done, self._horizon_ms, lambda each: read_arrivals(self.store.location(each))
            )

    def figures(self) -> dict[str, ShardFigures]:
        with self._lock:
            now_s = monotonic_s()
            return {
                shard.shard_id: shard.tally.figures(now_s, shard.size_bytes)
                for shard in self._shards.values()
            }

    def wait(self, until: Callable[[], bool], seconds: float) -> bool:
        with self.changed:
            return self.changed.wait_for(until, seconds)

    def _drop_unplanned(self, shard: ShardSpool) -> None:
        if shard.revoked_s is None or monotonic_s() - shard.revoked_s < _REVOKED_KEPT_S:
            return
        planned = self._planned.get(shard.shard_id, START)
        while shard.segments and shard.segments[-1].after >= planned:
            shard.reached_ms = shard.segments[-1].first_ms - 1
            self.store.drop(shard.segments.pop())

    def _note(self, shard_id: str, grant: Grant) -> None:
        self._unwritten[shard_id] = grant
        self._write_notes()

    def _write_notes(self) -> None:
        try:
            for shard_id, grant in list(self._unwritten.items()):
                self.store.note(shard_id, grant)
                del self._unwritten[shard_id]
        except OSError as error:
            self._fails(error)

    def _fails(self, error: OSError) -> None:
        self.trouble, self._failed_s = error, monotonic_s()

    def _flush(self, shard: ShardSpool) -> None:
        if not shard.buffer:
            return
        table = pa.Table.from_batches(shard.buffer, SCHEMA).combine_chunks()
        try:
            segment = self.store.put(
                shard.shard_id, shard.flushed, shard.mark, table, not_before_ms=shard.reached_ms or 0
            )
        except OSError as error:
            self._fails(error)
            return
        shard.reached_ms = segment.last_ms
        shard.segments.append(segment)
        shard.tally.written(segment)
        shard.flushed = shard.mark
        shard.buffer, shard.buffered_bytes = [], 0
