from __future__ import annotations

from dataclasses import replace

from kcl_daemon.errors import StreamNotFound
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import Changes, FetchedRecords, ReadFrom, StreamRef, StreamSummary
from kcl_daemon.shards.lineage import ChildShard, InitialPosition, Shard
from kcl_daemon.shards.table_streams import following, joined, no_stream_of
from kcl_daemon.transport import changes_answers


class FollowedTables:
    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._streams: dict[str, dict[ShardId, StreamRef]] = {}

    async def describe_stream(self, stream: StreamRef) -> StreamSummary:
        if stream.table is None:
            return await self._changes.describe_stream(stream)
        return (await self._found(stream.table))[-1]

    async def list_streams(self) -> tuple[StreamSummary, ...]:
        return await self._changes.list_streams()

    async def streams_of(self, table: str) -> tuple[StreamSummary, ...]:
        return await self._changes.streams_of(table)

    async def list_shards(self, stream: StreamRef, start: InitialPosition | None = None) -> tuple[Shard, ...]:
        if stream.table is None:
            return await self._changes.list_shards(stream, start)
        found = joined(await self._listed(stream.table))
        return found if start is None else changes_answers.open_at(found, start)

    async def get_shard_iterator(self, stream: StreamRef, shard_id: ShardId, read_from: ReadFrom) -> str:
        return await self._changes.get_shard_iterator(await self._of(stream, shard_id), shard_id, read_from)

    async def get_records(
        self, stream: StreamRef, shard_id: ShardId, iterator: str, limit: int
    ) -> FetchedRecords:
        one = await self._of(stream, shard_id)
        fetched = await self._changes.get_records(one, shard_id, iterator, limit)
        if stream.table is None or not fetched.is_last:
            return fetched
        # If a later stream has no shards yet, the leader finds them.
        later = following(shard_id, await self._listed(stream.table))
        children = tuple(ChildShard(each.shard_id, each.parent_shard_ids, each.hash_range) for each in later)
        return replace(fetched, child_shards=children, is_last=not children)

    async def _found(self, table: str) -> tuple[StreamSummary, ...]:
        found = await self._changes.streams_of(table)
        if not found:
            raise StreamNotFound(no_stream_of(table), operation="ListStreams")
        return found

    async def _listed(self, table: str) -> list[tuple[Shard, ...]]:
        """The oldest first."""
        lists, known = list[tuple[Shard, ...]](), dict[ShardId, StreamRef]()
        for summary in await self._found(table):
            one = StreamRef(summary.name, summary.arn)
            try:
                lists.append(await self._changes.list_shards(one))
            except StreamNotFound:  # a day after it was switched off
                continue
            known |= {shard.shard_id: one for shard in lists[-1]}
        self._streams[table] = known
        return lists

    async def _of(self, stream: StreamRef, shard_id: ShardId) -> StreamRef:
        if stream.table is None:
            return stream
        if shard_id not in self._streams.get(stream.table, {}):
            await self._listed(stream.table)
        one = self._streams[stream.table].get(shard_id)
        if one is None:
            raise StreamNotFound(f"no stream of the table {stream.table} has the shard {shard_id}")
        return one
