"""Dead letters at every place there is, against services on loopback."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from io import BytesIO
from math import inf
from pathlib import Path
from typing import Any, Final

import boto3
import orjson
import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.httpsession import URLLib3Session
from urllib3.response import HTTPResponse

from kcl_daemon.aws.session import Services
from kcl_daemon.config.dead_letters import DESTINATION, OVERFLOW, Destination
from kcl_daemon.config.services import Endpoints
from kcl_daemon.destinations.kinesis import StreamLetters
from kcl_daemon.destinations.s3 import BucketLetters, object_path
from kcl_daemon.errors import (
    AccessDenied,
    AwsError,
    ConfigurationError,
    DeadLetterTooLarge,
    InvalidRequest,
    Throttled,
    Unavailable,
)
from kcl_daemon.ports import DeadLetters
from kcl_local.dynamodb import LettersEndpoint
from tests.contract.aws_access import REGION, credentials_that_nobody_checks
from tests.process.local import InProcess, in_process
from tests.unit.consumer.letters import LETTER

pytestmark = pytest.mark.anyio

MIB: Final = 1024**2
DATA: Final = bytes(range(256)) * (10 * MIB // 256)
LARGE: Final = replace(LETTER, record=replace(LETTER.record, data=b64encode(DATA).decode()))
TOPIC: Final = "arn:aws:sns:us-east-1:123456789012:dead"
LARGER: Final = "s3://letters/large"
PATH: Final = f"billing/orders/shardId-000000000003/{'4951':0>56}-0000000007"

Letter = dict[str, Any]


@dataclass(frozen=True)
class World:
    local: InProcess
    s3: Any
    sns: Any
    sqs: Any

    @property
    def endpoint(self) -> LettersEndpoint:
        return self.local.endpoints.dynamodb.letters

    @property
    def endpoints(self) -> Endpoints:
        urls = self.local.endpoints
        return Endpoints(REGION, urls.kinesis_url, s3=urls.s3_url, sns=urls.s3_url)

    def queue(self, name: str = "dead", **attributes: str) -> str:
        """The URL of a new one."""
        return str(self.sqs.create_queue(QueueName=name, Attributes=attributes)["QueueUrl"])

    def messages(self, url: str) -> list[Letter]:
        asked = {"MaxNumberOfMessages": 10, "MessageSystemAttributeNames": ["All"]}
        found = self.sqs.receive_message(QueueUrl=url, **asked).get("Messages", [])
        return [orjson.loads(each["Body"]) for each in found]

    def names(self, bucket: str = "letters") -> list[str]:
        return [each["Key"] for each in self.s3.list_objects_v2(Bucket=bucket).get("Contents", [])]

    def object(self, key: str, bucket: str = "letters") -> bytes:
        return bytes(self.s3.get_object(Bucket=bucket, Key=key)["Body"].read())

    def objects(self) -> list[Letter]:
        """Letters of the bucket, as they are written: bytes and what is beside them."""
        found = [key.removesuffix(".json") for key in self.names() if key.endswith(".json")]
        return [
            {**orjson.loads(self.object(f"{name}.json")), "data": b64encode(self.object(name)).decode()}
            for name in found
        ]

    def records(self) -> list[Letter]:
        shard = {"ShardId": "shardId-000000000000", "ShardIteratorType": "TRIM_HORIZON"}
        iterator = self.local.kinesis.get_shard_iterator(StreamName="dead", **shard)["ShardIterator"]  # type: ignore[arg-type]
        records = self.local.kinesis.get_records(ShardIterator=iterator)["Records"]
        letters: list[Letter] = [orjson.loads(each["Data"]) for each in records]
        assert [each.get("PartitionKey") for each in records] == [
            each["partitionKey"][:256] for each in letters
        ]
        return letters

    def whole(self, letter: Letter) -> Letter:
        """The letter with its data, which may be in a bucket."""
        if letter["data"] is not None:
            return letter
        bucket, _, key = letter.pop("dataAt").removeprefix("s3://").partition("/")
        return {**letter, "data": b64encode(self.object(key, bucket)).decode()}


@pytest.fixture(scope="module")
def running() -> Generator[World]:
    with credentials_that_nobody_checks(), in_process() as local:
        url = local.endpoints.s3_url
        # Any: boto3 has no stubs here for these services.
        make: Any = boto3.client
        with (
            closing(make("s3", endpoint_url=url, region_name=REGION)) as s3,
            closing(make("sns", endpoint_url=url, region_name=REGION)) as sns,
            closing(make("sqs", endpoint_url=url, region_name=REGION)) as sqs,
        ):
            yield World(local, s3, sns, sqs)


@pytest.fixture
def world(running: World) -> Generator[World]:
    """Nothing of another test is there."""
    running.s3.create_bucket(Bucket="letters")
    with credentials_that_nobody_checks():
        yield running
    running.endpoint.clear_faults()
    for key in running.names():
        running.s3.delete_object(Bucket="letters", Key=key)
    running.s3.delete_bucket(Bucket="letters")
    for url in running.sqs.list_queues().get("QueueUrls", []):
        running.sqs.delete_queue(QueueUrl=url)
    for topic in running.sns.list_topics()["Topics"]:
        running.sns.delete_topic(TopicArn=topic["TopicArn"])
    for name in running.local.kinesis.list_streams()["StreamNames"]:
        running.local.kinesis.delete_stream(StreamName=name)


def place(text: str) -> Destination:
    return DESTINATION.read(text)


@asynccontextmanager
async def opened(world: World, text: str, overflow: str | None = None) -> AsyncGenerator[DeadLetters]:
    large = None if overflow is None else OVERFLOW.read(overflow)
    async with place(text).writer(world.endpoints, large) as letters:
        yield letters


@dataclass(frozen=True)
class Target:
    """A place with its text in a properties file, and a way to read what is in it."""

    text: str
    read: Callable[[], list[Letter]]


def subscribed(world: World, topic: str, **attributes: str) -> str:
    """The URL of a queue that gets what is published."""
    url = world.queue(topic.rpartition(":")[2].replace("dead", "reader"), **attributes)
    named: dict[str, str] = {"FifoTopic": "true"} if topic.endswith(".fifo") else {}
    world.sns.create_topic(Name=topic.rpartition(":")[2], Attributes=named)
    arn = world.sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    world.sns.subscribe(
        TopicArn=topic, Protocol="sqs", Endpoint=arn, Attributes={"RawMessageDelivery": "true"}
    )
    return url


def target(world: World, scheme: str, folder: Path) -> Target:
    match scheme:
        case "file":
            path = folder / "dead.jsonl"
            return Target(
                f"file:{path}", lambda: [orjson.loads(line) for line in path.read_bytes().splitlines()]
            )
        case "sqs":
            url = world.queue()
            return Target(f"sqs:{url}", lambda: world.messages(url))
        case "sns":
            queue = subscribed(world, TOPIC)
            return Target(f"sns:{TOPIC}", lambda: world.messages(queue))
        case "kinesis":
            world.local.kinesis.create_stream(StreamName="dead", ShardCount=1)
            return Target("kinesis:dead", world.records)
        case _:
            return Target("s3://letters/some/where", world.objects)


EVERY: Final = pytest.mark.parametrize("scheme", ["file", "sqs", "kinesis", "s3", "sns"])
LIMITED: Final = pytest.mark.parametrize("scheme", ["sqs", "sns", "kinesis"])


@EVERY
async def test_a_letter_is_there_with_all_it_says(world: World, scheme: str, tmp_path: Path) -> None:
    to = target(world, scheme, tmp_path)
    async with opened(world, to.text) as letters:
        await letters.store(LETTER)
    (found,) = to.read()
    found.pop("dataBytes", None)
    assert found == orjson.loads(LETTER.line())


@EVERY
async def test_the_letter_of_an_item_with_the_longest_keys_is_there(
    world: World, scheme: str, tmp_path: Path
) -> None:
    """Of a snapshot: its number has the keys, too."""
    key = orjson.dumps({"id": {"S": "x" * 2048}, "sort": {"S": "y" * 1024}}).decode()
    record = replace(LETTER.record, partition_key=key, sequence_number="1" + "7" * 4299)
    letter = replace(LETTER, record=record)
    to = target(world, scheme, tmp_path)
    async with opened(world, to.text) as letters:
        await letters.store(letter)
    (found,) = to.read()
    found.pop("dataBytes", None)
    assert found == orjson.loads(letter.line())


@EVERY
async def test_a_letter_of_10_mib_is_whole(world: World, scheme: str, tmp_path: Path) -> None:
    to = target(world, scheme, tmp_path)
    async with opened(world, to.text, LARGER) as letters:
        await letters.store(LARGE)
    (written,) = to.read()
    found = world.whole(written)
    assert b64decode(found["data"]) == DATA
    assert found.pop("dataBytes", len(DATA)) == len(DATA)
    assert found == orjson.loads(LARGE.line())


@LIMITED
async def test_a_letter_that_is_too_large_leaves_its_data_in_the_bucket(
    world: World, scheme: str, tmp_path: Path
) -> None:
    to = target(world, scheme, tmp_path)
    async with opened(world, to.text, f"{LARGER}?folders=day") as letters:
        await letters.store(LARGE)
        await letters.store(LARGE)
    key = f"large/2026-02-02/{PATH}"
    pointer, *_ = to.read()
    assert (pointer["data"], pointer["dataAt"], pointer["dataBytes"]) == (
        None,
        f"s3://letters/{key}",
        len(DATA),
    )
    assert world.names() == [key, f"{key}.json"]


@LIMITED
async def test_without_an_overflow_such_a_letter_is_refused_with_advice(
    world: World, scheme: str, tmp_path: Path
) -> None:
    to = target(world, scheme, tmp_path)
    async with opened(world, to.text) as letters:
        with pytest.raises(DeadLetterTooLarge, match=r"set deadLetterOverflow = s3://BUCKET/PREFIX"):
            await letters.store(LARGE)
        await letters.store(LETTER)
    assert [each["sequenceNumber"] for each in to.read()] == ["4951"]
    assert world.names() == []


async def test_a_queue_may_have_a_lower_limit_than_the_service(world: World) -> None:
    url = world.queue("small", MaximumMessageSize="1024")
    large = replace(LETTER, record=replace(LETTER.record, data="A" * 2048))
    async with opened(world, f"sqs:{url}") as letters:
        with pytest.raises(DeadLetterTooLarge, match="shorter than 1024 bytes"):
            await letters.store(large)
    async with opened(world, f"sqs:{url}", LARGER) as letters:
        await letters.store(large)
        with pytest.raises(DeadLetterTooLarge, match="raise the limit"):
            await letters.store(replace(LETTER, error="no " * 500))
    assert world.messages(url)[0]["dataBytes"] == 1536


async def test_a_refusal_in_unknown_words_leaves_a_large_letter_in_the_bucket(world: World) -> None:
    url = world.queue()
    middling = replace(LETTER, record=replace(LETTER.record, data="A" * 400_000))
    async with opened(world, f"sqs:{url}", LARGER) as letters:
        world.endpoint.fail_next("SendMessage", "Odd")
        await letters.store(middling)
        world.endpoint.fail_next("SendMessage", "Odd")
        with pytest.raises(InvalidRequest, match="Odd"):
            await letters.store(LETTER)
    assert [each["dataBytes"] for each in world.messages(url)] == [300_000]


async def test_characters_that_a_queue_refuses_are_escaped(world: World) -> None:
    url = world.queue()
    odd = replace(LETTER, error="\ufffe and \uffff and \u00e9")
    async with opened(world, f"sqs:{url}") as letters:
        await letters.store(odd)
    (message,) = world.sqs.receive_message(QueueUrl=url)["Messages"]
    assert not {"\ufffe", "\uffff"} & set(message["Body"])
    assert orjson.loads(message["Body"]) == orjson.loads(odd.line())


async def test_a_fifo_queue_gets_a_record_once_and_in_the_group_of_its_shard(world: World) -> None:
    url = world.queue("dead.fifo", FifoQueue="true")
    async with opened(world, f"sqs:{url}") as letters:
        await letters.store(LETTER)
        await letters.store(LETTER)
    found = world.sqs.receive_message(
        QueueUrl=url, MaxNumberOfMessages=10, MessageSystemAttributeNames=["All"]
    )
    (message,) = found["Messages"]
    assert message["Attributes"]["MessageGroupId"] == LETTER.shard_id


async def test_a_fifo_topic_publishes_in_the_group_of_the_shard(world: World) -> None:
    url = subscribed(world, f"{TOPIC}.fifo", FifoQueue="true")
    async with opened(world, f"sns:{TOPIC}.fifo") as letters:
        await letters.store(LETTER)
        await letters.store(LETTER)
    found = world.sqs.receive_message(
        QueueUrl=url, MaxNumberOfMessages=10, MessageSystemAttributeNames=["All"]
    )
    (message,) = found["Messages"]
    assert message["Attributes"]["MessageGroupId"] == LETTER.shard_id
    assert message["Attributes"]["MessageDeduplicationId"] == LETTER.key


async def test_a_stream_may_be_named_by_its_arn(world: World, tmp_path: Path) -> None:
    to = target(world, "kinesis", tmp_path)
    summary = world.local.kinesis.describe_stream_summary(StreamName="dead")["StreamDescriptionSummary"]
    async with opened(world, f"kinesis:{summary['StreamARN']}") as letters:
        await letters.store(LETTER)
    assert len(to.read()) == 1


async def test_a_repeated_letter_is_no_second_object_and_changes_none(world: World) -> None:
    async with opened(world, "s3://letters") as letters:
        await letters.store(LETTER)
        await letters.store(replace(LETTER, worker_id="another", failures=9))
    assert world.names() == [PATH, f"{PATH}.json"]
    (found,) = world.objects()
    assert found["workerId"] == LETTER.worker_id
    assert world.object(PATH) == b"poison"
    assert found["dataBytes"] == 6


class Puts:
    """A client of S3 that keeps the names of what it was given."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def put_object(self, *, Key: str, **_rest: object) -> None:  # noqa: N803 - as boto3 calls it
        self.names.append(Key)

    def close(self) -> None:
        self.names = list(self.names)


async def test_data_is_stored_in_the_bucket_before_its_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    client = Puts()
    monkeypatch.setattr(Services, "client_for", lambda *_, **__: client)
    async with BucketLetters("//letters").writer(Endpoints(REGION), None) as letters:
        await letters.store(LETTER)
    assert client.names == [PATH, f"{PATH}.json"]


async def test_a_worker_that_died_between_two_objects_is_made_up_for(world: World) -> None:
    world.s3.put_object(Bucket="letters", Key=PATH, Body=b"poison")
    async with opened(world, "s3://letters") as letters:
        await letters.store(LETTER)
    assert len(world.objects()) == 1


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("SlowDown", Throttled),
        ("ServiceUnavailable", Unavailable),
        ("ConditionalRequestConflict", Unavailable),
        ("AccessDenied", AccessDenied),
        ("drop", Unavailable),
    ],
)
async def test_a_refusal_of_the_bucket_says_whether_to_try_again(
    world: World, code: str, error: type[AwsError]
) -> None:
    async with opened(world, "s3://letters") as letters:
        world.endpoint.fail_next("PutObject", code)
        with pytest.raises(error, match="PutObject"):
            await letters.store(LETTER)
        await letters.store(LETTER)
    assert len(world.objects()) == 1


async def test_a_store_without_conditional_puts_gets_the_same_object_again(world: World) -> None:
    world.s3.put_object(Bucket="letters", Key=PATH, Body=b"half")
    async with opened(world, "s3://letters") as letters:
        world.endpoint.fail_next("PutObject", "NotImplemented")
        await letters.store(LETTER)
        assert world.object(PATH) == b"poison"
        world.endpoint.fail_next("PutObject", "NotImplemented")
        with pytest.raises(Unavailable):
            await letters.store(LETTER)


@pytest.mark.parametrize(
    "text",
    ["s3://missing/x", "kinesis:dead", f"sns:{TOPIC}", "sqs:{url}/123456789012/dead"],
)
async def test_a_place_that_is_not_there_is_an_error(world: World, text: str) -> None:
    text = text.format(url=world.local.endpoints.s3_url)
    async with opened(world, text) as letters:
        with pytest.raises(AwsError):
            await letters.store(LETTER)
    with pytest.raises(AwsError):
        place(text).largest_letter(world.endpoints)


async def test_a_place_says_how_large_a_letter_may_be(world: World, tmp_path: Path) -> None:
    expected = {
        "file": None,
        "s3": inf,
        "sqs": MIB,
        "sns": 256 * 1024,
        "kinesis": MIB,
    }
    found = {
        scheme: place(target(world, scheme, tmp_path).text).largest_letter(world.endpoints)
        for scheme in expected
    }
    assert found == expected


async def test_a_bucket_of_another_region_is_found_there(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts: list[str] = []

    def send(_self: URLLib3Session, request: AWSPreparedRequest) -> AWSResponse:
        hosts.append(str(request.url).split("/")[2])
        there = "us-west-2" in hosts[-1]
        headers: Any = {} if there else {"x-amz-bucket-region": "us-west-2"}
        raw = HTTPResponse(BytesIO(b""), preload_content=False)
        return AWSResponse(str(request.url), 200 if there else 301, headers, raw)

    monkeypatch.setattr(URLLib3Session, "send", send)
    with credentials_that_nobody_checks():
        async with place("s3://letters").writer(Endpoints("eu-west-1"), None) as letters:
            await letters.store(LETTER)
    assert hosts[0] == "letters.s3.eu-west-1.amazonaws.com"
    assert set(hosts[1:]) == {"letters.s3.us-west-2.amazonaws.com"}


def test_names_of_an_object_are_safe_and_in_the_order_of_the_shard() -> None:
    odd = replace(LETTER, application_name="a/b c")
    assert object_path(odd, by_day=False).startswith("a%2Fb%20c/orders/shardId-000000000003/")
    later = replace(LETTER, record=replace(LETTER.record, sequence_number="10000"))
    assert object_path(LETTER, by_day=False) < object_path(later, by_day=False)
    undated = replace(LETTER, record=replace(LETTER.record, approximate_arrival_timestamp=None))
    assert object_path(undated, by_day=True) == f"1970-01-01/{PATH}"


async def test_an_address_that_the_sdk_cannot_use_is_known_at_the_start() -> None:
    bad = StreamLetters("arn:aws:kinesis:no region:1:stream/dead")
    with pytest.raises(ConfigurationError):
        async with bad.writer(Endpoints(REGION), None):
            pass
