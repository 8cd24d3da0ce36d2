from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final, ParamSpec, TypeVar

import anyio
import boto3
import botocore.session
from anyio import to_thread
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from kcl_local import ACCESS, REGION
from kcl_local.demo.check import monotonic_s
from kcl_local.demo.text import DemoError

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_kinesis import KinesisClient
    from mypy_boto3_kinesis.type_defs import ShardTypeDef


ACTIVE_WITHIN_S: Final = 60.0
_POLL_S: Final = 0.05

# Short timeouts and no hidden retries: the producer must know what happened.
_CONFIG: Final = Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 1})

P = ParamSpec("P")
T = TypeVar("T")
PROCESSOR: Final = "kcl_local.demo.wordcount"
LAUNCHER: Final = "wordcount.sh"


@dataclass(frozen=True, slots=True)
class ShardView:
    shard_id: str
    first_hash: int
    last_hash: int
    parents: tuple[str, ...]
    is_open: bool


def middle_hash(shard: ShardView) -> int:
    return shard.first_hash + (shard.last_hash - shard.first_hash) // 2 + 1


def shard_to_split(shards: Iterable[ShardView]) -> ShardView | None:
    return min((shard for shard in shards if shard.is_open), key=lambda shard: shard.first_hash, default=None)


def shards_to_merge(shards: Iterable[ShardView]) -> tuple[ShardView, ShardView] | None:
    """Adjacent open shards, original ones if possible."""
    in_order = sorted((shard for shard in shards if shard.is_open), key=lambda shard: shard.first_hash)
    pairs = [(a, b) for a, b in pairwise(in_order) if a.last_hash + 1 == b.first_hash]
    return min(pairs, key=lambda pair: len(pair[0].parents) + len(pair[1].parents), default=None)


async def in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """A cancelled task waits for the end of the call."""
    return await to_thread.run_sync(partial(call, *args, **kwargs))


async def call(operation: str, method: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return await in_thread(method, *args, **kwargs)
    except (ClientError, BotoCoreError) as error:
        raise DemoError(f"{operation} failed: {error}") from error


async def until(holds: Callable[[], Awaitable[bool]], within_s: float, every_s: float) -> bool:
    """False on timeout."""
    with anyio.move_on_after(within_s):
        while True:
            if await holds():
                return True
            await anyio.sleep(every_s)
    return False


def local_session() -> boto3.Session:
    """Without the user's profiles and files: the demo must not reach an AWS account."""
    nothing = (None, None, None, None)
    session = botocore.session.Session(session_vars={"profile": nothing, "config_file": nothing})
    keys = ACCESS["AWS_ACCESS_KEY_ID"], ACCESS["AWS_SECRET_ACCESS_KEY"]
    return boto3.Session(*keys, region_name=REGION, botocore_session=session)


def kinesis_client(url: str) -> KinesisClient:
    return local_session().client("kinesis", endpoint_url=url, config=_CONFIG)


def dynamodb_client(url: str) -> DynamoDBClient:
    return local_session().client("dynamodb", endpoint_url=url, config=_CONFIG)


class DemoStream:
    """Every method may raise DemoError."""

    def __init__(
        self,
        client: KinesisClient,
        name: str,
        *,
        active_within_s: float = ACTIVE_WITHIN_S,
        poll_s: float = _POLL_S,
    ) -> None:
        self.client = client
        self.name = name
        self._active_within_s = active_within_s
        self._poll_s = poll_s

    async def create(self, shard_count: int) -> float:
        """When the stream was ACTIVE, by `monotonic_s`."""
        await call("CreateStream", self.client.create_stream, StreamName=self.name, ShardCount=shard_count)
        await self.active()
        return monotonic_s()

    async def shards(self) -> tuple[ShardView, ...]:
        """One page: a demo has far fewer than 1,000 shards."""
        page = await call("ListShards", self.client.list_shards, StreamName=self.name)
        return tuple(map(_view, page["Shards"]))

    async def split(self) -> ShardView | None:
        shard = shard_to_split(await self.shards())
        if shard is not None:
            await call(
                "SplitShard",
                self.client.split_shard,
                StreamName=self.name,
                ShardToSplit=shard.shard_id,
                NewStartingHashKey=str(middle_hash(shard)),
            )
            await self.active()
        return shard

    async def merge(self) -> tuple[ShardView, ShardView] | None:
        pair = shards_to_merge(await self.shards())
        if pair is not None:
            await call(
                "MergeShards",
                self.client.merge_shards,
                StreamName=self.name,
                ShardToMerge=pair[0].shard_id,
                AdjacentShardToMerge=pair[1].shard_id,
            )
            await self.active()
        return pair

    async def active(self) -> None:
        async def is_active() -> bool:
            answer = await call(
                "DescribeStreamSummary", self.client.describe_stream_summary, StreamName=self.name
            )
            return answer["StreamDescriptionSummary"]["StreamStatus"] == "ACTIVE"

        if not await until(is_active, self._active_within_s, self._poll_s):
            raise DemoError(f"stream {self.name} did not become ACTIVE within {self._active_within_s:g} s")


def _view(shard: ShardTypeDef) -> ShardView:
    hashes = shard["HashKeyRange"]
    parents = (shard.get("ParentShardId"), shard.get("AdjacentParentShardId"))
    return ShardView(
        shard_id=shard["ShardId"],
        first_hash=int(hashes["StartingHashKey"]),
        last_hash=int(hashes["EndingHashKey"]),
        parents=tuple(parent for parent in parents if parent),
        is_open="EndingSequenceNumber" not in shard["SequenceNumberRange"],
    )


@dataclass(frozen=True, slots=True)
class Urls:
    kinesis: str
    dynamodb: str


def properties_text(urls: Urls, own: Mapping[str, str], more: Mapping[str, str]) -> str:
    """As java.util.Properties reads it. `more` can replace what the demo sets."""
    values = {
        **own,
        "AwsCredentialsProvider": "DefaultCredentialsProvider",
        "regionName": REGION,
        "kinesisEndpoint": urls.kinesis,
        "dynamoDBEndpoint": urls.dynamodb,
        "initialPositionInStream": "TRIM_HORIZON",
        "retrievalMode": "POLLING",
        "idleTimeBetweenReadsInMillis": "250",
        "parentShardPollIntervalMillis": "500",
        "shutdownGraceMillis": "15000",
        **more,
    }
    return "".join(f"{key} = {escaped(value)}\n" for key, value in values.items())


def escaped(value: str) -> str:
    """Backslashes doubled, non-ASCII as UTF-16 escapes."""

    def units(found: re.Match[str]) -> str:
        digits = found[0].encode("utf-16-be", "surrogatepass").hex()
        return "".join(f"\\u{digits[at : at + 4]}" for at in range(0, len(digits), 4))

    return re.sub(r"[^ -~]", units, value.replace("\\", r"\\"))


def executable_name(directory: Path, python: str = sys.executable, *, module: str = PROCESSOR) -> str:
    """The daemon splits it on spaces, so a path of Python with a space gets a launcher in `directory`, where it must run."""
    if python.isascii() and python.isprintable() and " " not in python:
        return f"{python} -m {module}"
    launcher = directory / LAUNCHER
    launcher.write_text(f"#!/bin/sh\nexec {shlex.quote(python)} -m {module}\n", "utf-8", "surrogateescape")
    launcher.chmod(0o700)
    return f"./{LAUNCHER}"
