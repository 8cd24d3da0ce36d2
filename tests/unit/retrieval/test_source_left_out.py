"""What is read and given to no child is counted by shard and reason; loud only where somebody must look."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable

import anyio
import pytest

from kcl_daemon.config.children import ChildSettings
from kcl_daemon.config.retrieval import RetrievalMode, RetrievalSettings
from kcl_daemon.config.settings import Settings
from kcl_daemon.leases.lease import MAX_HASH, HashRange, ShardId
from kcl_daemon.metrics.own import NOT_DELIVERED
from kcl_daemon.ports import StreamRef
from kcl_daemon.retrieval.readers import ReaderFactory
from kcl_daemon.retrieval.source import ShardReader, ShardSource, StartMemory
from kcl_local.kinesis.model import KinesisModel
from kcl_protocol.sequence import TRIM_HORIZON, ExtendedSequenceNumber
from tests.simulator.loop import run_virtual
from tests.simulator.memory.fan_out import MemoryFanOut
from tests.simulator.memory.kinesis import MemoryKinesis
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.fleet.contexts import worker_context
from tests.unit.metrics.stage import Gathered
from tests.unit.records.aggregates import UserRecord, aggregate
from tests.unit.retrieval.fan_out_stage import texts

STREAM = StreamRef("words")
SHARD = ShardId("shardId-000000000000")
LOWER = HashRange(0, MAX_HASH // 2)
HERE, ELSEWHERE = "0", str(MAX_HASH)
Start = Callable[[ShardReader], object]


class Stage:
    """A stream of one shard, its readers, and what they count."""

    def __init__(self, mode: RetrievalMode) -> None:
        clock = LoopClock()
        self.model = KinesisModel(lambda: clock.wall_ms() / 1000)
        self.model.handle("CreateStream", {"StreamName": "words", "ShardCount": 1})
        self.log = MemoryLog()
        self.gathered = Gathered()
        self._readers = ReaderFactory(
            worker_context(clock=clock, log=self.log, meters=self.gathered.meters),
            Settings(
                application_name="app",
                stream_name="words",
                child=ChildSettings(command=("child",)),
                worker_id="worker",
                retrieval=RetrievalSettings(mode=mode),
            ),
            kinesis=MemoryKinesis(self.model),
            fan_out=MemoryFanOut(self.model),
        )

    def put(self, data: bytes) -> str:
        """Write a record; its sequence number."""
        arguments = {"StreamName": "words", "PartitionKey": "k", "Data": base64.b64encode(data).decode()}
        return str(self.model.handle("PutRecord", arguments)["SequenceNumber"])

    def put_together(self, *records: UserRecord) -> str:
        return self.put(aggregate(records))

    def reader(self, checkpoint: ExtendedSequenceNumber = TRIM_HORIZON) -> ShardReader:
        source = ShardSource(STREAM, SHARD, checkpoint, None, StartMemory())
        return self._readers.reader(source, hash_range=LOWER, log=self.log)

    def skipped(self, reason: str) -> float | None:
        return self.gathered.value(NOT_DELIVERED, shard_id=SHARD, reason=reason)

    def reported(self) -> list[tuple[str, object, object]]:
        return [
            (level, fields["records"], fields["so_far"])
            for level, event, fields in self.log.lines
            if event == "records_of_other_shard"
        ]


def play(mode: RetrievalMode, scene: Callable[[Stage, Start], Awaitable[None]]) -> None:
    async def main() -> None:
        async with anyio.create_task_group() as background:
            await scene(Stage(mode), lambda reader: background.start_soon(reader.run))
            background.cancel_scope.cancel()

    run_virtual(main)


@pytest.mark.parametrize("mode", [RetrievalMode.POLLING, RetrievalMode.FANOUT])
def test_records_of_other_shards_are_counted_and_reported_loudly_once(mode: RetrievalMode) -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.put_together(("k", b"a", HERE), ("k", b"x", ELSEWHERE), ("k", b"y", ELSEWHERE))
        stage.put_together(("k", b"z", ELSEWHERE))
        stage.put_together(("k", b"b", HERE))
        reader = stage.reader()
        start(reader)
        assert await texts(reader, 2) == ["a", "b"]
        assert stage.skipped("other_shard") == 3.0
        assert stage.skipped("before_checkpoint") is None
        assert stage.reported() == [("warning", 2, 2), ("debug", 1, 3)]

    play(mode, scene)


@pytest.mark.parametrize("mode", [RetrievalMode.POLLING, RetrievalMode.FANOUT])
def test_records_before_the_checkpoint_are_counted_without_a_warning(mode: RetrievalMode) -> None:
    async def scene(stage: Stage, start: Start) -> None:
        number = stage.put_together(*[("k", text.encode(), HERE) for text in "abc"])
        stage.put(b"d")
        reader = stage.reader(ExtendedSequenceNumber(number, 1))
        start(reader)
        assert await texts(reader, 2) == ["c", "d"]
        assert stage.skipped("before_checkpoint") == 2.0
        assert stage.skipped("other_shard") is None
        assert stage.log.events("warning") == []

    play(mode, scene)


def test_nothing_is_counted_where_all_is_delivered() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.put(b"a")
        stage.put_together(("k", b"b", HERE))
        reader = stage.reader()
        start(reader)
        assert await texts(reader, 2) == ["a", "b"]
        assert stage.skipped("before_checkpoint") is None
        assert stage.skipped("other_shard") is None

    play(RetrievalMode.POLLING, scene)
