"""Dead letters in SQS or Kinesis, and the Glue Schema Registry."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, cast
from urllib.parse import urlsplit

from anyio import to_thread

from kcl_daemon.aws.calls import SDK_ERRORS, CallLimiter
from kcl_daemon.aws.session import Services, refused
from kcl_daemon.config.children import DeadLetterDestination, DeadLetterStore
from kcl_daemon.config.services import Endpoints
from kcl_daemon.errors import InvalidRequest
from kcl_daemon.ports import DeadLetters, Schema
from kcl_daemon.records.dead_letter import DeadLetter
from kcl_daemon.transport.service_answers import parsing_answer

if TYPE_CHECKING:
    from mypy_boto3_glue import GlueClient


_FIFO: Final = ".fifo"


class DeadLetterClient(Protocol):
    def send_message(self, **request: object) -> object: ...

    def put_record(self, **request: object) -> object: ...

    def close(self) -> None: ...


class RemoteDeadLetters:
    """A letter that is too large is refused with InvalidRequest."""

    def __init__(self, operation: str, send: Callable[[DeadLetter], object]) -> None:
        self._operation = operation
        self._send = send
        self._limiter = CallLimiter(1, not_found=InvalidRequest)

    async def store(self, dead_letter: DeadLetter) -> None:
        await self._limiter.run(self._operation, lambda: self._send(dead_letter))


def _send_to_queue(client: DeadLetterClient, queue_url: str, dead_letter: DeadLetter) -> object:
    """A FIFO queue groups by shard and drops repetitions within five minutes."""
    request = {"QueueUrl": queue_url, "MessageBody": dead_letter.line().decode()}
    if queue_url.endswith(_FIFO):
        request |= {"MessageGroupId": dead_letter.shard_id, "MessageDeduplicationId": dead_letter.key}
    return client.send_message(**request)


def _put_into_stream(client: DeadLetterClient, stream: str, dead_letter: DeadLetter) -> object:
    """With the original partition key. `stream` is a name or ARN."""
    named = {"StreamARN" if stream.startswith("arn:") else "StreamName": stream}
    key = dead_letter.record.partition_key or dead_letter.shard_id
    return client.put_record(**named, Data=dead_letter.line() + b"\n", PartitionKey=key)


@asynccontextmanager
async def open_remote_dead_letters(
    destination: DeadLetterDestination, endpoints: Endpoints
) -> AsyncGenerator[DeadLetters, None]:
    """Nothing is called before the first dead letter.

    Raises ConfigurationError if the region is missing or invalid.
    """
    client = await to_thread.run_sync(_client, destination, endpoints, abandon_on_cancel=True)
    try:
        if destination.box is DeadLetterStore.SQS:
            yield RemoteDeadLetters("SendMessage", partial(_send_to_queue, client, destination.address))
        else:
            yield RemoteDeadLetters("PutRecord", partial(_put_into_stream, client, destination.address))
    finally:
        client.close()


def _client(destination: DeadLetterDestination, endpoints: Endpoints) -> DeadLetterClient:
    try:
        services = Services(endpoints)
        if destination.box is DeadLetterStore.SQS:
            parts = urlsplit(destination.address)
            address: str | None = f"{parts.scheme}://{parts.netloc}"
        else:
            # The configured endpoint serves one region.
            here = destination.region_name in {None, services.region_name("kinesis")}
            address = endpoints.kinesis if here else None
        made = services.client_for(
            destination.box.value, region_name=destination.region_name, address=address
        )
    except (*SDK_ERRORS, ValueError) as error:
        raise refused(error) from error
    return cast("DeadLetterClient", made)


class GlueSchemas:
    def __init__(self, client: GlueClient, limiter: CallLimiter) -> None:
        self._client = client
        self._limiter = limiter

    async def schema(self, version_id: str) -> Schema:
        call = partial(self._client.get_schema_version, SchemaVersionId=version_id)
        answer = await self._limiter.run("GetSchemaVersion", call)
        with parsing_answer("GetSchemaVersion"):
            # arn:aws:glue:REGION:ACCOUNT:schema/REGISTRY/NAME
            name = answer["SchemaArn"].rpartition("/")[2]
            return Schema(version_id, name, answer["DataFormat"], answer["SchemaDefinition"])
