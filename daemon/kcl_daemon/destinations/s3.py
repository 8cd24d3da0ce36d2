"""A letter is two objects: the record's bytes, and `.json` with all the rest.

Their names depend on the record only, so a repeated letter is the same letter.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import blake2b
from http import HTTPStatus
from math import inf
from typing import Any, Final
from urllib.parse import quote
from zlib import crc32

import anyio

from kcl_daemon.aws.letters import Client, LetterService, chunks
from kcl_daemon.config.dead_letters import Fetch, KeepsData, MakeArn, Overflow, Right, WithData
from kcl_daemon.config.services import Endpoints
from kcl_daemon.errors import InvalidRequest
from kcl_daemon.records.dead_letter import DeadLetter
from kcl_daemon.records.letters import BadLetter, BadPlace, LetterSource, StoredLetter, parse_letter

_BUCKET: Final = re.compile(
    r"//(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:/(?P<prefix>[!-~]{0,256}?))?/?(?P<by_day>\?folders=day)?"
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBER_CHARACTERS: Final = 129  # of numbers of streams at most
_METADATA: Final = ".json"
_METADATA_BYTES_MOST: Final = 1024**2
_ALONE: Final = f"without {_METADATA} beside it: no letter, or one that is being stored"
_PAGE_KEYS: Final = 1000
_DELETED_AT_ONCE: Final = 500  # letters; two objects each


class BucketLetters(Overflow):
    scheme = "s3"

    @classmethod
    def read(cls, text: str) -> BucketLetters:
        found = _BUCKET.fullmatch(text)
        if found is None or "?" in (found["prefix"] or "") or "#" in text or "//" in text[2:]:
            raise ValueError("not the name of a bucket, or a bucket and a prefix of up to 256 characters")
        return cls(text)

    @property
    def folder(self) -> tuple[str, str, bool]:
        """Bucket, prefix, whether there is a folder a day."""
        found = _BUCKET.fullmatch(self.address)
        assert found is not None, f"{self.address} was read from a property"
        prefix = f"{found['prefix']}/" if found["prefix"] else ""
        return found["bucket"], prefix, found["by_day"] is not None

    def service(self, endpoints: Endpoints, *, reads: bool = False) -> LetterService:
        return LetterService(endpoints, "s3", address=endpoints.s3, reads=reads)

    @asynccontextmanager
    async def writer(self, endpoints: Endpoints, overflow: Overflow | None) -> AsyncGenerator[KeepsData]:
        del overflow
        async with self.service(endpoints) as s3:
            yield _Objects(s3, self)

    @asynccontextmanager
    async def fetcher(self, endpoints: Endpoints) -> AsyncGenerator[Fetch]:
        async with self.service(endpoints, reads=True) as s3:
            yield partial(_fetched, s3)

    @asynccontextmanager
    async def reader(self, endpoints: Endpoints, with_data: WithData) -> AsyncGenerator[LetterSource]:
        async with self.service(endpoints, reads=True) as s3:
            yield _StoredObjects(s3, self, with_data)

    def holds(self, data_at: str) -> bool:
        bucket, prefix, _ = self.folder
        return data_at.startswith(f"s3://{bucket}/{prefix}") and ".." not in data_at.split("/")

    def rights(self, arn: MakeArn, *, reads: bool) -> list[Right]:
        bucket, prefix, _ = self.folder
        whole = f"arn:{arn('s3', '', None, None).split(':')[1]}:s3:::{bucket}"
        if not reads:
            return [("", "s3", ("PutObject",), f"{whole}/{prefix}*")]
        read = ("", "s3", ("GetObject", "DeleteObject"), f"{whole}/{prefix}*")
        return [read, ("List", "s3", ("ListBucket",), whole)]

    def largest_letter(self, endpoints: Endpoints) -> float:
        self.service(endpoints).ask(lambda client: client.head_bucket(Bucket=self.folder[0]))
        return inf


class _Objects:
    def __init__(self, s3: LetterService, place: BucketLetters) -> None:
        self._s3 = s3
        self._bucket, self._prefix, self._by_day = place.folder
        self._if_absent = {"IfNoneMatch": "*"}

    async def store(self, dead_letter: DeadLetter) -> None:
        await self.keep(dead_letter)

    async def keep(self, dead_letter: DeadLetter) -> Mapping[str, object]:
        return await self._s3.run("PutObject", partial(self._keep, dead_letter))

    def _keep(self, dead_letter: DeadLetter, client: Client) -> Mapping[str, object]:
        data = b64decode(dead_letter.record.data)
        key = self._prefix + object_path(dead_letter, by_day=self._by_day)
        size = {"dataBytes": len(data)}
        # In this order: what has its .json has its data.
        self._put(client, key, data, "application/octet-stream")
        self._put(client, f"{key}{_METADATA}", dead_letter.line(size), "application/json")
        return {"data": None, "dataAt": f"s3://{self._bucket}/{key}", **size}

    def _put(self, client: Client, key: str, body: bytes, content_type: str) -> None:
        try:
            client.put_object(
                Bucket=self._bucket,
                Key=key,
                Body=body,
                ContentType=content_type,
                # In a header: some stores refuse the SDK's own at the end of the body.
                ChecksumCRC32=b64encode(crc32(body).to_bytes(4)).decode(),
                **self._if_absent,
            )
        except client.exceptions.ClientError as error:
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            if status == HTTPStatus.PRECONDITION_FAILED:
                return  # an object of this name is this letter
            if status != HTTPStatus.NOT_IMPLEMENTED or not self._if_absent:
                raise
            # This store has no conditional put. A repeat writes the same object again.
            self._if_absent = {}
            self._put(client, key, body, content_type)


def object_path(dead_letter: DeadLetter, *, by_day: bool) -> str:
    """The same on every worker, in the order of the shard; with `by_day` first the day of arrival, UTC."""
    record, number = dead_letter.record, dead_letter.record.sequence_number
    if len(number) > _NUMBER_CHARACTERS:  # of a snapshot, with the item's key; a path has at most 1024 bytes
        number = f"{number[:_NUMBER_CHARACTERS]}-{blake2b(number.encode(), digest_size=16).hexdigest()}"
    arrived = _EPOCH + timedelta(milliseconds=record.approximate_arrival_timestamp or 0)
    names = (dead_letter.application_name, dead_letter.stream_name, dead_letter.shard_id)
    folders = [*([f"{arrived:%Y-%m-%d}"] if by_day else []), *(quote(each, safe="") for each in names)]
    return "/".join((*folders, f"{number:0>56}-{record.sub_sequence_number:010}"))


async def _fetched(s3: LetterService, place: str, check: Callable[[int], None]) -> bytes:
    bucket, _, key = place.removeprefix("s3://").partition("/")
    found = await s3.run("GetObject", partial(_object, bucket=bucket, key=key, check=check))
    if found is None:
        raise BadLetter(f"{place} does not exist")
    return found


def _object(client: Client, bucket: str, key: str, check: Callable[[int], None]) -> bytes | None:
    try:
        found = client.get_object(Bucket=bucket, Key=key)
    except client.exceptions.ClientError as error:
        if error.response.get("Error", {}).get("Code") in {"NoSuchKey", "404"}:
            return None
        raise
    with closing(found["Body"]) as body:
        check(int(found["ContentLength"]))
        return bytes(body.read())


def _check_metadata(size_bytes: int) -> None:
    if size_bytes > _METADATA_BYTES_MOST:
        raise BadLetter(f"{size_bytes} bytes: not what is stored beside a letter")


class _StoredObjects(LetterSource):
    def __init__(self, s3: LetterService, place: BucketLetters, with_data: WithData) -> None:
        self._s3 = s3
        self._bucket, self._prefix, _ = place.folder
        self._with_data = with_data

    async def scan(self) -> AsyncIterator[StoredLetter | BadPlace]:
        token: dict[str, str] = {}
        alone: str | None = None
        while True:
            page = await self._s3.run("ListObjectsV2", partial(self._list, token))
            keys: list[str] = []
            for each in page.get("Contents", ()):
                key = str(each["Key"])
                if key.endswith(_METADATA):
                    keys.append(key)
                    alone = None if key == f"{alone}{_METADATA}" else alone
                elif not key.endswith("/"):
                    if alone is not None:
                        yield BadPlace(self._place(alone), _ALONE)
                    alone = key
            for found in await self._heads(keys):
                yield found
            if not page.get("IsTruncated"):
                break
            token = {"ContinuationToken": page["NextContinuationToken"]}
        if alone is not None:
            yield BadPlace(self._place(alone), _ALONE)

    def _place(self, key: str) -> str:
        return f"s3://{self._bucket}/{key}"

    def _list(self, token: dict[str, str], client: Client) -> Any:
        return client.list_objects_v2(Bucket=self._bucket, Prefix=self._prefix, MaxKeys=_PAGE_KEYS, **token)

    async def _heads(self, keys: list[str]) -> list[StoredLetter | BadPlace]:
        found: dict[str, StoredLetter | BadPlace] = {}

        async def read(key: str) -> None:
            try:
                found[key] = (await self._letter(key)).head(key)
            except BadLetter as bad:
                found[key] = BadPlace(self._place(key), str(bad))

        async with anyio.create_task_group() as reads:
            for key in keys:
                reads.start_soon(read, key)
        return [found[key] for key in keys]

    async def _letter(self, key: str) -> StoredLetter:
        place = self._place(key)
        line = await _fetched(self._s3, place, _check_metadata)
        return parse_letter(line, place, place.removesuffix(_METADATA))

    async def read(self, head: StoredLetter) -> DeadLetter:
        return await self._with_data(await self._letter(str(head.handle)))

    async def delete(self, heads: Sequence[StoredLetter]) -> None:
        for few in chunks(heads, _DELETED_AT_ONCE):
            keys = [
                key for each in few for key in (str(each.handle).removesuffix(_METADATA), str(each.handle))
            ]
            request = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
            answer = await self._s3.run("DeleteObjects", partial(self._delete, request))
            for failed in answer.get("Errors", ()):
                why = f"{failed.get('Code')}: {failed.get('Message')} ({failed.get('Key')})"
                raise InvalidRequest(why, operation="DeleteObjects")

    def _delete(self, request: object, client: Client) -> Any:
        return client.delete_objects(Bucket=self._bucket, Delete=request)
