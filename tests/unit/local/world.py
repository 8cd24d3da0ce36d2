"""A Kinesis model with a clock that the test holds, and short ways to call it."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import cast

import pytest

from kcl_local.kinesis.arguments import DEFAULTS, KinesisOptions, ServiceError
from kcl_local.kinesis.model import KinesisModel

STREAM = "orders"
ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
START_S = 1_700_000_000.0
HASHES = 2**128


@dataclass(frozen=True, slots=True)
class ShardView:
    """One entry of ListShards."""

    shard_id: str
    start_hash: int
    end_hash: int
    first_number: int
    last_number: int | None
    parents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Page:
    """One answer of GetRecords; records as (sequence number, data)."""

    records: list[tuple[int, bytes]]
    next_iterator: str | None
    millis_behind: int
    children: list[str] | None


class World:
    """The model and its time."""

    def __init__(self, options: KinesisOptions = DEFAULTS) -> None:
        self.now_s = START_S
        self.model = KinesisModel(lambda: self.now_s, options)

    def call(self, operation: str, /, **arguments: object) -> dict[str, object]:
        """One call."""
        return self.model.handle(operation, arguments)

    def refused(self, operation: str, /, **arguments: object) -> str:
        """The code with which a call is refused."""
        with pytest.raises(ServiceError) as caught:
            self.call(operation, **arguments)
        return caught.value.code

    def create(self, shard_count: int = 1) -> None:
        """Create the stream."""
        self.call("CreateStream", StreamName=STREAM, ShardCount=shard_count)

    def put(self, data: bytes, key_hash: int = 0) -> int:
        """Put one record; its sequence number."""
        answer = self.call(
            "PutRecord",
            StreamName=STREAM,
            Data=base64.b64encode(data).decode(),
            PartitionKey="key",
            ExplicitHashKey=str(key_hash),
        )
        return int(str(answer["SequenceNumber"]))

    def shards(self, **arguments: object) -> list[ShardView]:
        """ListShards, one page."""
        answer = self.call("ListShards", **({"StreamName": STREAM} | arguments))
        return [_view(entry) for entry in cast("list[dict[str, object]]", answer["Shards"])]

    def filtered(self, kind: str, **more: object) -> list[int]:
        """Indices of the shards that a filter lets through."""
        return [int(shard.shard_id[-12:]) for shard in self.shards(ShardFilter={"Type": kind, **more})]

    def iterator(self, shard_index: int, kind: str = "TRIM_HORIZON", **more: object) -> str:
        """GetShardIterator."""
        answer = self.call(
            "GetShardIterator",
            StreamName=STREAM,
            ShardId=shard_id(shard_index),
            ShardIteratorType=kind,
            **more,
        )
        return str(answer["ShardIterator"])

    def read(self, iterator: str, **more: object) -> Page:
        """GetRecords."""
        answer = self.call("GetRecords", ShardIterator=iterator, **more)
        records = cast("list[dict[str, str]]", answer["Records"])
        children = cast("list[dict[str, str]] | None", answer.get("ChildShards"))
        return Page(
            records=[(int(each["SequenceNumber"]), base64.b64decode(each["Data"])) for each in records],
            next_iterator=cast("str | None", answer["NextShardIterator"]),
            millis_behind=cast("int", answer["MillisBehindLatest"]),
            children=None if children is None else [child["ShardId"] for child in children],
        )

    def split(self, shard_index: int, at_hash: int) -> None:
        """SplitShard."""
        self.call(
            "SplitShard",
            StreamName=STREAM,
            ShardToSplit=shard_id(shard_index),
            NewStartingHashKey=str(at_hash),
        )

    def merge(self, shard_index: int, adjacent_index: int) -> None:
        """MergeShards."""
        self.call(
            "MergeShards",
            StreamName=STREAM,
            ShardToMerge=shard_id(shard_index),
            AdjacentShardToMerge=shard_id(adjacent_index),
        )


def shard_id(index: int) -> str:
    """The name of the nth shard."""
    return f"shardId-{index:012d}"


def _view(entry: dict[str, object]) -> ShardView:
    hashes = cast("dict[str, str]", entry["HashKeyRange"])
    numbers = cast("dict[str, str]", entry["SequenceNumberRange"])
    parents = [entry[name] for name in ("ParentShardId", "AdjacentParentShardId") if name in entry]
    return ShardView(
        shard_id=str(entry["ShardId"]),
        start_hash=int(hashes["StartingHashKey"]),
        end_hash=int(hashes["EndingHashKey"]),
        first_number=int(numbers["StartingSequenceNumber"]),
        last_number=int(numbers["EndingSequenceNumber"]) if "EndingSequenceNumber" in numbers else None,
        parents=tuple(str(parent) for parent in parents),
    )
