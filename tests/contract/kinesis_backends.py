"""The adapters of the port `Kinesis` that must keep its contract. Add a factory to `BACKENDS` to put one more to it."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import cast

from kcl_daemon.aws.build import open_kinesis_client
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import FetchedRecords, IteratorKind, Kinesis, ReadFrom, StreamRef
from kcl_daemon.system import SystemClock
from kcl_daemon.transport.kinesis import HttpKinesis
from kcl_local.kinesis.arguments import KinesisOptions
from kcl_local.kinesis.http import application
from kcl_local.kinesis.model import KinesisModel
from kcl_local.serving import serve
from tests.contract.aws_access import local_clients
from tests.simulator.memory.kinesis import MemoryKinesis

START_S = 1_795_190_400.25


@dataclass
class Wall:
    """The clock of the service, in the test's hand."""

    now_s: float = START_S

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Account:
    """An account with Kinesis in it.

    Args:
        wall: its time.
        model: the service from the producers' side.
        kinesis: the adapter under test.
    """

    wall: Wall
    model: KinesisModel
    kinesis: Kinesis

    def create_auto(self) -> StreamRef:
        """A stream of four shards that distributes records by itself."""
        mode = {"StreamModeDetails": {"StreamMode": "ON_DEMAND"}, "RecordDistributionStrategy": "AUTO"}
        self.model.handle("CreateStream", {"StreamName": "orders", **mode})
        return StreamRef("orders")

    def create(self, name: str = "orders", shards: int = 1) -> StreamRef:
        self.model.handle("CreateStream", {"StreamName": name, "ShardCount": shards})
        return StreamRef(name)

    def put(self, data: bytes = b"x", *, key: str = "k", hash_key: int = 0, name: str = "orders") -> str:
        """Put a record, by default into the first shard; gives its sequence number."""
        answer = self.model.handle(
            "PutRecord",
            {
                "StreamName": name,
                "PartitionKey": key,
                "Data": base64.b64encode(data).decode(),
                "ExplicitHashKey": str(hash_key),
            },
        )
        return cast("str", answer["SequenceNumber"])

    def split(self, shard_id: str, at: int, name: str = "orders") -> None:
        arguments = {"StreamName": name, "ShardToSplit": shard_id, "NewStartingHashKey": str(at)}
        self.model.handle("SplitShard", arguments)

    def merge(self, shard_id: str, adjacent: str, name: str = "orders") -> None:
        arguments = {"StreamName": name, "ShardToMerge": shard_id, "AdjacentShardToMerge": adjacent}
        self.model.handle("MergeShards", arguments)

    async def iterator(
        self, stream: StreamRef, shard_id: str, kind: IteratorKind = IteratorKind.TRIM_HORIZON
    ) -> str:
        return await self.kinesis.get_shard_iterator(stream, ShardId(shard_id), ReadFrom(kind))

    async def read(self, stream: StreamRef, shard_id: str, read_from: ReadFrom) -> FetchedRecords:
        """The first answer from there."""
        iterator = await self.kinesis.get_shard_iterator(stream, ShardId(shard_id), read_from)
        return await self.kinesis.get_records(stream, ShardId(shard_id), iterator, 10_000)


@dataclass(frozen=True)
class KinesisBackend:
    """One adapter.

    Args:
        name: shown in the test's id.
        open: an account, for as long as the context lasts.
    """

    name: str
    open: Callable[[KinesisOptions], AbstractAsyncContextManager[Account]]


@asynccontextmanager
async def _in_memory(options: KinesisOptions) -> AsyncGenerator[Account, None]:
    wall = Wall()
    model = KinesisModel(wall, options)
    yield Account(wall, model, MemoryKinesis(model))


@asynccontextmanager
async def _over_http(options: KinesisOptions) -> AsyncGenerator[Account, None]:
    wall = Wall()
    model = KinesisModel(wall, options)
    async with serve(application(model), 0) as url:
        with local_clients(kinesis=url) as clients:
            async with open_kinesis_client(clients, SystemClock()) as client:
                yield Account(wall, model, HttpKinesis(client))


BACKENDS: list[KinesisBackend] = [
    KinesisBackend("memory", _in_memory),
    KinesisBackend("http", _over_http),
]
