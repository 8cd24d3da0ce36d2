"""Dead letters in an SQS queue or in a Kinesis stream.

Adapters of the port `DeadLetters`: one call for each, safe when it is answered. Their client is made only where the
settings name such a place.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final, Protocol, cast
from urllib.parse import urlsplit

from anyio import to_thread

from kcl_daemon.aws.calls import SDK_ERRORS, Lane
from kcl_daemon.aws.session import Services, refused
from kcl_daemon.config.failure_settings import Destination, LetterBox
from kcl_daemon.config.settings import Endpoints
from kcl_daemon.errors import InvalidRequest
from kcl_daemon.failures.letter import DeadLetter
from kcl_daemon.ports_failures import DeadLetters

_FIFO: Final = ".fifo"


class Client(Protocol):
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
        lane: for all calls.
    """

    def __init__(self, client: Client, queue_url: str, lane: Lane) -> None:
        self._client = client
        self._queue_url = queue_url
        self._lane = lane

    async def store(self, letter: DeadLetter) -> None:
        """As the port says; InvalidRequest where the queue takes no message of that size."""
        request = {"QueueUrl": self._queue_url, "MessageBody": letter.line().decode()}
        if self._queue_url.endswith(_FIFO):
            request |= {"MessageGroupId": letter.shard_id, "MessageDeduplicationId": letter.key}
        await self._lane.run("SendMessage", lambda: self._client.send_message(**request))


class KinesisDeadLetters:
    """One record for each, with the partition key that the record had.

    Args:
        client: of Kinesis.
        stream: name or ARN.
        lane: for all calls.
    """

    def __init__(self, client: Client, stream: str, lane: Lane) -> None:
        self._client = client
        self._named = {"StreamARN" if stream.startswith("arn:") else "StreamName": stream}
        self._lane = lane

    async def store(self, letter: DeadLetter) -> None:
        """As the port says; InvalidRequest where the stream takes no record of that size."""
        request: dict[str, object] = {
            **self._named,
            "Data": letter.line() + b"\n",
            "PartitionKey": letter.record.partition_key or letter.shard_id,
        }
        await self._lane.run("PutRecord", lambda: self._client.put_record(**request))


@asynccontextmanager
async def open_remote_dead_letters(
    destination: Destination, endpoints: Endpoints
) -> AsyncGenerator[DeadLetters, None]:
    """The place, while the context is open. Nothing is asked of it before there is a letter.

    Raises:
        ConfigurationError: there is no region, or it cannot be used.
    """
    client = await to_thread.run_sync(_client, destination, endpoints, abandon_on_cancel=True)
    lane = Lane(1, not_found=InvalidRequest)
    try:
        if destination.box is LetterBox.SQS:
            yield SqsDeadLetters(client, destination.address, lane)
        else:
            yield KinesisDeadLetters(client, destination.address, lane)
    finally:
        client.close()


def _client(destination: Destination, endpoints: Endpoints) -> Client:
    try:
        services = Services(endpoints)
        if destination.box is LetterBox.SQS:
            parts = urlsplit(destination.address)
            address: str | None = f"{parts.scheme}://{parts.netloc}"
        else:
            # A stream of another region is not behind the address of this one's.
            here = destination.region_name in {None, services.region_name("kinesis")}
            address = endpoints.kinesis if here else None
        made = services.client_elsewhere(
            destination.box.value, region_name=destination.region_name, address=address
        )
    except (*SDK_ERRORS, ValueError) as error:
        raise refused(error) from error
    return cast("Client", made)
