"""Streams of Kinesis and of DynamoDB as one."""

from __future__ import annotations

from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import Changes, FetchedRecords, Kinesis, ReadFrom, StreamRef, StreamSummary
from kcl_daemon.shards.lineage import InitialPosition, Shard


class StreamSources:
    """Only streams of Kinesis are listed; those of DynamoDB must be named."""

    def __init__(self, kinesis: Kinesis, changes: Changes) -> None:
        self._kinesis = kinesis
        self._changes = changes

    def _of(self, stream: StreamRef) -> Kinesis:
        return self._changes if stream.is_of_dynamodb else self._kinesis

    async def describe_stream(self, stream: StreamRef) -> StreamSummary:
        return await self._of(stream).describe_stream(stream)

    async def list_streams(self) -> tuple[StreamSummary, ...]:
        return await self._kinesis.list_streams()

    async def streams_of(self, table: str) -> tuple[StreamSummary, ...]:
        return await self._changes.streams_of(table)

    async def list_shards(self, stream: StreamRef, start: InitialPosition | None = None) -> tuple[Shard, ...]:
        return await self._of(stream).list_shards(stream, start)

    async def get_shard_iterator(self, stream: StreamRef, shard_id: ShardId, read_from: ReadFrom) -> str:
        return await self._of(stream).get_shard_iterator(stream, shard_id, read_from)

    async def get_records(
        self, stream: StreamRef, shard_id: ShardId, iterator: str, limit: int
    ) -> FetchedRecords:
        return await self._of(stream).get_records(stream, shard_id, iterator, limit)
