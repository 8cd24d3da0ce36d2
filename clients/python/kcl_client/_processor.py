"""What a record processor is handed: records, batches of them, and where its shard starts.

Owns the friendly view of the protocol's values: bytes for base64, aware times for epoch milliseconds. Knows nothing of
how the values arrive (`dialogue`) or of checkpoints (`checkpointer`).

The bridge that lets the plain form share the async form's rules: coroutines that never wait, run to their end.

Owns that one trick. `session` is written once, with `await`; over a `PlainRuntime` every await blocks the thread in place
of suspending, so its coroutines can be driven without an event loop.

How a record processor says how far it has come, in the plain and in the async form.

Owns what the user calls. The rules (when a checkpoint is possible, what is repeated, what an answer means) are those of
`session`, which hands its `store` to the constructor.

The two classes a user derives from: `RecordProcessor` and, with `async def`, `AsyncRecordProcessor`.

Owns the interface and its defaults. Each process has one processor for one shard, and one method runs at a time. An
exception that leaves a method ends the process without reporting the action as done, so that no record is skipped: the
daemon starts a new process at the last checkpoint.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from binascii import a2b_base64
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from threading import Lock
from types import MappingProxyType
from typing import ClassVar, Final, TypeVar, cast

from kcl_protocol import messages
from kcl_protocol.messages import CheckpointRequest, RecordSchema
from kcl_protocol.sequence import ExtendedSequenceNumber

T = TypeVar("T")


def complete(steps: Coroutine[object, object, T]) -> T:
    """Run a coroutine that never suspends; its result or its exception is the caller's."""
    try:
        steps.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    steps.close()
    raise AssertionError("a coroutine of the plain form must not suspend")


class PlainTurn:
    """A thread lock in the shape of an async context manager."""

    def __init__(self) -> None:
        self._lock = Lock()

    async def __aenter__(self) -> None:
        self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()


class PlainRuntime:
    """A `session.Runtime` whose every await blocks the calling thread.

    Args:
        read: the daemon's next bytes, b"" once it has closed.
        write: sends bytes, all of them; ConnectionError once the daemon is gone.
        sleep: waits that many seconds.
    """

    def __init__(
        self, read: Callable[[], bytes], write: Callable[[bytes], None], sleep: Callable[[float], None]
    ) -> None:
        self.turn = PlainTurn()
        self.write = write
        self._read = read
        self._sleep = sleep

    async def read(self) -> bytes:
        """The daemon's next bytes."""
        return self._read()

    async def sleep(self, seconds: float) -> None:
        """Block for that long."""
        self._sleep(seconds)

    async def finish(self, steps: Coroutine[object, object, T]) -> T:
        """Run the steps; nothing can cancel them here."""
        return await steps


Scalar = str | int | float | bool | None
JsonValue = dict[str, "JsonValue"] | list["JsonValue"] | Scalar

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NOTHING: Final[Mapping[str, Scalar]] = MappingProxyType({})


class Record:
    """One user record. Its payload is decoded at the first look at `data`, so that skipping a record costs little."""

    __slots__ = ("_data", "_wire")

    def __init__(self, wire: messages.Record) -> None:
        self._wire = wire
        self._data: bytes | None = None

    def __repr__(self) -> str:
        return f"Record(position={self.position}, partition_key={self.partition_key!r})"

    @property
    def data(self) -> bytes:
        """The payload as the producer put it.

        Raises:
            ValueError: what arrived is not base64 (binascii.Error).
        """
        if self._data is None:
            self._data = a2b_base64(self._wire.data, strict_mode=True)
        return self._data

    def text(self, encoding: str = "utf-8") -> str:
        """The payload as text.

        Raises:
            UnicodeDecodeError: it is not text of that encoding.
        """
        return self.data.decode(encoding)

    def json(self) -> JsonValue:
        """The payload as JSON.

        Raises:
            ValueError: it is not JSON (json.JSONDecodeError).
        """
        return cast("JsonValue", json.loads(self.data))

    @property
    def partition_key(self) -> str:
        """The key that chose the shard."""
        return self._wire.partition_key

    @property
    def sequence_number(self) -> str:
        """Decimal digits; shared by all user records of one KPL aggregate."""
        return self._wire.sequence_number

    @property
    def sub_sequence_number(self) -> int:
        """The place inside a KPL aggregate, 0 for a plain record."""
        return self._wire.sub_sequence_number

    @property
    def position(self) -> ExtendedSequenceNumber:
        """Both numbers together: what a checkpoint takes, and what sorts records of one shard."""
        return ExtendedSequenceNumber(self._wire.sequence_number, self._wire.sub_sequence_number)

    @property
    def schema(self) -> RecordSchema | None:
        """The schema that it was written with, where the daemon asks a registry; `kcl_client.schemas` decodes by it."""
        return self._wire.schema

    @property
    def arrival_ms(self) -> int | None:
        """When the stream took the record, in epoch milliseconds; approximate, and None where it was not told."""
        return self._wire.approximate_arrival_timestamp

    @property
    def arrival(self) -> datetime | None:
        """`arrival_ms` as a time in UTC."""
        moment_ms = self.arrival_ms
        return None if moment_ms is None else _EPOCH + timedelta(milliseconds=moment_ms)


@dataclass(frozen=True, slots=True)
class Batch:
    """Records in the order of their shard; iterating over the batch is iterating over them.

    Args:
        records: may be empty where the daemon is set to call for empty batches.
        millis_behind_latest: how far behind the tip of the shard Kinesis saw this batch; None where not told.
    """

    records: tuple[Record, ...]
    millis_behind_latest: int | None = None

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)


@dataclass(frozen=True, slots=True)
class ShardStart:
    """Which shard this process is for, and where its records will start.

    Args:
        shard_id: such as `shardId-000000000007`.
        sequence_number: the lease's checkpoint: records up to and including it are done. A sentinel such as
            TRIM_HORIZON on a shard that was never checkpointed; None where the daemon had nothing to tell.
        extra: further scalar fields of the daemon's `initialize`, by their wire names.
    """

    shard_id: str
    sequence_number: ExtendedSequenceNumber | None
    extra: Mapping[str, Scalar] = field(default_factory=lambda: _NOTHING)


Position = Record | ExtendedSequenceNumber
Store = Callable[[CheckpointRequest, int], Coroutine[object, object, None]]

CHECKPOINT_ATTEMPTS: Final = 5
"""Tries of one checkpoint, the first one included."""
FIRST_BACKOFF_S: Final = 0.5
"""Wait before the second try, doubled before each further one: 7.5 s in all with five attempts."""


class Checkpointer:
    """Stores positions for a `RecordProcessor`; one object for the whole life of the shard.

    It works inside `process_records`, `shard_ended` and `shutdown_requested`, from any thread, one at a time. A
    position may be kept and checkpointed in a later call.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    def checkpoint(self, position: Position | None = None, *, attempts: int = CHECKPOINT_ATTEMPTS) -> None:
        """Record that everything up to and including a position is done; returns once it is stored.

        Args:
            position: a record or the position of one. None means everything delivered so far, **the whole batch in
                hand included**, done or not; in `shard_ended` it means the end of the shard.
            attempts: how often a throttled or failed write is tried, with a wait of 0.5 s that doubles.

        Raises:
            CheckpointShutdown: the lease is no longer held, or the daemon has gone: nothing can be stored any more. If
                it leaves the processor uncaught the action just ends; it does not count as a failure.
            CheckpointInvalidState: not possible now: outside an action, in `initialize` or in `lease_lost`.
            CheckpointIllegalArgument: the position is before the last checkpoint or beyond what was delivered.
            CheckpointError: any other refusal; CheckpointThrottled and CheckpointDependencyFailed after the last try.
        """
        complete(self._store(request_for(position), attempts))


class AsyncCheckpointer:
    """Stores positions for an `AsyncRecordProcessor`; may be shared by tasks, which then take turns.

    It works while `process_records`, `shard_ended` or `shutdown_requested` runs.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def checkpoint(
        self, position: Position | None = None, *, attempts: int = CHECKPOINT_ATTEMPTS
    ) -> None:
        """As `Checkpointer.checkpoint`.

        Cancelling it cancels the waiting and further tries; a request already sent may still be stored.
        """
        await self._store(request_for(position), attempts)


def request_for(position: Position | None) -> CheckpointRequest:
    """The protocol's request for a position; with None the daemon takes the largest one it delivered."""
    if position is None:
        return CheckpointRequest()
    if isinstance(position, Record):
        return CheckpointRequest(position.sequence_number, position.sub_sequence_number)
    return CheckpointRequest(str(position.sequence_number), position.sub_sequence_number)


class RecordProcessor(ABC):
    """Derive from it, give it `process_records`, and hand an instance to `kcl_client.run`.

    A processor that keeps records beyond `process_records` (buffers, background threads) must override
    `shutdown_requested` and `shard_ended`: their defaults take everything delivered as done.

    Attributes:
        checkpoint_at_shard_end: whether the end of the shard is checkpointed after `shard_ended` where that did not do
            it. Switched off, a `shard_ended` that does not checkpoint keeps the shard's child shards from starting.
    """

    checkpoint_at_shard_end: ClassVar[bool] = True

    def initialize(self, start: ShardStart) -> None:  # noqa: B027 - optional to override
        """Called once, before anything else. No checkpoint is possible here."""

    @abstractmethod
    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> None:
        """Called with each batch; the next one comes only after this returns."""

    def lease_lost(self) -> None:  # noqa: B027 - optional to override
        """Called last when another worker has the shard now: drop what is in hand, no checkpoint is possible."""

    def shard_ended(self, checkpointer: Checkpointer) -> None:  # noqa: B027 - optional to override
        """Called last when every record of the shard was delivered: finish what is in hand.

        The end of the shard is checkpointed after it (`checkpoint_at_shard_end`).
        """

    def shutdown_requested(self, checkpointer: Checkpointer) -> None:
        """Called when the worker stops or gives the lease away: the last chance to checkpoint.

        By default everything delivered is checkpointed, which is right where `process_records` returns with its records
        done.
        """
        checkpointer.checkpoint()


class AsyncRecordProcessor(ABC):
    """As `RecordProcessor`, with coroutines on one asyncio event loop.

    The loop keeps running between messages, so tasks started in `initialize` live until the process ends; they are
    cancelled then. Whatever blocks the loop in one place blocks it everywhere, as in every asyncio program.

    Attributes:
        checkpoint_at_shard_end: as in `RecordProcessor`.
    """

    checkpoint_at_shard_end: ClassVar[bool] = True

    async def initialize(self, start: ShardStart) -> None:  # noqa: B027 - optional to override
        """As `RecordProcessor.initialize`."""

    @abstractmethod
    async def process_records(self, batch: Batch, checkpointer: AsyncCheckpointer) -> None:
        """As `RecordProcessor.process_records`."""

    async def lease_lost(self) -> None:  # noqa: B027 - optional to override
        """As `RecordProcessor.lease_lost`."""

    async def shard_ended(self, checkpointer: AsyncCheckpointer) -> None:  # noqa: B027 - optional to override
        """As `RecordProcessor.shard_ended`."""

    async def shutdown_requested(self, checkpointer: AsyncCheckpointer) -> None:
        """As `RecordProcessor.shutdown_requested`."""
        await checkpointer.checkpoint()
