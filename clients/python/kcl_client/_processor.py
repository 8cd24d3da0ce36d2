from __future__ import annotations

import json
from abc import ABC, abstractmethod
from binascii import a2b_base64
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple, ParamSpec, Protocol, TypeVar, cast

from kcl_protocol import messages
from kcl_protocol.errors import RejectError
from kcl_protocol.frames import Frame
from kcl_protocol.messages import CheckpointRequest, RecordSchema, Reject, Scalar
from kcl_protocol.sequence import ExtendedSequenceNumber

if TYPE_CHECKING:
    import pyarrow

P = ParamSpec("P")
T = TypeVar("T")

JsonValue = dict[str, "JsonValue"] | list["JsonValue"] | Scalar

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NOTHING: Final[Mapping[str, Scalar]] = MappingProxyType({})
_REASON_CHARACTERS: Final = 4_000
_PAUSE_MOST_S: Final = 900  # the daemon cuts longer ones
_FAILURES: Final = "batchItemFailures"
_ATTEMPT_PAUSE_MOST_S: Final = 15.0  # below the daemon's shutdownGraceMillis
NAMED: Final = "named in batchItemFailures"
CHECKPOINT_ATTEMPTS: Final = 5
FIRST_BACKOFF_S: Final = 0.5
"""Doubles: 7.5 s in total for five attempts."""


def complete(steps: Coroutine[object, object, T]) -> T:
    try:
        steps.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    steps.close()
    raise AssertionError("a coroutine of the plain form must not suspend")


class PlainTurn:
    def __init__(self) -> None:
        self.lock = Lock()

    async def __aenter__(self) -> None:
        self.lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self.lock.release()


class PlainRuntime:
    """Every await blocks the calling thread."""

    def __init__(
        self, read: Callable[[], bytes], write: Callable[[bytes], None], sleep: Callable[[float], object]
    ) -> None:
        self.turn = PlainTurn()
        self.write = write
        self._read = read
        self._sleep = sleep

    async def call(self, method: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> object:
        result = method(*args, **kwargs)
        if isinstance(result, Awaitable):
            close = getattr(result, "close", None)
            if callable(close):
                close()  # otherwise Python would add its own warning to the error
            raise TypeError(
                f"{name_of(method)} must not be `async def`; for that derive from AsyncRecordProcessor"
            )
        return result

    async def read(self) -> bytes:
        return self._read()

    async def sleep(self, seconds: float) -> None:
        self._sleep(seconds)

    def at_once(self, step: Callable[[], None]) -> None:
        if self.turn.lock.acquire(blocking=False):
            try:
                step()
            finally:
                self.turn.lock.release()

    async def finish(self, steps: Coroutine[object, object, T]) -> T:
        return await steps


def name_of(method: object) -> str:
    return str(getattr(method, "__qualname__", method))


class Record:
    """One user record."""

    __slots__ = ("_data", "_wire")

    def __init__(self, wire: messages.Record) -> None:
        self._wire = wire
        self._data: bytes | None = None

    def __repr__(self) -> str:
        return f"Record(position={self.position}, partition_key={self.partition_key!r})"

    @property
    def data(self) -> bytes:
        """The payload as the producer sent it, decoded now; ValueError (binascii.Error) if it is not base64."""
        if self._data is None:
            self._data = a2b_base64(self._wire.data, strict_mode=True)
        return self._data

    def text(self, encoding: str = "utf-8") -> str:
        """The payload as text; UnicodeDecodeError if it does not have this encoding."""
        return self.data.decode(encoding)

    def json(self) -> JsonValue:
        """The payload as JSON; ValueError (json.JSONDecodeError) if it is none."""
        return cast("JsonValue", json.loads(self.data))

    @property
    def partition_key(self) -> str | None:
        """Chose the shard; None only on a stream with RecordDistributionStrategy AUTO."""
        return self._wire.partition_key

    @property
    def sequence_number(self) -> str:
        """Decimal digits; all user records of one KPL aggregate share the number."""
        return self._wire.sequence_number

    @property
    def sub_sequence_number(self) -> int:
        """The index inside a KPL aggregate, 0 for a plain record."""
        return self._wire.sub_sequence_number

    @property
    def position(self) -> ExtendedSequenceNumber:
        """Sorts the records of one shard, and can be checkpointed."""
        return ExtendedSequenceNumber(self.sequence_number, self.sub_sequence_number)

    @property
    def schema(self) -> RecordSchema | None:
        """From the daemon's registry; `kcl_client.schemas` decodes with it."""
        return self._wire.schema

    @property
    def arrival_ms(self) -> int | None:
        """Approximate arrival in Kinesis, epoch milliseconds."""
        return self._wire.approximate_arrival_timestamp

    @property
    def arrival(self) -> datetime | None:
        """`arrival_ms` in UTC."""
        moment_ms = self.arrival_ms
        return None if moment_ms is None else _EPOCH + timedelta(milliseconds=moment_ms)


class _FrameRecord(Record):
    """To keep one does not keep its batch."""

    __slots__ = ("arrival_ms", "data", "partition_key", "schema", "sequence_number", "sub_sequence_number")

    data: bytes
    partition_key: str | None
    sequence_number: str
    arrival_ms: int | None
    sub_sequence_number: int
    schema: RecordSchema | None

    def __init__(  # noqa: PLR0917 - called from C for each record
        self,
        data: bytes,
        partition_key: str | None,
        sequence_number: str,
        arrival_ms: int | None,
        sub_sequence_number: int,
        schema: RecordSchema | None,
    ) -> None:
        self.data = data  # pyright: ignore[reportIncompatibleMethodOverride]
        self.partition_key = partition_key  # pyright: ignore[reportIncompatibleMethodOverride]
        self.sequence_number = sequence_number  # pyright: ignore[reportIncompatibleMethodOverride]
        self.arrival_ms = arrival_ms  # pyright: ignore[reportIncompatibleMethodOverride]
        self.sub_sequence_number = sub_sequence_number  # pyright: ignore[reportIncompatibleMethodOverride]
        self.schema = schema  # pyright: ignore[reportIncompatibleMethodOverride]


class RejectRecord(Exception):
    """Raise it in `process_record` to reject the record; its text is the reason, as in `Batch.reject`.

    In `process_records` call `Batch.reject`. `concurrency` with rejects needs a daemon with a `deadLetterDestination`:
    then each batch is finished before it is answered.
    """


class Host(Protocol):
    def reject(self, record: Record, reason: object, /) -> None: ...

    def pause(self, seconds: float, /) -> None: ...


@dataclass(frozen=True, slots=True)
class Batch:
    """Records in shard order; iterate over the batch to get them. Empty if the daemon delivers empty batches.

    `millis_behind_latest` is None if unknown.
    """

    records: tuple[Record, ...]
    millis_behind_latest: int | None = None
    _frame: Frame | None = field(default=None, init=False, repr=False, compare=False)
    _host: Host | None = field(default=None, init=False, repr=False, compare=False)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records if self._frame is None else self._frame)

    def arrow(self) -> pyarrow.RecordBatch:  # pyright: ignore[reportUnknownParameterType] - it has no stubs
        """The records as an Arrow RecordBatch; without a copy where the daemon sends frames, as ours does.

        Columns: `data` (binary), `partition_key`, `sequence_number`, `sub_sequence_number` and
        `approximate_arrival_timestamp` (milliseconds, UTC; null if unknown). ImportError without pyarrow.
        """
        try:
            from kcl_protocol import arrow
        except ImportError as error:
            raise ImportError("Batch.arrow() needs pyarrow: pip install pyarrow", name=error.name) from error
        if self._frame is not None:
            return arrow.batch_of(arrow.arrays_of(self._frame))
        rows = (
            (one.data, one.partition_key, one.sequence_number, one.arrival_ms, one.sub_sequence_number, None)
            for one in self.records
        )
        return arrow.batch_of(arrow.arrays_of_rows(rows))

    def reject(self, record: Record, reason: object) -> None:
        """Give a record of this batch up: the daemon stores it as a dead letter, and it counts as done.

        Usable while `process_records` runs with this batch; from any thread, in an AsyncRecordProcessor from that of
        the event loop. It does not wait: a refusal is raised at the next checkpoint, or when `process_records` returns,
        as NoDeadLetterDestination, DeadLetterTooLarge, RecordNotInBatch or another RejectError. Uncaught, it ends the
        process, and the records come again.

        Args:
            record: one of this batch.
            reason: up to 4,000 characters of its text are in the letter.

        Raises:
            RejectError: the daemon takes no rejects (the Java daemon), or `process_records` does not run.
        """
        self._open_host().reject(record, reason)

    def pause(self, seconds: float) -> None:
        """Ask for no records for 0 to 900 seconds (else ValueError) once this batch is answered; the last call counts.

        Under a daemon that takes no pauses (the Java daemon) the client waits as long before it answers.
        """
        if not 0 <= seconds <= _PAUSE_MOST_S:
            raise ValueError(f"seconds must be from 0 to {_PAUSE_MOST_S}: {seconds}")
        self._open_host().pause(seconds)

    def only(self, records: Sequence[Record]) -> Batch:
        """With some of these records, which it can reject, too."""
        part = Batch(tuple(records), self.millis_behind_latest)
        object.__setattr__(part, "_host", self._host)
        return part

    def _open_host(self) -> Host:
        if self._host is None:
            raise RejectError(
                "this batch did not come from a daemon; kcl_client.testing.drive gives such ones"
            )
        return self._host

    def __reduce__(self) -> tuple[object, ...]:
        """A copy in another process has no daemon."""
        return type(self), (self.records, self.millis_behind_latest)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """The records of a frame are made when they are first looked at."""
            if name != "records" or self._frame is None:
                raise AttributeError(name)
            records = tuple(map(_FrameRecord, *self._frame.columns()))
            object.__setattr__(self, name, records)
            return records


def rejection_of(record: Record, reason: object) -> Reject:
    """A daemon drops lines of above 1 MiB; a letter must fit into a queue."""
    text = str(reason)
    short = text if len(text) <= _REASON_CHARACTERS else text[:_REASON_CHARACTERS] + "…"
    return Reject(record.sequence_number, record.sub_sequence_number, short)


def failed_records(result: object, batch: Batch) -> list[list[Record]] | None:
    """What each identifier in AWS Lambda's answer names, lowest first; None for another result.

    ValueError: an identifier is malformed or not in the batch, so the whole batch has failed.
    """
    if not isinstance(result, Mapping) or _FAILURES not in result:
        return None
    items = result[_FAILURES]
    if items is None:
        return []
    try:
        listed = items if isinstance(items, list | tuple) else (items,)
        named = {item["itemIdentifier"] for item in listed}
    except (KeyError, TypeError) as error:
        raise ValueError(
            f'{_FAILURES} must be a list of {{"itemIdentifier": "..."}}: {items!r:.200}'
        ) from error
    found: dict[str, list[Record]] = {}
    for record in batch:
        number = record.sequence_number
        for name in (number, f"{number}:{record.sub_sequence_number}"):
            if name in named:
                found.setdefault(name, []).append(record)
    if unknown := named - found.keys():
        raise ValueError(f"{_FAILURES} names what is not in the batch: {sorted(map(repr, unknown))!s:.200}")
    return list(found.values())


@dataclass(frozen=True, slots=True)
class ItemFailures:
    """What becomes of the records that an answer of AWS Lambda's form names (`batchItemFailures`).

    As in Lambda, all records from the lowest one on are delivered again: the others may not be processed at all.

    Args:
        attempts: deliveries of the lowest one before it is rejected. 0: the process ends, as after an exception,
            and the daemon's `poisonRecordPolicy` decides.
        exact: the named ones are rejected at once, and all others are done: for programs that try every record.
    """

    attempts: int = 3
    exact: bool = False

    def __post_init__(self) -> None:
        if self.attempts < 0:
            raise ValueError(f"attempts must be at least 0: {self.attempts}")


class Remainder(NamedTuple):
    """What to do after an answer, in this order.

    Attributes:
        before: may be checkpointed before anything is rejected; None: nothing new.
        fails: the process ends.
        rejected: records to give up.
        again: to deliver once `pause_s` are over; empty: the batch is done.
    """

    before: Record | None
    fails: bool
    rejected: Sequence[Record]
    again: Batch
    pause_s: float = 0.0

    @property
    def done(self) -> Record | None:
        return self.rejected[-1] if self.rejected else self.before

    def reject(self, batch: Batch) -> None:
        if self.fails:
            raise RuntimeError(f"record {self.again.records[0].position} is {NAMED}")
        for record in self.rejected:
            batch.reject(record, NAMED)


class Redelivery:
    def __init__(self, rule: ItemFailures) -> None:
        self._rule = rule
        self._lowest: ExtendedSequenceNumber | None = None
        self._attempts = 0
        self._pause_s = FIRST_BACKOFF_S

    def after(self, failed: Sequence[Sequence[Record]], batch: Batch) -> Remainder:
        if not failed:
            self._lowest = None
            return Remainder(None, False, (), batch.only(()))
        group, records = failed[0], batch.records
        index = records.index(group[0])
        before = records[index - 1] if index else None
        if self._rule.exact:
            named = {record.position: record for group in failed for record in group}
            return Remainder(before, False, [named[each] for each in sorted(named)], batch.only(()))
        if index or self._lowest is None:
            self._pause_s = FIRST_BACKOFF_S
        if group[0].position != self._lowest:
            self._lowest, self._attempts = group[0].position, 0
        self._attempts += 1
        if self._attempts == self._rule.attempts:
            return Remainder(before, False, group, batch.only(records[index + len(group) :]))
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * 2, _ATTEMPT_PAUSE_MOST_S)
        return Remainder(before, self._rule.attempts == 0, (), batch.only(records[index:]), pause_s)


def size_of(record: Record) -> int:
    return len(record.data if isinstance(record, _FrameRecord) else record._wire.data)  # noqa: SLF001 - ours


def batch_of(action: messages.ProcessRecords, host: Host | None = None) -> Batch:
    if isinstance(action.records, Frame):
        batch = object.__new__(Batch)
        object.__setattr__(batch, "millis_behind_latest", action.millis_behind_latest)
        object.__setattr__(batch, "_frame", action.records)
    else:
        batch = Batch(tuple(map(Record, action.records)), action.millis_behind_latest)
    object.__setattr__(batch, "_host", host)
    return batch


@dataclass(frozen=True, slots=True)
class ShardStart:
    """Which shard this process reads, and where it starts.

    Args:
        sequence_number: records up to this checkpoint of the lease are done. A sentinel such as TRIM_HORIZON if the
            shard was never checkpointed; None if the daemon sent no position.
        extra: further scalar fields of the daemon's `initialize` message.
    """

    shard_id: str
    sequence_number: ExtendedSequenceNumber | None
    extra: Mapping[str, Scalar] = field(default_factory=lambda: _NOTHING)


Position = Record | ExtendedSequenceNumber
Store = Callable[[CheckpointRequest | None, int], Coroutine[object, object, None]]


class Checkpointer:
    """Usable inside `process_records`, `shard_ended` and `shutdown_requested`, from any thread, one call at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def checkpoint(self, position: Position | None = None, *, attempts: int = CHECKPOINT_ATTEMPTS) -> None:
        """Record that everything up to and including a position is done. Returns once it is stored.

        Args:
            position: of this batch or an earlier one. None means everything delivered so far: **the whole current
                batch, processed or not**; in `shard_ended` the end of the shard.
            attempts: tries of a throttled or failed write, with a wait of 0.5 s that doubles.

        Raises:
            CheckpointShutdown: the lease is lost or the daemon has gone; nothing can be stored any more. If
                uncaught, the action just ends; this is not a failure.
            CheckpointInvalidState: not possible now: outside an action, in `initialize` or in `lease_lost`.
            CheckpointIllegalArgument: the position is before the last checkpoint or beyond the last delivered record.
            RejectError: the daemon refuses a rejected record, see `Batch.reject`; no checkpoint was asked for.
            CheckpointError: any other refusal; CheckpointThrottled and CheckpointDependencyFailed after the last try.
        """
        complete(self._store(request_for(position), attempts))

    def wait_for_letters(self) -> None:
        """For programs that store their position themselves: returns once all rejected records are dead letters.

        Raises as `checkpoint`, which waits for them, too.
        """
        complete(self._store(None, 1))


class AsyncCheckpointer:
    """As `Checkpointer`. Calls from several tasks run one after the other.

    Cancelling stops further attempts; a request already sent may still be stored.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def checkpoint(
        self, position: Position | None = None, *, attempts: int = CHECKPOINT_ATTEMPTS
    ) -> None:
        await self._store(request_for(position), attempts)

    async def wait_for_letters(self) -> None:
        await self._store(None, 1)


def request_for(position: Position | None) -> CheckpointRequest:
    if position is None:
        return CheckpointRequest()
    if isinstance(position, Record):
        return CheckpointRequest(position.sequence_number, position.sub_sequence_number)
    return CheckpointRequest(str(position.sequence_number), position.sub_sequence_number)


class RecordProcessor(ABC):
    """Derive from it, implement `process_records`, and pass an instance to `kcl_client.run`.

    One method runs at a time. A processor that keeps records after `process_records` returns must override
    `shutdown_requested` and `shard_ended`: their defaults treat everything delivered as done.

    Attributes:
        checkpoint_at_shard_end: the client checkpoints the end of the shard if `shard_ended` did not. If nothing
            checkpoints it, the child shards never start.
    """

    checkpoint_at_shard_end: ClassVar[bool] = True
    item_failures: ItemFailures = ItemFailures()

    def initialize(self, start: ShardStart) -> Position | None:  # noqa: ARG002 - optional to override
        """Called once, before anything else. No checkpoint is possible here.

        A program that stores its position with its output returns it: reading begins after it, and the checkpoint
        follows. None: the lease's checkpoint holds. Only kcl-daemon understands a position.
        """
        return None

    @abstractmethod
    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> Mapping[str, object] | None:
        """Called with each batch; the next one comes only after this returns.

        Returning AWS Lambda's `{"batchItemFailures": [{"itemIdentifier": sequence_number}]}` has Lambda's meaning: what
        is below the lowest of the numbers is done, and this is called again with the rest (`item_failures`). An empty
        list checkpoints the batch. A number names all user records of an aggregate; one of them is
        `"number:sub_sequence_number"`. Any other result has no effect.
        """

    def lease_lost(self) -> None:  # noqa: B027 - optional to override
        """Called last when another worker has the lease. No checkpoint is possible."""

    def shard_ended(self, checkpointer: Checkpointer) -> None:  # noqa: B027 - optional to override
        """Called last, when every record was delivered: finish the remaining work (see `checkpoint_at_shard_end`)."""

    def shutdown_requested(self, checkpointer: Checkpointer) -> None:
        """Called before a shutdown or a handoff of the lease: the last chance to checkpoint. By default it does."""
        checkpointer.checkpoint()


class AsyncRecordProcessor:
    """As `RecordProcessor`, with coroutines on one asyncio event loop.

    Implement `process_records`, or `process_record` to work on many records at once (see `run`). Tasks started in
    `initialize` run between messages too, and are cancelled when the process ends.
    """

    checkpoint_at_shard_end: ClassVar[bool] = True
    item_failures: ItemFailures = ItemFailures()

    async def initialize(self, start: ShardStart) -> Position | None:  # noqa: ARG002 - optional to override
        return None

    async def process_records(
        self, batch: Batch, checkpointer: AsyncCheckpointer
    ) -> Mapping[str, object] | None:
        raise NotImplementedError

    async def process_record(self, record: Record) -> None:
        """Called with each record, with up to `concurrency` of them at once. Once it returns, the record is done.

        RejectRecord gives the record up. No checkpoint is above a record that is not done. When the lease is lost,
        running calls are cancelled.
        """
        raise NotImplementedError

    async def lease_lost(self) -> None: ...

    async def shard_ended(self, checkpointer: AsyncCheckpointer) -> None: ...

    async def shutdown_requested(self, checkpointer: AsyncCheckpointer) -> None:
        await checkpointer.checkpoint()


def check_processor(processor: object, concurrency: int | None) -> None:
    if not isinstance(processor, RecordProcessor | AsyncRecordProcessor):
        raise TypeError(
            f"an instance of RecordProcessor or AsyncRecordProcessor is needed, not {processor!r}"
        )
    kind, single = type(processor), False
    if isinstance(processor, AsyncRecordProcessor):
        single = handles_single_records(processor)
        if single == (kind.process_records is not AsyncRecordProcessor.process_records):
            which = "both process_records and" if single else "neither process_records nor"
            raise TypeError(f"{kind.__qualname__} defines {which} process_record; define one of them")
    if concurrency is not None and not single:
        needed = "an AsyncRecordProcessor with `async def process_record(self, record)`"
        raise TypeError(f"concurrency needs {needed}; {kind.__qualname__} has none")


def handles_single_records(processor: AsyncRecordProcessor) -> bool:
    return type(processor).process_record is not AsyncRecordProcessor.process_record
