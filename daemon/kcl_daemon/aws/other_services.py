"""Dead letters in SQS or Kinesis, and the Glue Schema Registry."""

from __future__ import annotations

from collections.abc import AsyncGenerator
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


class SqsDeadLetters:
    """One message per dead letter; a FIFO queue groups by shard and drops repetitions within five minutes."""

    def __init__(self, client: DeadLetterClient, queue_url: str, limiter: CallLimiter) -> None:
        self._client = client
        self._queue_url = queue_url
        self._limiter = limiter

    async def store(self, dead_letter: DeadLetter) -> None:
        """Raise InvalidRequest if it is too large."""
        request = {"QueueUrl": self._queue_url, "MessageBody": dead_letter.line().decode()}
        if self._queue_url.endswith(_FIFO):
            request |= {"MessageGroupId": dead_letter.shard_id, "MessageDeduplicationId": dead_letter.key}
        await self._limiter.run("SendMessage", lambda: self._client.send_message(**request))


class KinesisDeadLetters:
    """One record per dead letter, with the original partition key. `stream` is a name or ARN."""

    def __init__(self, client: DeadLetterClient, stream: str, limiter: CallLimiter) -> None:
        self._client = client
        self._named = {"StreamARN" if stream.startswith("arn:") else "StreamName": stream}
        self._limiter = limiter

    async def store(self, dead_letter: DeadLetter) -> None:
        """Raise InvalidRequest if it is too large."""
        request: dict[str, object] = {
            **self._named,
            "Data": dead_letter.line() + b"\n",
            "PartitionKey": dead_letter.record.partition_key or dead_letter.shard_id,
        }
        await self._limiter.run("PutRecord", lambda: self._client.put_record(**request))


@asynccontextmanager
async def open_remote_dead_letters(
    destination: DeadLetterDestination, endpoints: Endpoints
) -> AsyncGenerator[DeadLetters, None]:
    """Nothing is called before the first dead letter.

    Raises ConfigurationError if the region is missing or invalid.
    """
    client = await to_thread.run_sync(_client, destination, endpoints, abandon_on_cancel=True)
    limiter = CallLimiter(1, not_found=InvalidRequest)
    try:
        if destination.box is DeadLetterStore.SQS:
            yield SqsDeadLetters(client, destination.address, limiter)
        else:
            yield KinesisDeadLetters(client, destination.address, limiter)
    finally:
        client.close()


def _client(destination: DeadLetterDestination, endpoints: Endpoints) -> DeadLetterClient:
    try:
        services = Services(endpoints)
        if destination.box is DeadLetterStore.SQS:
            parts = urlsplit(destination.address)
            address: str | None = f"{parts.scheme}://{parts.netloc}"
        else:
            # The configured endpoint does not serve other regions.
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
