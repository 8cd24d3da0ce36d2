"""The ports: all that the daemon wants of the world, as protocols.

Loops read and write through these only, so that the simulator can run the same object graph in virtual time. Adapters
translate the world's errors into `kcl_daemon.errors`; every port call may be cancelled at any await, in which case a
write may or may not have taken effect.

The port of enhanced fan-out; apart from `ports` only for its size.

The port for records that were set aside.

The port of schema registries: what the daemon wants to know of a schema. Beside `ports`, as fan-out is.

The port of figures: what loops count and time by it, and a silent one; apart from `ports` only for its size.

A call is a look-up and an addition, so that it may stand in the record path, for each batch; never for each record.

The port for what a daemon leaves behind on its host for the next one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Final, Protocol, Self

from anyio import CancelScope

from kcl_daemon.leases.expiry import ProcessObservation, ProcessRecord
from kcl_daemon.leases.lease import ShardId, StreamIdentity, WorkerId
from kcl_daemon.leases.row import Conditions, Row, RowPart, RowUpdate, WriteResult
from kcl_daemon.metrics.metric import Metric, Operation
from kcl_daemon.records.dead_letter import DeadLetter
from kcl_daemon.records.payload import Payload
from kcl_daemon.shards.lineage import ChildShard, InitialPosition, Shard
from kcl_protocol.messages import Record


class Log(Protocol):
    """A structured logger with fields bound to it; events are short snake_case phrases, all else is fields."""

    def bind(self, **fields: object) -> Log:
        """The same logger with more fields."""
        ...

    def debug(self, event: str, /, **fields: object) -> object:
        """For those who look into one shard or one call."""
        ...

    def info(self, event: str, /, **fields: object) -> object:
        """Something normal that an operator may want to know."""
        ...

    def warning(self, event: str, /, **fields: object) -> object:
        """Something that the daemon handles by itself but that should not go on."""
        ...

    def error(self, event: str, /, **fields: object) -> object:
        """Somebody must act; the fields say on what."""
        ...


class Clock(Protocol):
    """Time as this worker sees it. Simulated workers have skewed and drifting ones."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back. For all durations and expiries."""
        ...

    def wall_ms(self) -> int:
        """Epoch milliseconds. Only for what other machines read; may jump."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait that long by `monotonic`."""
        ...

    def move_on_after(self, seconds: float | None) -> CancelScope:
        """A scope that is cancelled after that long by `monotonic`; None: never."""
        ...


class Randomness(Protocol):
    """All chance. Seeded in the simulator."""

    def uniform(self, low: float, high: float) -> float:
        """A number between the two."""
        ...

    def token(self) -> str:
        """A fresh random UUID as text."""
        ...


@dataclass(frozen=True, slots=True)
class StreamRef:
    """How a stream is named in calls: by ARN where one is known (it may be another account's), else by name.

    Args:
        name: its name.
        arn: its ARN.
        identity: which of many streams it is; None: there is one only.
    """

    name: str
    arn: str | None = None
    identity: StreamIdentity | None = None


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """What DescribeStreamSummary tells."""

    name: str
    arn: str
    status: str
    creation_time_s: float


class IteratorKind(Enum):
    """ShardIteratorType."""

    AT_SEQUENCE_NUMBER = "AT_SEQUENCE_NUMBER"
    AFTER_SEQUENCE_NUMBER = "AFTER_SEQUENCE_NUMBER"
    TRIM_HORIZON = "TRIM_HORIZON"
    LATEST = "LATEST"
    AT_TIMESTAMP = "AT_TIMESTAMP"


@dataclass(frozen=True, slots=True)
class ReadFrom:
    """Where a shard iterator points: a sequence number, or a timestamp in epoch seconds, as the kind asks."""

    kind: IteratorKind
    sequence_number: str | None = None
    timestamp_s: float | None = None


@dataclass(frozen=True, slots=True)
class FetchedRecords:
    """One answer of GetRecords.

    Args:
        payload: the records, in order, undecoded.
        next_iterator: None at the end of a closed shard.
        millis_behind_latest: None where the service did not tell.
        child_shards: only at the end of a closed shard.
    """

    payload: Payload
    next_iterator: str | None
    millis_behind_latest: int | None
    child_shards: tuple[ChildShard, ...]

    @property
    def records(self) -> Sequence[Record]:
        """The records decoded, for tools and tests; slow. `data` is base64 text."""
        return self.payload.decoded()


class Kinesis(Protocol):
    """Kinesis Data Streams, the calls a consumer needs.

    Every call may raise Throttled, Unavailable, AccessDenied, InvalidRequest or StreamNotFound.
    """

    async def describe_stream(self, stream: StreamRef) -> StreamSummary:
        """DescribeStreamSummary."""
        ...

    async def list_streams(self) -> tuple[StreamSummary, ...]:
        """Every page of ListStreams: the streams of the account, in the region."""
        ...

    async def list_shards(self, stream: StreamRef, start: InitialPosition | None = None) -> tuple[Shard, ...]:
        """Every page of ListShards; with `start` only the shards that are open at that position."""
        ...

    async def get_shard_iterator(self, stream: StreamRef, shard_id: ShardId, read_from: ReadFrom) -> str:
        """GetShardIterator."""
        ...

    async def get_records(
        self, stream: StreamRef, shard_id: ShardId, iterator: str, limit: int
    ) -> FetchedRecords:
        """GetRecords; also raises IteratorExpired."""
        ...


class IndexState(Enum):
    """How far the index by lease owner is."""

    ABSENT = "absent"
    BUILDING = "building"
    ACTIVE = "active"


@dataclass(frozen=True, slots=True)
class TableState:
    """What a table is like now.

    Args:
        owner_index: of the index by lease owner.
        differences: in words, what the settings ask of a new table and this one is not; it stays as it is.
    """

    owner_index: IndexState = IndexState.ABSENT
    differences: tuple[str, ...] = ()


class Table(Protocol):
    """One DynamoDB table of rows with a string key.

    Every call may raise Throttled, Unavailable, AccessDenied, InvalidRequest or TableNotFound. A write that raises
    Unavailable may have taken effect; one that raises anything else has not.
    """

    @property
    def name(self) -> str:
        """Its name in DynamoDB."""
        ...

    @property
    def key_attribute(self) -> str:
        """Name of the key attribute."""
        ...

    async def describe(self) -> TableState | None:
        """What is there; None where no such table exists."""
        ...

    async def ensure(self) -> bool:
        """Make sure that the table exists and can be used; True where this call created it.

        Nothing of a table that exists is altered. ConfigurationError where it is another kind of table.
        """
        ...

    async def add_owner_index(self) -> None:
        """Have the index by owner built, of a table that lacks it; returns before it is ready."""
        ...

    async def remove_owner_index(self) -> None:
        """Have the index by owner deleted; returns before it is gone. InvalidRequest where there is none."""
        ...

    async def enable_recovery(self) -> None:
        """Turn point-in-time recovery on; it may be on already. Unavailable where the table is too new for it."""
        ...

    async def get(self, key: str) -> Row | None:
        """The row, by a consistent read."""
        ...

    async def scan(self) -> list[Row]:
        """All rows, eventually consistent."""
        ...

    async def owned_keys(self, owner: str) -> list[str]:
        """Keys of the rows whose `leaseOwner` this is, from the index; a moment behind the table."""
        ...

    async def put(self, row: Row, require: Conditions = ()) -> WriteResult:
        """Write a whole row if all conditions hold for the row that is there."""
        ...

    async def update(self, update: RowUpdate) -> WriteResult:
        """Change a row if its conditions hold."""
        ...

    async def delete(self, key: str, require: Conditions = ()) -> WriteResult:
        """Remove a row if all conditions hold."""
        ...


@dataclass(frozen=True, slots=True)
class Tables:
    """Where an application keeps its rows: three tables (KCL 3.0 - 3.4), or the lease table alone (KCL 3.5).

    In the second layout `worker_metrics` and `coordinator` are views of the lease table: their rows are other rows of
    it, their key attribute is its own, and a scan of one gives only the rows of its kind.
    """

    leases: Table
    worker_metrics: Table
    coordinator: Table

    @property
    def share_one_table(self) -> bool:
        """Whether a scan of `leases` gives the worker rows as well, so that nobody need read them again."""
        return self.worker_metrics.name == self.leases.name


@dataclass(frozen=True, slots=True)
class TablePart:
    """One part of a transaction, and the table of its row."""

    table: Table
    what: RowPart


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What came of a transaction.

    Args:
        applied: whether all conditions held and everything took effect; otherwise nothing did.
        refused: the numbers of the parts whose conditions did not hold.
    """

    applied: bool
    refused: tuple[int, ...] = ()


class Transactions(Protocol):
    """Writes on several rows, also of several tables, of which all take effect or none."""

    async def commit(self, parts: Sequence[TablePart]) -> CommitResult:
        """Carry out up to a hundred parts on different rows at one moment.

        Errors as of a `Table`'s writes; InvalidRequest also for two parts on one row, for none and for too many.
        """
        ...


class Child(Protocol):
    """One running child process. Its stderr is passed through by the adapter."""

    @property
    def pid(self) -> int:
        """Process id."""
        ...

    async def send(self, line: bytes) -> None:
        """Write a whole line to its stdin; waits while the pipe is full. ChildExited when nobody reads it any more."""
        ...

    async def receive(self) -> bytes:
        """The next piece of its stdout; empty when it is closed."""
        ...

    @property
    def stderr_tail(self) -> tuple[str, ...]:
        """The last lines of its stderr, oldest first; complete once `wait` has returned."""
        ...

    async def close_stdin(self) -> None:
        """Tell it that nothing more will come; never raises."""
        ...

    async def wait(self) -> int:
        """Its exit code, negative for a signal, when it has ended and been reaped."""
        ...

    def terminate(self) -> None:
        """SIGTERM to it and what it started; no effect on an ended one."""
        ...

    def kill(self) -> None:
        """SIGKILL to it and what it started; no effect on an ended one."""
        ...

    async def aclose(self) -> None:
        """Kill it if it still runs, reap it and free its pipes; safe under cancellation."""
        ...


class Children(Protocol):
    """Starts children."""

    async def start(self, shard_id: ShardId, stream: StreamRef | None = None) -> Child:
        """Start the configured program for a shard, in its own session; ChildStartFailed says why not.

        Args:
            shard_id: the shard.
            stream: which of many; its environment tells it. None: there is one only.
        """
        ...


class Cpu(Protocol):
    """How busy the CPU is that this worker may use."""

    @property
    def name(self) -> str:
        """Where the figure comes from, for the log: `host`, `cgroup-v2`."""
        ...

    async def sample(self) -> float | None:
        """Percent, 0 to 100, since the last call; None where there is nothing to compare with, as on the first.

        Raises CpuUnreadable where this machine did not tell.
        """
        ...


@dataclass(frozen=True, slots=True)
class ConsumerName:
    """A consumer by its name; names are unique in a stream.

    Args:
        stream_arn: its stream.
        name: of the consumer.
    """

    stream_arn: str
    name: str


class ConsumerStatus(Enum):
    """ConsumerStatus."""

    CREATING = "CREATING"
    ACTIVE = "ACTIVE"
    DELETING = "DELETING"


@dataclass(frozen=True, slots=True)
class StreamConsumer:
    """What DescribeStreamConsumer and RegisterStreamConsumer tell."""

    arn: str
    status: ConsumerStatus


@dataclass(frozen=True, slots=True)
class PushedRecords:
    """One event of a subscription.

    Args:
        payload: the records, in order, undecoded.
        continuation: a later subscription after this sequence number misses nothing; None at the end of a closed
            shard.
        millis_behind_latest: None where the service did not tell.
        child_shards: only at the end of a closed shard.
    """

    payload: Payload
    continuation: str | None
    millis_behind_latest: int | None
    child_shards: tuple[ChildShard, ...]


class Subscription(Protocol):
    """A running SubscribeToShard."""

    async def next(self) -> PushedRecords | None:
        """The next event; None: the subscription has ended as it should, after about five minutes.

        Nothing more is read than what is asked for, so that who takes events slowly slows down the service, not more.
        May be cancelled; the subscription is to be left then.

        Raises:
            SubscriptionTaken: a later one took over.
            StreamNotFound: stream, shard or consumer were deleted.
            AwsError: it broke off, or nothing came for too long; another one may go on.
        """
        ...


class FanOut(Protocol):
    """Consumers with enhanced fan-out, and their subscriptions.

    Every call may raise Throttled, Unavailable, AccessDenied, InvalidRequest or StreamNotFound.
    """

    async def describe_consumer(self, consumer: ConsumerName | str) -> StreamConsumer | None:
        """DescribeStreamConsumer, by name or by ARN; None where there is none, or no such stream."""
        ...

    async def register_consumer(self, consumer: ConsumerName) -> StreamConsumer:
        """RegisterStreamConsumer.

        Also raises ConsumerLimitReached; Unavailable where there is one of that name already.
        """
        ...

    def subscribe(
        self, stream: StreamRef, consumer_arn: str, shard_id: ShardId, read_from: ReadFrom
    ) -> AbstractAsyncContextManager[Subscription]:
        """SubscribeToShard; the subscription lasts no longer than the context is open.

        Also raises SubscriptionTaken, when the context is entered: the one before it is less than five seconds old.

        Args:
            stream: that of the consumer. The service knows it by the ARN; here it tells which of many is read.
            consumer_arn: who subscribes.
            shard_id: to what.
            read_from: where it begins.
        """
        ...


class DeadLetters(Protocol):
    """A place that keeps records which no child could process."""

    async def store(self, dead_letter: DeadLetter) -> None:
        """Store one; it is safe when this returns: on disk, or taken by the service.

        Cancelled, it may have been stored. A second one of the same record does no harm.

        Raises:
            AwsError: the service did not take it; InvalidRequest where it never will, such as a letter too large.
            DeadLetterNotStored: this host could not write it.
        """
        ...


@dataclass(frozen=True, slots=True)
class Schema:
    """One version of a schema; never altered once it is registered.

    Args:
        version_id: of the version, a UUID in lower case.
        name: of the schema.
        data_format: `AVRO`, `JSON` or `PROTOBUF`.
        definition: its text.
    """

    version_id: str
    name: str
    data_format: str
    definition: str


class Schemas(Protocol):
    """A schema registry."""

    async def schema(self, version_id: str) -> Schema:
        """A version, asked for anew each time. Cancelled: nothing has happened.

        Raises:
            SchemaNotFound: there is no such version.
            AwsError: the registry did not tell.
        """
        ...


class Span(Protocol):
    """An operation under way, as a context. It succeeds unless an error comes out of it, or `failed` was called.

    What is cancelled is not counted.
    """

    def __enter__(self) -> Self:
        """It begins."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """It ends; the error goes on."""
        ...

    def failed(self) -> None:
        """It has failed, though no error comes out of it."""
        ...


class Meters(Protocol):
    """Takes figures; never raises, never waits."""

    def add(self, metric: Metric, value: float = 1.0, /, **labels: str) -> None:
        """A value: seconds for times, bytes, or a number; a gauge is set, all else is added up.

        Args:
            metric: of the list.
            value: in the metric's unit.
            labels: those that the metric has; one that does not apply is left out.
        """
        ...

    def operation(self, operation: Operation, /, **labels: str) -> Span:
        """Time an operation and count how it ends."""
        ...

    def done(self, operation: Operation, seconds: float, ok: bool = True, /, **labels: str) -> None:
        """An operation that somebody else has timed."""
        ...


class _SilentSpan:
    """A span that nobody hears of; one for all."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def failed(self) -> None:
        """Nobody hears of it."""


_SILENCE: Final = _SilentSpan()


class NoMeters:
    """Meters that count nothing."""

    def add(self, metric: Metric, value: float = 1.0, /, **labels: str) -> None:
        """Nothing."""

    def operation(self, operation: Operation, /, **labels: str) -> Span:  # noqa: ARG002 - of the port
        """A span that nobody hears of."""
        return _SILENCE

    def done(self, operation: Operation, seconds: float, ok: bool = True, /, **labels: str) -> None:
        """Nothing."""


NO_METERS: Final[Meters] = NoMeters()


@dataclass(frozen=True, slots=True)
class Statistic:
    """What came together of one metric since it was last told (CloudWatch: StatisticSet).

    Args:
        name: on CloudWatch.
        unit: on CloudWatch.
        dimensions: names and values.
        count: of values.
        total: their sum, in that unit.
        least: the smallest.
        most: the largest.
    """

    name: str
    unit: str
    dimensions: Mapping[str, str]
    count: int
    total: float
    least: float
    most: float


class CloudWatch(Protocol):
    """Where figures are told to."""

    async def put(self, namespace: str, statistics: Sequence[Statistic]) -> None:
        """PutMetricData, once; a call that fails may have taken effect.

        Raises:
            AwsError: it failed.
        """
        ...


@dataclass(frozen=True, slots=True)
class LeftoverRecord:
    """A record of another process in the state folder.

    Args:
        name: of the record, in the folder.
        record: what it says.
        seen: what this host shows of that process, now.
    """

    name: str
    record: ProcessRecord
    seen: ProcessObservation


class StateFolder(Protocol):
    """The records of the daemons of one application that share a folder. No method raises: what fails is logged.

    A method that is cancelled may have taken effect.
    """

    async def enter(self, worker_id: WorkerId, incarnation: str) -> None:
        """Write the record of this process and hold its lock from now on."""
        ...

    async def poll(self) -> tuple[LeftoverRecord, ...]:
        """The records of all others. A lock that is free is ours until `forget`, `leave_alone` or the end."""
        ...

    async def forget(self, name: str) -> None:
        """Remove a record: nothing is left to be done for it."""
        ...

    async def leave_alone(self, name: str) -> None:
        """Keep a record and let go of its lock."""
        ...

    async def leave(self) -> None:
        """Remove the record of this process: it has given everything up."""
        ...
