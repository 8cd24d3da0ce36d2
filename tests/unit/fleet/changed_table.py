"""The streams of a DynamoDB table by hand: what the service would say of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kcl_daemon.errors import StreamNotFound
from kcl_daemon.leases.lease import ShardId, StreamIdentity, TableStream
from kcl_daemon.ports import FetchedRecords, ReadFrom, StreamRef, StreamSummary
from kcl_daemon.records.payload import EMPTY
from kcl_daemon.shards.lineage import NO_HASH_KEYS, InitialPosition, Shard
from kcl_daemon.transport.changes_answers import open_at

TABLE = "orders"


def arn_of(day: int) -> str:
    return TableStream("eu-west-1", "111122223333", TABLE, f"2026-11-{day:02}T10:00:00.000").arn


def identity_of(day: int) -> StreamIdentity:
    return StreamIdentity.of_arn(arn_of(day), 0)


def shard(name: str, *parents: str, number: int = 100, is_open: bool = False) -> Shard:
    ids = frozenset(ShardId(each) for each in parents)
    return Shard(ShardId(name), NO_HASH_KEYS, ids, number, None if is_open else number + 50)


@dataclass
class ChangedTable:
    """`Changes` of one table. A stream is named by the day on which it was switched on."""

    shards: dict[str, tuple[Shard, ...]] = field(default_factory=dict[str, tuple[Shard, ...]])
    off: set[str] = field(default_factory=set[str])
    view_type: str = "NEW_AND_OLD_IMAGES"
    calls: list[str] = field(default_factory=list[str])

    def switch_on(self, day: int, *shards: Shard) -> str:
        self.shards[arn_of(day)] = shards
        return arn_of(day)

    def switch_off(self, day: int) -> None:
        self.off.add(arn_of(day))
        self.shards[arn_of(day)] = tuple(
            replace(each, ending_sequence_number=each.ending_sequence_number or 999)
            for each in self.shards[arn_of(day)]
        )

    def forget(self, day: int) -> None:
        del self.shards[arn_of(day)]

    def _summary(self, arn: str) -> StreamSummary:
        if arn not in self.shards:
            raise StreamNotFound(f"no stream {arn}")
        of_table = TableStream.of(arn)
        assert of_table is not None
        day = int(of_table.label[8:10])
        status = "DISABLED" if arn in self.off else "ENABLED"
        return StreamSummary(of_table.name, arn, status, day * 86_400.0, 86_400.0, self.view_type)

    async def describe_stream(self, stream: StreamRef) -> StreamSummary:
        return self._summary(stream.arn or "")

    async def list_streams(self) -> tuple[StreamSummary, ...]:
        return tuple(map(self._summary, self.shards))

    async def streams_of(self, table: str) -> tuple[StreamSummary, ...]:
        return tuple(map(self._summary, sorted(self.shards))) if table == TABLE else ()

    async def list_shards(self, stream: StreamRef, start: InitialPosition | None = None) -> tuple[Shard, ...]:
        self.calls.append(f"list {stream.arn}")
        self._summary(stream.arn or "")
        found = self.shards[stream.arn or ""]
        parents = {parent for each in found for parent in each.parent_shard_ids}
        closed = tuple(
            replace(each, ending_sequence_number=999) if each.shard_id in parents else each for each in found
        )
        return closed if start is None else open_at(closed, start)

    async def get_shard_iterator(self, stream: StreamRef, shard_id: ShardId, read_from: ReadFrom) -> str:
        assert shard_id in {each.shard_id for each in self.shards[stream.arn or ""]}
        return f"{shard_id} {read_from.kind.value}"

    async def get_records(
        self, stream: StreamRef, shard_id: ShardId, iterator: str, limit: int
    ) -> FetchedRecords:
        """Every shard is at its end."""
        assert iterator.startswith(shard_id) and limit
        return FetchedRecords(EMPTY, None, 0, (), is_last=stream.arn in self.off)
