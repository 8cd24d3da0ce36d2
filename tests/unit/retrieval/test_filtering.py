"""Readers with a filter: what they give, what they tell that they passed, what they count; by polling and by fan-out."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel
import pytest

from kcl_daemon.config.children import ChildSettings
from kcl_daemon.config.retrieval import (
    DeliverySettings,
    RetrievalMode,
    RetrievalSettings,
    SchemaRegistry,
    SchemaSettings,
)
from kcl_daemon.config.settings import Settings
from kcl_daemon.metrics.own import NOT_DELIVERED
from kcl_daemon.records.batch import Batch, ReadFacts
from kcl_daemon.records.batch_text import BatchEncoder
from kcl_daemon.records.payload import Payload
from kcl_daemon.records.record_filter import RecordFilter
from kcl_daemon.retrieval.filtering import ShardFilter
from kcl_daemon.retrieval.readers import ReaderFactory
from kcl_daemon.retrieval.source import DeliveryBatch, Passed, ReadItem, ShardReader, ShardSource, StartMemory
from kcl_local.kinesis.model import KinesisModel
from kcl_protocol.codec import decode_daemon_line
from kcl_protocol.messages import ProcessRecords, Record
from kcl_protocol.sequence import TRIM_HORIZON, ExtendedSequenceNumber
from tests.simulator.loop import run_virtual
from tests.simulator.memory.fan_out import MemoryFanOut
from tests.simulator.memory.kinesis import MemoryKinesis
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.fleet.contexts import worker_context
from tests.unit.metrics.stage import Gathered
from tests.unit.records.aggregates import aggregate
from tests.unit.retrieval.registry import ORDERS, MemorySchemas, framed
from tests.unit.retrieval.stage import SHARD, STREAM

NEW = RecordFilter.of('{"data": {"t": ["new"]}}')
YES, NO = b'{"t": "new"}', b'{"t": "old"}'


class Stage:
    """A stream of one shard and a reader that keeps what is new."""

    def __init__(self, mode: RetrievalMode, *, empty: bool = False) -> None:
        clock, log = LoopClock(), MemoryLog()
        self.model = KinesisModel(lambda: clock.wall_ms() / 1000)
        self.model.handle("CreateStream", {"StreamName": "words", "ShardCount": 1})
        self.gathered = Gathered()
        readers = ReaderFactory(
            worker_context(clock=clock, log=log, meters=self.gathered.meters),
            Settings(
                application_name="app",
                stream_name="words",
                child=ChildSettings(command=("child",), call_for_empty=empty),
                worker_id="worker",
                retrieval=RetrievalSettings(mode=mode),
                delivery=DeliverySettings(record_filter=NEW),
                schemas=SchemaSettings(SchemaRegistry.DECODE),
            ),
            kinesis=MemoryKinesis(self.model),
            fan_out=MemoryFanOut(self.model),
            schemas=MemorySchemas(ORDERS),
        )
        source = ShardSource(STREAM, SHARD, TRIM_HORIZON, None, StartMemory())
        self.reader: ShardReader = readers.reader(source, hash_range=None, log=log)

    def put(self, *payloads: bytes) -> list[str]:
        """Write records in one go; their sequence numbers."""
        records = [{"PartitionKey": "k", "Data": base64.b64encode(data).decode()} for data in payloads]
        answer = self.model.handle("PutRecords", {"StreamName": "words", "Records": records})
        written = answer["Records"]
        assert isinstance(written, list)
        return [str(each["SequenceNumber"]) for each in written]

    @property
    def filtered(self) -> float | None:
        return self.gathered.value(NOT_DELIVERED, shard_id=SHARD, reason="filtered")


def given(item: ReadItem) -> list[tuple[str, int | None]]:
    """Numbers of the records of a batch."""
    assert isinstance(item, DeliveryBatch), item
    message = decode_daemon_line(item.take_encoded(BatchEncoder()).data)
    item.release()
    assert isinstance(message, ProcessRecords)
    return [(record.sequence_number, record.sub_sequence_number) for record in message.records]


@pytest.fixture(params=RetrievalMode, ids=lambda mode: mode.value)
def mode(request: pytest.FixtureRequest) -> RetrievalMode:
    assert isinstance(request.param, RetrievalMode)
    return request.param


def play(scene: Callable[[Stage], Awaitable[None]], mode: RetrievalMode, *, empty: bool = False) -> None:
    async def main() -> None:
        stage = Stage(mode, empty=empty)
        async with anyio.create_task_group() as background:
            background.start_soon(stage.reader.run)
            await scene(stage)
            background.cancel_scope.cancel()
        stage.reader.close()

    run_virtual(main)


def test_the_position_of_filtered_records_is_told_once_no_record_is_given(mode: RetrievalMode) -> None:
    async def scene(stage: Stage) -> None:
        numbers = stage.put(NO, YES, NO, b"no JSON")
        assert given(await stage.reader.next()) == [(numbers[1], 0)]
        assert await stage.reader.next() == Passed(ExtendedSequenceNumber(numbers[-1]))
        assert stage.filtered == 3
        more = stage.put(NO, NO)
        assert await stage.reader.next() == Passed(ExtendedSequenceNumber(more[-1]))
        with anyio.move_on_after(60) as waiting:
            await stage.reader.next()
        assert waiting.cancelled_caught, "nothing new is not told again"
        assert stage.reader.oldest_s is None

    play(scene, mode)


def test_other_tasks_run_while_a_large_record_is_filtered() -> None:
    async def main() -> int:
        text = base64.b64encode(b'{"t": [' + b"{}," * 100_000 + b'"new"]}').decode()
        turns, over = 0, False

        async def turn() -> None:
            nonlocal turns
            while not over:
                turns += 1
                await anyio.lowlevel.checkpoint()

        async with anyio.create_task_group() as background:
            background.start_soon(turn)
            kept = await ShardFilter(NEW).kept(
                Batch(Payload.of([Record(text, "k", "1", 0, 0)]), ReadFacts(0.0, 0, 0))
            )
            over = True
            assert len(kept) == 1
        return turns

    assert anyio.run(main) > 10


def test_inside_aggregates_the_position_goes_to_the_last_record(mode: RetrievalMode) -> None:
    async def scene(stage: Stage) -> None:
        (number,) = stage.put(aggregate(("k", data, None) for data in (NO, YES, NO)))
        assert given(await stage.reader.next()) == [(number, 1)]
        assert await stage.reader.next() == Passed(ExtendedSequenceNumber(number, 2))

    play(scene, mode)


def test_schemas_are_resolved_first(mode: RetrievalMode) -> None:
    async def scene(stage: Stage) -> None:
        numbers = stage.put(framed(YES), framed(NO, packed=True), YES, NO, framed(YES, packed=True))
        found: list[tuple[str, int | None]] = []
        while len(found) < 3:
            found += given(await stage.reader.next())
        assert found == [(numbers[at], 0) for at in (0, 2, 4)]
        last = stage.put(framed(NO))[-1]
        assert await stage.reader.next() == Passed(ExtendedSequenceNumber(last))
        last = stage.put(NO)[-1]
        assert await stage.reader.next() == Passed(ExtendedSequenceNumber(last))
        assert stage.filtered == 4

    play(scene, mode)


def test_empty_batches_come_as_without_a_filter(mode: RetrievalMode) -> None:
    async def scene(stage: Stage) -> None:
        (last,) = stage.put(NO)
        items = [await stage.reader.next() for _ in range(6)]
        assert Passed(ExtendedSequenceNumber(last)) in items
        empty = [item for item in items if isinstance(item, DeliveryBatch)]
        assert len(empty) == 5
        assert not any(item.count for item in empty)

    play(scene, mode, empty=True)
