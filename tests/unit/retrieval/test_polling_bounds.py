"""How much of a shard is read ahead, and what is held of the worker's room meanwhile."""

from __future__ import annotations

import hashlib

import anyio
import pytest

from kcl_daemon.config.retrieval import RetrievalSettings
from kcl_daemon.ports import IteratorKind
from kcl_daemon.records.batch_text import FRAMINGS, LINES, BatchEncoder
from kcl_daemon.records.kpl import Deaggregator
from kcl_daemon.records.payload import LINE_BYTES
from kcl_daemon.retrieval.byte_budget import ByteBudget
from kcl_daemon.retrieval.polling import PollingReader
from kcl_daemon.retrieval.source import DeliveryBatch, EndOfShard
from kcl_protocol.codec import FRAME_START
from kcl_protocol.messages import FRAMES_VERSION
from tests.unit.fakes import LoopClock
from tests.unit.records.aggregates import aggregate, silent
from tests.unit.retrieval.stage import Stage, Start, play, texts


def test_without_reading_ahead_a_shard_is_read_when_its_child_waits() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.put("one", "two")
        reader = stage.reader(settings=RetrievalSettings(max_records=1, prefetch_batches=0))
        start(reader)
        await anyio.sleep(60.0)
        assert stage.kinesis.read_at_s == []
        assert await texts(reader, 1) == ["one"]
        await anyio.sleep(60.0)
        assert len(stage.kinesis.read_at_s) == 1
        assert await texts(reader, 1) == ["two"]

    play(scene)


def test_records_bound_the_buffer_too() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.put(*(f"r{number}" for number in range(30)))
        settings = RetrievalSettings(max_records=5, prefetch_records=10, prefetch_batches=100)
        reader = stage.reader(settings=settings)
        start(reader)
        await anyio.sleep(60.0)
        assert len(stage.kinesis.read_at_s) == 2
        assert await texts(reader, 30) == [f"r{number}" for number in range(30)]

    play(scene)


def test_an_iterator_that_waited_for_a_slow_child_is_renewed_before_it_expires() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        numbers = stage.put("one", "two")
        reader = stage.reader(settings=RetrievalSettings(max_records=1, prefetch_batches=1))
        start(reader)
        await anyio.sleep(290.0)
        assert await texts(reader, 2) == ["one", "two"]
        first, second = stage.kinesis.positions
        assert first.kind is IteratorKind.TRIM_HORIZON
        assert (second.kind, second.sequence_number) == (IteratorKind.AFTER_SEQUENCE_NUMBER, numbers[0])
        assert stage.log.events() == []

    play(scene)


def test_a_batch_counts_in_the_budget_until_it_is_released() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.put("x" * 50_000)
        budget = ByteBudget(LoopClock())
        reader = stage.reader(budget=budget, reports_empty=False)
        start(reader)
        batch = await reader.next()
        assert isinstance(batch, DeliveryBatch)
        assert 50_000 < budget.reserved_bytes < 200_000
        batch.release()
        batch.release()
        await anyio.sleep(1.0)
        assert budget.reserved_bytes == 0

    play(scene)


def test_a_child_is_given_frames_from_when_it_takes_them() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        budget, encoder = ByteBudget(LoopClock()), BatchEncoder(LINES)
        reader = stage.reader(budget=budget, reports_empty=False, encoder=encoder)
        start(reader)
        for is_frame in (False, True):
            encoder.framing = FRAMINGS[FRAMES_VERSION] if is_frame else LINES
            stage.put("x" * 1000)
            batch = await reader.next()
            assert isinstance(batch, DeliveryBatch)
            assert budget.reserved_bytes >= batch.size_bytes
            line = batch.take_encoded(BatchEncoder()).data
            assert line.startswith(FRAME_START) is is_frame
            assert len(line) == batch.size_bytes
            batch.release()

    play(scene)


@pytest.mark.parametrize("takes_frames", [True, False])
def test_a_batch_read_before_the_child_chose_its_framing_is_encoded_when_taken(
    takes_frames: bool,
) -> None:
    async def scene(stage: Stage, start: Start) -> None:
        budget, encoder = ByteBudget(LoopClock()), BatchEncoder()
        reader = stage.reader(budget=budget, reports_empty=False, encoder=encoder)
        start(reader)
        stage.put("x" * 1000)
        batch = await reader.next()
        assert isinstance(batch, DeliveryBatch)
        assert budget.reserved_bytes == batch.size_bytes > 1000
        encoder.framing = FRAMINGS[FRAMES_VERSION if takes_frames else None]
        assert batch.take_encoded(encoder).data.startswith(FRAME_START) is takes_frames
        batch.release()
        await anyio.sleep(1.0)
        assert budget.reserved_bytes == 0

    play(scene)


def test_batches_that_nobody_took_leave_the_budget_when_the_reader_closes() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.put("one", "two", "three")
        budget = ByteBudget(LoopClock())
        reader = stage.reader(budget=budget, settings=RetrievalSettings(max_records=1))
        start(reader)
        await anyio.sleep(1.2)
        assert budget.reserved_bytes
        reader.close()
        await anyio.sleep(0.05)
        assert budget.reserved_bytes == 0

    play(scene)


def test_the_end_of_a_shard_waits_for_no_room() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.put("last")
        stage.split()
        budget = ByteBudget(LoopClock())
        reader = stage.reader(budget=budget)
        start(reader)
        assert await texts(reader, 1) == ["last"]
        item = await reader.next()
        while isinstance(item, DeliveryBatch):
            item.release()
            item = await reader.next()
        assert isinstance(item, EndOfShard)
        assert len(item.children) == 2
        assert budget.reserved_bytes == 0

    play(scene)


def test_shards_share_the_room_and_all_get_on() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.put(*("x" * 20_000 for _ in range(12)))
        budget = ByteBudget(LoopClock(), 100_000)
        readers = [stage.reader(budget=budget, settings=RetrievalSettings(max_records=1)) for _ in range(6)]
        for reader in readers:
            start(reader)
        for _ in range(12):
            for reader in readers:
                assert await texts(reader, 1) == ["x" * 20_000]

    play(scene)


def test_large_answers_of_aggregates_do_not_wait_for_each_other() -> None:
    """Four answers of 10 MiB fill the worker's room: their parts, which are delivered one by one, come anyway."""
    data = aggregate([("key", b"x" * 10_500, None)] * 10)

    async def scene(stage: Stage, start: Start) -> None:
        for _ in range(98):
            stage.put_bytes(data)
        budget = ByteBudget(LoopClock())
        settings = RetrievalSettings(prefetch_bytes=1)
        readers = [
            stage.reader(budget=budget, settings=settings, split=Deaggregator(None, silent)) for _ in range(4)
        ]
        began_s = anyio.current_time()
        async with anyio.create_task_group() as children:
            for reader in readers:
                start(reader)
                children.start_soon(_drain, reader, 980)
        assert anyio.current_time() - began_s < 1.0

    play(scene)


async def _drain(reader: PollingReader, count: int) -> None:
    while count:
        batch = await reader.next()
        assert isinstance(batch, DeliveryBatch)
        count -= batch.count
        await anyio.sleep(0.001)
        batch.release()


def test_an_aggregate_is_taken_apart_no_faster_than_the_child_takes_it() -> None:
    """One of 60 kB that becomes 200 MB: what is in hand stays within the buffer's bound and one line."""
    key = b"k" * 40_000
    message = b"\x0a" + b"\xc0\xb8\x02" + key + b"\x1a\x05\x08\x00\x1a\x01x" * 5_000
    data = b"\xf3\x89\x9a\xc2" + message + hashlib.md5(message).digest()

    async def scene(stage: Stage, start: Start) -> None:
        stage.put_bytes(data)
        budget = ByteBudget(LoopClock())
        reader = stage.reader(
            budget=budget,
            settings=RetrievalSettings(prefetch_bytes=8 * 2**20),
            split=Deaggregator(None, silent),
            reports_empty=False,
        )
        start(reader)
        count = lines = 0
        while count < 5_000:
            await anyio.sleep(1.0)
            assert budget.reserved_bytes < 20 * 2**20
            batch = await reader.next()
            assert isinstance(batch, DeliveryBatch)
            assert batch.size_bytes <= LINE_BYTES + len(key) + 1_000
            count, lines = count + batch.count, lines + 1
            assert batch.last is not None
            assert batch.last.sub_sequence_number == count - 1
            batch.take_encoded(BatchEncoder())
            batch.release()
        assert lines > 20
        await anyio.sleep(10.0)
        assert budget.reserved_bytes == 0

    play(scene)
