"""Dead letters in queues and streams, against services on loopback."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from threading import Thread
from typing import Any

import boto3
import orjson
import pytest
from moto.moto_server.werkzeug_app import create_backend_app
from werkzeug.serving import make_server

from kcl_daemon.aws.other_services import open_remote_dead_letters
from kcl_daemon.config.children import DeadLetterDestination, DeadLetterStore
from kcl_daemon.config.services import Endpoints
from kcl_daemon.errors import AwsError, ConfigurationError, InvalidRequest, Unavailable
from kcl_daemon.ports import DeadLetters
from tests.contract.aws_access import REGION, credentials_that_nobody_checks
from tests.process.local import in_process
from tests.unit.consumer.letters import LETTER

pytestmark = pytest.mark.anyio

ACCOUNT = "123456789012"


@pytest.fixture(autouse=True)
def access() -> Generator[None, None, None]:
    with credentials_that_nobody_checks():
        yield


@contextmanager
def sqs() -> Generator[str, None, None]:
    """Where moto's SQS answers."""
    server = make_server("127.0.0.1", 0, create_backend_app("sqs"), threaded=False)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def client(service: str, url: str) -> Generator[Any, None, None]:
    # Any: boto3 has no stubs here for SQS.
    made: Any = boto3.client(service, endpoint_url=url, region_name=REGION)  # type: ignore[call-overload]
    try:
        yield made
    finally:
        made.close()


def queue(url: str) -> DeadLetterDestination:
    return DeadLetterDestination(DeadLetterStore.SQS, url)


async def store(destination: DeadLetterDestination, *, kinesis: str | None = None, times: int = 1) -> None:
    async with open_remote_dead_letters(destination, Endpoints(REGION, kinesis)) as letters:
        port: DeadLetters = letters
        for _ in range(times):
            await port.store(LETTER)


async def test_a_queue_gets_a_message() -> None:
    with sqs() as url, client("sqs", url) as asked:
        asked.create_queue(QueueName="dead")
        await store(queue(f"{url}/{ACCOUNT}/dead"))
        (message,) = asked.receive_message(QueueUrl=f"{url}/{ACCOUNT}/dead")["Messages"]
    assert message["Body"].encode() == LETTER.line()


async def test_a_fifo_queue_gets_a_record_once_and_in_the_group_of_its_shard() -> None:
    with sqs() as url, client("sqs", url) as asked:
        asked.create_queue(QueueName="dead.fifo", Attributes={"FifoQueue": "true"})
        await store(queue(f"{url}/{ACCOUNT}/dead.fifo"), times=2)
        answer = asked.receive_message(
            QueueUrl=f"{url}/{ACCOUNT}/dead.fifo",
            MaxNumberOfMessages=10,
            MessageSystemAttributeNames=["All"],
        )
    (message,) = answer["Messages"]
    assert message["Attributes"]["MessageGroupId"] == LETTER.shard_id


async def test_what_a_queue_does_not_take_is_an_error() -> None:
    with sqs() as url, client("sqs", url) as asked:
        asked.create_queue(QueueName="small", Attributes={"MaximumMessageSize": "1024"})
        large = replace(LETTER, record=replace(LETTER.record, data="A" * 2048))
        async with open_remote_dead_letters(queue(f"{url}/{ACCOUNT}/small"), Endpoints(REGION)) as letters:
            with pytest.raises(InvalidRequest):
                await letters.store(large)
        with pytest.raises(AwsError):
            await store(queue(f"{url}/{ACCOUNT}/missing"))
    with pytest.raises(Unavailable):
        await store(queue(f"{url}/{ACCOUNT}/dead"))


@pytest.mark.parametrize("by_arn", [False, True], ids=["by name", "by ARN"])
async def test_a_stream_gets_a_record_with_the_same_partition_key(by_arn: bool) -> None:
    with in_process() as local:
        local.kinesis.create_stream(StreamName="dead", ShardCount=1)
        summary = local.kinesis.describe_stream_summary(StreamName="dead")["StreamDescriptionSummary"]
        destination = (
            DeadLetterDestination(DeadLetterStore.KINESIS, summary["StreamARN"], REGION)
            if by_arn
            else DeadLetterDestination(DeadLetterStore.KINESIS, "dead")
        )
        await store(destination, kinesis=local.endpoints.kinesis_url)
        iterator = local.kinesis.get_shard_iterator(
            StreamName="dead", ShardId="shardId-000000000000", ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        (record,) = local.kinesis.get_records(ShardIterator=iterator)["Records"]
    assert record.get("PartitionKey") == LETTER.record.partition_key
    assert orjson.loads(record["Data"]) == orjson.loads(LETTER.line())


async def test_a_stream_that_is_not_there_is_an_error() -> None:
    with in_process() as local, pytest.raises(AwsError):
        await store(
            DeadLetterDestination(DeadLetterStore.KINESIS, "dead"), kinesis=local.endpoints.kinesis_url
        )


async def test_an_address_that_the_sdk_cannot_use_is_known_at_the_start() -> None:
    with pytest.raises(ConfigurationError):
        await store(DeadLetterDestination(DeadLetterStore.KINESIS, "dead", "no region"))
