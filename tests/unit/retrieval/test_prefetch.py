"""Reading one shard ahead of its child: bounded, gap-free, patient."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import TypeVar

import anyio
import pytest

from kcl_daemon.config.settings import RetrievalSettings
from kcl_daemon.errors import AwsError, IteratorExpired, StreamNotFound, Throttled, Unavailable
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import Fetched, IteratorKind, ReadFrom, StreamRef
from kcl_daemon.retrieval.prefetch import Batch, EndOfShard, Prefetch, Source
from kcl_daemon.retrieval.start import StartMemory
from kcl_local.kinesis.model import KinesisModel
from kcl_protocol.sequence import LATEST, TRIM_HORIZON, ExtendedSequenceNumber
from tests.simulator.loop import run_virtual
from tests.simulator.memory.kinesis import MemoryKinesis
from tests.unit.fakes import CalmChance, LoopClock, MemoryLog

T = TypeVar("T")
STREAM = StreamRef("words")
SHARD = ShardId("shardId-000000000000")


class TroubledKinesis(MemoryKinesis):
    """The in-memory Kinesis with a script of errors for the next reads, and a count of what was asked."""

    def __init__(self, model: KinesisModel) -> None:
        super().__init__(model)
        self.troubles: deque[AwsError | None] = deque()
        self.positions: list[ReadFrom] = []
        self.read_at_s: list[float] = []

    async def get_shard_iterator(self, stream: StreamRef, shard_id: ShardId, read_from: ReadFrom) -> str:
        self.positions.append(read_from)
        return await super().get_shard_iterator(stream, shard_id, read_from)

    async def get_records(self, stream: StreamRef, shard_id: ShardId, iterator: str, limit: int) -> Fetched:
        self.read_at_s.append(anyio.current_time())
        trouble = self.troubles.popleft() if self.troubles else None
        if trouble is not None:
            raise trouble
        return await super().get_records(stream, shard_id, iterator, limit)


class Stage:
    """A stream of one shard and prefetchers over it."""

    def __init__(self) -> None:
        clock = LoopClock()
        self.model = KinesisModel(lambda: clock.wall_ms() / 1000)
        self.model.handle("CreateStream", {"StreamName": "words", "ShardCount": 1})
        self.kinesis = TroubledKinesis(self.model)
        self.log = MemoryLog()
        self.memory = StartMemory()

    def put(self, *texts: str) -> list[str]:
        """Write records; gives their sequence numbers."""
        numbers: list[str] = []
        for text in texts:
            answer = self.model.handle(
                "PutRecord",
                {
                    "StreamName": "words",
                    "PartitionKey": "k",
                    "Data": base64.b64encode(text.encode()).decode(),
                },
            )
            numbers.append(str(answer["SequenceNumber"]))
        return numbers

    def split(self) -> None:
        self.model.handle(
            "SplitShard", {"StreamName": "words", "ShardToSplit": SHARD, "NewStartingHashKey": str(2**127)}
        )

    def prefetch(
        self,
        checkpoint: ExtendedSequenceNumber = TRIM_HORIZON,
        settings: RetrievalSettings | None = None,
        *,
        tells_empty: bool = True,
    ) -> Prefetch:
        return Prefetch(
            Source(STREAM, SHARD, checkpoint, None, self.memory),
            kinesis=self.kinesis,
            settings=settings or RetrievalSettings(),
            clock=LoopClock(),
            randomness=CalmChance(),
            log=self.log,
            tells_empty=tells_empty,
        )


async def texts(prefetch: Prefetch, count: int) -> list[str]:
    """The next records, as many as asked for."""
    found: list[str] = []
    while len(found) < count:
        item = await prefetch.next()
        assert isinstance(item, Batch), f"the shard ended after {found}"
        found += [base64.b64decode(record.data).decode() for record in item.records]
    return found


def play(scene: Callable[[Stage, Callable[[Prefetch], object]], Awaitable[T]]) -> T:
    """Play a scene; what it calls `start` with runs beside it."""

    async def main() -> T:
        results: list[T] = []
        async with anyio.create_task_group() as beside:
            results.append(await scene(Stage(), lambda prefetch: beside.start_soon(prefetch.run)))
            beside.cancel_scope.cancel()
        return results[0]

    return run_virtual(main)


Start = Callable[[Prefetch], object]


def test_everything_is_read_in_order_and_then_what_comes_later() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.put("a", "b")
        prefetch = stage.prefetch()
        start(prefetch)
        assert await texts(prefetch, 2) == ["a", "b"]
        stage.put("c")
        assert await texts(prefetch, 1) == ["c"]

    play(scene)


def test_records_up_to_the_checkpoint_are_not_delivered_again() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        numbers = stage.put("a", "b", "c")
        prefetch = stage.prefetch(ExtendedSequenceNumber(numbers[1]))
        start(prefetch)
        assert await texts(prefetch, 1) == ["c"]
        assert stage.kinesis.positions == [
            ReadFrom(IteratorKind.AT_SEQUENCE_NUMBER, sequence_number=numbers[1])
        ]

    play(scene)


def test_a_closed_shard_ends_with_its_children_after_its_last_record() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.put("a")
        stage.split()
        prefetch = stage.prefetch()
        start(prefetch)
        assert await texts(prefetch, 1) == ["a"]
        end = await prefetch.next()
        assert isinstance(end, EndOfShard)
        assert [child.shard_id for child in end.children] == ["shardId-000000000001", "shardId-000000000002"]

    play(scene)


@pytest.mark.parametrize(
    "trouble", [Throttled("slow down"), Unavailable("reset"), IteratorExpired("old"), Unavailable("500")]
)
def test_trouble_costs_time_but_no_record_and_repeats_none(trouble: AwsError) -> None:
    async def scene(stage: Stage, start: Start) -> None:
        prefetch = stage.prefetch()
        start(prefetch)
        stage.put("a")
        assert await texts(prefetch, 1) == ["a"]
        stage.kinesis.troubles.extend([trouble, trouble, trouble])
        stage.put("b", "c")
        assert await texts(prefetch, 2) == ["b", "c"]

    play(scene)


def test_an_iterator_that_expires_before_the_first_answer_begins_where_it_should_have() -> None:
    # The Java fetcher goes on AFTER the checkpoint here and loses the rest of a half-checkpointed aggregate.
    async def scene(stage: Stage, start: Start) -> None:
        numbers = stage.put("a", "b")
        stage.kinesis.troubles.append(IteratorExpired("old"))
        prefetch = stage.prefetch(ExtendedSequenceNumber(numbers[0]))
        start(prefetch)
        assert await texts(prefetch, 1) == ["b"]
        wanted = ReadFrom(IteratorKind.AT_SEQUENCE_NUMBER, sequence_number=numbers[0])
        assert stage.kinesis.positions == [wanted, wanted]

    play(scene)


def test_a_shard_that_was_deleted_ends_without_children_and_says_so() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.kinesis.troubles.append(StreamNotFound("gone"))
        prefetch = stage.prefetch()
        start(prefetch)
        assert await prefetch.next() == EndOfShard(())
        assert "shard_not_found" in stage.log.events("warning")

    play(scene)


def test_no_more_is_fetched_than_the_buffer_may_hold() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.put(*(f"r{number}" for number in range(50)))
        prefetch = stage.prefetch(settings=RetrievalSettings(max_records=1, prefetch_batches=4))
        start(prefetch)
        await anyio.sleep(60.0)
        assert len(stage.kinesis.read_at_s) == 4
        assert await texts(prefetch, 50) == [f"r{number}" for number in range(50)]

    play(scene)


def test_bytes_bound_the_buffer_too() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.put(*("x" * 1000 for _ in range(10)))
        prefetch = stage.prefetch(
            settings=RetrievalSettings(max_records=1, prefetch_bytes=2500, prefetch_batches=100)
        )
        start(prefetch)
        await anyio.sleep(60.0)
        assert len(stage.kinesis.read_at_s) <= 3

    play(scene)


def test_empty_answers_do_not_fill_the_buffer_of_a_slow_child() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        prefetch = stage.prefetch()
        start(prefetch)
        await anyio.sleep(60.0)
        stage.put("late")
        await anyio.sleep(2.0)
        first = await prefetch.next()
        assert isinstance(first, Batch)
        assert not first.records
        with anyio.fail_after(0.01):
            assert await texts(prefetch, 1) == ["late"]

    play(scene)


def test_empty_answers_wake_nobody_who_does_not_want_them() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        prefetch = stage.prefetch(tells_empty=False)
        start(prefetch)
        with anyio.move_on_after(60.0) as nothing:
            await prefetch.next()
        assert nothing.cancelled_caught
        assert stage.kinesis.read_at_s
        stage.put("late")
        first = await prefetch.next()
        assert isinstance(first, Batch)
        assert len(first.records) == 1

    play(scene)


def test_empty_answers_that_nobody_wants_do_not_hold_up_reading_ahead() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        prefetch = stage.prefetch(settings=RetrievalSettings(prefetch_batches=1), tells_empty=False)
        start(prefetch)
        await anyio.sleep(60.0)
        stage.put("late")
        await anyio.sleep(2.0)
        with anyio.fail_after(0.01):
            assert await texts(prefetch, 1) == ["late"]

    play(scene)


def test_the_shards_limit_of_five_reads_a_second_is_kept_while_catching_up() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.put(*(f"r{number}" for number in range(30)))
        await anyio.sleep(10.0)  # so that the stream is behind
        prefetch = stage.prefetch(settings=RetrievalSettings(max_records=1))
        start(prefetch)
        await texts(prefetch, 30)
        reads = stage.kinesis.read_at_s
        assert all(later - earlier >= 0.199 for earlier, later in pairwise(reads))
        assert reads[-1] - reads[0] < 30 * 0.25  # and no idle pause is made

    play(scene)


def test_an_idle_shard_is_read_in_the_configured_rhythm() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        prefetch = stage.prefetch()
        start(prefetch)
        await anyio.sleep(60.0)
        assert 39 <= len(stage.kinesis.read_at_s) <= 41

    play(scene)


def test_a_cancelled_take_takes_nothing() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        prefetch = stage.prefetch()
        with anyio.move_on_after(1.0):
            await prefetch.next()
        stage.put("a")
        start(prefetch)
        assert await texts(prefetch, 1) == ["a"]

    play(scene)


def test_a_second_child_at_latest_gets_what_the_first_was_given_but_did_not_finish() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        first = stage.prefetch(LATEST)
        start(first)
        await anyio.sleep(1.0)
        stage.put("a")
        assert await texts(first, 1) == ["a"]
        stage.put("b")
        second = stage.prefetch(LATEST)
        start(second)
        assert await texts(second, 2) == ["a", "b"]

    play(scene)


def test_a_second_child_at_latest_gets_what_came_while_there_was_none() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        first = stage.prefetch(LATEST)
        with anyio.move_on_after(5.0):
            await first.run()
        stage.put("written between two children")
        second = stage.prefetch(LATEST)
        start(second)
        assert await texts(second, 1) == ["written between two children"]

    play(scene)


def test_an_iterator_at_latest_that_expires_in_a_long_outage_does_not_jump_over_what_came_in_it() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        prefetch = stage.prefetch(LATEST)
        start(prefetch)
        await anyio.sleep(10.0)
        stage.kinesis.troubles.extend([Unavailable("outage")] * 40)
        await anyio.sleep(300.0)
        stage.put("in the outage")
        await anyio.sleep(300.0)
        assert await texts(prefetch, 1) == ["in the outage"]

    play(scene)


def test_a_record_whose_aggregate_is_only_partly_checkpointed_is_delivered_again() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        numbers = stage.put("a", "b")
        prefetch = stage.prefetch(ExtendedSequenceNumber(numbers[0], 3))
        start(prefetch)
        assert await texts(prefetch, 2) == ["a", "b"]

    play(scene)
