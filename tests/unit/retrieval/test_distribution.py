"""Records of aggregates that belong to other shards: left out only where it is sure that keys choose the shard."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable

import anyio
import pytest

from kcl_daemon.config.children import ChildSettings
from kcl_daemon.config.retrieval import DeliverySettings, RetrievalMode, RetrievalSettings
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import AccessDenied
from kcl_daemon.metrics.own import NOT_DELIVERED
from kcl_daemon.ports import StreamRef, StreamSummary
from kcl_daemon.records.payload import raw_record
from kcl_daemon.retrieval.distribution import Distribution
from kcl_daemon.retrieval.readers import ReaderFactory
from kcl_daemon.retrieval.source import ShardReader, ShardSource, StartMemory
from kcl_local.kinesis.model import KinesisModel
from kcl_local.kinesis.stream import stream_arn
from kcl_protocol.messages import Record
from kcl_protocol.sequence import TRIM_HORIZON
from tests.simulator.loop import run_virtual
from tests.simulator.memory.fan_out import MemoryFanOut
from tests.simulator.memory.kinesis import MemoryKinesis
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.fleet.contexts import worker_context
from tests.unit.metrics.stage import Gathered
from tests.unit.records.aggregates import UserRecord, aggregate
from tests.unit.retrieval.fan_out_stage import texts
from tests.unit.retrieval.test_source_left_out import ELSEWHERE, HERE, LOWER, SHARD

STREAM = StreamRef("words")
ARN = stream_arn("words")
AUTO, BY_KEY = "AUTO", "USER_PARTITION_KEY"
Start = Callable[[ShardReader], object]
MODES = pytest.mark.parametrize("mode", [RetrievalMode.POLLING, RetrievalMode.FANOUT])


class CountedKinesis(MemoryKinesis):
    """Counts who asks for the stream, and refuses it if told so."""

    asked = 0
    refuses = False

    async def describe_stream(self, stream: StreamRef) -> StreamSummary:
        self.asked += 1
        await anyio.sleep(0.02)
        if self.refuses:
            raise AccessDenied("not allowed", operation="DescribeStreamSummary")
        return await super().describe_stream(stream)


class Stage:
    """A stream of one shard on demand, whose lease says that it is one of two."""

    def __init__(self, mode: RetrievalMode, *, keeps: bool = False) -> None:
        clock = LoopClock()
        self.model = KinesisModel(lambda: clock.wall_ms() / 1000)
        self.model.handle("CreateStream", {"StreamName": "words", "ShardCount": 1})
        on_demand = {"StreamModeDetails": {"StreamMode": "ON_DEMAND"}}
        self.model.handle("UpdateStreamMode", {"StreamARN": ARN, **on_demand})
        self.log = MemoryLog()
        self.gathered = Gathered()
        self.kinesis = CountedKinesis(self.model)
        self._readers = ReaderFactory(
            worker_context(clock=clock, log=self.log, meters=self.gathered.meters),
            Settings(
                application_name="app",
                stream_name="words",
                child=ChildSettings(command=("child",)),
                worker_id="worker",
                retrieval=RetrievalSettings(mode=mode),
                delivery=DeliverySettings(keeps_other_shards=keeps),
            ),
            kinesis=self.kinesis,
            fan_out=MemoryFanOut(self.model),
        )

    def switch(self, strategy: str) -> None:
        arguments = {"StreamARN": ARN, "RecordDistributionStrategy": strategy}
        self.model.handle("UpdateStreamRecordDistributionStrategy", arguments)

    def put(self, *records: UserRecord) -> None:
        """An aggregate."""
        data = aggregate(records)
        self.model.handle(
            "PutRecord", {"StreamName": "words", "PartitionKey": "k", "Data": base64.b64encode(data).decode()}
        )

    def reader(self) -> ShardReader:
        source = ShardSource(STREAM, SHARD, TRIM_HORIZON, None, StartMemory())
        return self._readers.reader(source, hash_range=LOWER, log=self.log)

    @property
    def left_out(self) -> float | None:
        return self.gathered.value(NOT_DELIVERED, shard_id=SHARD, reason="other_shard")


def play(stage: Callable[[], Stage], scene: Callable[[Stage, Start], Awaitable[None]]) -> None:
    async def main() -> None:
        async with anyio.create_task_group() as background:
            await scene(stage(), lambda reader: background.start_soon(reader.run))
            background.cancel_scope.cancel()

    run_virtual(main)


@MODES
@pytest.mark.parametrize("size", [1, 200_000], ids=["small", "large"])
def test_on_an_auto_stream_all_records_of_an_aggregate_are_delivered(mode: RetrievalMode, size: int) -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.switch(AUTO)
        stage.put(("k", b"a", HERE), ("k", b"b" * size, ELSEWHERE), ("k", b"c", ELSEWHERE))
        stage.put(("k", b"d", ELSEWHERE))
        reader = stage.reader()
        start(reader)
        assert await texts(reader, 4) == ["a", "b" * size, "c", "d"]
        assert (stage.left_out, stage.log.events("warning")) == (None, [])

    play(lambda: Stage(mode), scene)


@MODES
def test_the_switch_is_noticed_while_it_runs_and_loses_nothing(mode: RetrievalMode) -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.put(("k", b"first", HERE))
        reader = stage.reader()
        start(reader)
        assert await texts(reader, 1) == ["first"]
        await anyio.sleep(100)
        stage.put(("k", b"x", ELSEWHERE), ("k", b"a", HERE))
        assert await texts(reader, 1) == ["a"]
        assert stage.left_out == 1.0, "keys choose, for longer than clocks may differ"
        stage.switch(AUTO)
        stage.put(("k", b"b", ELSEWHERE))
        assert await texts(reader, 1) == ["b"]
        stage.switch(BY_KEY)
        stage.put(("k", b"c", ELSEWHERE))
        assert await texts(reader, 1) == ["c"], "nobody knows whether it came before the switch"
        await anyio.sleep(100)
        stage.put(("k", b"d", ELSEWHERE))
        assert await texts(reader, 1) == ["d"], "the first answer after AUTO"
        await anyio.sleep(100)
        stage.put(("k", b"y", ELSEWHERE), ("k", b"e", HERE))
        assert await texts(reader, 1) == ["e"]
        assert stage.left_out == 2.0

    play(lambda: Stage(mode), scene)


@MODES
def test_a_record_that_arrived_before_the_distribution_was_asked_for_is_delivered(
    mode: RetrievalMode,
) -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.switch(AUTO)
        stage.put(("k", b"a", ELSEWHERE))
        stage.switch(BY_KEY)
        reader = stage.reader()
        start(reader)
        assert await texts(reader, 1) == ["a"]

    play(lambda: Stage(mode), scene)


@MODES
def test_without_an_answer_all_is_delivered_and_a_person_is_told(mode: RetrievalMode) -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.kinesis.refuses = mode is RetrievalMode.POLLING
        stage.put(("k", b"a", ELSEWHERE))
        reader = stage.reader()
        start(reader)
        await anyio.sleep(1 if stage.kinesis.refuses else 100)
        stage.kinesis.refuses = True
        stage.put(("k", b"b", ELSEWHERE))
        assert await texts(reader, 2) == ["a", "b"]
        assert stage.log.events("warning") == ["record_distribution_unknown"]

    play(lambda: Stage(mode), scene)


def test_a_property_keeps_them_on_any_stream_and_nobody_is_asked() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.put(("k", b"a", ELSEWHERE), ("k", b"b", HERE))
        reader = stage.reader()
        start(reader)
        assert await texts(reader, 2) == ["a", "b"]
        assert (stage.kinesis.asked, stage.left_out) == (0, None)

    play(lambda: Stage(RetrievalMode.POLLING, keeps=True), scene)


def test_all_shards_of_a_stream_ask_together_and_once_a_second_at_most() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.model.handle(
            "UpdateStreamMode", {"StreamARN": ARN, "StreamModeDetails": {"StreamMode": "PROVISIONED"}}
        )
        readers = [stage.reader() for _ in range(5)]
        for reader in readers:
            start(reader)
        for _ in range(20):
            stage.put(("k", b"x", ELSEWHERE), ("k", b"a", HERE))
            for reader in readers:
                assert await texts(reader, 1) == ["a"]
        assert stage.kinesis.asked <= anyio.current_time() + 2
        assert stage.left_out == 100.0

    play(lambda: Stage(RetrievalMode.POLLING), scene)


def test_an_answer_from_before_a_record_came_does_not_count() -> None:
    async def scene(stage: Stage, _start: Start) -> None:
        distribution = Distribution(stage.kinesis, STREAM, LoopClock())
        here = raw_record(Record("AAAA", "k", "1", LoopClock().wall_ms() + 1_000_000))
        await distribution.ask(0.0)
        assert distribution.kept(here, 0.0) is False
        await anyio.sleep(5)
        assert distribution.kept(here, anyio.current_time()) is None
        stage.kinesis.refuses = True
        await distribution.ask(received_s := anyio.current_time())
        assert distribution.kept(here, received_s) is True, "in doubt"
        await anyio.sleep(20)
        assert distribution.kept(here, received_s) is None
        stage.kinesis.refuses = False
        await distribution.ask(received_s)
        assert distribution.kept(here, received_s) is False

    play(lambda: Stage(RetrievalMode.POLLING), scene)


def test_for_records_that_are_delivered_whatever_the_answer_nobody_is_asked_again() -> None:
    async def scene(stage: Stage, _start: Start) -> None:
        now_ms = LoopClock().wall_ms()
        distribution = Distribution(stage.kinesis, STREAM, LoopClock())
        stage.model.handle(
            "UpdateStreamRecordDistributionStrategy",
            {"StreamARN": ARN, "RecordDistributionStrategy": BY_KEY},
        )
        await distribution.ask(0.0)
        await anyio.sleep(3600)
        for arrived_ms in (now_ms - 86_400_000, now_ms + 50_000, None):
            record = raw_record(Record("AAAA", "k", "1", arrived_ms))
            assert distribution.kept(record, anyio.current_time()) is True
        later = raw_record(Record("AAAA", "k", "1", now_ms + 100_000))
        assert distribution.kept(later, anyio.current_time()) is None

    play(lambda: Stage(RetrievalMode.POLLING), scene)
