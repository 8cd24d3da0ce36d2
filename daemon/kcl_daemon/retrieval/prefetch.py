"""Reads one shard a bounded way ahead of its child (KCL: PrefetchRecordsPublisher).

Owns the shard iterator and the buffer. Knows nothing of leases or children. Never raises for what Kinesis does: it
retries for ever, and the reason is told by `trouble`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import anyio

from kcl_daemon.config.settings import RetrievalSettings
from kcl_daemon.errors import (
    AccessDenied,
    AwsError,
    InvalidRequest,
    IteratorExpired,
    StreamNotFound,
    Throttled,
    Unavailable,
)
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import Clock, Fetched, IteratorKind, Kinesis, Log, Randomness, ReadFrom, StreamRef
from kcl_daemon.retrieval.pacing import Pace
from kcl_daemon.retrieval.start import StartMemory, read_from
from kcl_daemon.shards.shard import ChildShard
from kcl_protocol.messages import Record
from kcl_protocol.sequence import ExtendedSequenceNumber

# A call that has not answered by then is given up and made again; the adapter's own time-outs are shorter.
_CALL_TIMEOUT_S = 60.0
# An iterator refused this often in a row has not merely grown old.
_SUSPICIOUS_FAILURES = 3


@dataclass(frozen=True, slots=True)
class Batch:
    """Records to deliver, none at or before the checkpoint; may be empty."""

    records: Sequence[Record]
    millis_behind_latest: int | None
    size_bytes: int


@dataclass(frozen=True, slots=True)
class EndOfShard:
    """Nothing more will come. `children` is empty where the shard or stream was deleted under us."""

    children: tuple[ChildShard, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """What is read, from where.

    Args:
        stream: its stream.
        shard_id: the shard.
        checkpoint: the lease's, where delivery resumes.
        timestamp_s: the configured starting time, if any.
        memory: shared by all prefetchers that one consumer starts after one another.
    """

    stream: StreamRef
    shard_id: ShardId
    checkpoint: ExtendedSequenceNumber
    timestamp_s: float | None
    memory: StartMemory


class Prefetch:
    """The prefetcher of one shard for one child. `run` fills the buffer, `next` takes from it; one taker at a time.

    Args:
        source: what is read.
        kinesis: from where.
        settings: how far ahead and how often.
        clock: for pauses and time-outs.
        randomness: spreads retries.
        log: for what Kinesis does.
        tells_empty: whether the taker wants to hear of answers without records; else they take no place and wake nobody.
    """

    def __init__(
        self,
        source: Source,
        *,
        kinesis: Kinesis,
        settings: RetrievalSettings,
        clock: Clock,
        randomness: Randomness,
        log: Log,
        tells_empty: bool = True,
    ) -> None:
        self._source = source
        self._kinesis = kinesis
        self._settings = settings
        self._clock = clock
        self._randomness = randomness
        self._log = log
        self._tells_empty = tells_empty
        self._buffer: deque[Batch | EndOfShard] = deque()
        self._buffered_bytes = 0
        self._filled = anyio.Event()
        self._taken = anyio.Event()
        self._pace = Pace(settings.idle_time_between_reads_ms / 1000)
        self._last_sequence_number: str | None = None
        self.trouble: str | None = None

    async def next(self) -> Batch | EndOfShard:
        """The next batch, waiting for it; a cancelled call takes nothing."""
        while not self._buffer:
            self._filled = anyio.Event()
            await self._filled.wait()
        item = self._buffer.popleft()
        if isinstance(item, Batch):
            self._buffered_bytes -= item.size_bytes
        self._taken.set()
        return item

    async def run(self) -> None:
        """Read until the end of the shard; returns then."""
        iterator = self._source.memory.idle_iterator if self._source.checkpoint.is_sentinel else None
        while True:
            await self._room()
            began_s = self._clock.monotonic()
            try:
                iterator = iterator or await self._new_iterator()
                fetched = await self._fetch(iterator)
            except StreamNotFound as gone:
                self._log.warning(
                    "shard_not_found",
                    error=str(gone),
                    advice="the stream or shard was deleted; the lease ends here",
                )
                self._put(EndOfShard(()))
                return
            except AwsError as error:
                iterator = self._after(error, iterator)
                await self._pause(self._pace.failed(), began_s, behind=True)
                continue
            iterator = self._accept(fetched)
            if iterator is None:
                return
            await self._pause(self._pace.succeeded(), began_s, behind=bool(fetched.millis_behind_latest))

    async def _room(self) -> None:
        """Wait until the buffer may take one more answer."""
        while self._buffer and (
            self._buffered_bytes >= self._settings.prefetch_bytes
            or len(self._buffer) >= self._settings.prefetch_batches
        ):
            self._taken = anyio.Event()
            await self._taken.wait()

    async def _fetch(self, iterator: str) -> Fetched:
        with self._clock.move_on_after(_CALL_TIMEOUT_S):
            return await self._kinesis.get_records(
                self._source.stream, self._source.shard_id, iterator, self._settings.max_records
            )
        raise Unavailable(f"no answer within {_CALL_TIMEOUT_S:g} s", operation="GetRecords")

    async def _new_iterator(self) -> str:
        where = (
            read_from(self._source.checkpoint, self._source.memory, self._source.timestamp_s)
            if self._last_sequence_number is None
            else ReadFrom(IteratorKind.AFTER_SEQUENCE_NUMBER, sequence_number=self._last_sequence_number)
        )
        with self._clock.move_on_after(_CALL_TIMEOUT_S):
            return await self._kinesis.get_shard_iterator(self._source.stream, self._source.shard_id, where)
        raise Unavailable(f"no answer within {_CALL_TIMEOUT_S:g} s", operation="GetShardIterator")

    def _accept(self, fetched: Fetched) -> str | None:
        """Take an answer into the buffer; gives the next iterator, None at the end of the shard."""
        self.trouble = None
        memory = self._source.memory
        if fetched.records:
            self._last_sequence_number = fetched.records[-1].sequence_number
            if memory.first_sequence_number is None:
                memory.first_sequence_number = fetched.records[0].sequence_number
            memory.idle_iterator = None
        elif memory.first_sequence_number is None:
            memory.idle_iterator, memory.idle_until_s = fetched.next_iterator, self._clock.wall_ms() / 1000
        # Empty answers must not take the place of full ones.
        if fetched.records or (self._tells_empty and not self._buffer):
            self._put(
                Batch(self._undelivered(fetched.records), fetched.millis_behind_latest, fetched.size_bytes)
            )
        if fetched.next_iterator is None:
            self._put(EndOfShard(fetched.child_shards))
        return fetched.next_iterator

    def _undelivered(self, records: Sequence[Record]) -> Sequence[Record]:
        """Without what the checkpoint covers; only the first answers can hold such records."""
        checkpoint = self._source.checkpoint
        if checkpoint.is_sentinel or not records or checkpoint < _position(records[0]):
            return records
        # A checkpoint inside an aggregate does not cover the rest of it, and aggregates are delivered whole.
        partly = checkpoint.sequence_number if checkpoint.sub_sequence_number else None
        return [
            record for record in records if checkpoint < _position(record) or record.sequence_number == partly
        ]

    def _put(self, item: Batch | EndOfShard) -> None:
        self._buffer.append(item)
        if isinstance(item, Batch):
            self._buffered_bytes += item.size_bytes
        self._filled.set()

    def _after(self, error: AwsError, iterator: str | None) -> str | None:
        """What a failed call leaves of the iterator. A new one begins after the last record fetched, or where we began."""
        self.trouble = str(error)
        match error:
            case IteratorExpired() | InvalidRequest():
                tell = self._log.info if self._pace.failures < _SUSPICIOUS_FAILURES else self._log.warning
                tell("iterator_renewed", error=str(error), failures=self._pace.failures + 1)
                self._source.memory.idle_iterator = None  # but not the time until which nothing had come
                return None
            case AccessDenied():
                self._log.error(
                    "read_failed",
                    error=str(error),
                    advice="allow kinesis:GetRecords and GetShardIterator on the stream",
                )
            case Throttled():
                self._log.debug("read_throttled", error=str(error))
            case _:
                self._log.warning("read_failed", error=str(error), failures=self._pace.failures + 1)
        return iterator

    async def _pause(self, pace: Pace, began_s: float, *, behind: bool) -> None:
        self._pace = pace
        elapsed_s = self._clock.monotonic() - began_s
        chance = self._randomness.uniform(0, 1) if pace.failures else 0.0
        await self._clock.sleep(pace.pause_s(elapsed_s=elapsed_s, behind=behind, chance=chance))


def _position(record: Record) -> ExtendedSequenceNumber:
    return ExtendedSequenceNumber(record.sequence_number, record.sub_sequence_number)
