"""Parts of the world that are broken on purpose: the checkers must notice each of them.

Owns one fault each. Used by tests only; a checker that has never been seen to fail proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from kcl_daemon.leases.lease import MAX_HASH, HashRange, ShardId
from kcl_daemon.leases.row import Conditions, Row, RowUpdate, Value, WriteResult
from kcl_daemon.ports import (
    FetchedRecords,
    Kinesis,
    Log,
    PushedRecords,
    ReadFrom,
    StreamRef,
    StreamSummary,
    Table,
    TableState,
)
from kcl_daemon.records.payload import Payload
from kcl_daemon.shards.lineage import ChildShard, InitialPosition, Shard
from kcl_protocol.messages import Record
from tests.simulator.memory.fan_out import MemoryFanOut, MemorySubscription


class TableWrapper:
    """A table that passes everything on; subclasses break one thing."""

    def __init__(self, table: Table) -> None:
        self._table = table

    @property
    def name(self) -> str:
        """As the port says."""
        return self._table.name

    @property
    def key_attribute(self) -> str:
        """As the port says."""
        return self._table.key_attribute

    async def describe(self) -> TableState | None:
        """As the port says."""
        return await self._table.describe()

    async def ensure(self) -> bool:
        """As the port says."""
        return await self._table.ensure()

    async def add_owner_index(self) -> None:
        """As the port says."""
        await self._table.add_owner_index()

    async def remove_owner_index(self) -> None:
        """As the port says."""
        await self._table.remove_owner_index()

    async def enable_recovery(self) -> None:
        """As the port says."""
        await self._table.enable_recovery()

    async def get(self, key: str) -> Row | None:
        """As the port says."""
        return await self._table.get(key)

    async def scan(self) -> list[Row]:
        """As the port says."""
        return await self._table.scan()

    async def owned_keys(self, owner: str) -> list[str]:
        """As the port says."""
        return await self._table.owned_keys(owner)

    async def put(self, row: Row, require: Conditions = ()) -> WriteResult:
        """As the port says."""
        return await self._table.put(row, require)

    async def update(self, update: RowUpdate) -> WriteResult:
        """As the port says."""
        return await self._table.update(update)

    async def delete(self, key: str, require: Conditions = ()) -> WriteResult:
        """As the port says."""
        return await self._table.delete(key, require)


class NoConditions(TableWrapper):
    """Writes whatever it is told, whoever holds the row."""

    async def put(self, row: Row, require: Conditions = ()) -> WriteResult:
        """Without its conditions."""
        return await self._table.put(row)

    async def update(self, update: RowUpdate) -> WriteResult:
        """Without its conditions."""
        return await self._table.update(replace(update, require=()))


class ForgetsCheckpoints(TableWrapper):
    """Says that a checkpoint is stored, but stores only the counter."""

    async def update(self, update: RowUpdate) -> WriteResult:
        """Without the checkpoint."""
        kept = {name: value for name, value in update.put.items() if name != "checkpoint"}
        return await self._table.update(replace(update, put=kept))


class CheckpointsTooFar(TableWrapper):
    """Stores a checkpoint that is one higher than it was told."""

    async def update(self, update: RowUpdate) -> WriteResult:
        """With another checkpoint."""
        checkpoint = update.put.get("checkpoint")
        if isinstance(checkpoint, str) and checkpoint.isdigit():
            update = replace(update, put={**update.put, "checkpoint": str(int(checkpoint) + 1)})
        return await self._table.update(update)


class ReplacesRows(TableWrapper):
    """Takes away what it does not know."""

    async def update(self, update: RowUpdate) -> WriteResult:
        """With the attribute of a later version removed."""
        if "attributeOfALaterVersion" in update.put:
            return await self._table.update(update)
        return await self._table.update(replace(update, remove=update.remove | {"attributeOfALaterVersion"}))


class KeepsOwners(TableWrapper):
    """Does not take an owner away."""

    async def update(self, update: RowUpdate) -> WriteResult:
        """Without removing the owner."""
        return await self._table.update(replace(update, remove=update.remove - {"leaseOwner"}))


class ForgetsCounters(TableWrapper):
    """Does not raise counters."""

    async def update(self, update: RowUpdate) -> WriteResult:
        """Without the counter."""
        kept: dict[str, Value] = {name: value for name, value in update.put.items() if name != "leaseCounter"}
        added = {name: amount for name, amount in update.add.items() if name != "leaseCounter"}
        return await self._table.update(replace(update, put=kept, add=added))


class SeesNoRows(TableWrapper):
    """Finds nothing when it scans."""

    async def scan(self) -> list[Row]:
        """Nothing."""
        return []


class ShowsNothingFinished(TableWrapper):
    """Who asks for one row is told that its shard has just begun."""

    async def get(self, key: str) -> Row | None:
        """Without the end of the shard."""
        row = await self._table.get(key)
        if row is None or row.get("checkpoint") != "SHARD_END":
            return row
        return {**row, "checkpoint": "TRIM_HORIZON"}


class KeepsSilent:
    """A log in which the word that a shard stands still gets lost."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def bind(self, **fields: object) -> Log:
        """As the port says."""
        return KeepsSilent(self._log.bind(**fields))

    def debug(self, event: str, /, **fields: object) -> object:
        """As the port says."""
        return self._log.debug(event, **fields)

    def info(self, event: str, /, **fields: object) -> object:
        """As the port says."""
        return self._log.info(event, **fields)

    def warning(self, event: str, /, **fields: object) -> object:
        """All but that."""
        return None if event == "shard_stalled" else self._log.warning(event, **fields)

    def error(self, event: str, /, **fields: object) -> object:
        """All but that."""
        return None if event == "shard_stalled" else self._log.error(event, **fields)


class KinesisWrapper:
    """A Kinesis that changes its answers to GetRecords."""

    def __init__(self, kinesis: Kinesis, alter: Callable[[FetchedRecords], FetchedRecords]) -> None:
        self._kinesis = kinesis
        self._alter = alter

    async def describe_stream(self, stream: StreamRef) -> StreamSummary:
        """As the port says."""
        return await self._kinesis.describe_stream(stream)

    async def list_streams(self) -> tuple[StreamSummary, ...]:
        """As the port says."""
        return await self._kinesis.list_streams()

    async def list_shards(self, stream: StreamRef, start: InitialPosition | None = None) -> tuple[Shard, ...]:
        """As the port says."""
        return await self._kinesis.list_shards(stream, start)

    async def get_shard_iterator(self, stream: StreamRef, shard_id: ShardId, read_from: ReadFrom) -> str:
        """As the port says."""
        return await self._kinesis.get_shard_iterator(stream, shard_id, read_from)

    async def get_records(
        self, stream: StreamRef, shard_id: ShardId, iterator: str, limit: int
    ) -> FetchedRecords:
        """Altered."""
        return self._alter(await self._kinesis.get_records(stream, shard_id, iterator, limit))


class LosesEvents(MemoryFanOut):
    """Every subscription to it misses its third event."""

    def open(self, consumer_arn: str, shard_id: ShardId, read_from: ReadFrom) -> MemorySubscription:
        """Subscribe, at once."""
        return _Lossy(super().open(consumer_arn, shard_id, read_from))


class _Lossy(MemorySubscription):
    def __init__(self, subscription: MemorySubscription) -> None:
        self._whole = subscription
        self._events = 0

    async def next(self) -> PushedRecords | None:
        self._events += 1
        if self._events == 3:
            await self._whole.next()
        return await self._whole.next()

    def close(self) -> None:
        self._whole.close()


def drops_a_record(fetched: FetchedRecords) -> FetchedRecords:
    """Leaves out one record of each longer answer."""
    records = list(fetched.records)
    return _with(fetched, records[:1] + records[2:]) if len(records) > 2 else fetched


def changes_order(fetched: FetchedRecords) -> FetchedRecords:
    """Gives the last record of an answer first, then the others."""
    records = list(fetched.records)
    return _with(fetched, [*records[1:], records[0]]) if len(records) > 1 else fetched


def alters_data(fetched: FetchedRecords) -> FetchedRecords:
    """Gives each record other data."""
    return _with(fetched, [replace(record, data="b3RoZXI=") for record in fetched.records])


def ends_early(fetched: FetchedRecords) -> FetchedRecords:
    """Says that the shard has ended as soon as there is nothing more to read, and that a shard which is there is its child."""
    first, last = ShardId("shardId-000000000000"), ShardId("shardId-000000000003")
    child = ChildShard(last, frozenset({first}), HashRange(0, MAX_HASH))
    return fetched if fetched.payload else replace(fetched, next_iterator=None, child_shards=(child,))


def gives_nothing(fetched: FetchedRecords) -> FetchedRecords:
    """Never gives a record."""
    return _with(fetched, ())


def _with(fetched: FetchedRecords, records: Sequence[Record]) -> FetchedRecords:
    return replace(fetched, payload=Payload.of(records))
