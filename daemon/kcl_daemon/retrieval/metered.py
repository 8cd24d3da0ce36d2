"""The ports to Kinesis with every call of a shard timed and counted (KCL: KinesisDataFetcher, PrefetchRecordsPublisher).

Owns what a call is called on CloudWatch. The readers above know nothing of it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from kcl_daemon.errors import IteratorExpired
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.metrics import kcl_shards as told
from kcl_daemon.metrics.calls import Calls
from kcl_daemon.ports import Fetched, Kinesis, ReadFrom, StreamRef, StreamSummary
from kcl_daemon.ports_fan_out import Consumer, ConsumerName, FanOut, Subscription
from kcl_daemon.ports_metrics import Meters
from kcl_daemon.shards.shard import InitialPosition, Shard

_SERVICE: Final = "kinesis"
_SUBSCRIBE: Final = "SubscribeToShard"


def shard_labels(shard_id: ShardId, stream: StreamRef) -> dict[str, str]:
    """What tells a shard's figures apart: its id, and its stream where there are many."""
    if stream.identity is None:
        return {"shard_id": shard_id}
    return {"shard_id": shard_id, "stream": str(stream.identity)}


class MeteredKinesis:
    """The port `Kinesis` over another one."""

    def __init__(self, kinesis: Kinesis, meters: Meters) -> None:
        self._kinesis = kinesis
        self._meters = meters
        self._calls = Calls(meters, _SERVICE)

    async def describe_stream(self, stream: StreamRef) -> StreamSummary:
        """As the port says."""
        return await self._calls.counted("DescribeStreamSummary", self._kinesis.describe_stream(stream))

    async def list_streams(self) -> tuple[StreamSummary, ...]:
        """As the port says."""
        return await self._calls.counted("ListStreams", self._kinesis.list_streams())

    async def list_shards(self, stream: StreamRef, start: InitialPosition | None = None) -> tuple[Shard, ...]:
        """As the port says."""
        return await self._calls.counted("ListShards", self._kinesis.list_shards(stream, start))

    async def get_shard_iterator(self, stream: StreamRef, shard_id: ShardId, read_from: ReadFrom) -> str:
        """As the port says."""
        with self._meters.operation(told.PROCESS_ITERATOR, **shard_labels(shard_id, stream)):
            return await self._calls.counted(
                "GetShardIterator", self._kinesis.get_shard_iterator(stream, shard_id, read_from)
            )

    async def get_records(self, stream: StreamRef, shard_id: ShardId, iterator: str, limit: int) -> Fetched:
        """As the port says."""
        labels = shard_labels(shard_id, stream)
        try:
            with self._meters.operation(told.PROCESS_READ, **labels):
                return await self._calls.counted(
                    "GetRecords", self._kinesis.get_records(stream, shard_id, iterator, limit)
                )
        except IteratorExpired:
            self._meters.add(told.PROCESS_EXPIRED)
            raise


class MeteredFanOut:
    """The port `FanOut` over another one.

    Args:
        fan_out: the other one.
        meters: told of calls. KCL's fetcher has no part in events.
    """

    def __init__(self, fan_out: FanOut, meters: Meters) -> None:
        self._fan_out = fan_out
        self._meters = meters
        self._calls = Calls(meters, _SERVICE)

    async def describe_consumer(self, consumer: ConsumerName | str) -> Consumer | None:
        """As the port says."""
        return await self._calls.counted("DescribeStreamConsumer", self._fan_out.describe_consumer(consumer))

    async def register_consumer(self, consumer: ConsumerName) -> Consumer:
        """As the port says."""
        return await self._calls.counted("RegisterStreamConsumer", self._fan_out.register_consumer(consumer))

    @asynccontextmanager
    async def subscribe(
        self, stream: StreamRef, consumer_arn: str, shard_id: ShardId, read_from: ReadFrom
    ) -> AsyncGenerator[Subscription, None]:
        """As the port says. One that breaks off was a success: the call was answered."""
        opened = self._fan_out.subscribe(stream, consumer_arn, shard_id, read_from)
        async with AsyncExitStack() as stack:
            yield await self._calls.counted(_SUBSCRIBE, stack.enter_async_context(opened))
