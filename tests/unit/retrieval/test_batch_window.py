"""Batches of a size: the first limit that is reached delivers, nothing is lost or comes in another order; in virtual time."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable
from itertools import accumulate

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_daemon.config.retrieval import DeliverySettings
from kcl_daemon.progress.progress import LeaseProgress
from kcl_daemon.records.batch import Batch, ReadFacts, nothing
from kcl_daemon.records.batch_text import BatchEncoder
from kcl_daemon.records.payload import LINE_BYTES, Payload
from kcl_daemon.retrieval.batch_window import BatchWindow
from kcl_daemon.retrieval.byte_budget import ByteBudget
from kcl_daemon.retrieval.source import DeliveryBatch, EndOfShard, Passed, ReadItem
from kcl_protocol.codec import decode_daemon_line
from kcl_protocol.messages import ProcessRecords, Record
from kcl_protocol.sequence import ExtendedSequenceNumber
from tests.examples import examples
from tests.simulator.loop import run_virtual
from tests.unit.fakes import LoopClock

Scene = Callable[["Stage"], Awaitable[None]]


class Stage:
    """A window over a reader that gives what the test puts."""

    trouble = None
    oldest_s = None

    def __init__(self, delivery: DeliverySettings) -> None:
        clock = LoopClock()
        self.budget = ByteBudget(clock)
        self.progress = LeaseProgress(clock.monotonic)
        self.waiting: tuple[int, int] = (0, 0)
        self.items: list[ReadItem] = []
        self.numbers = 0
        self.released = 0
        self._put = anyio.Event()
        self.window = BatchWindow(
            self,
            delivery,
            clock=clock,
            progress=self.progress,
            reserve=lambda shrink, invariants: self.budget.take(0, shrink, invariants=invariants),
        )

    def put(self, *sizes: int, arrived_s: float | None = None) -> None:
        """One batch of records of so many bytes."""
        self.numbers += len(sizes)
        first = self.numbers - len(sizes)
        records = [
            Record(b64encode(b"x" * size).decode(), "k", str(first + at), 1, 0)
            for at, size in enumerate(sizes)
        ]
        self.give(
            DeliveryBatch(
                Batch(Payload.of(records), ReadFacts(0.0 if arrived_s is None else arrived_s, 1, 5)),
                self._count,
            )
        )

    def give(self, item: ReadItem) -> None:
        self.items.append(item)
        self._put.set()

    def _count(self) -> None:
        self.released += 1

    async def run(self) -> None: ...

    def close(self) -> None: ...

    async def next(self) -> ReadItem:
        while not self.items:
            self._put = anyio.Event()
            await self._put.wait()
        return self.items.pop(0)

    async def taken(self, count: int) -> list[tuple[float, list[int]]]:
        """When the next batches came, and the numbers of their records."""
        found: list[tuple[float, list[int]]] = []
        for _ in range(count):
            item = await self.window.next()
            assert isinstance(item, DeliveryBatch), item
            found.append((anyio.current_time(), numbers(item)))
            item.release()
        return found


def numbers(batch: DeliveryBatch) -> list[int]:
    message = decode_daemon_line(batch.take_encoded(BatchEncoder()).data)
    assert isinstance(message, ProcessRecords)
    assert batch.last is None or int(batch.last.sequence_number) == int(message.records[-1].sequence_number)
    assert sum(len(b64decode(record.data)) for record in message.records) == batch.data_bytes
    return [int(record.sequence_number) for record in message.records]


def play(scene: Scene, **delivery: int) -> None:
    async def main() -> None:
        await scene(Stage(DeliverySettings(**delivery)))  # type: ignore[arg-type]

    run_virtual(main)


def test_records_read_within_the_window_are_one_batch() -> None:
    async def scene(stage: Stage) -> None:
        stage.put(10, 20, arrived_s=-3.0)
        async with anyio.create_task_group() as tasks:

            async def later() -> None:
                await anyio.sleep(4)
                assert stage.window.oldest_s == -3.0
                assert stage.progress.window_until_s == 10.0
                stage.put(30, arrived_s=1.0)
                await anyio.sleep(8)
                stage.put(40)

            tasks.start_soon(later)
            assert await stage.taken(2) == [(10.0, [0, 1, 2]), (22.0, [3])]
        assert stage.released == 3
        assert stage.progress.window_until_s is None
        assert stage.window.oldest_s is None

    play(scene, batch_window_ms=10_000)


def test_a_full_batch_does_not_wait() -> None:
    async def scene(stage: Stage) -> None:
        stage.put(1, 1)
        stage.put(1, 1, 1)
        assert await stage.taken(2) == [(0.0, [0, 1, 2, 3]), (60.0, [4])]

    play(scene, batch_window_ms=60_000, batch_max_records=4)


def test_a_batch_that_is_just_full_does_not_wait_either() -> None:
    async def scene(stage: Stage) -> None:
        stage.put(1, 1)
        assert await stage.taken(1) == [(0.0, [0, 1])]

    play(scene, batch_window_ms=60_000, batch_max_records=2)


@pytest.mark.parametrize("window_ms", [300, 1_500])
def test_a_window_is_exact_to_the_millisecond(window_ms: int) -> None:
    async def scene(stage: Stage) -> None:
        stage.put(1)
        assert await stage.taken(1) == [(window_ms / 1000, [0])]

    play(scene, batch_window_ms=window_ms)


def test_a_window_that_was_over_while_the_child_was_busy_does_not_wait() -> None:
    async def scene(stage: Stage) -> None:
        stage.put(1)
        with anyio.move_on_after(1):
            await stage.window.next()
        await anyio.sleep(30)
        assert await stage.taken(1) == [(31.0, [0])]

    play(scene, batch_window_ms=10_000)


def test_records_gathered_in_the_window_count_as_waiting() -> None:
    async def scene(stage: Stage) -> None:
        assert stage.window.waiting == (0, 0)
        stage.put(10, 20)
        stage.put(30)
        with anyio.move_on_after(1):
            await stage.window.next()
        assert stage.window.waiting == (3, 60)
        stage.waiting = (2, 5)
        assert stage.window.waiting == (5, 65)

    play(scene, batch_window_ms=10_000)


def test_the_memory_of_a_batch_is_reserved_until_it_is_given_back_the_first_as_the_second() -> None:
    async def scene(stage: Stage) -> None:
        gathered_bytes = list[int]()
        for _ in range(2):
            stage.put(10, 20)
            with anyio.move_on_after(1):
                await stage.window.next()
            gathered_bytes.append(stage.budget.reserved_bytes)
            batch = await stage.window.next()
            assert isinstance(batch, DeliveryBatch)
            line_bytes = len(batch.take_encoded(BatchEncoder()).data)
            assert line_bytes <= stage.budget.reserved_bytes < line_bytes + 500
            batch.release()
            assert stage.budget.reserved_bytes == 0
        assert gathered_bytes[0] == gathered_bytes[1] > 0

    play(scene, batch_window_ms=10_000)


def test_an_answer_without_records_completes_the_last_of_what_is_gathered() -> None:
    async def scene(stage: Stage) -> None:
        for _ in range(2):
            stage.put(1)
        stage.give(DeliveryBatch(nothing(0, 99)))
        batch = await stage.window.next()
        assert isinstance(batch, DeliveryBatch)
        assert batch.complete_ms == 99
        assert numbers(batch) == [0, 1]

    play(scene, batch_window_ms=10_000)


def test_bytes_count_too_and_a_large_record_comes_alone() -> None:
    async def scene(stage: Stage) -> None:
        stage.put(600, 300)
        stage.put(300, 5_000, 100)
        assert [each for _, each in await stage.taken(4)] == [[0, 1], [2], [3], [4]]
        assert anyio.current_time() == 60.0

    play(scene, batch_window_ms=60_000, batch_max_bytes=1_000)


def test_the_bytes_that_count_are_those_of_the_data_without_what_base64_adds() -> None:
    async def scene(stage: Stage) -> None:
        stage.put(1, 1, 1, 1, 1, 2, 1)
        assert [each for _, each in await stage.taken(3)] == [[0, 1, 2], [3, 4], [5, 6]]

    play(scene, batch_max_bytes=3)


def test_without_a_window_batches_are_only_cut() -> None:
    async def scene(stage: Stage) -> None:
        stage.put(*[10] * 7)
        stage.put(10)
        found = await stage.taken(4)
        assert found == [(0.0, [0, 1, 2]), (0.0, [3, 4, 5]), (0.0, [6]), (0.0, [7])]

    play(scene, batch_max_records=3)


def test_the_end_of_the_shard_and_what_was_passed_come_after_the_records() -> None:
    async def scene(stage: Stage) -> None:
        first, second, end = (
            Passed(ExtendedSequenceNumber("0")),
            Passed(ExtendedSequenceNumber("7")),
            EndOfShard(()),
        )
        stage.give(first)
        assert await stage.window.next() is first
        stage.put(10)
        stage.give(first)
        stage.put(10)
        stage.give(second)
        assert await stage.taken(1) == [(60.0, [0, 1])]
        assert await stage.window.next() is second
        stage.put(10)
        stage.give(end)
        assert await stage.taken(1) == [(60.0, [2])]
        assert await stage.window.next() is end
        assert await stage.window.next() is end

    play(scene, batch_window_ms=60_000)


def test_empty_batches_pass_where_nothing_is_gathered() -> None:
    async def scene(stage: Stage) -> None:
        stage.give(DeliveryBatch(nothing(0), stage._count))
        assert await stage.taken(1) == [(0.0, [])]
        stage.put(1)
        stage.give(DeliveryBatch(nothing(0), stage._count))
        assert await stage.taken(1) == [(60.0, [0])]
        assert stage.released == 3

    play(scene, batch_window_ms=60_000)


def test_a_window_ends_when_another_shard_needs_its_memory() -> None:
    async def scene(stage: Stage) -> None:
        stage.put(1_000, 1_000)
        async with anyio.create_task_group() as tasks:

            async def later() -> None:
                await anyio.sleep(5)
                assert stage.budget.reserved_bytes >= 2_000
                await stage.budget.acquire(2**30, is_child_waiting=lambda: False)

            tasks.start_soon(later)
            assert await stage.taken(1) == [(5.0, [0, 1])]
        assert stage.budget.reserved_bytes == 2**30

    play(scene, batch_window_ms=60_000)


def test_a_window_ends_before_its_batch_exceeds_the_line_limit() -> None:
    async def scene(stage: Stage) -> None:
        for _ in range(9):
            stage.put(LINE_BYTES // 8)
        found = await stage.taken(1)
        assert found[0][0] == 0.0
        assert 4 <= len(found[0][1]) <= 6

    play(scene, batch_window_ms=60_000)


def test_a_call_that_is_cancelled_loses_nothing_and_the_rest_can_be_had_at_once() -> None:
    async def scene(stage: Stage) -> None:
        for at in range(3):
            stage.put(1, 1)
            with anyio.move_on_after(1):
                await stage.window.next()
            assert anyio.current_time() == at + 1
        batch = stage.window.rest()
        assert isinstance(batch, DeliveryBatch)
        assert numbers(batch) == list(range(6))
        assert stage.window.rest() is None
        stage.put(1)
        with anyio.move_on_after(1):
            await stage.window.next()
        stage.window.close()
        batch.release()
        assert stage.budget.reserved_bytes == 0
        assert stage.progress.window_until_s is None

    play(scene, batch_window_ms=60_000)


@settings(max_examples=examples(100), deadline=None)
@given(
    batches=st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=12), min_size=1, max_size=12),
    records=st.none() | st.integers(1, 8),
    data_bytes=st.none() | st.integers(1, 120),
    window_ms=st.none() | st.integers(1, 5_000),
)
def test_every_record_comes_once_in_order_and_no_batch_is_too_large(
    batches: list[list[int]], records: int | None, data_bytes: int | None, window_ms: int | None
) -> None:
    delivery = DeliverySettings(
        batch_window_ms=window_ms, batch_max_records=records, batch_max_bytes=data_bytes
    )
    sizes = [size for batch in batches for size in batch]

    async def main() -> None:
        stage, found = Stage(delivery), list[int]()
        for batch in batches:
            stage.put(*batch)
        stage.give(EndOfShard(()))
        while isinstance(item := await stage.window.next(), DeliveryBatch):
            mine = numbers(item)
            found += mine
            assert len(mine) <= (records or 10_000)
            assert len(mine) == 1 or sum(sizes[number] for number in mine) <= (data_bytes or 10_000)
            item.release()
        assert found == list(range(len(sizes)))
        stage.window.close()
        assert stage.budget.reserved_bytes == 0

    run_virtual(main)


@settings(max_examples=examples(200), deadline=None)
@given(
    reads=st.lists(
        st.tuples(st.integers(0, 5_000), st.lists(st.integers(0, 90_000), min_size=1, max_size=9)),
        min_size=1,
        max_size=6,
    ),
    records=st.integers(1, 8),
    window_ms=st.none() | st.integers(1, 5_000),
    cut=st.integers(1, 4),
)
def test_every_part_of_what_was_read_knows_when_it_arrived(
    reads: list[tuple[int, list[int]]], records: int, window_ms: int | None, cut: int
) -> None:
    """`reads`: how wrong our clock is, and how long after the one before each record came; both in milliseconds."""
    arrived_s, behind_ms, dated_ms = list[float](), list[int](), list[int]()
    wrongs_ms = {wrong_ms for wrong_ms, _ in reads}

    async def main() -> None:
        stage = Stage(DeliverySettings(batch_window_ms=window_ms, batch_max_records=records))
        for wrong_ms, gaps_ms in reads:
            _, *dates = accumulate(gaps_ms, initial=dated_ms[-1] if dated_ms else 0)
            facts = ReadFacts((dates[0] + wrong_ms) / 1000, dates[0], len(behind_ms))
            payload = Payload.of(
                Record("", "k", str(len(dated_ms) + at), date_ms, 0) for at, date_ms in enumerate(dates)
            )
            stage.give(DeliveryBatch(Batch(payload, facts)))
            dated_ms.extend(dates)
            arrived_s.extend((date_ms + wrong_ms) / 1000 for date_ms in dates)
            behind_ms.extend([len(behind_ms)] * len(dates))
        stage.give(EndOfShard(()))
        while isinstance(batch := await stage.window.next(), DeliveryBatch):
            whole = batch.take()
            assert whole.behind_ms == behind_ms[int(whole.payload.last.sequence_number)]
            for begin in range(0, len(whole), cut):
                part = whole.part(begin, begin + cut)
                at = int(part.payload.first.sequence_number)
                assert part.arrived_s is not None
                assert part.arrived_s >= arrived_s[at] - 1e-6, "never older than it is"
                assert part.arrived_s <= (dated_ms[at] + max(wrongs_ms)) / 1000 + 1e-6
                assert part.facts.date_ms(part.arrived_s) == pytest.approx(dated_ms[at])

    run_virtual(main)


def test_without_dates_records_are_as_old_as_their_answer_says() -> None:
    undated = ReadFacts(10.0, None, 5)
    assert (undated.arrival_s(None), undated.arrival_s(7_000)) == (10.0, 10.0)
    assert undated.date_ms(99.0) < 0
    dated = ReadFacts(20.0, 1_000, 3)
    assert dated.arrival_s(None) == 20.0
    assert ReadFacts.joined([undated, dated]) == dated
    assert ReadFacts.joined([dated, undated]) == dated._replace(behind_ms=5)
