"""Sources, a class and a file each, registered in `source.py`; and several of them as one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from kcl_daemon.config.settings import Settings
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import (
    Clock,
    FetchedRecords,
    Kinesis,
    Log,
    ReadFrom,
    ScanPort,
    StreamRef,
    StreamSummary,
    streams_of,
)
from kcl_daemon.shards.lineage import InitialPosition, Shard
from kcl_daemon.source import Opening, Source, source_named

if TYPE_CHECKING:
    from kcl_daemon.aws.session import Clients
    from kcl_daemon.transport.caller import AwsJsonClient


@asynccontextmanager
async def open_sources(
    settings: Settings,
    clients: Clients,
    kinesis: AwsJsonClient,
    clock: Clock,
    *,
    streams: Sequence[StreamRef] | None = None,
    scan: ScanPort | None = None,
    log: Log | None = None,
    on_date: Callable[[float], None] | None = None,
) -> AsyncGenerator[Kinesis, None]:
    """What `streams` are of (None: those of the settings), and Kinesis. `on_date` as in `open_kinesis_client`."""
    opening = Opening(settings, clock, log, clients, kinesis, scan, on_date)
    named = settings.stream_refs if streams is None else streams
    sources = dict.fromkeys((source_named("kinesis"), *(each.source for each in named)))
    async with AsyncExitStack() as stack:
        opened = {each: await stack.enter_async_context(each.opened(opening)) for each in sources}
        if len(opened) == 1:
            (only,) = opened.values()
            yield only
            return
        yield StreamSources(opened)


class StreamSources:
    """Only streams of Kinesis are listed; others must be named."""

    def __init__(self, opened: Mapping[Source, Kinesis]) -> None:
        self._opened = opened

    async def describe_stream(self, stream: StreamRef) -> StreamSummary:
        return await self._opened[stream.source].describe_stream(stream)

    async def list_streams(self) -> tuple[StreamSummary, ...]:
        return await self._opened[source_named("kinesis")].list_streams()

    async def streams_of(self, table: str) -> tuple[StreamSummary, ...]:
        return await streams_of(self._opened[source_named("dynamodb")], table)

    async def list_shards(self, stream: StreamRef, start: InitialPosition | None = None) -> tuple[Shard, ...]:
        return await self._opened[stream.source].list_shards(stream, start)

    async def get_shard_iterator(self, stream: StreamRef, shard_id: ShardId, read_from: ReadFrom) -> str:
        return await self._opened[stream.source].get_shard_iterator(stream, shard_id, read_from)

    async def get_records(
        self, stream: StreamRef, shard_id: ShardId, iterator: str, limit: int
    ) -> FetchedRecords:
        return await self._opened[stream.source].get_records(stream, shard_id, iterator, limit)
