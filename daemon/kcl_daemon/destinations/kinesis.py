from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from typing import Any, Final

import anyio

from kcl_daemon.aws.letters import KIB, MIB, Client, LetterService, LimitedLetters, SpooledLetters
from kcl_daemon.config.children import STREAM_NAME
from kcl_daemon.config.dead_letters import MakeArn, Right, WithData
from kcl_daemon.config.kinds import stream_arn
from kcl_daemon.config.services import Endpoints
from kcl_daemon.errors import InvalidRequest, StreamNotFound
from kcl_daemon.records.dead_letter import DeadLetter
from kcl_daemon.records.letters import BadPlace, LetterSource, StoredLetter

_PARTITION_KEY_CHARACTERS: Final = 256
_PAUSE_S: Final = 0.25  # a shard takes five reads a second


class StreamLetters(LimitedLetters):
    scheme = "kinesis"
    limit = ("1 MiB, or MaxRecordSizeInKiB of the stream", "about 768 KiB")
    undeletable = ("Kinesis deletes no records", "they go when the retention of the stream ends")
    operation = "PutRecord"
    most_bytes = 10 * MIB

    @classmethod
    def read(cls, text: str) -> StreamLetters:
        if text.startswith("arn:"):
            stream_arn().read(text)
        elif not STREAM_NAME.fullmatch(text):
            raise ValueError("not the name of a stream")
        return cls(text)

    @property
    def named(self) -> dict[str, str]:
        return {"StreamARN" if self.address.startswith("arn:") else "StreamName": self.address}

    def service(self, endpoints: Endpoints, *, reads: bool = False) -> LetterService:
        region_name = self.address.split(":")[3] if self.address.startswith("arn:") else None
        missing = StreamNotFound if reads else InvalidRequest
        address = endpoints.kinesis
        return LetterService(
            endpoints, "kinesis", region_name, regional=address, reads=reads, not_found=missing
        )

    def send(self, client: Client, dead_letter: DeadLetter, line: bytes) -> object:
        """With the original partition key, which is longer for an item with long keys."""
        key = (dead_letter.record.partition_key or "")[:_PARTITION_KEY_CHARACTERS] or dead_letter.shard_id
        return client.put_record(**self.named, Data=line + b"\n", PartitionKey=key)

    def ask_limit(self, client: Client) -> int:
        summary = client.describe_stream_summary(**self.named)["StreamDescriptionSummary"]
        return int(summary.get("MaxRecordSizeInKiB", KIB)) * KIB

    def rights(self, arn: MakeArn, *, reads: bool) -> list[Right]:
        actions = ("ListShards", "GetShardIterator", "GetRecords") if reads else ("PutRecord",)
        stream = self.named.get("StreamARN") or arn("kinesis", f"stream/{self.address}", None, None)
        return [("", "kinesis", actions, stream)]

    @asynccontextmanager
    async def reader(self, endpoints: Endpoints, with_data: WithData) -> AsyncGenerator[LetterSource]:
        async with self.service(endpoints, reads=True) as kinesis:
            with closing(_Records(kinesis, self.named, with_data)) as letters:
                yield letters


class _Records(SpooledLetters):
    def __init__(self, kinesis: LetterService, named: dict[str, str], with_data: WithData) -> None:
        super().__init__(kinesis, with_data)
        self._named = named
        self._arn = {name: value for name, value in named.items() if name == "StreamARN"}

    async def scan(self) -> AsyncIterator[StoredLetter | BadPlace]:
        for shard_id in await self._shards():
            asked = {**self._named, "ShardId": shard_id, "ShardIteratorType": "TRIM_HORIZON"}
            answer = await self._call("get_shard_iterator", asked)
            iterators = deque([answer["ShardIterator"]])
            while iterators:
                page = await self._call("get_records", {"ShardIterator": iterators.popleft(), **self._arn})
                for each in page["Records"]:
                    yield self.keep(each["Data"], f"{shard_id} {each['SequenceNumber']}")
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
            request = {"NextToken": answer["NextToken"], **self._arn}

    async def _call(self, method: str, request: dict[str, Any]) -> Any:
        return await self._service.run(method, lambda client: getattr(client, method)(**request))

    async def delete(self, heads: Sequence[StoredLetter]) -> None:
        raise InvalidRequest(f"Kinesis deletes no records ({len(heads)} asked)", operation="delete")
