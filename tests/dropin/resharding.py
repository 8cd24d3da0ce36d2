"""Reshards in the drop-in tier, and a daemon that is quick to follow them."""

from __future__ import annotations

from typing import Final

from tests.process.daemon import FAILOVER_MS, Application, wait_until

QUICK: Final = {
    "failoverTimeMillis": FAILOVER_MS,
    "leaderLeaseMillis": 3000,
    "leaderHeartbeatMillis": 500,
    "workerMetricsReporterFreqInMillis": 500,
    "idleTimeBetweenReadsInMillis": 200,
    "parentShardPollIntervalMillis": 200,
    "leaseAssignmentStrategy": "LEASE_COUNT_BASED",
    "cleanupLeasesUponShardCompletion": "false",
}


def open_shards(app: Application) -> list[str]:
    """The shards that take records."""
    return [
        shard["ShardId"]
        for shard in app.shards()
        if "EndingSequenceNumber" not in shard["SequenceNumberRange"]
    ]


def split(app: Application, shard_id: str, *, open_then: int) -> None:
    """Split a shard in the middle, and wait until so many shards take records."""
    (hashes,) = (shard["HashKeyRange"] for shard in app.shards() if shard["ShardId"] == shard_id)
    middle = (int(hashes["StartingHashKey"]) + int(hashes["EndingHashKey"])) // 2
    app.kinesis.split_shard(StreamName=app.name, ShardToSplit=shard_id, NewStartingHashKey=str(middle))
    wait_until(lambda: len(open_shards(app)) == open_then, "the shard is split")


def is_finished(app: Application, shard_id: str) -> bool:
    """Whether the lease of a shard is at its end."""
    return app.rows().get(shard_id, {}).get("checkpoint", {}).get("S") == "SHARD_END"
