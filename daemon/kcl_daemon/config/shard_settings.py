"""What a properties file says about shards: how their leases come to be, are watched over and are cleared away.

Pure values, part of `Settings`. The leader's count for all workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ShardSyncStrategy(Enum):
    """When the leader compares leases with shards; the values are KCL's."""

    SHARD_END = "SHARD_END"
    PERIODIC = "PERIODIC"


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """Discovery, audit and clean-up of shards.

    Args:
        sync_strategy: SHARD_END: child shards get their leases when their parents end, and the leader only looks for
            holes. PERIODIC: the leader also compares all shards with all leases at each audit.
        audit_ms: how often the leader looks for holes.
        audit_confidence: in how many audits in a row a hole must be there before it is filled.
        ignore_unexpected_children: whether shards whose parent is open are passed over; else nothing is created.
        cleanup_finished: whether leases of finished shards are deleted once their child shards are being read.
        cleanup_ms: how often the leader looks for leases to delete.
        cleanup_completed_ms: least time between two clean-ups of finished leases.
        cleanup_garbage_ms: least time between two looks for shards that Kinesis has forgotten.
        waiting_generations_most: a lease that nobody owns is given to nobody while it waits for more generations of
            unfinished parents than this; None: leases are given away in any order.
    """

    sync_strategy: ShardSyncStrategy = ShardSyncStrategy.SHARD_END
    audit_ms: int = 120_000
    audit_confidence: int = 3
    ignore_unexpected_children: bool = False
    cleanup_finished: bool = True
    cleanup_ms: int = 60_000
    cleanup_completed_ms: int = 300_000
    cleanup_garbage_ms: int = 1_800_000
    waiting_generations_most: int | None = None
