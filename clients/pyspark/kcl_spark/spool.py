"""A bounded cache of records that are received and not committed."""

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

SEGMENT_BYTES: Final = 4 * 1024 * 1024
LINGER_S: Final = 0.05
_HORIZON_S: Final = 0.1
_AGAIN_S: Final = 1.0
_REVOKED_KEPT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class ShardFigures:
    """Rows delivered twice count twice. `waiting`: some query has not committed them."""

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


class NotHeld(Exception): ...


@dataclass(eq=False, slots=True)
class ShardSpool:
    """Records up to `mark` are received, up to `flushed` on disk.

    `revoked_s`: when the lease went. `reached_ms`: arrival of the last record on disk. `complete_ms`: all that
    arrived before is or was on disk; `stated_ms`: or is in memory. `within`: the last answer of
    `Spool.within_horizon`, behind what it depends on.
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
    complete_ms: int | None = None
    stated_ms: int | None = None
    within: tuple[object, Position] = (None, START)
    is_last: bool = False
    tally: SpoolCounters = field(default_factory=SpoolCounters)

    @property
    def size_bytes(self) -> int:
        return self.buffered_bytes + sum(each.size_bytes for each in self.segments)

    def first_left_ms(self, committed: Positions) -> int | None:
        """The first arrival that no new batch takes, as nobody holds the shard."""
        done = committed.get(self.shard_id, START)
        return next(
            (each.first_ms for each in self.segments if self.holder is None and each.last > done), None
        )


@dataclass(frozen=True, slots=True)
class ArrivalStatus:
    """`has_left`: no batch takes its records from `reached_ms` on."""

    reached_ms: int | None
    complete_ms: int | None = None
    has_left: bool = False
    all_on_disk: bool = False
    is_full: bool = False


class Spool:
    """Thread-safe. Above `max_bytes`, shards that use more than their share must wait.

    `trouble`: what the disk refused last; `flush_aged` tries again. `drains`: how often the daemon has asked for a
    shard back.
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
        self.drains = 0
        self.trouble: OSError | None = None
        self._failed_s = 0.0
        self._horizon_ms: int | None = None
        self._horizon_set_s = 0.0
        self.store.recover()
        for shard_id, stored in self.store.poll().items():
            if stored.segments:
                segments, now_s = list(stored.segments), monotonic_s()
                self._shards[shard_id] = ShardSpool(shard_id, segments=segments, revoked_s=now_s)

    def grant(self, shard_id: str, checkpoint: Position, holder: object) -> Position:
        """Records are expected after the returned mark; the holder before may add nothing more.

        Segments stay if they continue the committed records.
        """
        with self._lock:
            shard = self._shards.setdefault(shard_id, ShardSpool(shard_id))
            shard.buffer, shard.buffered_bytes = [], 0
            done = reached = max(checkpoint, self._committed.get(shard_id, START))
            kept: list[Segment] = []
            for each in shard.segments:
                if each.after <= reached:
                    reached = max(reached, each.last)
                    kept.append(each)
                else:
                    self.store.drop(each)
            shard.segments, shard.revoked_s, shard.holder, shard.is_last = kept, None, holder, False
            shard.mark = shard.flushed = reached
            shard.reached_ms = kept[-1].last_ms if kept else None
            shard.complete_ms = shard.stated_ms = None
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
        """NotHeld: another relay serves the shard; these may leave a gap."""
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

    def complete(self, shard_id: str, until_ms: int | None, holder: object) -> None:
        """All that arrived before `until_ms` were added."""
        with self._lock:
            shard = self._shards[shard_id]
            if shard.holder is holder and until_ms is not None:
                shard.stated_ms = max(until_ms, shard.stated_ms or 0)
                if not shard.buffer:
                    shard.complete_ms = shard.stated_ms

    def flush(self, shard_id: str) -> None:
        with self._lock:
            if shard_id in self._shards:
                self._flush(self._shards[shard_id])

    def leaves(self, shard_id: str, *, is_last: bool) -> None:
        """`is_last`: ever; otherwise the daemon wants the shard back."""
        with self._lock:
            self._flush(self._shards[shard_id])
            self._shards[shard_id].is_last = is_last
            self.drains += not is_last

    def only_ends_are_left(self) -> bool:
        with self._lock:
            return all(each.is_last for each in self._shards.values() if each.holder is not None)

    def flush_aged(self) -> None:
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
        """The horizon falls to what batches have taken of the shard. Idempotent."""
        with self._lock:
            if not self.holds(shard_id, holder):
                return
            shard = self._shards[shard_id]
            shard.holder = None
            shard.buffer, shard.buffered_bytes = [], 0
            shard.tally.forgotten()
            shard.revoked_s = monotonic_s()
            if self._horizon_ms is not None:  # The planner reads it after the note.
                left_ms = shard.first_left_ms(self._committed)
                taken_ms = max(shard.reached_ms or 0, shard.complete_ms or 0) if left_ms is None else left_ms
                self.set_horizon(min(self._horizon_ms, taken_ms - 1))
            self._note(shard_id, Grant(held=False))
            self.changed.notify_all()

    def mark(self, shard_id: str) -> Position:
        with self._lock:
            return self._shards[shard_id].mark

    def must_wait(self, shard_id: str) -> bool:
        with self._lock:
            return self.is_full_for(shard_id) or bool(self.trouble and self._shards[shard_id].buffer)

    def is_full_for(self, shard_id: str) -> bool:
        """Never while a planned batch needs more."""
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
                return ArrivalStatus(None)
            left_ms = shard.first_left_ms(self._committed)
            if left_ms is not None:
                return ArrivalStatus(left_ms, has_left=True)
            return ArrivalStatus(
                shard.reached_ms,
                shard.complete_ms,
                all_on_disk=not shard.buffer,
                is_full=self.is_full_for(shard_id),
            )

    def left(self) -> set[str]:
        with self._lock:
            return {
                name for name, each in self._shards.items() if each.first_left_ms(self._committed) is not None
            }

    def set_horizon(self, arrived_ms: int) -> None:
        """Rises are ignored within 0.1 s, and while all that is on disk lies within the horizon: repeat the call."""
        with self._lock:
            now_s, before_ms = monotonic_s(), self._horizon_ms
            rises = before_ms is not None and arrived_ms > before_ms
            may_wait = now_s - self._horizon_set_s < _HORIZON_S or self._newest_ms() <= (before_ms or 0)
            if arrived_ms == before_ms or (rises and may_wait):
                return
            try:
                self.store.set_horizon(arrived_ms)
            except OSError as error:
                if not rises:
                    raise
                self._fails(error)
                return
            self._horizon_ms, self._horizon_set_s = arrived_ms, now_s

    def within_horizon(self, shard_id: str) -> Position:
        with self._lock:
            shard = self._shards[shard_id]
            if self._horizon_ms is None or self._horizon_ms == OPEN_MS:
                return shard.mark
            key = self._horizon_ms, shard.flushed
            if shard.within[0] != key:
                shard.within = (
                    key,
                    end_within(
                        shard.segments,
                        self._committed.get(shard_id, START),
                        self._horizon_ms,
                        lambda each: read_arrivals(self.store.location(each)),
                    ),
                )
            return shard.within[1]

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
            shard.reached_ms, shard.complete_ms = shard.segments[-1].first_ms, None
            self.store.drop(shard.segments.pop())

    def _newest_ms(self) -> int:
        return max(
            (each.reached_ms or 0 for each in self._shards.values() if each.holder is not None), default=0
        )

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
        shard.reached_ms, shard.complete_ms = segment.last_ms, shard.stated_ms
        shard.segments.append(segment)
        shard.tally.written(segment)
        shard.flushed = shard.mark
        shard.buffer, shard.buffered_bytes = [], 0
