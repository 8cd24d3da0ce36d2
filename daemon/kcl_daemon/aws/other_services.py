"""Dead letters in an SQS queue or in a Kinesis stream.

Adapters of the port `DeadLetters`: one call for each, safe when it is answered. Their client is made only where the
settings name such a place.

The Glue Schema Registry over botocore's client: one call. Knows nothing of records and keeps nothing.
"""

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
    """As much of a client of the SDK as is used here: one of SQS, or one of Kinesis."""

    def send_message(self, **request: object) -> object:
        """SendMessage, of SQS."""
        ...

    def put_record(self, **request: object) -> object:
        """PutRecord, of Kinesis."""
        ...

    def close(self) -> None:
        """Close every idle connection."""
        ...


class SqsDeadLetters:
    """One message for each.

    A FIFO queue gets them in groups by shard, and takes the same record once in five minutes.

    Args:
        client: of SQS.
        queue_url: the queue.
        limiter: for all calls.
    """

    def __init__(self, client: DeadLetterClient, queue_url: str, limiter: CallLimiter) -> None:
        self._client = client
        self._queue_url = queue_url
        self._limiter = limiter

    async def store(self, dead_letter: DeadLetter) -> None:
        """As the port says; InvalidRequest where the queue takes no message of that size."""
        request = {"QueueUrl": self._queue_url, "MessageBody": dead_letter.line().decode()}
        if self._queue_url.endswith(_FIFO):
            request |= {"MessageGroupId": dead_letter.shard_id, "MessageDeduplicationId": dead_letter.key}
        await self._limiter.run("SendMessage", lambda: self._client.send_message(**request))


class KinesisDeadLetters:
    """One record for each, with the partition key that the record had.

    Args:
        client: of Kinesis.
        stream: name or ARN.
        limiter: for all calls.
    """

    def __init__(self, client: DeadLetterClient, stream: str, limiter: CallLimiter) -> None:
        self._client = client
        self._named = {"StreamARN" if stream.startswith("arn:") else "StreamName": stream}
        self._limiter = limiter

    async def store(self, dead_letter: DeadLetter) -> None:
        """As the port says; InvalidRequest where the stream takes no record of that size."""
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
    """The place, while the context is open. Nothing is asked of it before there is a letter.

    Raises:
        ConfigurationError: there is no region, or it cannot be used.
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
            # A stream of another region is not behind the address of this one's.
            here = destination.region_name in {None, services.region_name("kinesis")}
            address = endpoints.kinesis if here else None
        made = services.client_for(
            destination.box.value, region_name=destination.region_name, address=address
        )
    except (*SDK_ERRORS, ValueError) as error:
        raise refused(error) from error
    return cast("DeadLetterClient", made)


class GlueSchemas:
    """The port `Schemas`.

    Args:
        client: an ordinary one.
        limiter: for all calls.
    """

    def __init__(self, client: GlueClient, limiter: CallLimiter) -> None:
        self._client = client
        self._limiter = limiter

    async def schema(self, version_id: str) -> Schema:
        """As the port says."""
        call = partial(self._client.get_schema_version, SchemaVersionId=version_id)
        answer = await self._limiter.run("GetSchemaVersion", call)
        with parsing_answer("GetSchemaVersion"):
            # arn:aws:glue:REGION:ACCOUNT:schema/REGISTRY/NAME
            name = answer["SchemaArn"].rpartition("/")[2]
            return Schema(version_id, name, answer["DataFormat"], answer["SchemaDefinition"])
