"""SplitShard, MergeShards and UpdateShardCount; they take effect at once. Knows no record."""

from __future__ import annotations

from typing import Final

from kcl_local.kinesis.account import Account, Answer
from kcl_local.kinesis.arguments import Arguments
from kcl_local.kinesis.errors import ServiceError, malformed

_SHARDS_MAX: Final = 10_000


def split_shard(account: Account, arguments: Arguments) -> Answer:
    """SplitShard."""
    stream = account.active_stream(arguments)
    shard = stream.shard(arguments.text("ShardToSplit"))
    stream.split(shard, arguments.hash_key("NewStartingHashKey"), account.now_s)
    return {}


def merge_shards(account: Account, arguments: Arguments) -> Answer:
    """MergeShards."""
    stream = account.active_stream(arguments)
    shard = stream.shard(arguments.text("ShardToMerge"))
    adjacent = stream.shard(arguments.text("AdjacentShardToMerge"))
    stream.merge(shard, adjacent, account.now_s)
    return {}


def update_shard_count(account: Account, arguments: Arguments) -> Answer:
    """UpdateShardCount: to at most twice and at least half of the open shards, as the service allows."""
    stream = account.active_stream(arguments)
    target = arguments.integer("TargetShardCount", 1, _SHARDS_MAX)
    if arguments.text("ScalingType") != "UNIFORM_SCALING":
        raise malformed("ScalingType must be UNIFORM_SCALING")
    current = len(stream.open_shards)
    if not current <= target * 2 <= current * 4:
        raise ServiceError(
            "LimitExceededException",
            f"TargetShardCount {target} is more than double or less than half of the {current} open shards",
        )
    stream.scale(target, account.now_s)
    return {
        "StreamName": stream.name,
        "StreamARN": stream.arn,
        "CurrentShardCount": current,
        "TargetShardCount": target,
    }
