"""Dead letters in buckets, queues, topics and streams.

In a bucket a letter is two objects: the record's bytes as they were, and `.json` with all the rest. Their
names depend on the record only, so a repeated letter is the same letter.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import blake2b
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote, urlsplit
from zlib import crc32

from anyio import to_thread
from botocore.config import Config
from botocore.exceptions import ClientError

from kcl_daemon.aws.calls import SDK_ERRORS, CallLimiter, translated
from kcl_daemon.aws.session import Services, refused
from kcl_daemon.config.children import DeadLetterDestination, DeadLetterStore
from kcl_daemon.config.services import Endpoints
from kcl_daemon.errors import DeadLetterTooLarge, InvalidRequest
from kcl_daemon.ports import DeadLetters
from kcl_daemon.records.dead_letter import DeadLetter

Client = Any
"""Any: the SDK has no types for these services."""
_CALLS: Final = 8
# A letter has up to 14 MB, which the SDK sends within the time to connect.
_FOR_LETTERS: Final = Config(max_pool_connections=_CALLS, connect_timeout=20, read_timeout=20)
_FIFO: Final = ".fifo"
_KIB: Final = 1024
_MIB: Final = 1024**2
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PARTITION_KEY_CHARACTERS: Final = 256
_NUMBER_CHARACTERS: Final = 129  # of numbers of streams at most
# Below this nothing is too large unless the service says so in words that we know.
_USUAL_LIMIT: Final = 256 * _KIB
# How the services and their stand-ins say that a message is too large; the codes say less.
_TOO_LARGE: Final = re.compile(
    r"(?i)shorter than|too (long|large)|larger than|length less than|at most \d+ bytes|exceed"
)


@dataclass(frozen=True, slots=True)
class _Sending:
    """`most_bytes` is what the service never exceeds; its queue, topic or stream may have a lower limit."""

    operation: str
    send: Callable[[Client, str, DeadLetter, bytes], object]
    most_bytes: int


class RemoteDeadLetters:
    """In a queue, topic or stream; what is too large for it leaves its data in `overflow`.

    Raises DeadLetterTooLarge without `overflow`, and if even a letter without data is too large.
    """

    def __init__(
        self, sending: _Sending, client: Client, address: str, overflow: BucketLetters | None
    ) -> None:
        self._sending = sending
        self._client = client
        self._address = address
        self._overflow = overflow
        self._limiter = CallLimiter(_CALLS, not_found=InvalidRequest)

    async def store(self, dead_letter: DeadLetter) -> None:
        refusal = await self._refusal(dead_letter, dead_letter.line())
        if refusal is not None and self._overflow is not None:
            data_at = await self._overflow.keep(dead_letter)
            refusal = await self._refusal(dead_letter, dead_letter.line(data_at))
        if refusal is not None:
            raise DeadLetterTooLarge(refusal)

    async def _refusal(self, dead_letter: DeadLetter, line: bytes) -> str | None:
        """Why it is too large; None: it was sent."""
        sending = self._sending
        why = f"the limit of the service is {sending.most_bytes} bytes"
        if len(line) <= sending.most_bytes:
            send = partial(sending.send, self._client, self._address, dead_letter, line)
            try:
                await self._limiter.run(sending.operation, send)
            except InvalidRequest as error:
                by_size = self._overflow is not None and len(line) > _USUAL_LIMIT
                if not by_size and not _TOO_LARGE.search(str(error)):
                    raise
                why = str(error)
            else:
                return None
        advice = "set deadLetterOverflow = s3://BUCKET/PREFIX, or use s3: or file: as deadLetterDestination"
        if self._overflow is not None:
            advice = "raise the limit of deadLetterDestination, or use s3: or file:"
        return f"a letter of {len(line)} bytes is too large for {self._address}: {why}; {advice}"


def _send_to_queue(client: Client, queue_url: str, dead_letter: DeadLetter, line: bytes) -> object:
    fifo = _fifo(queue_url, dead_letter)
    return client.send_message(QueueUrl=queue_url, MessageBody=_text(line), **fifo)


def _publish(client: Client, topic_arn: str, dead_letter: DeadLetter, line: bytes) -> object:
    return client.publish(TopicArn=topic_arn, Message=_text(line), **_fifo(topic_arn, dead_letter))


def _text(line: bytes) -> str:
    """Without the two characters that queues refuse, which JSON can escape."""
    return line.decode().replace("\ufffe", r"\ufffe").replace("\uffff", r"\uffff")


def _fifo(address: str, dead_letter: DeadLetter) -> Mapping[str, str]:
    """A FIFO queue or topic groups by shard and drops repetitions within five minutes."""
    if not address.endswith(_FIFO):
        return {}
    return {"MessageGroupId": dead_letter.shard_id, "MessageDeduplicationId": dead_letter.key}


def _put_into_stream(client: Client, stream: str, dead_letter: DeadLetter, line: bytes) -> object:
    """With the original partition key, which is longer for an item with long keys. `stream` is a name or ARN."""
    key = (dead_letter.record.partition_key or "")[:_PARTITION_KEY_CHARACTERS] or dead_letter.shard_id
    return client.put_record(**_stream(stream), Data=line + b"\n", PartitionKey=key)


def _stream(stream: str) -> Mapping[str, str]:
    return {"StreamARN" if stream.startswith("arn:") else "StreamName": stream}


_SENDING: Final = {
    DeadLetterStore.SQS: _Sending("SendMessage", _send_to_queue, _MIB),
    DeadLetterStore.SNS: _Sending("Publish", _publish, _MIB),
    DeadLetterStore.KINESIS: _Sending("PutRecord", _put_into_stream, 10 * _MIB),
}


class BucketLetters:
    def __init__(self, client: Client, place: DeadLetterDestination) -> None:
        self._client = client
        self._folder = place.folder
        self._if_absent = {"IfNoneMatch": "*"}
        self._limiter = CallLimiter(_CALLS, not_found=InvalidRequest)

    async def store(self, dead_letter: DeadLetter) -> None:
        await self.keep(dead_letter)

    async def keep(self, dead_letter: DeadLetter) -> Mapping[str, object]:
        """What a letter has instead of its data."""
        return await self._limiter.run("PutObject", partial(self._keep, dead_letter))

    def _keep(self, dead_letter: DeadLetter) -> Mapping[str, object]:
        data = b64decode(dead_letter.record.data)
        key = self._folder.prefix + object_path(dead_letter, by_day=self._folder.by_day)
        size = {"dataBytes": len(data)}
        # In this order: what has its .json has its data.
        self._put(key, data, "application/octet-stream")
        self._put(f"{key}.json", dead_letter.line(size), "application/json")
        return {"data": None, "dataAt": f"s3://{self._folder.bucket}/{key}", **size}

    def _put(self, key: str, body: bytes, content_type: str) -> None:
        try:
            self._client.put_object(
                Bucket=self._folder.bucket,
                Key=key,
                Body=body,
                ContentType=content_type,
                # A checksum in a header: with the SDK's own, at the end of the body, some stores cannot deal.
                ChecksumCRC32=b64encode(crc32(body).to_bytes(4)).decode(),
                **self._if_absent,
            )
        except ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if status == HTTPStatus.PRECONDITION_FAILED:
                return  # an object of this name is this letter
            if status != HTTPStatus.NOT_IMPLEMENTED or not self._if_absent:
                raise
            # This store has no conditional put. A repeat then writes the same object again.
            self._if_absent = {}
            self._put(key, body, content_type)


def object_path(dead_letter: DeadLetter, *, by_day: bool) -> str:
    """The same on every worker, in the order of the shard; with `by_day` first the day of arrival, UTC."""
    record, number = dead_letter.record, dead_letter.record.sequence_number
    if len(number) > _NUMBER_CHARACTERS:  # of a snapshot, with the item's key; a path has at most 1024 bytes
        number = f"{number[:_NUMBER_CHARACTERS]}-{blake2b(number.encode(), digest_size=16).hexdigest()}"
    arrived = _EPOCH + timedelta(milliseconds=record.approximate_arrival_timestamp or 0)
    names = (dead_letter.application_name, dead_letter.stream_name, dead_letter.shard_id)
    folders = [*([f"{arrived:%Y-%m-%d}"] if by_day else []), *(quote(each, safe="") for each in names)]
    return "/".join((*folders, f"{number:0>56}-{record.sub_sequence_number:010}"))


@asynccontextmanager
async def open_remote_dead_letters(
    destination: DeadLetterDestination, endpoints: Endpoints, overflow: DeadLetterDestination | None = None
) -> AsyncGenerator[DeadLetters, None]:
    """Nothing is called before the first dead letter.

    Raises ConfigurationError if the region is missing or invalid.
    """
    clients: list[Client] = []
    build = partial(_build, destination, overflow, endpoints, clients)
    try:
        yield await to_thread.run_sync(build, abandon_on_cancel=True)
    finally:
        for client in clients:
            client.close()


def _build(
    destination: DeadLetterDestination,
    overflow: DeadLetterDestination | None,
    endpoints: Endpoints,
    clients: list[Client],
) -> DeadLetters:
    def client_of(place: DeadLetterDestination) -> Client:
        clients.append(_client(place, endpoints))
        return clients[-1]

    if destination.box is DeadLetterStore.S3:
        return BucketLetters(client_of(destination), destination)
    large = None if overflow is None else BucketLetters(client_of(overflow), overflow)
    return RemoteDeadLetters(_SENDING[destination.box], client_of(destination), destination.address, large)


def _client(place: DeadLetterDestination, endpoints: Endpoints) -> Client:
    try:
        services = Services(endpoints)
        # A configured endpoint serves one region.
        here = place.region_name in {None, services.region_name("kinesis")}
        address = {
            DeadLetterStore.S3: endpoints.s3,
            DeadLetterStore.SNS: endpoints.sns if here else None,
            DeadLetterStore.SQS: "://".join(urlsplit(place.address)[:2]),
        }.get(place.box, endpoints.kinesis if here else None)
        return services.client_for(
            place.box.value, region_name=place.region_name, address=address, config=_FOR_LETTERS
        )
    except (*SDK_ERRORS, ValueError) as error:
        raise refused(error) from error


def largest_letter(place: DeadLetterDestination, endpoints: Endpoints) -> int | None:
    """In bytes, by asking for the queue, topic or stream; None: a bucket has no limit. Blocks.

    AwsError if it is not there or may not be asked for.
    """
    client = _client(place, endpoints)
    try:
        return _largest_letter(place, client)
    except SDK_ERRORS as error:
        raise translated(error, operation="", not_found=InvalidRequest) from error
    finally:
        client.close()


def _largest_letter(place: DeadLetterDestination, client: Client) -> int | None:
    match place.box:
        case DeadLetterStore.SQS:
            named = {"QueueUrl": place.address, "AttributeNames": ["MaximumMessageSize"]}
            return int(client.get_queue_attributes(**named)["Attributes"]["MaximumMessageSize"])
        case DeadLetterStore.SNS:
            of_topic = client.get_topic_attributes(TopicArn=place.address)["Attributes"]
            return int(of_topic.get("MaximumMessageSize", _USUAL_LIMIT))
        case DeadLetterStore.KINESIS:
            summary = client.describe_stream_summary(**_stream(place.address))["StreamDescriptionSummary"]
            return int(summary.get("MaxRecordSizeInKiB", _KIB)) * _KIB
        case _:
            client.head_bucket(Bucket=place.folder.bucket)
            return None
