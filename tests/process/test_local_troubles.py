"""Answers of the local endpoints that go wrong on their way, and the control of that from another process."""

from __future__ import annotations

import http.client
import json
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import boto3
import pytest
from botocore.config import Config
from botocore.eventstream import ChecksumMismatch
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    EventStreamError,
    ReadTimeoutError,
    ResponseStreamingError,
)
from urllib3.exceptions import ProtocolError

from kcl_local.demo.check import monotonic_s
from kcl_local.kinesis.http import TRIM
from kcl_local.serving import CALLS, FAULTS
from tests.process.local import InProcess, in_process

if TYPE_CHECKING:
    from mypy_boto3_kinesis import KinesisClient

STREAM = "orders"
FIRST = "shardId-000000000000"


@pytest.fixture(name="world")
def _world() -> Generator[InProcess, None, None]:
    with in_process() as running:
        running.kinesis.create_stream(StreamName=STREAM, ShardCount=1)
        yield running


def _post(url: str, reported: object) -> int:
    with urlopen(Request(url, data=json.dumps(reported).encode()), timeout=60) as answer:
        return int(answer.status)


def _order(world: InProcess, operation: str, fault: str, **more: object) -> None:
    reported = {"operation": operation, "fault": fault, **more}
    assert _post(world.endpoints.kinesis_url + FAULTS, reported) == 204


@contextmanager
def _impatient(url: str) -> Generator[KinesisClient, None, None]:
    client = boto3.client(
        "kinesis",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
        config=Config(retries={"total_max_attempts": 1}, read_timeout=0.2, connect_timeout=60),
    )
    try:
        yield client
    finally:
        client.close()


def _list_shards(world: InProcess) -> tuple[int, bytes]:
    """What comes of the answer, to the byte, and how long it was said to be; boto3 lets too much pass."""
    connection = http.client.HTTPConnection(urlsplit(world.endpoints.kinesis_url).netloc, timeout=60)
    try:
        reported = json.dumps({"StreamName": STREAM})
        connection.request("POST", "/", reported, {"X-Amz-Target": "Kinesis_20131202.ListShards"})
        answer = connection.getresponse()
        announced = int(answer.headers["Content-Length"])
        try:
            return announced, answer.read()
        except http.client.IncompleteRead as cut:
            return announced, cut.partial
    finally:
        connection.close()


def test_an_answer_is_cut_ends_early_or_is_mangled_and_the_next_one_is_whole(world: InProcess) -> None:
    length, whole = _list_shards(world)
    half = whole[: length // 2]
    for fault in ("cut", "short", "corrupt"):
        _order(world, "ListShards", fault)

    assert _list_shards(world) == (length, half)
    assert _list_shards(world) == (len(half), half)
    assert _list_shards(world) == (length, half + b"\xff" + whole[length // 2 + 1 :])
    assert _list_shards(world) == (length, whole)


def test_a_call_is_dropped(world: InProcess) -> None:
    _order(world, "ListShards", "drop")

    with pytest.raises(ConnectionClosedError):
        world.kinesis.list_shards(StreamName=STREAM)


def test_a_slow_answer_comes_too_late_for_who_does_not_wait(world: InProcess) -> None:
    _order(world, "ListShards", "delay", seconds=60)

    with _impatient(world.endpoints.kinesis_url) as kinesis, pytest.raises(ReadTimeoutError):
        kinesis.list_shards(StreamName=STREAM)

    world.kinesis.list_shards(StreamName=STREAM)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("InternalFailure", 500),
        ("ServiceUnavailable", 503),
        ("ProvisionedThroughputExceededException", 400),
        ("ExpiredIteratorException", 400),
    ],
)
def test_a_call_is_refused_as_often_as_was_ordered(world: InProcess, code: str, status: int) -> None:
    _order(world, "GetRecords", "error", code=code, times=2)
    iterator = world.kinesis.get_shard_iterator(StreamName=STREAM, ShardId=FIRST, ShardIteratorType="LATEST")[
        "ShardIterator"
    ]

    for _ in range(2):
        with pytest.raises(ClientError, match=code) as caught:
            world.kinesis.get_records(ShardIterator=iterator)
        assert caught.value.response.get("ResponseMetadata", {}).get("HTTPStatusCode") == status
    world.kinesis.get_records(ShardIterator=iterator)


class TestEvents:
    """Two events are to come; what happens to the second one."""

    @pytest.mark.parametrize(
        ("fault", "error"),
        [
            ("cut", (ProtocolError, ResponseStreamingError)),
            ("corrupt", (ChecksumMismatch,)),
            ("exception", (EventStreamError,)),
        ],
    )
    def test_the_event_goes_wrong(
        self, world: InProcess, fault: str, error: tuple[type[Exception], ...]
    ) -> None:
        _order(world, "SubscribeToShard", fault, event=1)
        events = _two_events(world)
        assert len(next(events)) == 1
        with pytest.raises(error):
            next(events)

    @pytest.mark.parametrize("fault", ["end", "short"])
    def test_the_stream_ends_before_the_event_or_within_it(self, world: InProcess, fault: str) -> None:
        _order(world, "SubscribeToShard", fault, event=1)
        assert [len(event) for event in _two_events(world)] == [1]

    def test_the_event_comes_later(self, world: InProcess) -> None:
        _order(world, "SubscribeToShard", "delay", event=1, seconds=0.5)
        events = _two_events(world)
        assert len(next(events)) == 1
        began_s = monotonic_s()
        assert len(next(events)) == 1
        assert monotonic_s() - began_s > 0.45  # the delay, but for how coarse the clocks are
        events.close()

    def test_an_exception_has_the_code_that_was_ordered(self, world: InProcess) -> None:
        _order(world, "SubscribeToShard", "exception", code="KMSThrottlingException")
        with pytest.raises(EventStreamError, match="KMSThrottlingException"):
            next(_two_events(world))


def _two_events(world: InProcess) -> Generator[list[bytes]]:
    """The data of each event; the second one is put when the first has been read."""
    summary = world.kinesis.describe_stream_summary(StreamName=STREAM)["StreamDescriptionSummary"]
    arn = summary["StreamARN"]
    consumer = world.kinesis.register_stream_consumer(StreamARN=arn, ConsumerName="app")["Consumer"]
    world.kinesis.put_record(StreamName=STREAM, Data=b"1", PartitionKey="k")
    answer = world.kinesis.subscribe_to_shard(
        ConsumerARN=consumer["ConsumerARN"], ShardId=FIRST, StartingPosition={"Type": "TRIM_HORIZON"}
    )
    events = answer["EventStream"]
    try:
        for event in events:
            yield [record["Data"] for record in event["SubscribeToShardEvent"]["Records"]]
            world.kinesis.put_record(StreamName=STREAM, Data=b"2", PartitionKey="k")
    finally:
        events.close()


class TestControl:
    def test_calls_are_counted(self, world: InProcess) -> None:
        world.kinesis.list_shards(StreamName=STREAM)
        world.dynamodb.list_tables()

        assert _counts(world.endpoints.kinesis_url) == {"CreateStream": 1, "ListShards": 1}
        assert _counts(world.endpoints.dynamodb_url) == {"ListTables": 1}

    def test_faults_are_taken_back(self, world: InProcess) -> None:
        _order(world, "ListShards", "error", code="InternalFailure")
        _order(world, "ListShards", "corrupt")
        request = Request(world.endpoints.kinesis_url + FAULTS, method="DELETE")
        urlopen(request, timeout=60).close()

        assert len(world.kinesis.list_shards(StreamName=STREAM)["Shards"]) == 1

    def test_dynamodb_fails_too(self, world: InProcess) -> None:
        url = world.endpoints.dynamodb_url + FAULTS
        _post(url, {"operation": "ListTables", "fault": "error", "code": "InternalServerError"})
        with pytest.raises(ClientError, match="InternalServerError"):
            world.dynamodb.list_tables()
        _post(url, {"operation": "ListTables", "fault": "corrupt"})
        with pytest.raises(Exception, match=r"(?i)crc32|parse|decode"):
            world.dynamodb.list_tables()
        world.dynamodb.list_tables()

    @pytest.mark.parametrize(
        ("operation", "fault", "said"),
        [
            ("UpdatItem", "drop", "UpdatItem is not an operation of this endpoint; did you mean UpdateItem?"),
            ("PutRecords", "corrupt", "PutRecords is not an operation of this endpoint"),
            ("UpdateItem", "boom", "boom is none; there are error, drop, part, delay, cut, short, corrupt,"),
        ],
    )
    def test_names_that_mean_nothing_are_reported(
        self, world: InProcess, operation: str, fault: str, said: str
    ) -> None:
        with pytest.raises(HTTPError) as caught:
            _post(world.endpoints.dynamodb_url + FAULTS, {"operation": operation, "fault": fault})
        with caught.value as answer:
            assert answer.read().decode().startswith(f"no such fault: {said}")

    def test_records_are_trimmed_at_will(self, world: InProcess) -> None:
        world.kinesis.put_record(StreamName=STREAM, Data=b"old", PartitionKey="k")
        world.clock.now_s += 1
        world.kinesis.put_record(StreamName=STREAM, Data=b"new", PartitionKey="k")
        _post(world.endpoints.kinesis_url + TRIM, {"stream": STREAM, "before": world.clock.now_s})

        iterator = world.kinesis.get_shard_iterator(
            StreamName=STREAM, ShardId=FIRST, ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        records = world.kinesis.get_records(ShardIterator=iterator)["Records"]
        assert [record["Data"] for record in records] == [b"new"]

    @pytest.mark.parametrize(
        ("path", "reported"),
        [
            (FAULTS, {"operation": "ListShards"}),
            (FAULTS, {"operation": "ListShards", "fault": "other"}),
            (FAULTS, {"operation": "ListShards", "fault": "end"}),
            (FAULTS, {"operation": "ListShards", "fault": "cut", "times": 0}),
            (FAULTS, {"operation": "ListShards", "fault": "delay", "seconds": "1"}),
            (FAULTS, {"operation": "Other", "fault": "drop"}),
            (FAULTS, []),
            (TRIM, {"stream": "none", "before": 1}),
            (TRIM, {"stream": STREAM}),
        ],
    )
    def test_a_malformed_fault_or_trim_is_refused(
        self, world: InProcess, path: str, reported: object
    ) -> None:
        with pytest.raises(HTTPError) as caught:
            _post(world.endpoints.kinesis_url + path, reported)
        with caught.value as answer:
            assert answer.code == 400
            assert answer.read().endswith(b"\n")


def _counts(url: str) -> dict[str, int]:
    with urlopen(url + CALLS, timeout=60) as answer:
        found: dict[str, int] = json.load(answer)
    return found
