"""Until when a batch is complete: the fact stays with the last part of an answer, whoever cuts, joins or filters it."""

from __future__ import annotations

import base64
from dataclasses import replace

import anyio
import pytest

from kcl_daemon.config.children import ChildSettings
from kcl_daemon.config.retrieval import DeliverySettings, RetrievalSettings, SchemaFailure
from kcl_daemon.errors import AccessDenied
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import FetchedRecords, StreamRef
from kcl_daemon.progress.progress import LastFetch
from kcl_daemon.records.batch import Batch, ReadFacts, nothing
from kcl_daemon.records.batch_text import FRAMINGS, BatchEncoder
from kcl_daemon.records.kpl import Deaggregator
from kcl_daemon.records.payload import Payload
from kcl_daemon.records.record_filter import RecordFilter
from kcl_daemon.retrieval.fan_out import FanOutReader
from kcl_daemon.retrieval.filtering import ShardFilter
from kcl_daemon.retrieval.schemas import SchemaCache, ShardSchemaDecoder
from kcl_daemon.retrieval.source import DeliveryBatch, ShardReader, ShardSource, StartMemory
from kcl_protocol.codec import FRAME_START, decode_daemon_line, decode_frame_header
from kcl_protocol.frames import decode_frame
from kcl_protocol.messages import FRAMES_VERSION, ProcessRecords, Record
from kcl_protocol.sequence import TRIM_HORIZON
from tests.simulator.loop import run_virtual
from tests.simulator.memory.kinesis import MemoryKinesis
from tests.unit.fakes import LoopClock
from tests.unit.fleet.contexts import worker_context
from tests.unit.records.aggregates import aggregate, silent
from tests.unit.retrieval import fan_out_stage
from tests.unit.retrieval import test_batch_window as windows
from tests.unit.retrieval.registry import ORDERS, MemorySchemas, framed
from tests.unit.retrieval.stage import SHARD, STREAM, Stage, Start, play

UNTIL_MS = 1_770_000_000_000
MARGIN_MS = 1_000
NEW = RecordFilter.of('{"data": {"t": ["new"]}}')


def batch(count: int, complete_ms: int | None = UNTIL_MS) -> Batch:
    records = (Record("YWJj", "k", str(100 + place), UNTIL_MS - 9) for place in range(count))
    return Batch(Payload.of(records), ReadFacts(0.0, UNTIL_MS, 0), complete_ms)


def told(batch: object, encoder: BatchEncoder | None = None) -> tuple[int, int | None]:
    """How many records the child is given, and until when it is told that it has all."""
    assert isinstance(batch, DeliveryBatch), batch
    line = batch.take_encoded(encoder or BatchEncoder()).data
    batch.release()
    if line.startswith(FRAME_START):
        return len(decode_frame(line)[0]), decode_frame_header(line.partition(b"\n")[0]).complete_ms
    message = decode_daemon_line(line)
    assert isinstance(message, ProcessRecords)
    return len(message.records), message.complete_ms


async def told_next(reader: ShardReader, count: int) -> list[tuple[int, int | None]]:
    return [told(await reader.next()) for _ in range(count)]


@pytest.mark.parametrize("frames", [False, True])
def test_a_relay_is_told_with_records_and_while_nothing_comes(frames: bool) -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.put("a", "b")
        reader = stage.reader(
            tells_complete=True, encoder=BatchEncoder(FRAMINGS[FRAMES_VERSION if frames else None])
        )
        start(reader)
        began_ms = stage.clock.wall_ms()
        assert await told_next(reader, 1) == [(2, began_ms - MARGIN_MS)]
        ((count, later_ms),) = await told_next(reader, 1)
        assert count == 0
        assert later_ms is not None
        assert began_ms < later_ms + MARGIN_MS <= stage.clock.wall_ms()

    play(scene)


def test_a_child_that_is_no_relay_gets_no_complete_until() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.put("a")
        reader = stage.reader()
        start(reader)
        assert await told_next(reader, 2) == [(1, None), (0, None)]

    play(scene)
    assert not ChildSettings(("child",)).is_relay


def test_a_shard_behind_its_tip_is_not_complete() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.put("a", "b")
        await anyio.sleep(5.0)
        reader = stage.reader(tells_complete=True, settings=RetrievalSettings(max_records=1))
        start(reader)
        (first, second) = await told_next(reader, 2)
        assert first == (1, None)
        assert second[1] is not None

    play(scene)


def test_dynamodb_must_be_quiet_for_a_while() -> None:
    changes = StreamRef("words", "arn:aws:dynamodb:eu-west-1:1:table/words/stream/1")
    assert not changes.source.says_tip
    source = ShardSource(changes, SHARD, TRIM_HORIZON, None, StartMemory(), tells_complete=True)
    asked_ms = [UNTIL_MS - 2_000 * ago for ago in range(9, -1, -1)]
    assert source.complete_ms(source.tip_ms(UNTIL_MS, asked_ms[1:]), 0) is None, (
        "it may be empty in the middle"
    )
    assert source.complete_ms(source.tip_ms(UNTIL_MS, asked_ms), 0) == asked_ms[0] - 2 * MARGIN_MS, (
        "the last of them alone tells nothing of what came since; changes are dated by the second"
    )


def test_an_answer_with_records_is_complete_up_to_the_last_of_them_as_the_shard_may_be_closed() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        arrived_ms = stage.clock.wall_ms()
        stage.put("a", "b")
        await anyio.sleep(30.0)
        reader = stage.reader(tells_complete=True)
        start(reader)
        assert await told_next(reader, 1) == [(2, arrived_ms - MARGIN_MS)]
        ((count, complete_ms),) = await told_next(reader, 1)
        assert count == 0
        assert complete_ms is not None
        assert complete_ms > arrived_ms + 20_000

    play(scene)


def test_of_aggregates_in_many_parts_only_the_last_part_is() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        for _ in range(3):
            stage.put_bytes(aggregate([("k", b"x" * 700_000, None), ("k", b"y", None)]))
        reader = stage.reader(tells_complete=True, split=Deaggregator(None, silent))
        start(reader)
        began_ms = stage.clock.wall_ms()
        assert await told_next(reader, 3) == [(2, None), (2, None), (2, began_ms - MARGIN_MS)]

    play(scene)


@pytest.mark.parametrize("last", [b"{}", b'{"t": "new"}'])
@pytest.mark.parametrize("sizes", [(), (700_000, 700_000)])
def test_a_filter_that_leaves_out_the_last_records_still_tells_complete_until(
    sizes: tuple[int, ...], last: bytes
) -> None:
    """`sizes`: of aggregates before it, each of which is a part of the answer and has one record that is kept."""

    async def scene(stage: Stage, start: Start) -> None:
        for size in sizes:
            stage.put_bytes(aggregate([("k", b'{"t": "new"}', None), ("k", b"x" * size, None)]))
        stage.put_bytes(aggregate([("k", b"x" * 700_000, None), ("k", last, None)]))
        split = Deaggregator(None, silent)
        source = ShardSource(
            STREAM, SHARD, TRIM_HORIZON, None, StartMemory(), split=split, tells_complete=True
        )
        reader = stage.reader(tells_complete=True)
        reader._source = replace(source, stages=(ShardFilter(NEW).filtered,))
        began_ms = stage.clock.wall_ms()
        start(reader)
        await anyio.sleep(0.1)  # what it gives first is not taken yet
        kept = int(last != b"{}")
        expected = [(1, None)] * len(sizes) + [(kept, began_ms - MARGIN_MS)]
        assert await told_next(reader, len(expected)) == expected

    play(scene)


def test_a_closed_shard_is_never_complete_beyond_its_records_as_its_children_have_others() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.put("a", "b")
        stage.split()
        await anyio.sleep(30.0)
        reader = stage.reader(tells_complete=True)
        start(reader)
        assert await told_next(reader, 1) == [(2, None)]
        item = await reader.next()
        if isinstance(item, DeliveryBatch):
            assert told(item) == (0, None)

    play(scene)


def test_of_what_is_decoded_in_parts_only_the_last_part_is() -> None:
    async def main() -> list[int | None]:
        context = worker_context()
        decoder = ShardSchemaDecoder(
            SchemaCache(MemorySchemas(ORDERS), context), SchemaFailure.RETRY, context, LastFetch()
        ).decoder(Batch(payload_of(*[framed(b"x" * 2_000_000)] * 3), ReadFacts(0.0, None, 0), UNTIL_MS))
        assert decoder is not None
        found = list[int | None]()
        while (part := await decoder.next()) is not None:
            found.append(part.complete_ms)
        return found

    assert run_virtual(main) == [None, UNTIL_MS]


def payload_of(*data: bytes) -> Payload:
    texts = [base64.b64encode(each).decode() for each in data]
    return Payload.of(Record(text, "k", str(100 + place)) for place, text in enumerate(texts))


def test_a_child_that_is_slow_is_told_what_is_true_of_each_batch() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        reader, clock = stage.reader(tells_complete=True), stage.clock
        start(reader)
        put, had = list[int](), 0
        for step in range(40):
            put += [clock.wall_ms()] * (step % 3)
            stage.put(*["x"] * (step % 3))
            await anyio.sleep(0.7 * (step % 4))
            count, complete_ms = told(await reader.next())
            had += count
            assert all(arrived_ms >= (complete_ms or 0) for arrived_ms in put[had:])

    play(scene)


def test_a_window_keeps_it_for_the_last_batch_and_takes_that_of_an_empty_one() -> None:
    async def main() -> None:
        stage = windows.Stage(DeliverySettings(batch_window_ms=1_000, batch_max_records=2))
        stage.give(DeliveryBatch(batch(3)))
        assert [told(await stage.window.next()) for _ in range(2)] == [(2, None), (1, UNTIL_MS)]
        stage.give(DeliveryBatch(batch(1, None)))
        stage.give(DeliveryBatch(nothing(0, UNTIL_MS + 1)))
        assert told(await stage.window.next()) == (1, UNTIL_MS + 1)

    run_virtual(main)


def with_empty(stage: fan_out_stage.FanOutStage) -> fan_out_stage.FanOutStage:
    settings = stage.readers._settings
    stage.readers._settings = replace(settings, child=replace(settings.child, call_for_empty=True))
    return stage


def test_a_quiet_shard_with_fan_out_is_asked_by_a_read() -> None:
    async def scene(stage: fan_out_stage.FanOutStage, start: fan_out_stage.Start) -> None:
        with_empty(stage)
        stage.put("a")
        reader, clock = stage.reader(tells_complete=True), LoopClock()
        start(reader)
        found = list[tuple[int, int | None]]()
        began_ms = clock.wall_ms()
        with anyio.move_on_after(20):
            while True:
                count, complete_ms = told(await reader.next())
                found.append((count, complete_ms))
                assert (
                    complete_ms is None or clock.wall_ms() - 100 <= complete_ms + MARGIN_MS <= clock.wall_ms()
                )
        assert found[0] == (1, None), "an event does not say when it was sent"
        assert sum(complete_ms is not None for _, complete_ms in found) >= 8
        stage.put("b")
        assert told(await reader.next()) == (1, None)
        assert clock.wall_ms() - began_ms < 21_000

    fan_out_stage.play(scene)


def test_a_closed_shard_with_fan_out_is_never_complete() -> None:
    async def scene(stage: fan_out_stage.FanOutStage, start: fan_out_stage.Start) -> None:
        with_empty(stage)
        stage.put("a")
        reader = stage.reader(tells_complete=True)
        tip = stage.put("b")[-1]
        stage.split()
        await anyio.sleep(30.0)
        assert isinstance(reader, FanOutReader)
        assert await reader._asked(tip) is None

    fan_out_stage.play(scene)


class Refusing(MemoryKinesis):
    async def get_records(
        self, stream: StreamRef, shard_id: ShardId, iterator: str, limit: int
    ) -> FetchedRecords:
        raise AccessDenied("not allowed", operation="GetRecords")


def test_a_shard_that_may_not_be_asked_is_read_all_the_same_and_that_is_said_once() -> None:
    async def scene(stage: fan_out_stage.FanOutStage, start: fan_out_stage.Start) -> None:
        with_empty(stage)
        stage.readers._kinesis = Refusing(stage.model)
        stage.put("a")
        reader = stage.reader(tells_complete=True)
        start(reader)
        with anyio.move_on_after(20):
            while True:
                assert told(await reader.next())[1] is None
        assert stage.log.events("warning") == ["tip_not_asked"]
        stage.put("b")
        assert told(await reader.next()) == (1, None)

    fan_out_stage.play(scene)
