"""Reading one shard by subscriptions: gap-free over every break, patient with the service, no burden while the child works."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import anyio
import pytest

from kcl_daemon.errors import (
    AccessDenied,
    AwsError,
    InvalidRequest,
    StreamNotFound,
    SubscriptionTaken,
    Throttled,
    Unavailable,
)
from kcl_daemon.ports import IteratorKind, ReadFrom
from kcl_daemon.progress.flow import ShardFlow
from kcl_daemon.retrieval.byte_budget import MAX_BYTES
from kcl_daemon.retrieval.source import DeliveryBatch, ReadItem, ShardReader
from kcl_local.kinesis.arguments import FanOutRules, KinesisOptions
from kcl_protocol.sequence import LATEST, ExtendedSequenceNumber
from tests.unit.records.aggregates import aggregate
from tests.unit.retrieval.fan_out_stage import SHARD, STREAM, FanOutStage, Start, end, play, texts

BROKEN = Unavailable("the connection broke")
ONE_BY_ONE = KinesisOptions(fan_out=FanOutRules(event_bytes_max=1))


def trouble(reader: ShardReader) -> str | None:
    """What it says now."""
    return reader.trouble


def test_everything_is_read_in_order_and_what_comes_later_at_once() -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        stage.put("a", "b")
        reader = stage.reader()
        start(reader)
        assert await texts(reader, 2) == ["a", "b"]
        stage.put("c")
        began_s = anyio.current_time()
        assert await texts(reader, 1) == ["c"]
        assert anyio.current_time() - began_s < 0.1
        assert len(stage.fan_out.positions) == 1

    play(scene)


def test_records_up_to_the_checkpoint_are_not_delivered_again() -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        numbers = stage.put("a", "b", "c")
        reader = stage.reader(ExtendedSequenceNumber(numbers[1]))
        start(reader)
        assert await texts(reader, 1) == ["c"]
        assert stage.fan_out.positions[0].kind is IteratorKind.AT_SEQUENCE_NUMBER

    play(scene)


def test_delivery_resumes_inside_an_aggregate() -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        number = stage.put_data(aggregate([("k", text.encode(), None) for text in "abcd"]))
        reader = stage.reader(ExtendedSequenceNumber(number, 1))
        start(reader)
        assert await texts(reader, 2) == ["c", "d"]

    play(scene)


def test_the_end_of_a_shard_names_its_children_and_ends_the_reader() -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        stage.put("last")
        stage.split()
        reader = stage.reader()
        async with anyio.create_task_group() as background:
            background.start_soon(reader.run)
            assert await texts(reader, 1) == ["last"]
            assert len((await end(reader)).children) == 2
        assert stage.fan_out.open_now == 0

    play(scene)


def test_a_subscription_that_ends_after_five_minutes_is_followed_by_another_without_loss() -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        reader = stage.reader()
        start(reader)
        for number in range(20):
            await anyio.sleep(47.0)
            stage.put(str(number))
            assert await texts(reader, 1) == [str(number)]
        gaps = [round(later - earlier) for earlier, later in pairwise(stage.fan_out.subscribed_at_s)]
        assert gaps == [300, 300, 300]
        assert stage.log.events("warning") == []

    play(scene)


def test_after_a_break_the_next_subscription_begins_behind_what_was_handed_over() -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        numbers = stage.put(*"abcdef")
        stage.fan_out.cuts.extend([None, None, BROKEN, None, BROKEN])
        reader = stage.reader()
        start(reader)
        assert await texts(reader, 6) == list("abcdef")
        after = [position.sequence_number for position in stage.fan_out.positions[1:]]
        assert after == [numbers[1], numbers[2]]
        assert stage.log.events("warning") == []

    play(scene, lambda: FanOutStage(ONE_BY_ONE))


def test_the_service_is_not_asked_again_while_it_protects_the_subscription_before() -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        stage.put("a")
        stage.fan_out.cuts.extend([BROKEN, BROKEN])
        reader = stage.reader()
        start(reader)
        assert await texts(reader, 1) == ["a"]
        gaps = [later - earlier for earlier, later in pairwise(stage.fan_out.subscribed_at_s)]
        assert all(5.0 < gap < 6.0 for gap in gaps)
        assert "subscription_refused" not in stage.log.events()

    play(scene)


def test_nor_by_the_reader_of_the_next_child() -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        stage.put("a")
        with anyio.move_on_after(1.0):
            await stage.reader().run()
        assert stage.fan_out.open_now == 0
        reader = stage.reader()
        start(reader)
        assert await texts(reader, 1) == ["a"]
        first_s, second_s = stage.fan_out.subscribed_at_s
        assert 5.0 < second_s - first_s < 6.0

    play(scene)


def test_one_who_was_overtaken_does_not_fight() -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        stage.fan_out.cuts.append(SubscriptionTaken("another worker"))
        reader = stage.reader()
        start(reader)
        await anyio.sleep(7.0)
        assert trouble(reader) is not None
        stage.put("a")
        assert await texts(reader, 1) == ["a"]
        first_s, second_s = stage.fan_out.subscribed_at_s
        assert second_s - first_s >= 15.0
        assert trouble(reader) is None
        assert stage.log.events("warning") == []

    play(scene)


def test_the_protection_of_somebody_elses_subscription_is_not_waited_for_longer_than_it_lasts() -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        stage.put("a")
        async with stage.fan_out.subscribe(
            STREAM, await stage.registered(), SHARD, ReadFrom(IteratorKind.LATEST)
        ):
            pass
        reader = stage.reader()
        start(reader)
        assert await texts(reader, 1) == ["a"]
        assert anyio.current_time() < 8.0
        assert stage.log.events("warning") == []

    play(scene)


def test_refusals_make_pauses_that_grow() -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        stage.fan_out.refusals.extend([Throttled("rate")] * 12)
        reader = stage.reader()
        start(reader)
        stage.put("a")
        assert await texts(reader, 1) == ["a"]
        gaps = [later - earlier for earlier, later in pairwise(stage.fan_out.subscribed_at_s)]
        assert gaps == sorted(gaps)
        assert gaps[-1] == pytest.approx(5.0)
        assert stage.log.events("warning") == []

    play(scene)


def test_a_busy_child_holds_up_the_service_and_nothing_else() -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        stage.put(*"abcd")
        reader = stage.reader()
        start(reader)
        assert await texts(reader, 1) == ["a"]
        await anyio.sleep(1000.0)  # the service has ended the subscription long ago
        assert stage.fan_out.open_now == 1
        assert len(stage.fan_out.positions) == 1, "nobody has looked"
        assert await texts(reader, 3) == ["b", "c", "d"]
        assert stage.log.events("warning") == []

    play(scene, lambda: FanOutStage(ONE_BY_ONE))


def test_bytes_in_hand_are_counted_and_given_back() -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        stage.put(*"ab")
        budget = stage.readers._budget
        reader = stage.reader()
        start(reader)
        item = await reader.next()
        assert isinstance(item, DeliveryBatch)
        assert budget.reserved_bytes >= item.size_bytes > 0
        item.release()
        await anyio.sleep(1.0)
        reader.close()
        assert budget.reserved_bytes == 0

    play(scene, lambda: FanOutStage(ONE_BY_ONE))


def test_records_that_wait_for_memory_get_older_and_the_wait_is_counted() -> None:
    """The memory that other shards hold is given back after four seconds."""

    async def scene(stage: FanOutStage, start: Start) -> None:
        budget = stage.readers._budget
        held = budget.take(MAX_BYTES)
        flow = ShardFlow()
        reader = stage.reader(flow=flow)
        start(reader)
        got = list[ReadItem]()

        async def take() -> None:
            got.append(await reader.next())

        async with anyio.create_task_group() as group:
            group.start_soon(take)
            await anyio.sleep(1.0)
            stage.put("a")
            began_s = anyio.current_time()
            await anyio.sleep(4.0)
            assert not got
            assert reader.oldest_s == pytest.approx(began_s, abs=0.5)
            assert (flow.read_records, reader.waiting) == (0, (0, 0))
            held.release()
        (item,) = got
        assert isinstance(item, DeliveryBatch)
        assert reader.oldest_s is None
        assert (flow.read_records, flow.read_bytes) == (1, item.data_bytes)
        assert flow.memory_s == pytest.approx(4.0, abs=0.5)
        assert flow.refused_s == 0.0
        reader.close()

    play(scene)


def test_a_second_child_at_latest_gets_what_came_while_there_was_none() -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        stage.put("before")
        await anyio.sleep(100.0)
        with anyio.move_on_after(12.0):
            await stage.reader(LATEST).run()
        stage.put("written between two children")
        second = stage.reader(LATEST)
        start(second)
        assert await texts(second, 1) == ["written between two children"]

    play(scene)


def test_a_subscription_at_latest_that_breaks_before_its_first_event_skips_nothing() -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        stage.put("before")
        await anyio.sleep(100.0)
        stage.fan_out.cuts.append(BROKEN)
        reader = stage.reader(LATEST)
        start(reader)
        await anyio.sleep(1.0)
        stage.put("a")
        with anyio.fail_after(60.0):
            assert await texts(reader, 1) == ["a"]

    play(scene)


def test_a_position_that_is_refused_is_replaced_by_that_of_the_last_record() -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        (number,) = stage.put("a")
        reader = stage.reader()
        start(reader)
        assert await texts(reader, 1) == ["a"]
        await anyio.sleep(20.0)  # idle events move the position on
        stage.fan_out.cuts.append(BROKEN)
        stage.fan_out.refusals.append(InvalidRequest("no such number"))
        stage.put("b")
        assert await texts(reader, 1) == ["b"]
        _, refused, taken = stage.fan_out.positions
        assert refused.sequence_number != number
        assert taken.sequence_number == number

    play(scene)


def test_a_shard_that_is_forgotten_ends_without_children() -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        stage.fan_out.refusals.append(StreamNotFound("no such shard"))
        reader = stage.reader()
        start(reader)
        assert (await end(reader)).children == ()
        assert stage.log.events("warning") == ["shard_not_found"]

    play(scene)


def test_a_stream_that_is_gone_ends_nothing() -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        stage.fan_out.refusals.append(StreamNotFound("no such stream"))
        stage.stream_is_there = False
        stage.put("a")
        reader = stage.reader()
        start(reader)
        await anyio.sleep(30.0)
        assert reader.trouble == "no such stream"
        assert await texts(reader, 1) == ["a"]

    play(scene)


def test_a_stream_that_is_gone_before_there_is_a_consumer_is_seen_to_be_gone() -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        stage.model.handle("DeleteStream", {"StreamName": "words"})
        stage.stream_is_there = False
        reader = stage.reader()
        start(reader)
        await anyio.sleep(120.0)
        assert stage.asked_for_the_stream >= 1
        assert reader.trouble is not None
        assert "not found" in reader.trouble

    play(scene)


def test_an_event_that_is_no_end_ends_no_shard() -> None:
    """KCL: DataRetrievalUtil; an end has child shards."""

    async def scene(stage: FanOutStage, start: Start) -> None:
        stage.put("a")
        reader = stage.reader()
        stage.fan_out.ends = 1
        start(reader)
        assert await texts(reader, 1) == ["a"]
        assert "subscription_broken" in stage.log.events()

    play(scene)


@pytest.mark.parametrize(
    ("error", "level", "event"),
    [
        (AccessDenied("not allowed"), "error", "subscription_failed"),
        (InvalidRequest("what?"), "warning", "subscription_failed"),
        (Unavailable("down"), "warning", "subscription_broken"),
    ],
)
def test_a_subscription_that_keeps_failing_is_reported_at_the_level_of_its_error(
    error: AwsError, level: str, event: str
) -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        stage.fan_out.refusals.extend([error] * 3)
        stage.put("a")
        reader = stage.reader()
        start(reader)
        assert await texts(reader, 1) == ["a"]
        assert set(stage.log.events(level)) == {event}

    play(scene)


@pytest.mark.parametrize(("wanted", "given"), [(False, []), (True, [0])])
def test_empty_events_are_for_those_who_want_them(wanted: bool, given: list[int]) -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        settings = stage.readers._settings
        stage.readers._settings = replace(settings, child=replace(settings.child, call_for_empty=wanted))
        reader, counts = stage.reader(), list[int]()
        start(reader)
        with anyio.move_on_after(60.0):
            item = await reader.next()
            assert isinstance(item, DeliveryBatch)
            counts.append(item.count)
        assert counts == given
        assert stage.memory.idle_after is not None, "an empty event has come"
        assert reader.trouble is None

    play(scene)
