"""What the leader makes of the reports of the workers."""

from __future__ import annotations

from kcl_daemon.capacity.figures import (
    Bound,
    Capacity,
    CapacityTargets,
    FleetState,
    StreamCapacity,
)
from kcl_daemon.leases.lease import WorkerId


def estimate(
    state: FleetState, targets: CapacityTargets, previous: Capacity | None, *, by: WorkerId
) -> Capacity:
    """What is known of `state`, and how many workers are wanted after what `previous` wanted."""
    shards = [shard for load in state.loads for shard in load.shards]
    behind = max((shard.behind_s for shard in shards if shard.behind_s is not None), default=None)
    in_bytes, out_bytes = sum(each.in_bytes for each in shards), sum(each.out_bytes for each in shards)
    whole = StreamCapacity(
        None, len(state.leases), behind, None, None, Bound.UNKNOWN, "not known yet", in_bytes, out_bytes
    )
    wanted = previous.wanted if previous else max(min(state.live, len(state.leases)), 1)
    return Capacity(
        state.now_ms, by, state.live, state.silent, wanted, "not known yet", "not known yet", "", whole,
        since_ms=previous.since_ms if previous else state.now_ms, targets=targets,
    )  # fmt: skip
