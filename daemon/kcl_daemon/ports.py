"""What the daemon needs from outside: loops use only these.

Adapters raise the errors of `kcl_daemon.errors`. A call may be cancelled at any await; a cancelled write may have taken effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Final, Literal, Protocol, Self, runtime_checkable

from anyio import CancelScope

from kcl_daemon.errors import InvalidRequest
from kcl_daemon.leases.lease import ShardId, StreamIdentity
from kcl_daemon.leases.row import Conditions, Row, RowPart, RowUpdate, WriteResult
from kcl_daemon.metrics.metric import Metric, Operation
from kcl_daemon.records.dead_letter import DeadLetter
from kcl_daemon.records.payload import Payload
from kcl_daemon.shards.lineage import ChildShard, InitialPosition, Shard
from kcl_daemon.source import Source, source_of
from kcl_protocol.messages import Record

LogLevel = Literal["debug", "info", "warning", "error"]

# The words of people and of Python's logging.
_WORDS: Final[dict[str, LogLevel]] = {
    "all": "debug",
    "trace": "debug",
    "debug": "debug",
    "info": "info",
    "notice": "info",
    "warn": "warning",
    "warning": "warning",
    "error": "error",
    "critical": "error",
    "fatal": "error",
}


class Log(Protocol):
    """Events are short snake_case phrases; everything else is a field."""

    def bind(self, **fields: object) -> Log: ...

    def debug(self, event: str, /, **fields: object) -> object: ...

    def info(self, event: str, /, **fields: object) -> object: ...

    def warning(self, event: str, /, **fields: object) -> object:
        """The daemon handles it, but it should not last."""
        ...

    def error(self, event: str, /, **fields: object) -> object:
        """A person must act; the fields say how."""
        ...


class Clock(Protocol):
    """Time as this worker sees it; simulated clocks are skewed and drift. `move_on_after(None)` cancels nothing."""

    def monotonic(self) -> float: ...

    def wall_ms(self) -> int:
        """Epoch milliseconds, for what other machines read; may jump."""
        ...

    def passed_ms(self) -> int: ...

    async def sleep(self, seconds: float) -> None: ...

    def move_on_after(self, seconds: float | None) -> CancelScope: ...


class Randomness(Protocol):
    def uniform(self, low: float, high: float) -> float: ...

    def token(self) -> str: ...


@dataclass(frozen=True, slots=True)
class StreamRef:
    """By ARN if known, else by name. `identity` None: there is only one stream.

    `table`: the DynamoDB table whose streams are read, one after the other. The `name` of a DynamoDB stream is that of its lease
    keys, `REGION$ACCOUNT$TABLE$LABEL`.
    """

    name: str
    arn: str | None = None
    identity: StreamIdentity | None = None
    table: str | None = None

    @property
    def source(self) -> Source:
        return source_of(self.arn, self.table)

    @property
    def table_name(self) -> str:
        """Of a DynamoDB stream."""
        return self.table or (self.arn or "").split("/")[1]


@dataclass(frozen=True, slots=True)
class StreamSummary:
    name: str
    arn: str
    status: str
    creation_time_s: float
    retention_s: float | None = None
    view_type: str | None = None  # of a DynamoDB stream, such as NEW_AND_OLD_IMAGES
    distribution: str | None = None  # RecordDistributionStrategy; None: keys choose the shard


class IteratorKind(Enum):
    AT_SEQUENCE_NUMBER = "AT_SEQUENCE_NUMBER"
    AFTER_SEQUENCE_NUMBER = "AFTER_SEQUENCE_NUMBER"
    TRIM_HORIZON = "TRIM_HORIZON"
    LATEST = "LATEST"
    AT_TIMESTAMP = "AT_TIMESTAMP"


@dataclass(frozen=True, slots=True)
class ReadFrom:
    kind: IteratorKind
    sequence_number: str | None = None
    timestamp_s: float | None = None


@dataclass(frozen=True, slots=True)
class FetchedRecords:
    """One answer of GetRecords.

    At the end of a closed shard, and only there, `next_iterator` is None and `child_shards` are set. `millis_behind_latest` None: not
    known. `is_last`: nothing follows the shard.
    """

    payload: Payload
    next_iterator: str | None
    millis_behind_latest: int | None
    child_shards: tuple[ChildShard, ...]
    is_last: bool = False

    @property
    def records(self) -> Sequence[Record]:
        return self.payload.decoded()


class Kinesis(Protocol):
    """Calls may raise Throttled, Unavailable, AccessDenied, InvalidRequest or StreamNotFound."""

    async def describe_stream(self, stream: StreamRef) -> StreamSummary: ...

    async def list_streams(self) -> tuple[StreamSummary, ...]: ...

    async def list_shards(self, stream: StreamRef, start: InitialPosition | None = None) -> tuple[Shard, ...]:
        """All pages; with `start`, only the shards open at that position."""
        ...

    async def get_shard_iterator(self, stream: StreamRef, shard_id: ShardId, read_from: ReadFrom) -> str: ...

    async def get_records(
        self, stream: StreamRef, shard_id: ShardId, iterator: str, limit: int
    ) -> FetchedRecords:
        """Also raises IteratorExpired."""
        ...


@runtime_checkable
class Changes(Kinesis, Protocol):
    """The streams of DynamoDB tables.

    `get_shard_iterator` and `get_records` also raise Trimmed; reading AT_TIMESTAMP leaves out older changes.
    """

    async def streams_of(self, table: str) -> tuple[StreamSummary, ...]:
        """All streams of a table that can be read, the oldest first; empty: there is none."""
        ...


async def streams_of(kinesis: Kinesis, table: str) -> tuple[StreamSummary, ...]:
    """`Changes.streams_of`, also where only Kinesis is asked for; InvalidRequest: it reads no tables."""
    if isinstance(kinesis, Changes):
        return await kinesis.streams_of(table)
    raise InvalidRequest(f"the streams of the table {table} cannot be listed", operation="ListStreams")


@dataclass(frozen=True, slots=True)
class ScannedTable:
    """`keys`: the attributes of its primary key; items and bytes as counted by the service hours ago."""

    name: str
    keys: tuple[str, ...]
    items: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ScannedPage:
    """Items as the JSON of the answer; `next_key` is JSON too, None at the end of the segment."""

    items: Sequence[bytes]
    next_key: str | None
    read_units: float


class ScanPort(Protocol):
    """Reads a whole DynamoDB table, in segments. Calls raise the errors of `Kinesis`."""

    async def describe_table(self, table: str) -> ScannedTable: ...

    async def scan(self, table: str, part: tuple[int, int], after: str | None, limit: int) -> ScannedPage:
        """A page of segment (index, count), eventually consistent; `after`: a `next_key`."""
        ...


class IndexState(Enum):
    ABSENT = "absent"
    BUILDING = "building"
    ACTIVE = "active"


@dataclass(frozen=True, slots=True)
class TableState:
    """`differences` says how the table differs from what the settings want for a new one."""

    owner_index: IndexState = IndexState.ABSENT
    differences: tuple[str, ...] = ()


class Table(Protocol):
    """Rows with a string key.

    Calls may raise Throttled, Unavailable, AccessDenied, InvalidRequest or TableNotFound. After Unavailable a write may have taken
    effect; after any other error it has not.
    """

    @property
    def name(self) -> str: ...

    @property
    def key_attribute(self) -> str: ...

    async def describe(self) -> TableState | None: ...

    async def ensure(self) -> bool:
        """True: this call created it.

        Never alters an existing table; ConfigurationError if that is of another kind.
        """
        ...

    async def add_owner_index(self) -> None:
        """Returns before the index is ready."""
        ...

    async def remove_owner_index(self) -> None:
        """Returns before it is gone; InvalidRequest if there is none."""
        ...

    async def enable_recovery(self) -> None:
        """Unavailable if the table is too new."""
        ...

    async def get(self, key: str) -> Row | None:
        """Consistent read."""
        ...

    async def scan(self) -> list[Row]:
        """Eventually consistent."""
        ...

    async def owned_keys(self, owner: str) -> list[str]:
        """From the index by `leaseOwner`, which lags a little."""
        ...

    async def put(self, row: Row, require: Conditions = ()) -> WriteResult:
        """Replace the row if all conditions hold."""
        ...

    async def update(self, update: RowUpdate) -> WriteResult: ...

    async def delete(self, key: str, require: Conditions = ()) -> WriteResult: ...


@dataclass(frozen=True, slots=True)
class Tables:
    """Three tables (KCL 3.0 - 3.4), or the lease table and views of it (KCL 3.5)."""

    leases: Table
    worker_metrics: Table
    coordinator: Table

    @property
    def share_one_table(self) -> bool:
        return self.worker_metrics.name == self.leases.name


@dataclass(frozen=True, slots=True)
class TablePart:
    table: Table
    what: RowPart


@dataclass(frozen=True, slots=True)
class CommitResult:
    """If not `applied`, nothing took effect; `refused` has the indexes of parts whose conditions failed."""

    applied: bool
    refused: tuple[int, ...] = ()


class Transactions(Protocol):
    async def commit(self, parts: Sequence[TablePart]) -> CommitResult:
        """Up to 100 parts on different rows.

        Errors as for `Table` writes; InvalidRequest also for a repeated row, no parts or too many.
        """
        ...


class ChildPipes(Protocol):
    async def send(self, line: bytes) -> None:
        """Waits while the pipe is full. ChildExited if it is closed."""
        ...

    async def receive(self) -> bytes:
        """The next piece of stdout; empty: closed."""
        ...

    async def wait(self) -> int:
        """Its exit code after it was reaped; negative: a signal."""
        ...


class Child(ChildPipes, Protocol):
    @property
    def pid(self) -> int: ...

    @property
    def stderr_tail(self) -> tuple[str, ...]:
        """Oldest first; complete after `wait`."""
        ...

    async def until_reading(self) -> None:
        """Give it the first byte of its first line, `{`; returns when it has read that.

        `send` then leaves that byte out. Call it once, before `send`; it may be cancelled.
        """
        ...

    async def close_stdin(self) -> None:
        """Never raises."""
        ...

    def terminate(self) -> None:
        """SIGTERM to it and its descendants; no effect after its end."""
        ...

    def kill(self) -> None:
        """SIGKILL, likewise."""
        ...

    async def aclose(self) -> None:
        """Kill it if it runs, reap it, free its pipes; safe under cancellation."""
        ...


@dataclass(frozen=True, slots=True)
class ChildLane:
    """One of `count` children of a shard, from 0."""

    number: int
    count: int


class Children(Protocol):
    async def start(
        self, shard_id: ShardId, stream: StreamRef | None = None, lane: ChildLane | None = None
    ) -> Child:
        """In its own session; ChildStartFailed if that is impossible.

        `stream` None: not known. `lane` None: it is the only child of its shard.
        """
        ...


class Cpu(Protocol):
    @property
    def name(self) -> str: ...

    async def sample(self) -> float | None:
        """Percent, 0 to 100, since the last call; None on the first. Raises CpuUnreadable."""
        ...


@dataclass(frozen=True, slots=True)
class ConsumerName:
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

    At the end of a closed shard, and only there, `continuation` is None and `child_shards` are set.
    """

    payload: Payload
    continuation: str | None
    millis_behind_latest: int | None
    child_shards: tuple[ChildShard, ...]


class Subscription(Protocol):
    async def next(self) -> PushedRecords | None:
        """None: it ended normally, after about five minutes.

        A slow caller slows the service down. Leave the subscription after a cancelled call.

        Raises:
            SubscriptionTaken: a later one took over.
            StreamNotFound: stream, shard or consumer were deleted.
            AwsError: it broke or was silent; a new one may work.
        """
        ...


class FanOut(Protocol):
    """Enhanced fan-out. Calls raise the same errors as those of `Kinesis`."""

    async def describe_consumer(self, consumer: ConsumerName | str) -> StreamConsumer | None:
        """None: no such consumer or stream."""
        ...

    async def register_consumer(self, consumer: ConsumerName) -> StreamConsumer:
        """Also raises ConsumerLimitReached; Unavailable: the name exists."""
        ...

    def subscribe(
        self, stream: StreamRef, consumer_arn: str, shard_id: ShardId, read_from: ReadFrom
    ) -> AbstractAsyncContextManager[Subscription]:
        """The subscription ends with the context.

        Entering also raises SubscriptionTaken if the previous one is under five seconds old.
        """
        ...


class DeadLetters(Protocol):
    async def store(self, dead_letter: DeadLetter) -> None:
        """On return it is safe: on disk, or accepted by the service. Storing it twice does no harm.

        Raises:
            AwsError: not accepted; InvalidRequest: never will be.
            DeadLetterNotStored: this host could not write it.
            DeadLetterTooLarge: it fits nowhere with these settings; says what to set.
        """
        ...


@runtime_checkable
class DeadLetterBatches(Protocol):
    async def store_all(self, dead_letters: Sequence[DeadLetter]) -> None:
        """As `DeadLetters.store`; all or none."""
        ...


@dataclass(frozen=True, slots=True)
class Schema:
    """Never altered once registered.

    `version_id` is a UUID in lower case, `data_format` `AVRO`, `JSON` or `PROTOBUF`.
    """

    version_id: str
    name: str
    data_format: str
    definition: str


class Schemas(Protocol):
    async def schema(self, version_id: str) -> Schema:
        """Not cached. Raises SchemaNotFound, or AwsError if there is no answer."""
        ...


class Span(Protocol):
    """An error that leaves it, or `failed`, makes the operation fail. Not counted when cancelled."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def failed(self) -> None: ...


class Meters(Protocol):
    """Never raises or waits. Cheap enough per batch, not per record."""

    def add(self, metric: Metric, value: float = 1.0, /, **labels: str) -> None:
        """Set a gauge, or add to other metrics; `value` is in the metric's unit.

        Leave out labels that do not apply.
        """
        ...

    def operation(self, operation: Operation, /, **labels: str) -> Span: ...

    def done(self, operation: Operation, seconds: float, ok: bool = True, /, **labels: str) -> None: ...


class NoMeters:
    """Also the span of its operations."""

    def add(self, metric: Metric, value: float = 1.0, /, **labels: str) -> None: ...

    def operation(self, operation: Operation, /, **labels: str) -> Span:  # noqa: ARG002 - of the port
        return self

    def done(self, operation: Operation, seconds: float, ok: bool = True, /, **labels: str) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def failed(self) -> None: ...


NO_METERS: Final[Meters] = NoMeters()


@dataclass(slots=True)
class Statistic:
    """Values of one metric since the last publication (CloudWatch: StatisticSet).

    Not frozen: thousands are made a minute, and that costs three times as much.
    """

    name: str
    unit: str
    dimensions: Mapping[str, str]
    count: int
    total: float
    least: float
    most: float


class CloudWatch(Protocol):
    async def put(self, namespace: str, statistics: Sequence[Statistic]) -> None:
        """A failed call may have taken effect. Raises AwsError."""
        ...


def level_of(word: str) -> LogLevel | None:
    """In any case; None: no level has that name."""
    return _WORDS.get(word.strip().lower())


def at_level(log: Log, level: LogLevel) -> Callable[..., object]:
    """`at_level(log, level)("event", field=1)`."""
    return {"debug": log.debug, "info": log.info, "warning": log.warning, "error": log.error}[level]
