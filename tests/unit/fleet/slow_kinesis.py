"""A stream whose shards are listed slowly, or not at all."""

from __future__ import annotations

import anyio

from kcl_daemon.errors import Unavailable
from kcl_daemon.ports import StreamRef
from kcl_daemon.shards.lineage import InitialPosition, Shard
from tests.simulator.memory.kinesis import MemoryKinesis


class SlowKinesis(MemoryKinesis):
    """The model, which takes its time to list shards where a test says so."""

    takes_s = 0.0
    lists = 0
    fails = False

    async def list_shards(self, stream: StreamRef, start: InitialPosition | None = None) -> tuple[Shard, ...]:
        self.lists += 1
        await anyio.sleep(self.takes_s)
        if self.fails:
            raise Unavailable("read timed out", operation="ListShards")
        return await super().list_shards(stream, start)
