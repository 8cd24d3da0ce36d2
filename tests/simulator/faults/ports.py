"""The ports Table and Kinesis as one simulated worker has them: behind a network, watched by the checkers.

Owns the translation of port calls into network calls. Knows nothing of rows' meaning; an observer is told of every
write that took effect, with the row before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import anyio

from kcl_daemon.aws.dynamodb import row_key
from kcl_daemon.errors import IteratorExpired, TableNotFound
from kcl_daemon.leases.lease import ShardId, lease_key_of
from kcl_daemon.leases.row import Conditions, Row, RowCheck, RowUpdate, WriteResult
from kcl_daemon.ports import (
    CommitResult,
    FetchedRecords,
    IteratorKind,
    Kinesis,
    ReadFrom,
    StreamRef,
    StreamSummary,
    Table,
    TablePart,
    Tables,
    TableState,
)
from kcl_daemon.shards.lineage import InitialPosition, Shard
from tests.simulator.faults.life import Life, Service
from tests.simulator.faults.network import Network
from tests.simulator.loop import at_once, now
from tests.simulator.memory.transactions import MemoryTransactions

# How long DynamoDB takes to make a table usable.
_TABLE_CREATION_S: Final = (3.0, 12.0)


@dataclass(frozen=True, slots=True)
class RowWrite:
    """One write that took effect.

    Args:
        at_s: virtual time.
        worker_id: who wrote.
        table: name of the table.
        key: of the row.
        before: the row as it was; None: there was none.
        after: the row as it is now; None: it was deleted.
    """

    at_s: float
    worker_id: str
    table: str
    key: str
    before: Row | None
    after: Row | None


class WriteObserver(Protocol):
    """Is told of every write."""

    def row_written(self, write: RowWrite) -> None:
        """Look at a write that has just taken effect."""
        ...


class FaultyTable:
    """Port Table of one worker over a table that all workers share."""

    def __init__(self, table: Table, *, life: Life, network: Network, observer: WriteObserver) -> None:
        self._table = table
        self._life = life
        self._network = network
        self._observer = observer

    @property
    def name(self) -> str:
        """Name of the table."""
        return self._table.name

    @property
    def key_attribute(self) -> str:
        """Name of its key attribute."""
        return self._table.key_attribute

    async def describe(self) -> TableState | None:
        """What is there."""
        return await self._network.call(
            self._life, Service.DYNAMODB, "DescribeTable", lambda: at_once(self._table.describe())
        )

    async def add_owner_index(self) -> None:
        """Have the index built."""
        return await self._network.call(
            self._life, Service.DYNAMODB, "UpdateTable", lambda: at_once(self._table.add_owner_index())
        )

    async def remove_owner_index(self) -> None:
        """Have the index deleted."""
        return await self._network.call(
            self._life, Service.DYNAMODB, "UpdateTable", lambda: at_once(self._table.remove_owner_index())
        )

    async def enable_recovery(self) -> None:
        """Turn point-in-time recovery on."""
        return await self._network.call(
            self._life,
            Service.DYNAMODB,
            "UpdateContinuousBackups",
            lambda: at_once(self._table.enable_recovery()),
        )

    async def ensure(self) -> bool:
        """Create the table; all wait for it as long as DynamoDB takes to make it usable."""
        network = self._network

        def create() -> bool:
            created = at_once(self._table.ensure())
            if created:
                network.tables_ready_at_s[self.name] = now() + network.chance.uniform(*_TABLE_CREATION_S)
            return created

        created = await network.call(self._life, Service.DYNAMODB, "CreateTable", create)
        await anyio.sleep(max(0.0, network.tables_ready_at_s.get(self.name, 0.0) - now()))
        self._life.ensure_alive()
        return created

    async def get(self, key: str) -> Row | None:
        """Read a row."""
        return await self._network.call(
            self._life, Service.DYNAMODB, "GetItem", lambda: at_once(self._table.get(key))
        )

    async def scan(self) -> list[Row]:
        """Read all rows; as old as the answer was on its way."""
        return await self._network.call(
            self._life, Service.DYNAMODB, "Scan", lambda: at_once(self._table.scan())
        )

    async def owned_keys(self, owner: str) -> list[str]:
        """Read the index; as the adapter says it while the index is missing or being built."""

        def effect() -> list[str]:
            if now() < self._network.index_ready_at_s:
                raise TableNotFound(f"table {self.name} has no index by owner yet", operation="Query")
            return at_once(self._table.owned_keys(owner))

        return await self._network.call(self._life, Service.DYNAMODB, "Query", effect)

    async def put(self, row: Row, require: Conditions = ()) -> WriteResult:
        """Write a whole row."""
        key = row[self.key_attribute]
        assert isinstance(key, str), f"the key of a row must be text, not {key!r}"
        return await self._write("PutItem", key, lambda: self._table.put(row, require))

    async def update(self, update: RowUpdate) -> WriteResult:
        """Change a row."""
        return await self._write("UpdateItem", update.key, lambda: self._table.update(update))

    async def delete(self, key: str, require: Conditions = ()) -> WriteResult:
        """Remove a row."""
        return await self._write("DeleteItem", key, lambda: self._table.delete(key, require))

    async def _write(
        self, operation: str, key: str, write: Callable[[], Coroutine[Any, Any, WriteResult]]
    ) -> WriteResult:
        def effect() -> WriteResult:
            before = at_once(self._table.get(key))
            written = at_once(write())
            if written.applied:
                after = at_once(self._table.get(key))
                self._observer.row_written(
                    RowWrite(now(), self._life.worker_id, self.name, key, before, after)
                )
            return written

        return await self._network.call(self._life, Service.DYNAMODB, operation, effect, writes=True)


class FaultyTransactions:
    """Port Transactions of one worker over tables that all workers share."""

    def __init__(self, tables: Tables, *, life: Life, network: Network, observer: WriteObserver) -> None:
        self._tables = {
            table.name: table for table in (tables.leases, tables.worker_metrics, tables.coordinator)
        }
        self._transactions = MemoryTransactions(self._tables.values())
        self._life = life
        self._network = network
        self._observer = observer

    async def commit(self, parts: Sequence[TablePart]) -> CommitResult:
        """Write several rows at one moment."""
        return await self._network.call(
            self._life, Service.DYNAMODB, "TransactWriteItems", lambda: self._effect(parts), writes=True
        )

    def _effect(self, parts: Sequence[TablePart]) -> CommitResult:
        before = self._rows(parts)
        committed = at_once(self._transactions.commit(parts))
        if committed.applied:
            for part, old, new in zip(parts, before, self._rows(parts), strict=True):
                if not isinstance(part.what, RowCheck):
                    self._observer.row_written(
                        RowWrite(now(), self._life.worker_id, part.table.name, row_key(part), old, new)
                    )
        return committed

    def _rows(self, parts: Sequence[TablePart]) -> list[Row | None]:
        return [at_once(self._tables[part.table.name].get(row_key(part))) for part in parts]


class FaultyKinesis:
    """Port Kinesis of one worker over a stream that all workers share."""

    def __init__(
        self,
        kinesis: Kinesis,
        *,
        life: Life,
        network: Network,
        on_latest: Callable[[str, str], None] = lambda _worker_id, _shard_id: None,
    ) -> None:
        self._on_latest = on_latest
        self._kinesis = kinesis
        self._life = life
        self._network = network

    async def describe_stream(self, stream: StreamRef) -> StreamSummary:
        """DescribeStreamSummary."""
        return await self._network.call(
            self._life,
            Service.KINESIS,
            "DescribeStreamSummary",
            lambda: at_once(self._kinesis.describe_stream(stream)),
        )

    async def list_streams(self) -> tuple[StreamSummary, ...]:
        """ListStreams."""
        return await self._network.call(
            self._life, Service.KINESIS, "ListStreams", lambda: at_once(self._kinesis.list_streams())
        )

    async def list_shards(self, stream: StreamRef, start: InitialPosition | None = None) -> tuple[Shard, ...]:
        """ListShards."""
        return await self._network.call(
            self._life,
            Service.KINESIS,
            "ListShards",
            lambda: at_once(self._kinesis.list_shards(stream, start)),
        )

    async def get_shard_iterator(self, stream: StreamRef, shard_id: ShardId, read_from: ReadFrom) -> str:
        """GetShardIterator."""

        def effect() -> str:
            if read_from.kind is IteratorKind.LATEST:
                self._on_latest(self._life.worker_id, lease_key_of(stream.identity, shard_id))
            return at_once(self._kinesis.get_shard_iterator(stream, shard_id, read_from))

        return await self._network.call(self._life, Service.KINESIS, "GetShardIterator", effect)

    async def get_records(
        self, stream: StreamRef, shard_id: ShardId, iterator: str, limit: int
    ) -> FetchedRecords:
        """GetRecords; sometimes finds the iterator too old."""

        def effect() -> FetchedRecords:
            if self._network.iterator_expires():
                raise IteratorExpired("the iterator is too old", operation="GetRecords")
            return at_once(self._kinesis.get_records(stream, shard_id, iterator, limit))

        return await self._network.call(self._life, Service.KINESIS, "GetRecords", effect)
