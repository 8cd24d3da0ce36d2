"""Enhanced fan-out of the local Kinesis as AWS's own SDK reads it, and its frames as they are."""

from __future__ import annotations

import http.client
import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import pytest
from anyio import fail_after, sleep
from anyio.from_thread import start_blocking_portal
from botocore.eventstream import EventStreamBuffer
from botocore.exceptions import EventStreamError

from kcl_local.kinesis.arguments import FanOutRules, KinesisOptions
from kcl_local.kinesis.http import application
from kcl_local.kinesis.model import KinesisModel
from kcl_local.kinesis.stream import stream_arn
from kcl_local.serving import serve
from tests.process.local import Clock, InProcess, in_process

if TYPE_CHECKING:
    from mypy_boto3_kinesis.type_defs import SubscribeToShardEventStreamTypeDef, SubscribeToShardEventTypeDef

FIRST = "shardId-000000000000"


@pytest.fixture(scope="module", name="world")
def _world() -> Generator[InProcess, None, None]:
    """Every test makes its own stream."""
    with in_process() as running:
        yield running


def _consumer(world: InProcess, stream: str) -> str:
    """A new stream of that name with one consumer, whose ARN it gives."""
    world.kinesis.create_stream(StreamName=stream, ShardCount=1)
    summary = world.kinesis.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]
    answer = world.kinesis.register_stream_consumer(StreamARN=summary["StreamARN"], ConsumerName="app")
    return answer["Consumer"]["ConsumerARN"]


@contextmanager
def _subscribed(
    world: InProcess, consumer_arn: str
) -> Generator[Iterator[SubscribeToShardEventStreamTypeDef], None, None]:
    answer = world.kinesis.subscribe_to_shard(
        ConsumerARN=consumer_arn, ShardId=FIRST, StartingPosition={"Type": "TRIM_HORIZON"}
    )
    events = answer["EventStream"]
    try:
        yield iter(events)
    finally:
        events.close()


def _following(events: Iterator[SubscribeToShardEventStreamTypeDef]) -> SubscribeToShardEventTypeDef:
    return next(events)["SubscribeToShardEvent"]


def _pass(world: InProcess, seconds: float) -> None:
    world.clock.now_s += seconds
    world.portal.call(world.endpoints.kinesis.wake)


def test_records_are_pushed_until_the_shard_ends(world: InProcess) -> None:
    arn = _consumer(world, "pushed")
    world.kinesis.put_record(StreamName="pushed", Data=b"before", PartitionKey="k")
    with _subscribed(world, arn) as events:
        first = _following(events)
        assert [record["Data"] for record in first["Records"]] == [b"before"]
        assert first["ContinuationSequenceNumber"] == first["Records"][0]["SequenceNumber"]
        assert first["MillisBehindLatest"] == 0

        put = world.kinesis.put_record(StreamName="pushed", Data=b"\x00\xff", PartitionKey="käse")
        (record,) = _following(events)["Records"]
        assert (record["Data"], record.get("PartitionKey")) == (b"\x00\xff", "käse")
        assert record["SequenceNumber"] == put["SequenceNumber"]

        world.kinesis.split_shard(StreamName="pushed", ShardToSplit=FIRST, NewStartingHashKey="7")
        last = _following(events)
        assert last["Records"] == []
        assert "ContinuationSequenceNumber" not in cast("dict[str, object]", last)
        assert [child["ShardId"] for child in last.get("ChildShards", [])] == [
            "shardId-000000000001",
            "shardId-000000000002",
        ]
        assert list(events) == []


def test_an_idle_subscription_says_so_and_ends_after_five_minutes(world: InProcess) -> None:
    with _subscribed(world, _consumer(world, "idle")) as events:
        _pass(world, 5)
        event = _following(events)
        assert (event["Records"], event["MillisBehindLatest"]) == ([], 0)
        assert int(event["ContinuationSequenceNumber"]) > 10**50
        _pass(world, 295)
        assert list(events) == []


def test_a_later_subscription_takes_over_and_the_older_one_is_told(world: InProcess) -> None:
    arn = _consumer(world, "taken")
    with _subscribed(world, arn) as older:
        with pytest.raises(world.kinesis.exceptions.ResourceInUseException):
            world.kinesis.subscribe_to_shard(
                ConsumerARN=arn, ShardId=FIRST, StartingPosition={"Type": "LATEST"}
            )
        world.clock.now_s += 5
        with _subscribed(world, arn) as newer:
            with pytest.raises(EventStreamError, match="ResourceInUseException"):
                next(older)
            world.kinesis.put_record(StreamName="taken", Data=b"1", PartitionKey="k")
            assert len(_following(newer)["Records"]) == 1


def test_a_consumer_that_is_deregistered_ends_its_subscriptions(world: InProcess) -> None:
    arn = _consumer(world, "gone")
    with _subscribed(world, arn) as events:
        world.kinesis.deregister_stream_consumer(ConsumerARN=arn)
        with pytest.raises(EventStreamError, match="ResourceNotFoundException"):
            next(events)


def test_the_calls_on_consumers_are_those_of_the_sdk(world: InProcess) -> None:
    arn = _consumer(world, "calls")
    stream_arn = arn.partition("/consumer/")[0]

    described = world.kinesis.describe_stream_consumer(StreamARN=stream_arn, ConsumerName="app")
    (listed,) = world.kinesis.list_stream_consumers(StreamARN=stream_arn)["Consumers"]

    assert described["ConsumerDescription"]["ConsumerARN"] == listed["ConsumerARN"] == arn
    assert listed["ConsumerStatus"] == "ACTIVE"
    assert listed["ConsumerCreationTimestamp"].timestamp() == world.clock.now_s
    summary = world.kinesis.describe_stream_summary(StreamName="calls")["StreamDescriptionSummary"]
    assert summary.get("ConsumerCount") == 1


def test_a_reader_who_goes_leaves_nothing_behind(world: InProcess) -> None:
    arn = _consumer(world, "left")
    stream = world.endpoints.kinesis._account.stream_of(stream_arn("left"))
    bells = stream.shard(FIRST).bells

    async def until(readers: int) -> None:
        with fail_after(60):
            while len(bells) != readers:  # noqa: ASYNC110 - the server notices in its own time, nothing tells of it
                await sleep(0.01)

    with _subscribed(world, arn):
        world.portal.call(until, 1)  # it answers first, and then begins to wait for records
    world.portal.call(until, 0)


@pytest.mark.parametrize("initial_response", [True, False])
def test_the_frames_begin_as_was_chosen(initial_response: bool) -> None:
    model = KinesisModel(Clock(), KinesisOptions(fan_out=FanOutRules(initial_response=initial_response)))
    model.handle("CreateStream", {"StreamName": "frames", "ShardCount": 1})
    model.handle("PutRecord", {"StreamName": "frames", "Data": "AA==", "PartitionKey": "k"})
    model.handle("SplitShard", {"StreamName": "frames", "ShardToSplit": FIRST, "NewStartingHashKey": "7"})
    named = {"StreamARN": stream_arn("frames"), "ConsumerName": "app"}
    model.handle("RegisterStreamConsumer", named)
    consumer = cast("dict[str, str]", model.handle("DescribeStreamConsumer", named)["ConsumerDescription"])

    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(serve(application(model), 0)) as url,
    ):
        headers, body = _raw(url, consumer["ConsumerARN"])

    assert headers["Content-Type"] == "application/vnd.amazon.eventstream"
    assert headers["Transfer-Encoding"] == "chunked"
    buffer = EventStreamBuffer()
    buffer.add_data(body)
    messages: list[Any] = list(buffer)
    types = [message.headers[":event-type"] for message in messages]
    assert types == ["initial-response"] * initial_response + ["SubscribeToShardEvent"]
    assert {message.headers[":message-type"] for message in messages} == {"event"}
    assert len(json.loads(messages[-1].payload)["Records"]) == 1


def _raw(url: str, consumer_arn: str) -> tuple[dict[str, str], bytes]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
    reported = {"ConsumerARN": consumer_arn, "ShardId": FIRST, "StartingPosition": {"Type": "TRIM_HORIZON"}}
    try:
        connection.request(
            "POST", "/", json.dumps(reported), {"X-Amz-Target": "Kinesis_20131202.SubscribeToShard"}
        )
        answer = connection.getresponse()
        return dict(answer.getheaders()), answer.read()
    finally:
        connection.close()
