"""What a reader reads, and which records of it are still to be delivered; the same for polling and fan-out.

Where to begin in a shard, and how a restart of the child finds the same place again.

The account of records that Kinesis gave and no child is given: how many of each shard, and why.

Owns the reasons and how loud they are. Whoever leaves a record out decides about it, and tells here. What is passed over
or put aside because its processor fails is another matter (`kcl_daemon.failures`).

What a shard's retrieval hands to its consumer: lines ready for the child, or the end of the shard.

What reads one shard for one child, whichever way its records come.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

from kcl_daemon.errors import AwsError
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.metrics.own import NOT_DELIVERED
from kcl_daemon.ports import Clock, IteratorKind, Log, Meters, ReadFrom, StreamRef
from kcl_daemon.progress.progress import LastFetch
from kcl_daemon.records.payload import Payload, Split
from kcl_daemon.retrieval.schemas import OnTrouble, PayloadDecoder, ShardSchemaDecoder
from kcl_daemon.shards.lineage import ChildShard
from kcl_protocol.sequence import ExtendedSequenceNumber, Sentinel

_CLOCK_MARGIN_S: Final = 30.0


@dataclass(slots=True)
class StartMemory:
    """What a consumer has learnt about its beginning while the lease still holds a sentinel.

    A shard begun at LATEST has no position until its child checkpoints. A child that dies before that must not cost
    the records it was given: the next one begins at the first record of the first, or, if there was none yet, at the
    iterator that was reached.

    Args:
        first_sequence_number: of the first record ever fetched here.
        idle_iterator: the latest iterator while nothing has been fetched yet.
        idle_until_s: until when (epoch seconds, our clock) nothing had come.
        idle_after: of a subscription: nothing had come up to this sequence number.
        subscribed_at_s: monotonic, when the last subscription began.
    """

    first_sequence_number: str | None = None
    idle_iterator: str | None = None
    idle_until_s: float | None = None
    idle_after: str | None = None
    subscribed_at_s: float | None = None


def read_from(checkpoint: ExtendedSequenceNumber, memory: StartMemory, timestamp_s: float | None) -> ReadFrom:
    """The iterator to ask for.

    A checkpointed record is read again and dropped, because more of its aggregate may be to come. (KCL: IteratorBuilder)

    Args:
        checkpoint: of the lease; SHARD_END has nothing to read.
        memory: of this consumer.
        timestamp_s: the configured one, for leases that begin there.

    Raises:
        ValueError: the shard is finished.
    """
    if checkpoint.is_shard_end:
        raise ValueError("a finished shard has nothing to read")
    if not checkpoint.is_sentinel:
        return ReadFrom(IteratorKind.AT_SEQUENCE_NUMBER, sequence_number=checkpoint.sequence_number)
    if memory.first_sequence_number is not None:
        return ReadFrom(IteratorKind.AT_SEQUENCE_NUMBER, sequence_number=memory.first_sequence_number)
    if memory.idle_after is not None:
        return ReadFrom(IteratorKind.AFTER_SEQUENCE_NUMBER, sequence_number=memory.idle_after)
    return _at_sentinel(checkpoint, memory, timestamp_s)


def _at_sentinel(
    checkpoint: ExtendedSequenceNumber, memory: StartMemory, timestamp_s: float | None
) -> ReadFrom:
    match Sentinel(checkpoint.sequence_number):
        case Sentinel.AT_TIMESTAMP:
            # The table does not hold the time; a fleet whose workers are configured differently starts differently.
            return (
                ReadFrom(IteratorKind.TRIM_HORIZON)
                if timestamp_s is None
                else ReadFrom(IteratorKind.AT_TIMESTAMP, timestamp_s=timestamp_s)
            )
        case Sentinel.LATEST if memory.idle_until_s is not None:
            # LATEST again would jump over what came since; the margin covers clocks that differ.
            return ReadFrom(IteratorKind.AT_TIMESTAMP, timestamp_s=memory.idle_until_s - _CLOCK_MARGIN_S)
        case Sentinel.LATEST:
            return ReadFrom(IteratorKind.LATEST)
        case _:
            return ReadFrom(IteratorKind.TRIM_HORIZON)


def has_been_trimmed(checkpoint: ExtendedSequenceNumber, first_sequence_number: str) -> bool:
    """Whether the record of the checkpoint is gone, and with it perhaps some that nobody has read.

    Reading begins at that record, so it comes first as long as it is there; once it is older than the retention
    Kinesis begins with the oldest one instead, and says nothing.

    Args:
        checkpoint: where reading was to begin.
        first_sequence_number: of the first record that came.
    """
    return not checkpoint.is_sentinel and int(first_sequence_number) > int(checkpoint.sequence_number)


_ADVICE: Final = (
    "their hash keys are outside the range of this shard. After a reshard the KPL writes such records again by itself; any "
    "other producer that aggregates must put only records of one shard into an aggregate, or they are lost"
)


_CHECK_PRODUCER: Final = (
    "they are delivered under the partition key of their aggregate (the Java KCL loses them); check the producer, and "
    "anything that rewrites its records"
)


class SkipReason(StrEnum):
    """Why a record is left out; the value of the label `reason`."""

    BEFORE_CHECKPOINT = "before_checkpoint"  # at or before it (KCL: ProcessTask)
    OTHER_SHARD = "other_shard"  # a user record of an aggregate, of a hash that is not this shard's (KCL: AggregatorUtil)


class SkippedRecords:
    """What one reader of a shard leaves out.

    Args:
        meters: told of each time, not of each record.
        labels: of the shard.
        log: of the shard.
    """

    def __init__(self, meters: Meters, labels: Mapping[str, str], log: Log) -> None:
        self._meters = meters
        self._labels = dict(labels)
        self._log = log
        self._of_other_shards = 0
        self._bad_keys = 0

    def before_checkpoint(self, count: int) -> None:
        """So many were read again that a child had finished with; nothing to look at."""
        self._count(count, SkipReason.BEFORE_CHECKPOINT)

    def other_shard(self, count: int, total: int, sequence_number: str) -> None:
        """So many user records of an aggregate belong elsewhere; loud once for each reader.

        Args:
            count: of them.
            total: of all in the aggregate.
            sequence_number: the aggregate's.
        """
        log_event = self._log.debug if self._of_other_shards else self._log.warning
        self._of_other_shards += count
        self._count(count, SkipReason.OTHER_SHARD)
        log_event(
            "records_of_other_shard",
            sequence_number=sequence_number,
            records=count,
            of=total,
            so_far=self._of_other_shards,
            advice=_ADVICE,
        )

    def bad_keys(self, reason: str, count: int, total: int, sequence_number: str) -> None:
        """User records with invalid keys, which are delivered all the same; a warning once for each reader.

        Args:
            reason: what is wrong with the last of them.
            count: of them.
            total: of all in the aggregate.
            sequence_number: the aggregate's.
        """
        log_event = self._log.debug if self._bad_keys else self._log.warning
        self._bad_keys += count
        log_event(
            "aggregate_keys_invalid",
            reason=reason,
            sequence_number=sequence_number,
            records=count,
            of=total,
            so_far=self._bad_keys,
            advice=_CHECK_PRODUCER,
        )

    def _count(self, count: int, skip_reason: SkipReason) -> None:
        self._meters.add(NOT_DELIVERED, count, **self._labels, reason=skip_reason.value)


# Aggregates are taken apart this much at a time, and delivered so: some ten milliseconds.
SLICE_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ShardSource:
    """What is read, from where.

    Args:
        stream: its stream.
        shard_id: the shard.
        checkpoint: the lease's, where delivery resumes.
        timestamp_s: the configured starting time, if any.
        memory: shared by all readers that one consumer starts after one another.
        split: takes KPL aggregates apart; None: they are delivered as they are.
        left_out: told of what the checkpoint covers; None: nobody counts it.
        schemas: opens records of a schema registry; None: they are delivered as they are.
        heard: what is told of the answers; shared like `memory`.
        stream_is_there: asked where the shard is not found; None: the stream is, so the shard must be gone.
    """

    stream: StreamRef
    shard_id: ShardId
    checkpoint: ExtendedSequenceNumber
    timestamp_s: float | None
    memory: StartMemory
    split: Split | None = None
    skipped: SkippedRecords | None = None
    schemas: ShardSchemaDecoder | None = None
    stream_is_there: Callable[[], Awaitable[bool]] | None = None
    last_fetch: LastFetch = field(default_factory=LastFetch)

    async def wait_out(self, clock: Clock, pause_s: float) -> None:
        """A while, after the stream was not there.

        One of many streams is waited for until it is: a new stream of the same name has leases of its own, and must not
        be read for this one.
        """
        await clock.sleep(pause_s)
        while self.stream.identity is not None and not await self._is_back():
            await clock.sleep(pause_s)

    async def _is_back(self) -> bool:
        try:
            return self.stream_is_there is None or await self.stream_is_there()
        except AwsError:
            return False

    def undelivered(self, payload: Payload) -> Iterator[Payload]:
        """Aggregates taken apart, without what the checkpoint covers, in parts; only the first answers can hold such records.

        There is one part, unless there are aggregates: those are taken apart as the parts are taken. A part without records
        may come before a part that takes long.
        """
        if self.split is None:
            yield self._after_checkpoint(payload)
            return
        for slice_ in payload.slices(SLICE_BYTES):
            for part in slice_.expanded(self.split):
                yield self._after_checkpoint(part)

    def _after_checkpoint(self, payload: Payload) -> Payload:
        checkpoint = self.checkpoint
        if checkpoint.is_sentinel:
            return payload
        if self.split is None and checkpoint.sub_sequence_number:
            # A checkpoint inside an aggregate does not cover the rest of it, and here it is delivered whole.
            checkpoint = ExtendedSequenceNumber(str(int(checkpoint.sequence_number) - 1))
        rest = payload.after(checkpoint)
        if self.skipped is not None and len(rest) < len(payload):
            self.skipped.before_checkpoint(len(payload) - len(rest))
        return rest

    def decoder(self, payload: Payload, trouble: OnTrouble) -> PayloadDecoder | None:
        """What is still to be delivered, where it has to be opened first; None: it is as it should be.

        Args:
            payload: a part as `undelivered` gave it.
            trouble: told why, while it cannot be opened.
        """
        return None if self.schemas is None else self.schemas.decoder(payload, trouble)

    def check_first_record(self, first_sequence_number: str, log: Log) -> None:
        """Say where the first record is not the one that was to be the first."""
        if has_been_trimmed(self.checkpoint, first_sequence_number):
            log.warning(
                "position_trimmed",
                checkpoint=str(self.checkpoint),
                first_sequence_number=first_sequence_number,
                advice="the checkpoint is older than the retention of the stream; reading continues at the "
                "oldest record, the records before it are lost. Raise the retention, or find out why "
                "this shard was not read for so long",
            )


INCONSISTENT_END: Final = "the answer has neither a way on nor child shards, or both"
"""The answer must have a next iterator or child shards, never both or neither (KCL: DataRetrievalUtil). The read is retried."""


class DeliveryBatch:
    """Records to deliver as the line that the child reads, none at or before the checkpoint; may hold no record.

    The line is given once and forgotten then, so that it takes no memory while the child works on it.

    Args:
        payload: the records.
        millis_behind_latest: what Kinesis told with them.
        arrived_s: when the oldest of them came to the stream, in monotonic seconds; None: not told.
        on_release: called once, when the line is written or given up.
    """

    __slots__ = ("_line", "_on_release", "arrived_s", "count", "data_bytes", "last", "size_bytes")

    def __init__(
        self,
        payload: Payload,
        millis_behind_latest: int | None,
        on_release: Callable[[], None] | None = None,
        *,
        arrived_s: float | None = None,
    ) -> None:
        self.arrived_s = arrived_s
        self.count = len(payload)
        self.last: ExtendedSequenceNumber | None = payload.last if payload else None
        self.data_bytes = payload.data_bytes
        self._line: bytes | None = payload.line(millis_behind_latest)
        self.size_bytes = len(self._line)
        self._on_release = on_release

    def take_line(self) -> bytes:
        """The line `processRecords`, for the one who writes it; AssertionError the second time."""
        line, self._line = self._line, None
        assert line is not None, "a line is written once"
        return line

    def release(self) -> None:
        """The line has been written, or nobody wants it any more. Again: no effect."""
        self._line = None
        on_release, self._on_release = self._on_release, None
        if on_release is not None:
            on_release()


def arrived_s(payload: Payload, behind_ms: int | None, clock: Clock) -> float | None:
    """When the oldest of these records came to the stream, in monotonic seconds, never later than now; None: no record.

    By its arrival time. Where Kinesis says that the last record is further behind the tip than the first one is old, our
    wall clock is slow, and what Kinesis says counts.
    """
    if not payload:
        return None
    told_ms = payload.records[0].approximate_arrival_timestamp
    age_ms = 0 if told_ms is None else clock.wall_ms() - told_ms
    return clock.monotonic() - max(age_ms, behind_ms or 0, 0) / 1000


@dataclass(frozen=True, slots=True)
class EndOfShard:
    """Nothing more will come. `children` is empty where the shard or stream was deleted under us."""

    children: tuple[ChildShard, ...]


class ShardReader(Protocol):
    """Reads a shard ahead of its child; used once, and by one taker."""

    @property
    def trouble(self) -> str | None:
        """Why nothing comes, None where all is well."""
        ...

    @property
    def oldest_s(self) -> float | None:
        """When the oldest record that was read and not taken came to the stream, in monotonic seconds; None: there is none."""
        ...

    async def run(self) -> None:
        """Read until the end of the shard; returns then. Beside `next`; may be cancelled."""
        ...

    async def next(self) -> DeliveryBatch | EndOfShard:
        """The next batch, waiting for it; a cancelled call takes nothing. Whoever takes a batch releases it."""
        ...

    def close(self) -> None:
        """Give up what has not been taken."""
        ...
