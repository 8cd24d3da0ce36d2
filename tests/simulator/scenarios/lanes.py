"""Scenarios where a shard has several children."""

from __future__ import annotations

from dataclasses import replace

from kcl_daemon.config.children import ConcurrencySettings, LaneCounts
from kcl_daemon.records.forms import ShardOrder
from kcl_daemon.shards.lineage import StartAt
from tests.simulator.faults.behaviour import ChildrenPlan
from tests.simulator.plans.draws import (
    Draw,
    bad_children,
    mixed_trouble,
    reshards,
    with_aggregates,
)
from tests.simulator.plans.plan import Plan, Planned, Stop
from tests.simulator.scenarios.poison import DEAD_LETTERS


def lanes(draw: Draw) -> Plan:
    """Shards with several children, some of which fail, while workers die, stop and hand over."""
    chance = draw.chance
    plan = with_aggregates(draw, draw.plan(faults_s=150.0, bound_s=120.0, shards=(1, 4)))
    leaving = draw.some(
        lambda: draw.kill(1.0, 20.0) if chance.happens(0.5) else Stop(draw.target(), 3.0),
        count=(0, 3),
        between_s=(10.0, 140.0),
    )
    return replace(
        with_lanes(draw, plan),
        events=(*draw.arrivals(draw.workers(1, 3)), *leaving),
        dynamodb=mixed_trouble(chance, worst=0.04),
        kinesis=mixed_trouble(chance, worst=0.04),
        children_plan=bad_children(chance, worst=0.02),
        child_timeout_s=20.0,
    )


def lanes_reshard(draw: Draw) -> Plan:
    """Shards with several children split and merge: parents are finished in all lanes before children begin."""
    plan = lanes(draw)
    return replace(plan, events=(*plan.events, *reshards(draw, (1, 5))))


def lanes_latest(draw: Draw) -> Plan:
    """Lanes that begin at the latest record: once one of them has a checkpoint, nothing after it is left out."""
    plan = lanes(draw)
    kill = Planned(draw.chance.uniform(15.0, 120.0), draw.kill(1.0, 20.0))
    return replace(plan, start_at=StartAt.LATEST, events=(*plan.events, kill))


def lanes_poison(draw: Draw) -> Plan:
    """Records that kill every child of their lane become dead letters, while the other lanes go on."""
    chance = draw.chance
    plan = with_aggregates(draw, draw.plan(faults_s=200.0, bound_s=240.0, shards=(1, 3)))
    return replace(
        with_lanes(draw, plan),
        events=(*draw.arrivals(draw.workers(1, 3)), *reshards(draw, (0, 2))),
        dynamodb=mixed_trouble(chance, worst=0.03),
        children_plan=ChildrenPlan(poison_every=chance.pick((200, 350, 1_000))),
        failures=replace(DEAD_LETTERS, poison_tries=chance.pick((1, 2, 3))),
    )


def with_lanes(draw: Draw, plan: Plan) -> Plan:
    """The plan with several children for each shard."""
    chance = draw.chance
    return replace(
        plan,
        concurrency=ConcurrencySettings(
            lanes=LaneCounts(chance.pick((2, 3, 8))),
            order=chance.pick((ShardOrder.KEY, ShardOrder.KEY, ShardOrder.NONE)),
            remembers=chance.happens(0.5),
            # The smallest windows forget what is not checkpointed, and read it again.
            window_bytes=chance.pick((4_000, 40_000, 8 * 1024**2)),
        ),
        lane_counts=chance.pick(((), (), (1, 3, 8))),
        keys=chance.pick((2, 20, 1 << 40)),
    )
