"""What GetRecords and SubscribeToShard tell in the same words. Knows no call."""

from __future__ import annotations

from kcl_local.kinesis.account import Account, Answer
from kcl_local.kinesis.shard import Shard
from kcl_local.kinesis.stream import Stream


def record_entries(stream: Stream, shard: Shard, start: int, end: int) -> list[Answer]:
    """`Record` on the wire, for the records from `start` to before `end`."""
    if start == end:
        return []
    text, index = stream.numbers.text, shard.index
    return [
        {
            "SequenceNumber": text(tick, index),
            "ApproximateArrivalTimestamp": arrival_s,
            "PartitionKey": partition_key,
            "Data": data,
        }
        for tick, arrival_s, partition_key, data in shard.records.columns(start, end)
    ]


def millis_behind(account: Account, shard: Shard, end: int) -> int:
    """How old the first record is that this answer did not reach; at least 1, as 0 says that there is none."""
    if end == len(shard.records):
        return 0
    return max(1, round((account.now_s - shard.records.arrival_s(end)) * 1000))


def child_entry(child: Shard) -> Answer:
    """`ChildShard` on the wire."""
    return {
        "ShardId": child.shard_id,
        "ParentShards": list(child.parent_ids),
        "HashKeyRange": child.hash_range(),
    }
