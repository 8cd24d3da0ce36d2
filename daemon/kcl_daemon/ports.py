"""The ports: all that the daemon wants of the world, as protocols.

Loops read and write through these only, so that the simulator can run the same object graph in virtual time. Adapters
translate the world's errors into `kcl_daemon.errors`; every port call may be cancelled at any await, in which case a
write may or may not have taken effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from anyio import CancelScope

from kcl_daemon.leases.lease import ShardId
from kcl_daemon.leases.stream import StreamIdentity
from kcl_daemon.leases.table import Conditions, Row, RowPart, RowUpdate, Written
from kcl_daemon.retrieval.payload import Payload
from kcl_daemon.shards.shard import ChildShard, InitialPosition, Shard
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
class Fetched:
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

    async def get_records(self, stream: StreamRef, shard_id: ShardId, iterator: str, limit: int) -> Fetched:
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

    async def put(self, row: Row, require: Conditions = ()) -> Written:
        """Write a whole row if all conditions hold for the row that is there."""
        ...

    async def update(self, update: RowUpdate) -> Written:
        """Change a row if its conditions hold."""
        ...

    async def delete(self, key: str, require: Conditions = ()) -> Written:
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
class InTable:
    """One part of a transaction, and the table of its row."""

    table: Table
    what: RowPart


@dataclass(frozen=True, slots=True)
class Committed:
    """What came of a transaction.

    Args:
        applied: whether all conditions held and everything took effect; otherwise nothing did.
        refused: the numbers of the parts whose conditions did not hold.
    """

    applied: bool
    refused: tuple[int, ...] = ()


class Transactions(Protocol):
    """Writes on several rows, also of several tables, of which all take effect or none."""

    async def commit(self, parts: Sequence[InTable]) -> Committed:
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

    @property
    def stderr_tail(self) -> tuple[str, ...]:
        """The last lines of its stderr, oldest first."""
        ...

    async def send(self, line: bytes) -> None:
        """Write a whole line to its stdin; waits while the pipe is full. ChildExited when nobody reads it any more."""
        ...

    async def receive(self) -> bytes:
        """The next piece of its stdout; empty when it is closed."""
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
