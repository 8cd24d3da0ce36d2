"""A stream, a lease table and a leader's syncer over them, for the tests of what it creates and deletes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from kcl_daemon.config.balance import ShardSettings
from kcl_daemon.fleet.shard_sync import ShardSync
from kcl_daemon.fleet.streams import StreamMonitor, TrackedStream
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import Lease, LeaseKey, ShardId
from kcl_daemon.leases.row import RowUpdate
from kcl_daemon.ports import StreamRef
from kcl_daemon.shards.lineage import InitialPosition, Shard, StartAt
from kcl_local.kinesis.model import KinesisModel
from kcl_protocol.sequence import LATEST, ExtendedSequenceNumber
from tests.simulator.loop import run_virtual
from tests.simulator.memory.kinesis import MemoryKinesis
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.fleet.contexts import worker_context
from tests.unit.troubled import TroubledTable

AUDIT_S, MINUTE_S = 120.0, 60.0
FAR = ExtendedSequenceNumber("9" * 56)


class ScriptedKinesis(MemoryKinesis):
    """The model, but for lists that a test gives instead."""

    def __init__(self, model: KinesisModel) -> None:
        super().__init__(model)
        self.lists: list[tuple[Shard, ...]] = []

    async def list_shards(self, stream: StreamRef, start: InitialPosition | None = None) -> tuple[Shard, ...]:
        if self.lists:
            return self.lists.pop(0)
        return await super().list_shards(stream, start)


class Stage:
    """A stream of four shards, an empty table and a leader's syncer."""

    def __init__(self, settings: ShardSettings, position: StartAt) -> None:
        clock = LoopClock()
        self.model = KinesisModel(lambda: clock.wall_ms() / 1000)
        self.create_stream()
        self.kinesis = ScriptedKinesis(self.model)
        self.table = TroubledTable()
        self.log = MemoryLog()
        self.watch = StreamMonitor(kinesis=self.kinesis, stream=StreamRef("words"), clock=clock, log=self.log)
        self.leads = True
        self.shard_sync = ShardSync(
            worker_context(clock=clock, log=self.log),
            table=self.table,
            kinesis=self.kinesis,
            stream=TrackedStream(StreamRef("words"), InitialPosition(position), self.watch),
            settings=settings,
            leads=lambda: self.leads,
        )

    def create_stream(self, shards: int = 4) -> None:
        self.model.handle("CreateStream", {"StreamName": "words", "ShardCount": shards})

    def delete_stream(self) -> None:
        self.model.handle("DeleteStream", {"StreamName": "words"})

    def split(self, shard_id: str, at: int) -> None:
        arguments = {"StreamName": "words", "ShardToSplit": shard_id, "NewStartingHashKey": str(at)}
        self.model.handle("SplitShard", arguments)

    async def shards(self) -> dict[str, Shard]:
        listed = await MemoryKinesis(self.model).list_shards(StreamRef("words"))
        return {shard.shard_id: shard for shard in listed}

    async def leases(self) -> dict[str, Lease]:
        rows = await TroubledTable.scan(self.table)
        return {str(row["leaseKey"]): lease_row.lease_from_row(row) for row in rows}

    async def ensure(self) -> bool:
        return await self.shard_sync.ensure(list((await self.leases()).values()))

    async def has(self, *leases: Lease) -> None:
        for lease in leases:
            await self.table.put(lease_row.new_lease_row(lease))

    async def finish(self, shard_id: str, *children: str) -> None:
        """The shard has been read to its end."""
        written = lease_row.child_ids_update(
            Lease(LeaseKey(shard_id), 0, LATEST), frozenset(map(ShardId, children))
        )
        await self.table.update(written)
        await self.table.update(
            RowUpdate(shard_id, put={"checkpoint": "SHARD_END", "checkpointSubSequenceNumber": 0})
        )

    async def pass_time(self, seconds: float, *, poll_s: float = 10.0) -> None:
        """The leader looks again and again."""
        end_s = anyio.current_time() + seconds
        while anyio.current_time() < end_s:
            await anyio.sleep(poll_s)
            await self.ensure()


def play(
    scene: Callable[[Stage], Awaitable[None]],
    settings: ShardSettings | None = None,
    *,
    position: StartAt = StartAt.TRIM_HORIZON,
) -> Stage:
    async def main() -> Stage:
        stage = Stage(settings or ShardSettings(), position)
        await stage.table.ensure()
        await scene(stage)
        return stage

    return run_virtual(main)


def key(number: int) -> str:
    return f"shardId-{number:012d}"
