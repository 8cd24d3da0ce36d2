"""The adapters of the port `FanOut` that must keep its contract: in memory, and over the daemon's own transport."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Final, cast

from kcl_daemon.aws.build import open_kinesis_client
from kcl_daemon.ports import ConsumerName, FanOut
from kcl_daemon.system import SystemClock
from kcl_daemon.transport.event_stream import HttpFanOut
from kcl_local.kinesis.arguments import KinesisOptions
from kcl_local.kinesis.http import application
from kcl_local.kinesis.model import KinesisModel
from kcl_local.kinesis.stream import stream_arn
from kcl_local.serving import serve
from tests.contract.aws_access import local_clients
from tests.contract.kinesis_backends import Wall
from tests.simulator.memory.fan_out import MemoryFanOut

STREAM: Final = "orders"
APP: Final = ConsumerName(stream_arn(STREAM), "app")


@dataclass
class FanOutAccount:
    """An account with a stream in it.

    Args:
        wall: its time.
        model: the service from the producers' side.
        fan_out: the adapter under test.
    """

    wall: Wall
    model: KinesisModel
    fan_out: FanOut

    def put(self, data: bytes = b"x", *, hash_key: int = 0) -> str:
        """Put a record, by default into the first shard; gives its sequence number."""
        arguments = {
            "StreamName": STREAM,
            "PartitionKey": "k",
            "Data": base64.b64encode(data).decode(),
            "ExplicitHashKey": str(hash_key),
        }
        return cast("str", self.model.handle("PutRecord", arguments)["SequenceNumber"])

    def split(self, shard_id: str, at: int) -> None:
        arguments = {"StreamName": STREAM, "ShardToSplit": shard_id, "NewStartingHashKey": str(at)}
        self.model.handle("SplitShard", arguments)

    def wait(self, seconds: float) -> None:
        """Time goes on, and all subscriptions look at the clock."""
        self.wall.now_s += seconds
        self.model.wake()


@dataclass(frozen=True)
class FanOutBackend:
    """One adapter.

    Args:
        name: shown in the test's id.
        open: an account, for as long as the context lasts.
    """

    name: str
    open: Callable[[KinesisOptions], AbstractAsyncContextManager[FanOutAccount]]


def _account(model: KinesisModel, wall: Wall, fan_out: FanOut) -> FanOutAccount:
    model.handle("CreateStream", {"StreamName": STREAM, "ShardCount": 1})
    return FanOutAccount(wall, model, fan_out)


@asynccontextmanager
async def _in_memory(options: KinesisOptions) -> AsyncGenerator[FanOutAccount, None]:
    wall = Wall()
    model = KinesisModel(wall, options)
    yield _account(model, wall, MemoryFanOut(model))


@asynccontextmanager
async def _over_transport(options: KinesisOptions) -> AsyncGenerator[FanOutAccount, None]:
    wall = Wall()
    model = KinesisModel(wall, options)
    async with serve(application(model), 0) as url:
        with local_clients(kinesis=url) as clients:
            async with open_kinesis_client(clients, SystemClock()) as client:
                yield _account(model, wall, HttpFanOut(client))


STREAMED: list[FanOutBackend] = [
    FanOutBackend("http-1.1", _over_transport),
]
BACKENDS: list[FanOutBackend] = [FanOutBackend("memory", _in_memory), *STREAMED]
