"""The scenarios of records that children reject."""

from __future__ import annotations

from dataclasses import replace

from kcl_daemon.config.children import FailureSettings
from tests.simulator.faults.behaviour import ChildrenPlan
from tests.simulator.plans.draws import (
    Draw,
    bad_children,
    mixed_trouble,
    reshards,
    with_aggregates,
)
from tests.simulator.plans.plan import Plan, Stop
from tests.simulator.scenarios.lanes import with_lanes
from tests.simulator.scenarios.poison import DEAD_LETTERS

_AWAY_S = 60.0


def rejects(draw: Draw) -> Plan:
    """Children reject records and fail, workers die and stop, and for a time no letter can be stored; often with lanes."""
    chance = draw.chance
    plan = with_aggregates(draw, draw.plan(faults_s=200.0, bound_s=240.0, shards=(1, 4)))
    leaving = draw.some(
        lambda: draw.kill(1.0, 20.0) if chance.happens(0.5) else Stop(draw.target(), 3.0),
        count=(1, 5),
        between_s=(10.0, 190.0),
    )
    has_poison = chance.happens(0.3)
    away_s = sorted(chance.uniform(0.0, 190.0 - _AWAY_S) for _ in range(chance.between(0, 2)))
    plan = replace(
        plan,
        backlog=min(plan.backlog, 200),  # a letter takes up to half a second, one after the other
        events=(*draw.arrivals(draw.workers(1, 3)), *reshards(draw, (0, 3)), *leaving),
        dynamodb=mixed_trouble(chance, worst=0.03),
        kinesis=mixed_trouble(chance, worst=0.03),
        children_plan=replace(
            ChildrenPlan(poison_every=350) if has_poison else bad_children(chance, worst=0.01),
            reject_every=chance.pick((5, 20, 100)),
        ),
        failures=DEAD_LETTERS if has_poison else FailureSettings(dead_letters=DEAD_LETTERS.dead_letters),
        letters_away_s=tuple((begin, begin + chance.uniform(5.0, _AWAY_S)) for begin in away_s),
        child_timeout_s=20.0,
    )
    return with_lanes(draw, plan) if chance.happens(0.4) else plan
