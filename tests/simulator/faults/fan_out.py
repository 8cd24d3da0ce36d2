"""The port FanOut as one simulated worker has it: behind a network that loses calls, cuts subscriptions and falls silent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

import anyio

from kcl_daemon.errors import Unavailable
from kcl_daemon.leases.lease import ShardId, lease_key_of
from kcl_daemon.ports import (
    ConsumerName,
    IteratorKind,
    PushedRecords,
    ReadFrom,
    StreamConsumer,
    StreamRef,
    Subscription,
)
from tests.simulator.faults.life import Life, Service
from tests.simulator.faults.network import Network
from tests.simulator.loop import at_once
from tests.simulator.memory.fan_out import MemoryFanOut, MemorySubscription

# As long as the transport waits for the next event before it takes the connection for dead.
_SILENCE_S: Final = 30.0


class FaultySubscription:
    """A subscription over a connection that may break at any event."""

    def __init__(self, subscription: MemorySubscription, *, life: Life, network: Network) -> None:
        self._subscription = subscription
        self._life = life
        self._network = network

    async def next(self) -> PushedRecords | None:
        """The next event, some time after it was sent, if it arrives at all."""
        self._life.ensure_alive()
        pushed = await self._subscription.next()
        trouble, chance = self._network.trouble[Service.KINESIS], self._network.chance
        self._life.ensure_alive()
        if not self._life.reaches(Service.KINESIS):
            await anyio.sleep(_SILENCE_S)
            self._life.ensure_alive()
            raise Unavailable(f"nothing came for {_SILENCE_S:g} s", operation="SubscribeToShard")
        await anyio.sleep(chance.uniform(*trouble.latency_s))
        self._life.ensure_alive()
        if chance.happens(trouble.cut):
            self._network.faults["subscription cut"] += 1
            raise Unavailable("the connection was cut", operation="SubscribeToShard")
        return pushed


class FaultyFanOut:
    """Port FanOut of one worker over a stream that all workers share."""

    def __init__(
        self,
        fan_out: MemoryFanOut,
        *,
        life: Life,
        network: Network,
        on_latest: Callable[[str, str], None] = lambda _worker_id, _shard_id: None,
    ) -> None:
        self._on_latest = on_latest
        self._fan_out = fan_out
        self._life = life
        self._network = network

    async def describe_consumer(self, consumer: ConsumerName | str) -> StreamConsumer | None:
        """DescribeStreamConsumer."""
        return await self._network.call(
            self._life,
            Service.KINESIS,
            "DescribeStreamConsumer",
            lambda: at_once(self._fan_out.describe_consumer(consumer)),
        )

    async def register_consumer(self, consumer: ConsumerName) -> StreamConsumer:
        """RegisterStreamConsumer."""
        return await self._network.call(
            self._life,
            Service.KINESIS,
            "RegisterStreamConsumer",
            lambda: at_once(self._fan_out.register_consumer(consumer)),
        )

    @asynccontextmanager
    async def subscribe(
        self,
        stream: StreamRef,
        consumer_arn: str,
        shard_id: ShardId,
        read_from: ReadFrom,
    ) -> AsyncGenerator[Subscription, None]:
        """SubscribeToShard; a subscription whose answer was lost goes on at the service, and stands in the way."""

        def effect() -> MemorySubscription:
            if read_from.kind is IteratorKind.LATEST:
                self._on_latest(self._life.worker_id, lease_key_of(stream.identity, shard_id))
            return self._fan_out.open(consumer_arn, shard_id, read_from)

        subscription = await self._network.call(self._life, Service.KINESIS, "SubscribeToShard", effect)
        try:
            yield FaultySubscription(subscription, life=self._life, network=self._network)
        finally:
            subscription.close()
