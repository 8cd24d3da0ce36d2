"""The ports: everything the daemon needs from outside, as protocols.

Loops use only these, so the simulator runs the same object graph in virtual time. Adapters raise the errors
of `kcl_daemon.errors`. Any call may be cancelled at an await; a cancelled write may have taken effect.
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
    """A structured logger. Events are short snake_case phrases; everything else is a field."""

    def bind(self, **fields: object) -> Log: ...

    def debug(self, event: str, /, **fields: object) -> object: ...

    def info(self, event: str, /, **fields: object) -> object: ...

    def warning(self, event: str, /, **fields: object) -> object:
        """For what the daemon handles itself but that should not last."""
        ...

    def error(self, event: str, /, **fields: object) -> object:
        """For what a person must act on; the fields say how."""
        ...


class Clock(Protocol):
    """Time as this worker sees it. Simulated workers have clocks that are skewed and drift."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back. Use it for durations and expiries."""
        ...

    def wall_ms(self) -> int:
        """Epoch milliseconds; may jump. Use it only for what other machines read."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    def move_on_after(self, seconds: float | None) -> CancelScope:
        """A scope that is cancelled after that many seconds; None: never."""
        ...


class Randomness(Protocol):
    """All randomness; the simulator seeds it."""

    def uniform(self, low: float, high: float) -> float: ...

    def token(self) -> str:
        """A random UUID as text."""
        ...


@dataclass(frozen=True, slots=True)
class StreamRef:
    """A stream in a call: by ARN if known (it may be in another account), else by name.

    Args:
        identity: which stream of many; None: there is only one.
    """

    name: str
    arn: str | None = None
    identity: StreamIdentity | None = None


@dataclass(frozen=True, slots=True)
class StreamSummary:
    name: str
    arn: str
    status: str
    creation_time_s: float


class IteratorKind(Enum):
    AT_SEQUENCE_NUMBER = "AT_SEQUENCE_NUMBER"
    AFTER_SEQUENCE_NUMBER = "AFTER_SEQUENCE_NUMBER"
    TRIM_HORIZON = "TRIM_HORIZON"
    LATEST = "LATEST"
    AT_TIMESTAMP = "AT_TIMESTAMP"


@dataclass(frozen=True, slots=True)
class ReadFrom:
    """Where a shard iterator starts; the kind says which of the two fields is set."""

    kind: IteratorKind
    sequence_number: str | None = None
    timestamp_s: float | None = None


@dataclass(frozen=True, slots=True)
class FetchedRecords:
    """One answer of GetRecords.

    Args:
        payload: records in order, not decoded.
        next_iterator: None at the end of a closed shard.
        millis_behind_latest: None if the service did not say.
        child_shards: only at the end of a closed shard.
    """

    payload: Payload
    next_iterator: str | None
    millis_behind_latest: int | None
    child_shards: tuple[ChildShard, ...]

    @property
    def records(self) -> Sequence[Record]:
        """The records decoded, `data` as base64 text; slow, for tools and tests."""
        return self.payload.decoded()


class Kinesis(Protocol):
    """The Kinesis Data Streams calls of a consumer.

    Every call may raise Throttled, Unavailable, AccessDenied, InvalidRequest or StreamNotFound.
    """

    async def describe_stream(self, stream: StreamRef) -> StreamSummary: ...

    async def list_streams(self) -> tuple[StreamSummary, ...]:
        """Every page of ListStreams."""
        ...

    async def list_shards(self, stream: StreamRef, start: InitialPosition | None = None) -> tuple[Shard, ...]:
        """Every page of ListShards; with `start`, only the shards open at that position."""
        ...

    async def get_shard_iterator(self, stream: StreamRef, shard_id: ShardId, read_from: ReadFrom) -> str: ...

    async def get_records(
        self, stream: StreamRef, shard_id: ShardId, iterator: str, limit: int
    ) -> FetchedRecords:
        """Also raises IteratorExpired."""
        ...


class IndexState(Enum):
    ABSENT = "absent"
    BUILDING = "building"
    ACTIVE = "active"


@dataclass(frozen=True, slots=True)
class TableState:
    """`differences` lists in words how the table differs from what the settings ask of a new one."""

    owner_index: IndexState = IndexState.ABSENT
    differences: tuple[str, ...] = ()


class Table(Protocol):
    """One DynamoDB table of rows with a string key.

    Every call may raise Throttled, Unavailable, AccessDenied, InvalidRequest or TableNotFound. A write that
    raises Unavailable may have taken effect; one that raises another error has not.
    """

    @property
    def name(self) -> str: ...

    @property
    def key_attribute(self) -> str: ...

    async def describe(self) -> TableState | None:
        """None if the table does not exist."""
        ...

    async def ensure(self) -> bool:
        """Create the table if it is missing; True if this call created it.

        Never alters an existing table. Raises ConfigurationError if it is another kind of table.
        """
        ...

    async def add_owner_index(self) -> None:
        """Start building the index by owner; returns before it is ready."""
        ...

    async def remove_owner_index(self) -> None:
        """Start deleting the index by owner; returns early. InvalidRequest if there is none."""
        ...

    async def enable_recovery(self) -> None:
        """Turn on point-in-time recovery. Unavailable if the table is too new."""
        ...

    async def get(self, key: str) -> Row | None:
        """By a consistent read."""
        ...

    async def scan(self) -> list[Row]:
        """All rows, eventually consistent."""
        ...

    async def owned_keys(self, owner: str) -> list[str]:
        """Keys of rows with this `leaseOwner`, from the index, which lags a little."""
        ...

    async def put(self, row: Row, require: Conditions = ()) -> WriteResult:
        """Write a whole row if all conditions hold for the stored one."""
        ...

    async def update(self, update: RowUpdate) -> WriteResult: ...

    async def delete(self, key: str, require: Conditions = ()) -> WriteResult: ...


@dataclass(frozen=True, slots=True)
class Tables:
    """An application's tables: three (KCL 3.0 - 3.4), or the lease table alone (KCL 3.5).

    With one table, `worker_metrics` and `coordinator` are views of it: a scan gives only rows of their kind.
    """

    leases: Table
    worker_metrics: Table
    coordinator: Table

    @property
    def share_one_table(self) -> bool:
        """Whether a scan of `leases` also gives the worker rows."""
        return self.worker_metrics.name == self.leases.name


@dataclass(frozen=True, slots=True)
class TablePart:
    table: Table
    what: RowPart


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of a transaction.

    Args:
        applied: all conditions held and every part took effect; otherwise none did.
        refused: indexes of the parts whose conditions failed.
    """

    applied: bool
    refused: tuple[int, ...] = ()


class Transactions(Protocol):
    """Writes to several rows, also of several tables: all take effect or none."""

    async def commit(self, parts: Sequence[TablePart]) -> CommitResult:
        """Commit up to 100 parts on different rows.

        Errors as for `Table` writes; InvalidRequest also for two parts on one row, no parts, or too many.
        """
        ...


class Child(Protocol):
    """A running child process. The adapter passes its stderr through."""

    @property
    def pid(self) -> int: ...

    async def send(self, line: bytes) -> None:
        """Write a line to its stdin; waits while the pipe is full. ChildExited if it is closed."""
        ...

    async def receive(self) -> bytes:
        """The next piece of its stdout; empty when closed."""
        ...

    @property
    def stderr_tail(self) -> tuple[str, ...]:
        """The last lines of its stderr, oldest first; complete once `wait` has returned."""
        ...

    async def close_stdin(self) -> None:
        """Close its stdin; never raises."""
        ...

    async def wait(self) -> int:
        """Its exit code once it has ended and been reaped; negative for a signal."""
        ...

    def terminate(self) -> None:
        """SIGTERM to it and what it started; no effect after its end."""
        ...

    def kill(self) -> None:
        """SIGKILL to it and what it started; no effect after its end."""
        ...

    async def aclose(self) -> None:
        """Kill it if it runs, reap it, free its pipes; safe under cancellation."""
        ...


class Children(Protocol):
    async def start(self, shard_id: ShardId, stream: StreamRef | None = None) -> Child:
        """Start the configured program for a shard in its own session, or raise ChildStartFailed.

        `stream` goes into its environment; None: there is only one.
        """
        ...


class Cpu(Protocol):
    """The load of the CPU that this worker may use."""

    @property
    def name(self) -> str:
        """The source, for the log: `host`, `cgroup-v2`."""
        ...

    async def sample(self) -> float | None:
        """Percent, 0 to 100, since the last call; None on the first call.

        Raises CpuUnreadable if the machine gives no figure.
        """
        ...


@dataclass(frozen=True, slots=True)
class ConsumerName:
    """A fan-out consumer; names are unique within a stream."""

    stream_arn: str
    name: str


class ConsumerStatus(Enum):
    CREATING = "CREATING"
    ACTIVE = "ACTIVE"
    DELETING = "DELETING"


@dataclass(frozen=True, slots=True)
class StreamConsumer:
    arn: str
    status: ConsumerStatus


@dataclass(frozen=True, slots=True)
class PushedRecords:
    """One event of a subscription.

    Args:
        payload: records in order, not decoded.
        continuation: subscribing after this sequence number misses nothing; None at the end of a closed
            shard.
        millis_behind_latest: None if the service did not say.
        child_shards: only at the end of a closed shard.
    """

    payload: Payload
    continuation: str | None
    millis_behind_latest: int | None
    child_shards: tuple[ChildShard, ...]


class Subscription(Protocol):
    async def next(self) -> PushedRecords | None:
        """The next event; None: the subscription ended normally, after about five minutes.

        Reads only what is asked for, so a slow caller slows the service down. Leave the subscription if this
        is cancelled.

        Raises:
            SubscriptionTaken: a later subscription took over.
            StreamNotFound: stream, shard or consumer were deleted.
            AwsError: it broke or was silent too long; a new one may work.
        """
        ...


class FanOut(Protocol):
    """Enhanced fan-out: consumers and subscriptions.

    Every call may raise Throttled, Unavailable, AccessDenied, InvalidRequest or StreamNotFound.
    """

    async def describe_consumer(self, consumer: ConsumerName | str) -> StreamConsumer | None:
        """None if there is no such consumer or stream. A str is an ARN."""
        ...

    async def register_consumer(self, consumer: ConsumerName) -> StreamConsumer:
        """Also raises ConsumerLimitReached; Unavailable if the name exists already."""
        ...

    def subscribe(
        self, stream: StreamRef, consumer_arn: str, shard_id: ShardId, read_from: ReadFrom
    ) -> AbstractAsyncContextManager[Subscription]:
        """SubscribeToShard; the subscription ends with the context.

        Entering also raises SubscriptionTaken if the previous one is less than five seconds old. The service
        uses `consumer_arn`; `stream` says which stream is read.
        """
        ...


class DeadLetters(Protocol):
    """Keeps records that no child could process."""

    async def store(self, dead_letter: DeadLetter) -> None:
        """Store one. On return it is safe: on disk, or accepted by the service.

        If cancelled, it may have been stored; storing it twice does no harm.

        Raises:
            AwsError: the service did not take it; InvalidRequest if it never will, such as when it is too
                large.
            DeadLetterNotStored: this host could not write it.
        """
        ...


@dataclass(frozen=True, slots=True)
class Schema:
    """One version of a schema; never altered once registered.

    Args:
        version_id: a UUID in lower case.
        data_format: `AVRO`, `JSON` or `PROTOBUF`.
    """

    version_id: str
    name: str
    data_format: str
    definition: str


class Schemas(Protocol):
    async def schema(self, version_id: str) -> Schema:
        """One version, not cached; cancelling has no effect on the registry.

        Raises:
            SchemaNotFound: there is no such version.
            AwsError: the registry did not answer.
        """
        ...


class Span(Protocol):
    """A timed operation, as a context.

    Fails if an error leaves it or `failed` is called; cancelled: not counted.
    """

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def failed(self) -> None: ...


class Meters(Protocol):
    """Takes figures; never raises or waits. Cheap enough to call per batch, not per record."""

    def add(self, metric: Metric, value: float = 1.0, /, **labels: str) -> None:
        """Set a gauge, or add to any other metric.

        `value` is in the metric's unit; leave out labels that do not apply.
        """
        ...

    def operation(self, operation: Operation, /, **labels: str) -> Span: ...

    def done(self, operation: Operation, seconds: float, ok: bool = True, /, **labels: str) -> None:
        """Count an operation that the caller timed."""
        ...


class _SilentSpan:
    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def failed(self) -> None: ...


_SILENCE: Final = _SilentSpan()


class NoMeters:
    def add(self, metric: Metric, value: float = 1.0, /, **labels: str) -> None: ...

    def operation(self, operation: Operation, /, **labels: str) -> Span:  # noqa: ARG002 - of the port
        return _SILENCE

    def done(self, operation: Operation, seconds: float, ok: bool = True, /, **labels: str) -> None: ...


NO_METERS: Final[Meters] = NoMeters()


@dataclass(frozen=True, slots=True)
class Statistic:
    """All values of one metric since the last publication (CloudWatch: StatisticSet)."""

    name: str
    unit: str
    dimensions: Mapping[str, str]
    count: int
    total: float
    least: float
    most: float


class CloudWatch(Protocol):
    async def put(self, namespace: str, statistics: Sequence[Statistic]) -> None:
        """PutMetricData, once; a failed call may have taken effect. Raises AwsError."""
        ...


@dataclass(frozen=True, slots=True)
class LeftoverRecord:
    """Another process' record in the state folder, and what this host shows of that process now."""

    name: str
    record: ProcessRecord
    seen: ProcessObservation


class StateFolder(Protocol):
    """The records of the daemons of one application on this host. Methods log errors and never raise.

    A cancelled method may have taken effect.
    """

    async def enter(self, worker_id: WorkerId, incarnation: str) -> None:
        """Write this process' record and hold its lock from now on."""
        ...

    async def poll(self) -> tuple[LeftoverRecord, ...]:
        """All other records. A free lock becomes ours until `forget`, `leave_alone` or the end."""
        ...

    async def forget(self, name: str) -> None:
        """Remove a record that needs no more work."""
        ...

    async def leave_alone(self, name: str) -> None:
        """Keep a record and release its lock."""
        ...

    async def leave(self) -> None:
        """Remove our record: every lease has been released."""
        ...
