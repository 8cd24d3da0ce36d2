"""What is read, from where; batches on their way to a child; and what polling and fan-out readers share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import anyio

from kcl_daemon.context import WorkerContext
from kcl_daemon.errors import AwsError, StreamNotFound, Trimmed
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import Clock, IteratorKind, ReadFrom, StreamRef
from kcl_daemon.progress.flow import ShardFlow
from kcl_daemon.progress.invariants import Invariants
from kcl_daemon.progress.progress import LastFetch
from kcl_daemon.records.batch import Batch, ReadFacts
from kcl_daemon.records.batch_text import LINES, BatchEncoder, EncodedBatch
from kcl_daemon.records.payload import Payload, Split
from kcl_daemon.retrieval.byte_budget import ByteBudget, Reservation
from kcl_daemon.retrieval.distribution import Strays
from kcl_daemon.shards.lineage import ChildShard, created_ms, segment_of
from kcl_protocol.sequence import LATEST, TRIM_HORIZON, ExtendedSequenceNumber, Sentinel

if TYPE_CHECKING:
    from kcl_daemon.retrieval.stages import Opened, SkippedRecords

_CLOCK_MARGIN_S: Final = 30.0
# Our clock of Kinesis' time may be wrong by so much, and a record may be seen later than it arrived.
_LATE_MS: Final = 7_000
# A record has its date before it can be read, and the clocks of the service differ a little.
_UNREADABLE_MS: Final = 1_000
_SECOND_MS: Final = 1_000
QUIET_ANSWERS: Final = 10


@dataclass(slots=True)
class StartMemory:
    """Where a consumer began, while the lease still holds a sentinel.

    A shard started at LATEST has no position until its child checkpoints. If that child dies first, the next one must get the
    same records: it starts at the first record ever fetched or, if there was none, at the last iterator.

    Args:
        idle_until_s: nothing had arrived until then; epoch seconds by its clock.
        idle_after: nothing had arrived up to this sequence number (subscriptions).
        needed_since_ms: all that came since then must be read, as its parents were; epoch milliseconds (DynamoDB).
    """

    first_sequence_number: str | None = None
    idle_iterator: str | None = None
    idle_until_s: float | None = None
    idle_after: str | None = None
    subscribed_at_s: float | None = None
    needed_since_ms: int | None = None


def read_from(checkpoint: ExtendedSequenceNumber, memory: StartMemory, timestamp_s: float | None) -> ReadFrom:
    """KCL: IteratorBuilder. At the checkpointed record: more of its aggregate may follow. ValueError for SHARD_END."""
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
            # The table does not store the time, so workers must be configured alike.
            return (
                ReadFrom(IteratorKind.TRIM_HORIZON)
                if timestamp_s is None
                else ReadFrom(IteratorKind.AT_TIMESTAMP, timestamp_s=timestamp_s)
            )
        case Sentinel.LATEST if memory.idle_until_s is not None:
            # LATEST would skip records; the margin covers clock differences.
            return ReadFrom(IteratorKind.AT_TIMESTAMP, timestamp_s=memory.idle_until_s - _CLOCK_MARGIN_S)
        case Sentinel.LATEST:
            return ReadFrom(IteratorKind.LATEST)
        case _:
            return ReadFrom(IteratorKind.TRIM_HORIZON)


def has_been_trimmed(checkpoint: ExtendedSequenceNumber, first_sequence_number: str) -> bool:
    """Reading starts at the checkpointed record; if that is gone, Kinesis silently starts with the oldest one."""
    return not checkpoint.is_sentinel and int(first_sequence_number) > int(checkpoint.sequence_number)


_LOSS_PAUSE_S: Final = 60.0
_DYNAMODB_KEEPS_MS: Final = 24 * 3_600_000
_GOES_ON: Final = (
    "the checkpoint is older than the retention of the stream; reading continues at the oldest record, or with the child "
    "shards if there is none. Raise the retention, or find out why this shard was not read for so long"
)
_STOPS: Final = (
    "the checkpoint is older than the retention of the stream, and onTrimmed is `stop`: this shard is not read, nor are its "
    "child shards. Repair what its records should have changed, set onTrimmed = continue and start again; and find out why "
    "this shard was not read for so long"
)


@dataclass(frozen=True, slots=True)
class ShardSource:
    """What to read, from where; delivery resumes at the lease's `checkpoint`.

    All readers of one consumer share `memory`, `last_fetch` and `flow`. Without `stream_is_there` a shard not found counts as
    gone.

    Args:
        stages: after `Opened`.
        encoder: of the child.
        until_ms: end of a bounded run, epoch milliseconds.
        only: child shards with other names are left out; empty: none is.
        stops_at_loss: nothing is delivered after records were lost because they were too old.
        tells_complete: the child is a relay, and is told until when it has all records.
    """

    stream: StreamRef
    shard_id: ShardId
    checkpoint: ExtendedSequenceNumber
    timestamp_s: float | None
    memory: StartMemory
    split: Split | None = None
    skipped: SkippedRecords | None = None
    strays: Strays | None = None
    stages: tuple[Stage, ...] = ()
    stream_is_there: Callable[[], Awaitable[bool]] | None = None
    has_forgotten: Callable[[], Awaitable[bool]] | None = None
    last_fetch: LastFetch = field(default_factory=LastFetch)
    flow: ShardFlow = field(default_factory=ShardFlow)
    encoder: BatchEncoder = field(default_factory=partial(BatchEncoder, LINES))
    until_ms: int | None = None
    only: frozenset[str] = frozenset()
    invariants: Invariants = field(default_factory=Invariants)
    stops_at_loss: bool = False
    tells_complete: bool = False

    def tip_ms(self, asked_ms: int, quiet_ms: Sequence[int]) -> int | None:
        """Until when an answer at the tip, asked for then, tells of everything. None: nobody knows.

        DynamoDB may give empty answers before the tip, but hardly so many: what was there before the first of them would have
        come. `quiet_ms`: when the last empty ones in a row were asked for.
        """
        if self.stream.source.says_tip:
            return asked_ms
        return quiet_ms[0] if len(quiet_ms) >= QUIET_ANSWERS else None

    def complete_ms(
        self, tip_ms: int | None, behind_ms: int | None, last_ms: int | None = None
    ) -> int | None:
        """As of a `Batch`. `last_ms`: when its last record arrived.

        If the shard ends there, its children may have what came since; the empty answer after it tells of an end.
        """
        if not self.tells_complete or behind_ms != 0 or tip_ms is None:
            return None
        tip_ms = tip_ms if last_ms is None else min(tip_ms, last_ms)
        return tip_ms - self.stream.source.arrival_step_ms - _UNREADABLE_MS

    def bounded(self, batch: Batch, tip_ms: int | None, *, at_end: bool) -> tuple[Batch, bool]:
        """The records before `until_ms`, and whether the run ends here. As with `complete_ms`, after records it does not yet."""
        if self.until_ms is None:
            return batch, False
        before = batch.before(self.until_ms)
        if before is not batch:
            return before, True
        if at_end or batch or tip_ms is None:
            return batch, False
        return batch, self.is_beyond(batch.behind_ms, tip_ms)

    def is_beyond(self, behind_ms: int | None, asked_ms: int) -> bool:
        """Whether an answer that was asked for then told of everything before `until_ms`."""
        if self.until_ms is None or behind_ms is None:
            return False
        return asked_ms - behind_ms - _LATE_MS >= self.until_ms

    def end(self, children: tuple[ChildShard, ...]) -> EndOfShard:
        return EndOfShard(tuple(each for each in children if not self.only or each.shard_id in self.only))

    async def wait_out(self, clock: Clock, pause_s: float) -> None:
        """With many streams, until this one is back: a new one of the same name has its own leases."""
        await clock.sleep(pause_s)
        while self.stream.identity is not None and not await self._is_back():
            await clock.sleep(pause_s)

    async def has_lost_shard(self) -> bool:
        """Whether its own stream no longer has it; raises AwsError."""
        is_there = self.stream_is_there is None or await self.stream_is_there()
        return is_there and (self.has_forgotten is None or await self.has_forgotten())

    async def _is_back(self) -> bool:
        try:
            return self.stream_is_there is None or await self.stream_is_there()
        except AwsError:
            return False


INCONSISTENT_END: Final = "the answer has neither a way on nor child shards, or both"
"""Else the read is retried (KCL: DataRetrievalUtil)."""


class DeliveryBatch:
    """A batch on its way to the child, `encoded` or not yet; no record is at or before the checkpoint.

    It is taken once, so it uses no memory while the child works; what is told of it stays. `arrived_s` is the monotonic
    arrival of the first record, the last one came `span_s` later. `on_release` is called once.
    """

    def __init__(
        self,
        batch: Batch,
        on_release: Callable[[], None] | None = None,
        *,
        encoded: EncodedBatch | None = None,
    ) -> None:
        payload = batch.payload
        self.complete_ms = batch.complete_ms
        self.arrived_s = batch.arrived_s
        self.count = len(payload)
        self.last: ExtendedSequenceNumber | None = payload.last if payload else None
        self.first = payload.first if self.count > 1 else self.last
        self.data_bytes = payload.data_bytes
        self.span_s = payload.span_ms / 1000
        self._on_release = on_release
        self._contents: Batch | EncodedBatch | None = encoded or batch
        self.size_bytes = payload.size_bytes if encoded is None else len(encoded.data)

    def take_encoded(self, encoder: BatchEncoder, *, keep: bool = False) -> EncodedBatch:
        """Once, unless it was told to `keep` it."""
        contents = self._contents
        assert contents is not None, "a batch is written once"
        encoded = encoder.encode(contents) if isinstance(contents, Batch) else contents
        self._contents = encoded if keep else None
        return encoded

    def take(self) -> Batch:
        contents, self._contents = self._contents, None
        assert contents is not None, "it is taken once"
        return contents if isinstance(contents, Batch) else contents.decoded()

    def release(self) -> None:
        """A second call does nothing."""
        self._contents = None
        on_release, self._on_release = self._on_release, None
        if on_release is not None:
            on_release()


def waiting_in(items: Iterable[ReadItem | None]) -> tuple[int, int]:
    """Records, and bytes of their data."""
    records = data_bytes = 0
    for each in items:
        if isinstance(each, DeliveryBatch):
            records, data_bytes = records + each.count, data_bytes + each.data_bytes
    return records, data_bytes


@dataclass(frozen=True, slots=True)
class EndOfShard:
    """`children` is empty if the shard or its stream was deleted."""

    children: tuple[ChildShard, ...]


class ReachedBound(EndOfShard):
    """`runUntil`: the next record, if there is one, arrived at its bound or later."""


@dataclass(frozen=True, slots=True)
class Passed:
    """No record up to `position` is for the child, except those it was given before."""

    position: ExtendedSequenceNumber


ReadItem = DeliveryBatch | Passed | EndOfShard


class Parts(Protocol):
    """What a stage makes of one answer."""

    async def next(self) -> Batch | Passed | None:
        """In order; at the end what was passed after them; then None. If cancelled, the rest of the answer is lost."""
        ...


Stage = Callable[[Parts], Parts]


class ShardReader(Protocol):
    """Used once, by one taker."""

    @property
    def trouble(self) -> str | None:
        """None: nothing is wrong."""
        ...

    @property
    def oldest_s(self) -> float | None:
        """Monotonic arrival of the oldest record not taken."""
        ...

    @property
    def waiting(self) -> tuple[int, int]:
        """As `waiting_in`."""
        ...

    async def run(self) -> None:
        """Returns at the end of the shard. May be cancelled."""
        ...

    async def next(self) -> ReadItem:
        """The taker must release a batch. A cancelled call takes nothing."""
        ...

    def close(self) -> None:
        """Release everything not taken."""
        ...


class BufferedReader:
    """`context` has the log of the shard."""

    def __init__(self, source: ShardSource, context: WorkerContext, budget: ByteBudget) -> None:
        self._source = source
        self._context = context
        self._clock = context.clock
        self._log = context.log
        self._budget = budget
        self._invariants = source.invariants
        self._filled = anyio.Event()
        self._taken = anyio.Event()
        self._child_waits = False
        self._waits_since_s = 0.0
        self._opened: Opened | None = None
        self._last_sequence_number: str | None = None
        self._flow = source.flow
        self._last_fetch = source.last_fetch
        self._last_fetch.trouble, self._last_fetch.lost = None, False
        self._loss: str | None = None

    @property
    def trouble(self) -> str | None:
        return self._last_fetch.trouble

    @property
    def _handing_out_s(self) -> float | None:
        return None if self._opened is None else self._opened.oldest_s

    async def _wait_until_filled(self) -> None:
        self._filled = anyio.Event()
        self._child_waits, self._waits_since_s = True, self._clock.monotonic()
        self._budget.wake()
        self._taken.set()
        try:
            await self._filled.wait()
        finally:
            self._child_waits = False

    def _is_child_waiting(self) -> bool:
        return self._child_waits

    def _waited_s(self, since_s: float) -> float:
        """How long there was nothing to give since then; 0 while its child still has records."""
        return self._clock.monotonic() - max(since_s, self._waits_since_s) if self._child_waits else 0.0

    async def _reserve(self, size_bytes: int, holding: Reservation | None = None) -> Reservation:
        began_s = self._clock.monotonic()
        reservation = await self._budget.acquire(
            size_bytes, is_child_waiting=self._is_child_waiting, holding=holding, invariants=self._invariants
        )
        self._flow.memory_s += self._waited_s(began_s)
        return reservation

    def _batch(self, batch: Batch, reservation: Reservation) -> DeliveryBatch:
        found = DeliveryBatch(batch, reservation.release, encoded=self._source.encoder.ahead(batch))
        reservation.resize(found.size_bytes)
        return found

    def _whole(
        self, payload: Payload, behind_ms: int | None, tip_ms: int | None, *, at_end: bool, is_fresh: bool
    ) -> tuple[Batch, bool]:
        """An answer, and whether a bounded run ends with it. `is_fresh`: it tells of everything until it was asked for.

        No record arrived later than now. If `behind_ms`, which is about the end, makes the first record older than its date does,
        our wall clock is slow and `behind_ms` counts.
        """
        now_s, source = self._clock.monotonic(), self._source
        facts, last_ms = ReadFacts(now_s, None, behind_ms), None
        if payload:
            dated_ms, last_ms = payload.first_arrival_ms, payload.last_arrival_ms
            age_ms = 0 if dated_ms is None else self._clock.wall_ms() - dated_ms
            self._last_fetch.ahead_s = -age_ms / 1000 if age_ms < 0 else 0.0
            oldest_ms = max(age_ms, (behind_ms or 0) + payload.span_ms)
            facts = ReadFacts(now_s - oldest_ms / 1000, dated_ms, behind_ms)
        complete_ms = source.complete_ms(tip_ms, behind_ms, last_ms) if is_fresh else None
        return source.bounded(Batch(payload, facts, complete_ms), tip_ms, at_end=at_end)

    def _count(self, item: ReadItem) -> None:
        if isinstance(item, DeliveryBatch):
            self._flow.read_records += item.count
            self._flow.read_bytes += item.data_bytes

    def _remember_records(self, payload: Payload) -> None:
        """Raises Trimmed if the shard stops here."""
        memory, first, source = self._source.memory, payload.first.sequence_number, self._source
        in_stream, since = segment_of(source.shard_id) is None, source.checkpoint
        if since == LATEST and memory.first_sequence_number is not None:
            since = ExtendedSequenceNumber(memory.first_sequence_number)
        if in_stream and self._last_sequence_number is None and has_been_trimmed(since, first):
            self._tell_loss(payload)
            if source.stops_at_loss:
                raise Trimmed(f"the record at {source.checkpoint} is no longer there")
        self._last_sequence_number, self._loss = payload.last.sequence_number, None
        memory.idle_after = memory.idle_iterator = None
        if memory.first_sequence_number is None:
            memory.first_sequence_number = first
            if not in_stream:
                from kcl_daemon.shards.snapshot import beginning

                memory.first_sequence_number = beginning(first)

    def _require_whole(self, payload: Payload) -> None:
        """Raises Trimmed where a shard of DynamoDB that follows others stops, as its beginning may be lost."""
        source, since_ms = self._source, self._source.memory.needed_since_ms
        is_new = self._last_sequence_number is None and source.memory.first_sequence_number is None
        if since_ms is None or not is_new or source.checkpoint != TRIM_HORIZON:
            return
        if self._clock.wall_ms() - since_ms > _DYNAMODB_KEEPS_MS:
            self._tell_loss(payload)
            if source.stops_at_loss:
                raise Trimmed("the beginning of the shard is no longer there")

    def _tell_loss(
        self, oldest: Payload | None, error: str | None = None, *, nothing_left: bool = False
    ) -> None:
        """Once for each. `oldest` begins with the oldest record that is left; empty or None: not known."""
        if self._loss is not None:
            return
        source = self._source
        self._loss = lost_words(
            source.shard_id,
            self._last_sequence_number or str(source.checkpoint),
            oldest.first_arrival_ms if oldest else None,
            self._clock.wall_ms(),
            nothing_left=nothing_left,
        )
        log_event = self._log.error if source.stops_at_loss else self._log.warning
        log_event(
            "position_trimmed",
            checkpoint=str(source.checkpoint),
            first_sequence_number=oldest.first.sequence_number if oldest else None,
            lost=self._loss,
            error=error,
            advice=_STOPS if source.stops_at_loss else _GOES_ON,
        )

    async def _stand_still(self) -> None:
        self._last_fetch.trouble, self._last_fetch.lost = self._loss, True
        await self._source.wait_out(self._clock, _LOSS_PAUSE_S)

    async def _ends_gone(self, error: StreamNotFound) -> bool:
        """Whether the lease of a shard that its stream no longer has ends here."""
        source = self._source
        if not source.stops_at_loss and not source.stream.source.stops_at_loss:
            self._log.warning(
                "shard_not_found",
                error=str(error),
                advice="the stream no longer has this shard; the lease ends here",
            )
            return True
        self._tell_loss(None, str(error), nothing_left=True)
        if source.stops_at_loss:
            await self._stand_still()
        return not source.stops_at_loss


def lost_words(
    shard_id: ShardId, after: str, oldest_ms: int | None, now_ms: int, *, nothing_left: bool = False
) -> str:
    """At most, after the position `after`; how many records, nobody can tell. `oldest_ms`: of the oldest one left; None: not known."""
    begun_ms = created_ms(shard_id)
    begun = "" if begun_ms is None else f"; this shard began at {_shown(begun_ms, now_ms)}"
    if nothing_left:
        return f"all records after {after} that were not read: this shard has none left{begun}"
    if oldest_ms is None:
        return f"records after {after}; which is the oldest one left is not known{begun}"
    return (
        f"records after {after} that are older than {_shown(oldest_ms, now_ms)}, the oldest one left{begun}"
    )


def _shown(time_ms: int, now_ms: int) -> str:
    at = datetime.fromtimestamp(time_ms / _SECOND_MS, UTC)
    minutes = (now_ms - time_ms) / _SECOND_MS / 60
    age = f"{minutes / 60:.1f} h" if minutes >= 60 else f"{minutes:.0f} min"
    return f"{at:%Y-%m-%dT%H:%M:%SZ} ({age} ago)"
