"""Dead letters in S3, SQS and Kinesis, for the command that brings them back."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import anyio
from anyio import to_thread
from botocore.config import Config
from botocore.exceptions import ClientError

from kcl_daemon.aws.calls import SDK_ERRORS, CallLimiter
from kcl_daemon.aws.session import Services, refused
from kcl_daemon.config.children import BucketFolder
from kcl_daemon.config.services import Endpoints
from kcl_daemon.errors import AwsError, InvalidRequest, StreamNotFound
from kcl_daemon.records.dead_letter import DeadLetter
from kcl_daemon.records.letters import (
    BadLetter,
    BadPlace,
    LetterSource,
    StoredLetter,
    parse_letter,
    unwrapped,
)

T = TypeVar("T")
_CONNECTIONS: Final = 8
# Nothing here holds a lease: a call may be repeated and take its time.
_PATIENT: Final = Config(
    retries={"total_max_attempts": 6, "mode": "standard"}, read_timeout=60, max_pool_connections=_CONNECTIONS
)


class _Service:
    """A client that is made when it is first used."""

    def __init__(
        self, endpoints: Endpoints, name: str, region_name: str | None = None, address: str | None = None
    ) -> None:
        self._make = partial(_client, endpoints, name, region_name, address)
        self._lock = anyio.Lock()
        self._limiter = CallLimiter(
            _CONNECTIONS, not_found=StreamNotFound if name == "kinesis" else InvalidRequest
        )
        self._client: Any = None

    async def run(self, operation: str, call: Callable[[Any], T]) -> T:
        async with self._lock:
            if self._client is None:
                self._client = await to_thread.run_sync(self._make)
        client = self._client
        return await self._limiter.run(operation, lambda: call(client))

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


def _client(endpoints: Endpoints, name: str, region_name: str | None, address: str | None) -> object:
    try:
        services = Services(endpoints)
        if name == "s3":
            address = endpoints.s3
        elif name == "kinesis" and region_name in {None, services.region_name("kinesis")}:
            address = endpoints.kinesis
        return services.client_for(name, region_name=region_name, address=address, config=_PATIENT)
    except (*SDK_ERRORS, ValueError) as error:
        raise refused(error) from error


class LetterData:
    """What letters point to: `s3://BUCKET/KEY`, below one of `folders` only.

    Who may write a letter could otherwise read with the rights of the one who looks at it.
    """

    def __init__(self, endpoints: Endpoints, folders: Sequence[BucketFolder]) -> None:
        self.s3 = _Service(endpoints, "s3")
        self._folders = folders

    async def whole(self, stored: StoredLetter) -> DeadLetter:
        """With its data; BadLetter if they are gone, elsewhere, or not as long as it says."""
        if stored.data_at is None:
            return stored.letter
        bucket, _, key = stored.data_at.removeprefix("s3://").partition("/")
        below = any(bucket == each.bucket and key.startswith(each.prefix) for each in self._folders)
        if not below or ".." in key.split("/"):
            raise BadLetter(
                f"its data is said to be at {stored.data_at}, where this application puts none. If you trust who wrote the letter: "
                "--properties of the application with its deadLetterOverflow, or --data-at s3://BUCKET/PREFIX"
            )
        return stored.with_data(await self.get(bucket, key, stored.check_size))

    async def get(self, bucket: str, key: str, check: Callable[[int], None]) -> bytes:
        """`check` raises for a size that is wrong, before anything is read."""
        found = await self.s3.run("GetObject", partial(_object, bucket=bucket, key=key, check=check))
        if found is None:
            raise BadLetter(f"s3://{bucket}/{key} does not exist")
        return found


def _object(client: Any, bucket: str, key: str, check: Callable[[int], None]) -> bytes | None:
    try:
        found = client.get_object(Bucket=bucket, Key=key)
    except ClientError as error:
        if error.response.get("Error", {}).get("Code") in {"NoSuchKey", "404"}:
            return None
        raise
    with closing(found["Body"]) as body:
        check(int(found["ContentLength"]))
        return bytes(body.read())


_METADATA: Final = ".json"
_METADATA_BYTES_MOST: Final = 1024**2
PAGE_KEYS: Final = 1000
DELETED_AT_ONCE: Final = 500  # letters; two objects each


def _check_metadata(size_bytes: int) -> None:
    if size_bytes > _METADATA_BYTES_MOST:
        raise BadLetter(f"{size_bytes} bytes: not what is stored beside a letter")


class BucketLetters:
    def __init__(self, data: LetterData, bucket: str, prefix: str) -> None:
        self._data = data
        self._bucket = bucket
        self._prefix = prefix

    async def scan(self) -> AsyncIterator[StoredLetter | BadPlace]:
        token: dict[str, str] = {}
        alone: str | None = None
        while True:
            page = await self._data.s3.run("ListObjectsV2", partial(self._list, token))
            keys: list[str] = []
            for each in page.get("Contents", ()):
                key = str(each["Key"])
                if key.endswith(_METADATA):
                    keys.append(key)
                    alone = None if key == f"{alone}{_METADATA}" else alone
                elif not key.endswith("/"):
                    if alone is not None:
                        yield self._without_metadata(alone)
                    alone = key
            for found in await self._heads(keys):
                yield found
            if not page.get("IsTruncated"):
                break
            token = {"ContinuationToken": page["NextContinuationToken"]}
        if alone is not None:
            yield self._without_metadata(alone)

    def _without_metadata(self, key: str) -> BadPlace:
        why = f"without {_METADATA} beside it: no letter, or one that is being stored"
        return BadPlace(f"s3://{self._bucket}/{key}", why)

    def _list(self, token: dict[str, str], client: Any) -> Any:
        return client.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix, MaxKeys=PAGE_KEYS, **token)

    async def _heads(self, keys: list[str]) -> list[StoredLetter | BadPlace]:
        found: dict[str, StoredLetter | BadPlace] = {}

        async def read(key: str) -> None:
            try:
                found[key] = (await self._letter(key)).head(key)
            except BadLetter as bad:
                found[key] = BadPlace(f"s3://{self._bucket}/{key}", str(bad))

        async with anyio.create_task_group() as reads:
            for key in keys:
                reads.start_soon(read, key)
        return [found[key] for key in keys]

    async def _letter(self, key: str) -> StoredLetter:
        place = f"s3://{self._bucket}/{key}"
        line = await self._data.get(self._bucket, key, _check_metadata)
        return parse_letter(line, place, place.removesuffix(_METADATA))

    async def read(self, head: StoredLetter) -> DeadLetter:
        return await self._data.whole(await self._letter(str(head.handle)))

    async def delete(self, heads: Sequence[StoredLetter]) -> None:
        for few in _chunks(heads, DELETED_AT_ONCE):
            keys = [
                key for each in few for key in (str(each.handle).removesuffix(_METADATA), str(each.handle))
            ]
            request: dict[str, object] = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
            answer = await self._data.s3.run("DeleteObjects", partial(self._delete, request))
            for failed in answer.get("Errors", ()):
                raise InvalidRequest(
                    f"{failed.get('Code')}: {failed.get('Message')} ({failed.get('Key')})",
                    operation="DeleteObjects",
                )

    def _delete(self, request: dict[str, object], client: Any) -> Any:
        return client.delete_objects(Bucket=self._bucket, Delete=request)

    async def hold(self) -> None:
        await anyio.sleep_forever()


def _chunks(items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    return (items[start : start + most] for start in range(0, len(items), most))


class _Spool:
    """Lines that cannot be read a second time, in a file without a name."""

    def __init__(self, data: LetterData) -> None:
        self._data = data
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._end = 0

    def keep(self, line: bytes, place: str, more: object = None) -> StoredLetter | BadPlace:
        try:
            head = parse_letter(line, place).head((self._end, len(line), more))
        except BadLetter as bad:
            return BadPlace(place, str(bad))
        self._file.seek(self._end)
        self._file.write(line)
        self._end += len(line)
        return head

    async def read(self, head: StoredLetter) -> DeadLetter:
        assert isinstance(head.handle, tuple), "made by `keep`"
        start, length, _ = head.handle
        self._file.seek(start)
        return await self._data.whole(parse_letter(self._file.read(length), head.place))

    def close(self) -> None:
        self._file.close()


HIDDEN_S: Final = 120
_HELD_AGAIN_S: Final = 40
_MESSAGES_AT_ONCE: Final = 10


class QueueLetters:
    """The queue gives each message to nobody else meanwhile; `give_back` ends that."""

    def __init__(self, sqs: _Service, url: str, data: LetterData) -> None:
        self._sqs = sqs
        self._url = url
        self._spool = _Spool(data)
        self._held: dict[str, str] = {}

    async def scan(self) -> AsyncIterator[StoredLetter | BadPlace]:
        while messages := await self._receive():
            known = set(self._held)
            for each in messages:
                self._held[each["MessageId"]] = each["ReceiptHandle"]
            new = [each for each in messages if each["MessageId"] not in known]
            if not new:
                return
            for each in new:
                place = f"message {each['MessageId']}"
                yield self._spool.keep(unwrapped(str(each["Body"])), place, each["MessageId"])

    async def _receive(self) -> list[dict[str, str]]:
        answer = await self._sqs.run(
            "ReceiveMessage",
            lambda client: client.receive_message(
                QueueUrl=self._url,
                MaxNumberOfMessages=_MESSAGES_AT_ONCE,
                VisibilityTimeout=HIDDEN_S,
                WaitTimeSeconds=1,  # asks all servers of the queue
            ),
        )
        return list(answer.get("Messages", ()))

    async def read(self, head: StoredLetter) -> DeadLetter:
        return await self._spool.read(head)

    async def delete(self, heads: Sequence[StoredLetter]) -> None:
        messages = [str(head.handle[2]) for head in heads if isinstance(head.handle, tuple)]
        for few in _chunks([each for each in messages if each in self._held], _MESSAGES_AT_ONCE):
            answer = await self._batch("delete_message_batch", few)
            for each in few:
                if each not in {few[int(failed["Id"])] for failed in answer.get("Failed", ())}:
                    del self._held[each]
            for failed in answer.get("Failed", ()):
                why = f"{failed.get('Code')}: {failed.get('Message')}"
                raise InvalidRequest(why, operation="DeleteMessageBatch")

    async def hold(self) -> None:
        while True:
            await anyio.sleep(_HELD_AGAIN_S)
            await self._hide(HIDDEN_S)

    async def give_back(self) -> None:
        await self._hide(0)

    async def _hide(self, seconds: int) -> None:
        for few in _chunks(list(self._held), _MESSAGES_AT_ONCE):
            await self._batch("change_message_visibility_batch", few, VisibilityTimeout=seconds)

    async def _batch(self, method: str, messages: Sequence[str], **more: object) -> Any:
        entries = [
            {"Id": str(number), "ReceiptHandle": self._held[each], **more}
            for number, each in enumerate(messages)
            if each in self._held
        ]
        if not entries:
            return {}
        return await self._sqs.run(
            method, lambda client: getattr(client, method)(QueueUrl=self._url, Entries=entries)
        )

    def close(self) -> None:
        self._spool.close()


_PAUSE_S: Final = 0.25  # a shard takes five reads a second


class StreamLetters:
    def __init__(self, kinesis: _Service, stream: str, data: LetterData) -> None:
        self._kinesis = kinesis
        self._named = {"StreamARN" if stream.startswith("arn:") else "StreamName": stream}
        self._spool = _Spool(data)

    async def scan(self) -> AsyncIterator[StoredLetter | BadPlace]:
        for shard_id in await self._shards():
            asked = {**self._named, "ShardId": shard_id, "ShardIteratorType": "TRIM_HORIZON"}
            answer = await self._call("get_shard_iterator", asked)
            iterators = deque([answer["ShardIterator"]])
            while iterators:
                page = await self._call(
                    "get_records", {"ShardIterator": iterators.popleft(), **_arn(self._named)}
                )
                for each in page["Records"]:
                    yield self._spool.keep(each["Data"], f"{shard_id} {each['SequenceNumber']}")
                if page.get("NextShardIterator") and page.get("MillisBehindLatest", 0) > 0:
                    iterators.append(page["NextShardIterator"])
                    await anyio.sleep(_PAUSE_S)

    async def _shards(self) -> list[str]:
        found: list[str] = []
        request: dict[str, str] = self._named
        while True:
            answer = await self._call("list_shards", request)
            found += [each["ShardId"] for each in answer["Shards"]]
            if not answer.get("NextToken"):
                return found
            request = {"NextToken": answer["NextToken"], **_arn(self._named)}

    async def _call(self, method: str, request: dict[str, Any]) -> Any:
        return await self._kinesis.run(method, lambda client: getattr(client, method)(**request))

    async def read(self, head: StoredLetter) -> DeadLetter:
        return await self._spool.read(head)

    async def delete(self, heads: Sequence[StoredLetter]) -> None:
        raise InvalidRequest(f"Kinesis deletes no records ({len(heads)} asked)", operation="delete")

    async def hold(self) -> None:
        await anyio.sleep_forever()

    def close(self) -> None:
        self._spool.close()


def _arn(named: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in named.items() if name == "StreamARN"}


@asynccontextmanager
async def open_queue(
    data: LetterData, endpoints: Endpoints, url: str, region_name: str | None
) -> AsyncGenerator[LetterSource, None]:
    """What is not deleted is given back at the end."""
    parts = urlsplit(url)
    sqs = _Service(endpoints, "sqs", region_name, f"{parts.scheme}://{parts.netloc}")
    letters = QueueLetters(sqs, url, data)
    try:
        yield letters
    finally:
        # Without it they come back by themselves.
        with suppress(AwsError), anyio.move_on_after(_HELD_AGAIN_S, shield=True):
            await letters.give_back()
        letters.close()
        sqs.close()


@asynccontextmanager
async def open_stream(
    data: LetterData, endpoints: Endpoints, stream: str, region_name: str | None
) -> AsyncGenerator[LetterSource, None]:
    kinesis = _Service(endpoints, "kinesis", region_name)
    letters = StreamLetters(kinesis, stream, data)
    try:
        yield letters
    finally:
        letters.close()
        kinesis.close()


@asynccontextmanager
async def open_letter_data(
    endpoints: Endpoints, folders: Sequence[BucketFolder]
) -> AsyncGenerator[LetterData, None]:
    data = LetterData(endpoints, folders)
    try:
        yield data
    finally:
        data.s3.close()
