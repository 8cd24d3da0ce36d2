"""What went into one shard and out of it, and what waits.

Counted once a batch, never once a record: this is in the record path.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(eq=False, slots=True)
class ShardFlow:
    """Of one held lease, since it was taken; `LeaseProgress.records` and `data_bytes` count what was finished.

    Args:
        read_records: for the child, as `read_bytes`: without those that are filtered or already done.
        busy_s: how long children worked on records; with lanes, the sum over them.
        refused_s: how long reading had to wait because Kinesis refused reads or the quota of the shard was used up.
        memory_s: how long reading had to wait for room in memory that other shards hold.
    """

    read_records: int = 0
    read_bytes: int = 0
    busy_s: float = 0.0
    refused_s: float = 0.0
    memory_s: float = 0.0


@dataclass(frozen=True, slots=True)
class FlowRates:
    """Of one shard over the last ten seconds or more; shares are 0 to 1.

    Args:
        speed: seconds of the stream finished in a second, by arrival; None: unknown, or nothing was finished.
        busy: share of the time that its child worked; with lanes, of the busiest lane.
        refused: share of the time that reading waited for the shard's quota or was refused.
        memory: share of the time that reading waited for memory.
    """

    in_records: float = 0.0
    in_bytes: float = 0.0
    out_records: float = 0.0
    out_bytes: float = 0.0
    speed: float | None = None
    busy: float = 0.0
    refused: float = 0.0
    memory: float = 0.0
