"""What is asked of Kinesis, call by call: `kcl_daemon.transport.kinesis` and `event_stream`."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from kcl_daemon.errors import AwsError, ConsumerLimitReached, Throttled, Unavailable
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import ConsumerName, ConsumerStatus, IteratorKind, ReadFrom, StreamConsumer, StreamRef
from kcl_daemon.shards.lineage import InitialPosition, StartAt
from kcl_daemon.transport.caller import AwsJsonClient
from kcl_daemon.transport.event_stream import HttpFanOut
from kcl_daemon.transport.kinesis import HttpKinesis
from tests.unit.transport.scripted import Exchange, Server, calling, serving

pytestmark = pytest.mark.anyio

ARN = "arn:aws:kinesis:eu-west-1:210987654321:stream/orders"
SHARD = ShardId("shardId-000000000000")
BY_NAME = (StreamRef("orders"), {"StreamName": "orders"})
BY_ARN = (StreamRef("orders", ARN), {"StreamARN": ARN})
APP = ConsumerName(ARN, "app")


@asynccontextmanager
async def answering(
    *answers: dict[str, Any], status: str = "200 OK"
) -> AsyncGenerator[tuple[AwsJsonClient, Server], None]:
    """Kinesis that answers as it was told, in that order."""
    left = list(answers)

    async def script(exchange: Exchange) -> None:
        await exchange.answer(json.dumps(left.pop(0)).encode(), status)

    async with serving(script) as server, calling(f"http://127.0.0.1:{server.port}") as client:
        yield client, server
    assert not left


def requests(server: Server) -> list[Any]:
    return [json.loads(request) for request in server.requests]


@pytest.mark.parametrize(("stream", "named"), [BY_NAME, BY_ARN], ids=["by name", "by ARN"])
async def test_shards_are_asked_for_by_the_stream_first_and_then_by_the_token_alone(
    stream: StreamRef, named: dict[str, Any]
) -> None:
    async with answering({"Shards": [], "NextToken": "token"}, {"Shards": []}) as (client, server):
        assert await HttpKinesis(client).list_shards(stream, InitialPosition(StartAt.TRIM_HORIZON)) == ()
    assert requests(server) == [
        {**named, "ShardFilter": {"Type": "AT_TRIM_HORIZON"}},
        {"NextToken": "token"},
    ]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (None, {}),
        (InitialPosition(), {"ShardFilter": {"Type": "AT_LATEST"}}),
        (
            InitialPosition(StartAt.TIMESTAMP, 1.25),
            {"ShardFilter": {"Type": "AT_TIMESTAMP", "Timestamp": 1.25}},
        ),
    ],
)
async def test_the_start_becomes_a_filter(start: InitialPosition | None, expected: dict[str, Any]) -> None:
    async with answering({"Shards": []}) as (client, server):
        await HttpKinesis(client).list_shards(StreamRef("orders"), start)
    assert requests(server) == [{"StreamName": "orders", **expected}]


@pytest.mark.parametrize(("stream", "named"), [BY_NAME, BY_ARN], ids=["by name", "by ARN"])
@pytest.mark.parametrize(
    ("read_from", "expected"),
    [
        (ReadFrom(IteratorKind.LATEST), {}),
        (
            ReadFrom(IteratorKind.AFTER_SEQUENCE_NUMBER, sequence_number="7"),
            {"StartingSequenceNumber": "7"},
        ),
        (ReadFrom(IteratorKind.AT_TIMESTAMP, timestamp_s=0.5), {"Timestamp": 0.5}),
    ],
)
async def test_an_iterator_is_asked_for_as_its_kind_wants(
    stream: StreamRef, named: dict[str, Any], read_from: ReadFrom, expected: dict[str, Any]
) -> None:
    async with answering({"ShardIterator": "i"}) as (client, server):
        assert await HttpKinesis(client).get_shard_iterator(stream, SHARD, read_from) == "i"
    assert requests(server) == [
        {**named, "ShardId": SHARD, "ShardIteratorType": read_from.kind.value, **expected}
    ]


@pytest.mark.parametrize(("stream", "named"), [(BY_NAME[0], {}), BY_ARN], ids=["by name", "by ARN"])
async def test_records_are_asked_for_by_iterator_and_arn(stream: StreamRef, named: dict[str, Any]) -> None:
    async with answering({"Records": []}) as (client, server):
        assert (await HttpKinesis(client).get_records(stream, SHARD, "i", 9)).next_iterator is None
    assert requests(server) == [{**named, "ShardIterator": "i", "Limit": 9}]


async def test_a_consumer_is_asked_for_by_name_or_arn_and_registered() -> None:
    shape = {"ConsumerARN": "c", "ConsumerStatus": "ACTIVE"}
    active = StreamConsumer("c", ConsumerStatus.ACTIVE)
    named = {"StreamARN": ARN, "ConsumerName": "app"}
    described = {"ConsumerDescription": shape}
    async with answering(described, described, {"Consumer": shape}) as (client, server):
        fan_out = HttpFanOut(client)
        assert await fan_out.describe_consumer(APP) == active
        assert await fan_out.describe_consumer("c") == active
        assert await fan_out.register_consumer(APP) == active
    assert requests(server) == [named, {"ConsumerARN": "c"}, named]


@pytest.mark.parametrize(
    ("code", "expected"),
    [("LimitExceededException", ConsumerLimitReached), ("ThrottlingException", Throttled)],
)
async def test_a_limit_of_consumers_is_not_a_throttled_call(code: str, expected: type[AwsError]) -> None:
    async with answering({"__type": code}, status="400 Bad Request") as (client, _):
        with pytest.raises(expected):
            await HttpFanOut(client).register_consumer(APP)


async def test_a_consumer_that_is_not_there_is_none() -> None:
    async with answering({"__type": "ResourceNotFoundException"}, status="400 Bad Request") as (client, _):
        assert await HttpFanOut(client).describe_consumer(APP) is None


async def test_a_malformed_answer_about_a_consumer_is_unavailable() -> None:
    async with answering({}, {"Consumer": {"ConsumerARN": "c", "ConsumerStatus": "?"}}) as (client, _):
        with pytest.raises(Unavailable, match="DescribeStreamConsumer: the answer cannot be understood"):
            await HttpFanOut(client).describe_consumer(APP)
        with pytest.raises(Unavailable, match="RegisterStreamConsumer: the answer cannot be understood"):
            await HttpFanOut(client).register_consumer(APP)
