"""Reading one shard ahead of its child: bounded, gap-free, patient."""

from __future__ import annotations

from itertools import pairwise

import anyio
import pytest

from kcl_daemon.config.retrieval import RetrievalSettings
from kcl_daemon.errors import AwsError, IteratorExpired, StreamNotFound, Throttled, Unavailable
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import IteratorKind, ReadFrom, StreamRef
from kcl_daemon.retrieval.source import DeliveryBatch, EndOfShard
from kcl_protocol.sequence import LATEST, ExtendedSequenceNumber
from tests.unit.fakes import LoopClock
from tests.unit.retrieval.stage import Stage, Start, TroubledKinesis, play, texts


def test_everything_is_read_in_order_and_then_what_comes_later() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.put("a", "b")
        reader = stage.reader()
        start(reader)
        assert await texts(reader, 2) == ["a", "b"]
        stage.put("c")
        assert await texts(reader, 1) == ["c"]

    play(scene)


def test_records_up_to_the_checkpoint_are_not_delivered_again() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        numbers = stage.put("a", "b", "c")
        reader = stage.reader(ExtendedSequenceNumber(numbers[1]))
        start(reader)
        assert await texts(reader, 1) == ["c"]
        assert stage.kinesis.positions == [
            ReadFrom(IteratorKind.AT_SEQUENCE_NUMBER, sequence_number=numbers[1])
        ]
        assert stage.log.events("warning") == []

    play(scene)


def test_a_closed_shard_ends_with_its_children_after_its_last_record() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.put("a")
        stage.split()
        reader = stage.reader()
        start(reader)
        assert await texts(reader, 1) == ["a"]
        end = await reader.next()
        assert isinstance(end, EndOfShard)
        assert [child.shard_id for child in end.children] == ["shardId-000000000001", "shardId-000000000002"]

    play(scene)


@pytest.mark.parametrize(
    "trouble", [Throttled("slow down"), Unavailable("reset"), IteratorExpired("old"), Unavailable("500")]
)
def test_trouble_costs_time_but_no_record_and_repeats_none(trouble: AwsError) -> None:
    async def scene(stage: Stage, start: Start) -> None:
        reader = stage.reader()
        start(reader)
        stage.put("a")
        assert await texts(reader, 1) == ["a"]
        stage.kinesis.troubles.extend([trouble, trouble, trouble])
        stage.put("b", "c")
        assert await texts(reader, 2) == ["b", "c"]

    play(scene)


def test_an_iterator_that_expires_before_the_first_answer_begins_where_it_should_have() -> None:
    # The Java fetcher goes on AFTER the checkpoint here and loses the rest of a half-checkpointed aggregate.
    async def scene(stage: Stage, start: Start) -> None:
        numbers = stage.put("a", "b")
        stage.kinesis.troubles.append(IteratorExpired("old"))
        reader = stage.reader(ExtendedSequenceNumber(numbers[0]))
        start(reader)
        assert await texts(reader, 1) == ["b"]
        wanted = ReadFrom(IteratorKind.AT_SEQUENCE_NUMBER, sequence_number=numbers[0])
        assert stage.kinesis.positions == [wanted, wanted]

    play(scene)


def test_a_shard_that_was_deleted_ends_without_children_and_says_so() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.kinesis.troubles.append(StreamNotFound("gone"))
        reader = stage.reader()
        start(reader)
        assert await reader.next() == EndOfShard(())
        assert "shard_not_found" in stage.log.events("warning")

    play(scene)


def test_no_more_is_fetched_than_the_buffer_may_hold() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.put(*(f"r{number}" for number in range(50)))
        reader = stage.reader(settings=RetrievalSettings(max_records=1, prefetch_batches=4))
        start(reader)
        await anyio.sleep(60.0)
        assert len(stage.kinesis.read_at_s) == 4
        assert await texts(reader, 50) == [f"r{number}" for number in range(50)]

    play(scene)


def test_bytes_bound_the_buffer_too() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.put(*("x" * 1000 for _ in range(10)))
        reader = stage.reader(
            settings=RetrievalSettings(max_records=1, prefetch_bytes=2500, prefetch_batches=100)
        )
        start(reader)
        await anyio.sleep(60.0)
        assert len(stage.kinesis.read_at_s) == 2  # a line of 1.6 KB each
        assert await texts(reader, 10) == ["x" * 1000] * 10

    play(scene)


def test_empty_answers_do_not_fill_the_buffer_of_a_slow_child() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        reader = stage.reader()
        start(reader)
        await anyio.sleep(60.0)
        stage.put("late")
        await anyio.sleep(2.0)
        first = await reader.next()
        assert isinstance(first, DeliveryBatch)
        assert (first.count, first.last) == (0, None)
        with anyio.fail_after(0.01):
            assert await texts(reader, 1) == ["late"]

    play(scene)


def test_empty_answers_wake_nobody_who_does_not_want_them() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        reader = stage.reader(reports_empty=False)
        start(reader)
        with anyio.move_on_after(60.0) as nothing:
            await reader.next()
        assert nothing.cancelled_caught
        assert stage.kinesis.read_at_s
        stage.put("late")
        first = await reader.next()
        assert isinstance(first, DeliveryBatch)
        assert first.count == 1

    play(scene)


def test_empty_answers_that_nobody_wants_do_not_hold_up_reading_ahead() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        reader = stage.reader(settings=RetrievalSettings(prefetch_batches=1), reports_empty=False)
        start(reader)
        await anyio.sleep(60.0)
        stage.put("late")
        await anyio.sleep(2.0)
        with anyio.fail_after(0.01):
            assert await texts(reader, 1) == ["late"]

    play(scene)


def test_the_shards_limit_of_five_reads_a_second_is_kept_while_catching_up() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.put(*(f"r{number}" for number in range(30)))
        await anyio.sleep(10.0)  # so that the stream is behind
        reader = stage.reader(settings=RetrievalSettings(max_records=1))
        start(reader)
        await texts(reader, 30)
        reads = stage.kinesis.read_at_s
        assert all(later - earlier >= 0.199 for earlier, later in pairwise(reads))
        assert reads[-1] - reads[0] < 30 * 0.25  # and no idle pause is made

    play(scene)


def test_an_idle_shard_is_read_in_the_configured_rhythm() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        reader = stage.reader()
        start(reader)
        await anyio.sleep(60.0)
        assert 39 <= len(stage.kinesis.read_at_s) <= 41

    play(scene)


def test_a_cancelled_take_takes_nothing() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        reader = stage.reader()
        with anyio.move_on_after(1.0):
            await reader.next()
        stage.put("a")
        start(reader)
        assert await texts(reader, 1) == ["a"]

    play(scene)


def test_a_second_child_at_latest_gets_what_the_first_was_given_but_did_not_finish() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        first = stage.reader(LATEST)
        start(first)
        await anyio.sleep(1.0)
        stage.put("a")
        assert await texts(first, 1) == ["a"]
        stage.put("b")
        second = stage.reader(LATEST)
        start(second)
        assert await texts(second, 2) == ["a", "b"]

    play(scene)


def test_a_second_child_at_latest_gets_what_came_while_there_was_none() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        first = stage.reader(LATEST)
        with anyio.move_on_after(5.0):
            await first.run()
        stage.put("written between two children")
        second = stage.reader(LATEST)
        start(second)
        assert await texts(second, 1) == ["written between two children"]

    play(scene)


def test_an_iterator_at_latest_that_expires_in_a_long_outage_does_not_jump_over_what_came_in_it() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        reader = stage.reader(LATEST)
        start(reader)
        await anyio.sleep(10.0)
        stage.kinesis.troubles.extend([Unavailable("outage")] * 40)
        await anyio.sleep(300.0)
        stage.put("in the outage")
        await anyio.sleep(300.0)
        assert await texts(reader, 1) == ["in the outage"]

    play(scene)


class _SlowAnswers(TroubledKinesis):
    """An iterator is of when it was asked for; its answer takes a while."""

    async def get_shard_iterator(self, stream: StreamRef, shard_id: ShardId, read_from: ReadFrom) -> str:
        iterator = await super().get_shard_iterator(stream, shard_id, read_from)
        await anyio.sleep(50.0)
        return iterator


def test_a_record_put_before_an_iterator_at_latest_is_answered_is_read_though_it_expires() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        stage.kinesis = _SlowAnswers(stage.model)
        stage.kinesis.refusal = Unavailable("outage")
        reader = stage.reader(LATEST)
        start(reader)
        await anyio.sleep(10.0)
        stage.put("on the way")
        await anyio.sleep(600.0)
        stage.kinesis.refusal = None
        with anyio.fail_after(600.0):
            assert await texts(reader, 1) == ["on the way"]

    play(scene)


class _LearningClock(LoopClock):
    """The date of a machine that is four minutes fast; the first answer tells the service's time."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def wall_ms(self) -> int:
        return super().wall_ms() + 240_000

    def passed_ms(self) -> int:
        return super().wall_ms() if self._stage.kinesis.positions else self.wall_ms()


def test_the_time_until_which_nothing_had_come_is_the_services() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        began_ms = LoopClock().wall_ms()
        start(stage.reader(LATEST, clock=_LearningClock(stage)))
        await anyio.sleep(0.001)
        assert stage.memory.idle_until_s is not None
        assert stage.memory.idle_until_s * 1000 - began_ms < 1_000

    play(scene)


def test_a_record_whose_aggregate_is_only_partly_checkpointed_is_delivered_again() -> None:
    async def scene(stage: Stage, start: Start) -> None:
        numbers = stage.put("a", "b")
        reader = stage.reader(ExtendedSequenceNumber(numbers[0], 3))
        start(reader)
        with anyio.fail_after(60.0):
            assert await texts(reader, 2) == ["a", "b"]

    play(scene)
