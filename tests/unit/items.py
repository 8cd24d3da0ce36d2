"""A DynamoDB table and its stream as small fakes."""

from __future__ import annotations

import json
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Final

from kcl_daemon.errors import Throttled
from kcl_daemon.leases.lease import HashRange, ShardId
from kcl_daemon.ports import FetchedRecords, ReadFrom, ScannedPage, ScannedTable, StreamRef, StreamSummary
from kcl_daemon.records.payload import EMPTY
from kcl_daemon.shards.lineage import InitialPosition, Shard

ARN: Final = "arn:aws:dynamodb:eu-west-1:123456789012:table/orders/stream/2026-01-01T00:00:00.000"
STREAM: Final = StreamRef("orders", ARN)
BEGUN_MS: Final = 1_770_000_000_000


def shard(minutes: int, *parents: ShardId) -> Shard:
    name = ShardId(f"shardId-{BEGUN_MS + minutes * 60_000:020}-{abs(minutes):08x}")
    return Shard(name, HashRange(0, 1), frozenset(parents), 10**20 + minutes)


@dataclass
class Stream:
    """`Changes` of one stream, with what it was asked."""

    shards: tuple[Shard, ...] = ()
    asked: list[str] = field(default_factory=list[str])

    async def describe_stream(self, stream: StreamRef) -> StreamSummary:
        return StreamSummary(stream.name, ARN, "ENABLED", 0.0)

    async def list_streams(self) -> tuple[StreamSummary, ...]:
        return ()

    async def streams_of(self, table: str) -> tuple[StreamSummary, ...]:
        return (StreamSummary(table, ARN, "ENABLED", 0.0),)

    async def list_shards(self, stream: StreamRef, start: InitialPosition | None = None) -> tuple[Shard, ...]:
        return self.shards

    async def get_shard_iterator(self, stream: StreamRef, shard_id: ShardId, read_from: ReadFrom) -> str:
        self.asked.append(shard_id)
        return "of the stream"

    async def get_records(
        self, stream: StreamRef, shard_id: ShardId, iterator: str, limit: int
    ) -> FetchedRecords:
        return FetchedRecords(EMPTY, iterator, 0, ())


@dataclass
class Table:
    """A table in the order of its scan; every item costs `units`."""

    items: list[str]
    units: float = 0.5
    item_bytes: int = 100
    throttles: int = 0
    sizes: list[int] = field(default_factory=list[int])
    spent: float = 0.0

    async def describe_table(self, table: str) -> ScannedTable:
        return ScannedTable(table, ("id",), len(self.items), self.item_bytes * len(self.items))

    async def scan(self, table: str, part: tuple[int, int], after: str | None, limit: int) -> ScannedPage:
        if self.throttles:
            self.throttles -= 1
            raise Throttled("too fast", operation="Scan")
        mine = self.items[part[0] :: part[1]]
        begin = 0 if after is None else bisect_right(mine, json.loads(after)["id"]["S"])
        page = mine[begin : begin + limit]
        self.sizes.append(len(page))
        self.spent += self.units * len(page)
        found = [json.dumps({"id": {"S": each}, "n": {"N": "1"}}).encode() for each in page]
        key = json.dumps({"id": {"S": page[-1]}}) if len(mine) > begin + limit else None
        return ScannedPage(found, key, self.units * len(page))
