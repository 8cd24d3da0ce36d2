"""How the consumer is found, and which way shards are read where there can be none."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from kcl_daemon.config.retrieval import FanOutSettings
from kcl_daemon.errors import (
    AccessDenied,
    AwsError,
    ConsumerLimitReached,
    InvalidRequest,
    Throttled,
    Unavailable,
)
from kcl_daemon.ports import ConsumerName, StreamConsumer, StreamRef
from kcl_daemon.retrieval.fan_out import FanOutReader
from kcl_daemon.retrieval.polling import PollingReader
from kcl_daemon.retrieval.source import ShardSource
from kcl_local.kinesis.arguments import FanOutRules, KinesisOptions
from kcl_protocol.sequence import TRIM_HORIZON, ExtendedSequenceNumber
from tests.unit.records.aggregates import aggregate, sealed
from tests.unit.retrieval.fan_out_stage import SHARD, STREAM, FanOutStage, Start, play, texts

STREAM_ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/words"
LIMIT = ConsumerLimitReached("twenty")
OR_POLLING = FanOutSettings(fallback_to_polling=True)


def calls(stage: FanOutStage, operation: str) -> int:
    return stage.model.calls[operation]


def register(stage: FanOutStage, name: str) -> str:
    named = {"StreamARN": STREAM_ARN, "ConsumerName": name}
    stage.model.handle("RegisterStreamConsumer", named)
    reported = stage.model.handle("DescribeStreamConsumer", named)["ConsumerDescription"]
    assert isinstance(reported, dict)
    return str(reported["ConsumerARN"])


@pytest.mark.parametrize(
    ("continues", "of_dynamodb", "of_kinesis"),
    [(None, True, False), (True, False, False), (False, True, True)],
)
def test_streams_of_dynamodb_are_polled_and_stop_after_a_loss_unless_asked_otherwise(
    continues: bool | None, of_dynamodb: bool, of_kinesis: bool
) -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        changes = replace(stage.readers._settings.changes, continues_trimmed=continues)
        stage.readers._settings = replace(stage.readers._settings, changes=changes)
        table = StreamRef("orders", "arn:aws:dynamodb:us-east-1:123456789012:table/orders/stream/l")
        for stream, stops in ((table, of_dynamodb), (STREAM, of_kinesis)):
            source = ShardSource(stream, SHARD, TRIM_HORIZON, None, stage.memory)
            reader = stage.readers.reader(source, hash_range=None, log=stage.log)
            assert isinstance(reader, PollingReader if stream is table else FanOutReader)
            assert reader._source.stops_at_loss is stops

    play(scene)


def test_a_shard_with_a_subscription_stops_after_a_loss_if_asked_to() -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        changes = replace(stage.readers._settings.changes, continues_trimmed=False)
        stage.readers._settings = replace(stage.readers._settings, changes=changes)
        first, *_ = stage.put("a")
        await anyio.sleep(100.0)
        stage.put("b")
        stage.model.trim("words", stage.model._now() - 50.0)
        reader = stage.reader(ExtendedSequenceNumber(first))
        start(reader)
        with anyio.move_on_after(600.0):
            await reader.next()
        assert stage.log.events("error") == ["position_trimmed"]
        assert str(reader.trouble).startswith(f"records after {first} that are older than ")

    play(scene)


def test_a_consumer_is_registered_once_for_all_shards_and_awaited() -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        stage.put("a")
        readers = [stage.reader() for _ in range(3)]
        for reader in readers:
            start(reader)
        assert await texts(readers[0], 1) == ["a"]
        assert 3.0 <= anyio.current_time() <= 5.0
        assert stage.fan_out.registered == 1
        assert stage.log.events("info").count("consumer_registered") == 1

    play(scene, lambda: FanOutStage(KinesisOptions(fan_out=FanOutRules(creating_s=3.0))))


def test_a_consumer_that_is_there_is_used_at_once() -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        register(stage, "app")
        stage.put("a")
        reader = stage.reader()
        start(reader)
        assert await texts(reader, 1) == ["a"]
        assert stage.fan_out.registered == 0
        assert anyio.current_time() < 0.1

    play(scene)


def test_a_consumer_given_by_arn_is_not_asked_about() -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        arn = register(stage, "other")
        stage.readers._consumer_of(STREAM, stage.fan_out)._arn = arn  # as if set
        before = calls(stage, "DescribeStreamConsumer")
        stage.put("a")
        reader = stage.reader()
        start(reader)
        assert await texts(reader, 1) == ["a"]
        assert calls(stage, "DescribeStreamConsumer") == before
        assert calls(stage, "DescribeStreamSummary") == 0

    play(scene)


def test_two_workers_that_register_at_the_same_time_share_the_consumer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        ours = stage.fan_out.register_consumer

        async def register_consumer(consumer: ConsumerName) -> StreamConsumer:
            """The other worker is quicker, once we have seen that there is none."""
            if not stage.fan_out.registered:
                register(stage, consumer.name)
            return await ours(consumer)

        monkeypatch.setattr(stage.fan_out, "register_consumer", register_consumer)
        stage.put("a")
        reader = stage.reader()
        start(reader)
        assert await texts(reader, 1) == ["a"]
        assert stage.fan_out.registered == 1
        assert "consumer_registered" not in stage.log.events()

    play(scene)


@pytest.mark.parametrize("error", [Throttled("rate"), Unavailable("down"), LIMIT])
def test_registering_is_tried_as_often_as_is_set(error: AwsError) -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        stage.fan_out.registering.extend([error] * 4)
        stage.put("a")
        reader = stage.reader()
        start(reader)
        assert await texts(reader, 1) == ["a"]
        assert stage.fan_out.registered == 5
        assert stage.log.events("error") == []
        assert anyio.current_time() >= 4.0

    play(scene)


@pytest.mark.parametrize("error", [AccessDenied("no"), InvalidRequest("what?"), LIMIT])
def test_fan_out_that_stays_impossible_is_reported_with_advice_and_tried_again(error: AwsError) -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        stage.fan_out.registering.extend([error] * 2)
        stage.put("a")
        reader = stage.reader()
        start(reader)
        start(stage.reader())
        await anyio.sleep(50.0)
        assert reader.trouble == str(error)
        assert await texts(reader, 1) == ["a"]
        assert stage.log.events("error") == ["fan_out_impossible"] * 2
        assert all("retrievalMode=POLLING" in str(fields["advice"]) for _, event, fields in stage.log.lines if event == "fan_out_impossible")  # fmt: skip

    play(scene, lambda: FanOutStage(fan_out=FanOutSettings(register_tries=1)))


@pytest.mark.parametrize("error", [AccessDenied("no"), LIMIT])
def test_shards_are_polled_where_that_is_wanted_instead(error: AwsError) -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        stage.fan_out.registering.extend([error] * 10)
        stage.put("a")
        reader = stage.reader()
        start(reader)
        assert await texts(reader, 1) == ["a"]
        assert calls(stage, "GetRecords") > 0
        assert stage.fan_out.positions == []
        assert stage.log.events("error") == []
        assert "polling_instead_of_fan_out" in stage.log.events("info")
        reader.close()

    play(scene, lambda: FanOutStage(fan_out=OR_POLLING))


def test_a_service_that_is_down_for_a_while_is_no_reason_to_poll() -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        stage.fan_out.describing.extend([Unavailable("down")] * 30)
        stage.put("a")
        reader = stage.reader()
        start(reader)
        await anyio.sleep(12.0)
        assert reader.trouble == "down"
        assert await texts(reader, 1) == ["a"]
        assert calls(stage, "GetRecords") == 0
        assert len(stage.fan_out.positions) == 1

    play(scene, lambda: FanOutStage(fan_out=OR_POLLING))


def test_broken_aggregates_are_delivered_and_loud_once() -> None:
    async def scene(stage: FanOutStage, start: Start) -> None:
        broken = sealed(b"\x0a\x05ab")
        stage.put_data(broken)
        stage.put_data(aggregate([("k", b"a", None), ("k", b"b", None)]))
        stage.put_data(broken)
        reader = stage.reader()
        start(reader)
        item = await reader.next()
        assert getattr(item, "count", None) == 4
        reported = [
            (level, fields["count"])
            for level, event, fields in stage.log.lines
            if event == "aggregate_malformed"
        ]
        assert reported == [("warning", 1), ("debug", 2)]

    play(scene)
