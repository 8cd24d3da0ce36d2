"""The demo's stream: creating it, looking at its shards, splitting and merging them. A normal client of Kinesis.

Owns the control calls and the choice of which shards to split and merge. Knows nothing of records (`producer`).

The properties file that the demo gives to the daemon: an ordinary one, shown on the screen.

Owns its text and the launcher for a Python whose path has blanks. Pure but for writing those two files.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
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

from kcl_local.demo.ledger import monotonic_s
from kcl_local.demo.text import DemoError

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_kinesis import KinesisClient


REGION: Final = "us-east-1"
KEY_ID: Final = "local"
SECRET_KEY: Final = "local"  # noqa: S105 - the local endpoints take any; no account behind them
ACTIVE_WITHIN_S: Final = 60.0
_POLL_S: Final = 0.05

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ShardView:
    """One entry of ListShards; the hash range has both ends included."""

    shard_id: str
    first_hash: int
    last_hash: int
    parents: tuple[str, ...]
    is_open: bool


def middle_hash(shard: ShardView) -> int:
    """Where the second half of a shard begins."""
    return shard.first_hash + (shard.last_hash - shard.first_hash) // 2 + 1


def shard_to_split(shards: Iterable[ShardView]) -> ShardView | None:
    """The open shard with the lowest hashes; None where none is open."""
    return min((shard for shard in shards if shard.is_open), key=lambda shard: shard.first_hash, default=None)


def shards_to_merge(shards: Iterable[ShardView]) -> tuple[ShardView, ShardView] | None:
    """Two adjacent open shards, original ones if there are such; None where fewer than two are open."""
    in_order = sorted((shard for shard in shards if shard.is_open), key=lambda shard: shard.first_hash)
    pairs = [(a, b) for a, b in pairwise(in_order) if a.last_hash + 1 == b.first_hash]
    return min(pairs, key=lambda pair: len(pair[0].parents) + len(pair[1].parents), default=None)


@contextmanager
def errors_of(operation: str) -> Generator[None]:
    """Turn what boto3 raises into a DemoError that names the call."""
    try:
        yield
    except (ClientError, BotoCoreError) as error:
        raise DemoError(f"{operation} failed: {error}") from error


async def in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a boto3 call in a thread; a cancelled task waits for its end (at most the client's time-out)."""
    return await to_thread.run_sync(partial(call, *args, **kwargs))


def local_session() -> boto3.Session:
    """A session that reads no profile and no file of the user's: the demo must not come near an account."""
    nothing = (None, None, None, None)
    session = botocore.session.Session(session_vars={"profile": nothing, "config_file": nothing})
    return boto3.Session(KEY_ID, SECRET_KEY, region_name=REGION, botocore_session=session)


def client_config() -> Config:
    """Short time-outs and no hidden retries, so that what the producer believes is what happened."""
    return Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 1})


def kinesis_client(url: str) -> KinesisClient:
    """A client of the local Kinesis; to be closed."""
    return local_session().client("kinesis", endpoint_url=url, config=client_config())


def dynamodb_client(url: str) -> DynamoDBClient:
    """A client of the local DynamoDB; to be closed."""
    return local_session().client("dynamodb", endpoint_url=url, config=client_config())


class DemoStream:
    """One stream by its name. Every method may raise DemoError."""

    def __init__(self, client: KinesisClient, name: str) -> None:
        self.client = client
        self.name = name

    async def create(self, shard_count: int) -> float:
        """Create it and wait until it is ACTIVE; the time of that by `clock.monotonic_s`."""
        with errors_of("CreateStream"):
            await in_thread(self.client.create_stream, StreamName=self.name, ShardCount=shard_count)
        await self._active()
        return monotonic_s()

    async def shards(self) -> tuple[ShardView, ...]:
        """All its shards, closed ones included."""
        found: list[ShardView] = []
        with errors_of("ListShards"):
            page = await in_thread(self.client.list_shards, StreamName=self.name)
            while True:
                for shard in page["Shards"]:
                    parents = (shard.get("ParentShardId"), shard.get("AdjacentParentShardId"))
                    hashes = shard["HashKeyRange"]
                    found.append(
                        ShardView(
                            shard_id=shard["ShardId"],
                            first_hash=int(hashes["StartingHashKey"]),
                            last_hash=int(hashes["EndingHashKey"]),
                            parents=tuple(parent for parent in parents if parent),
                            is_open="EndingSequenceNumber" not in shard["SequenceNumberRange"],
                        )
                    )
                token = page.get("NextToken")
                if not token:
                    return tuple(found)
                page = await in_thread(self.client.list_shards, NextToken=token)

    async def split(self) -> ShardView | None:
        """Split a shard in two and wait until the stream is ACTIVE again; which one, None where none is open."""
        shard = shard_to_split(await self.shards())
        if shard is not None:
            with errors_of("SplitShard"):
                await in_thread(
                    self.client.split_shard,
                    StreamName=self.name,
                    ShardToSplit=shard.shard_id,
                    NewStartingHashKey=str(middle_hash(shard)),
                )
            await self._active()
        return shard

    async def merge(self) -> tuple[ShardView, ShardView] | None:
        """Merge two adjacent shards and wait until the stream is ACTIVE again; which, None where there are no two."""
        pair = shards_to_merge(await self.shards())
        if pair is not None:
            with errors_of("MergeShards"):
                await in_thread(
                    self.client.merge_shards,
                    StreamName=self.name,
                    ShardToMerge=pair[0].shard_id,
                    AdjacentShardToMerge=pair[1].shard_id,
                )
            await self._active()
        return pair

    async def _active(self) -> None:
        with errors_of("DescribeStreamSummary"), anyio.move_on_after(ACTIVE_WITHIN_S):
            while True:
                answer = await in_thread(self.client.describe_stream_summary, StreamName=self.name)
                if answer["StreamDescriptionSummary"]["StreamStatus"] == "ACTIVE":
                    return
                await anyio.sleep(_POLL_S)
        raise DemoError(f"stream {self.name} did not become ACTIVE within {ACTIVE_WITHIN_S:g} s")


PROCESSOR: Final = "kcl_local.demo.wordcount"
LAUNCHER: Final = "wordcount.sh"


@dataclass(frozen=True, slots=True)
class DaemonFile:
    """What differs between the properties files of one run.

    Args:
        executable: `executableName`.
        worker_id: name of the worker.
        application: name of the application, and so of its lease table.
        stream: name of the stream.
        kinesis_url: where the local Kinesis is.
        dynamodb_url: where the local DynamoDB is.
        more: further keys, as they are to stand in the file.
    """

    executable: str
    worker_id: str
    application: str
    stream: str
    kinesis_url: str
    dynamodb_url: str
    more: Mapping[str, str] = field(default_factory=dict[str, str])

    def text(self) -> str:
        """The whole file: ASCII, as java.util.Properties reads it."""
        values = {
            "executableName": self.executable,
            "streamName": self.stream,
            "applicationName": self.application,
            "workerId": self.worker_id,
            "AwsCredentialsProvider": "DefaultCredentialsProvider",
            "regionName": REGION,
            "kinesisEndpoint": self.kinesis_url,
            "dynamoDBEndpoint": self.dynamodb_url,
            "initialPositionInStream": "TRIM_HORIZON",
            "retrievalMode": "POLLING",
            "idleTimeBetweenReadsInMillis": "250",
            "parentShardPollIntervalMillis": "500",
            "shutdownGraceMillis": "15000",
            **self.more,
        }
        return "".join(f"{key} = {escaped(value)}\n" for key, value in values.items())


def escaped(value: str) -> str:
    """A value as it must stand in a properties file: backslashes doubled, all beyond ASCII as UTF-16 escapes."""
    out: list[str] = []
    for character in value:
        if character == "\\":
            out.append("\\\\")
        elif " " <= character <= "~":
            out.append(character)
        else:
            units = character.encode("utf-16-be", "surrogatepass")
            out.extend(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
    return "".join(out)


def executable_name(directory: Path, python: str = sys.executable) -> str:
    """The `executableName` of the word-count processor.

    The daemon splits it on spaces, so a Python with a blank in its path is started by a launcher script in
    `directory`, named relative to it: the daemon must run there.
    """
    if python.isascii() and python.isprintable() and " " not in python:
        return f"{python} -m {PROCESSOR}"
    launcher = directory / LAUNCHER
    launcher.write_text(f"#!/bin/sh\nexec {shlex.quote(python)} -m {PROCESSOR}\n", "utf-8", "surrogateescape")
    launcher.chmod(0o700)
    return f"./{LAUNCHER}"
