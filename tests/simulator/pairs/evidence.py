"""What really happened in a run, as counts by name: whether a factor of `pairs` was met.

A fault that came after the end, or a filter that left nothing out, is not met.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tests.simulator.faults.life import Service
from tests.simulator.fleet.world import World


def seen_in(world: World) -> Mapping[str, int]:
    """Of all kinds, those that were not met left out."""
    found = Counter(world.faults) + world.network.faults + world.deliveries.seen
    visits = world.points.visits.values()
    shards = world.truth.shards.values()
    found.update({
        "at a point": sum(each.kills + each.pauses for each in visits),
        "child did something wrong": world.children_plan.misdeeds,
        "record left out": sum(len(shard.left_out) for shard in shards),
        "record inside an aggregate": sum(sub > 0 for shard in shards for _, sub in shard.positions),
        "record rejected": world.deliveries.rejects.stored,
        "shard closed": sum(shard.is_closed and not shard.is_past for shard in shards),
        "segment landed": 0 if world.landing is None else world.landing.landed,
        "table move": len(world.moves.states),
        "trouble of kinesis": world.network.troubled[Service.KINESIS],
        "trouble of dynamodb": world.network.troubled[Service.DYNAMODB],
        "subscribed": world.network.calls.get("SubscribeToShard", 0),
        "Java worker read": sum(
            reached.batches.total()
            for (worker_id, _), reached in world.deliveries.reached.items()
            if world.fleet.is_java(worker_id)
        ),
    })  # fmt: skip
    if world.changed is not None:
        found.update(world.changed.given)
    return {name: count for name, count in found.items() if name and count}
