"""The scenario of records that no child can process."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kcl_daemon.config.children import FailureSettings, PoisonRecordPolicy
from kcl_daemon.config.dead_letters import file_at
from tests.simulator.faults.behaviour import ChildrenPlan
from tests.simulator.plans.draws import Draw, mixed_trouble, reshards, with_aggregates
from tests.simulator.plans.plan import Plan, Stop

# Each of them takes a dozen children, one after the other.
_BOUND_S: Final = 240.0
DEAD_LETTERS: Final = FailureSettings(
    poison=PoisonRecordPolicy.DEADLETTER,
    dead_letters=file_at("dead.jsonl"),
)


def poison_records(draw: Draw) -> Plan:
    """Some records kill every child while workers die and stop and shards split: they become dead letters, no other does."""
    chance = draw.chance
    plan = with_aggregates(draw, draw.plan(faults_s=200.0, bound_s=_BOUND_S, shards=(1, 6)))
    leaving = draw.some(
        lambda: draw.kill(1.0, 20.0) if chance.happens(0.5) else Stop(draw.target(), 3.0),
        count=(0, 3),
        between_s=(10.0, 190.0),
    )
    return replace(
        plan,
        events=(*draw.arrivals(draw.workers(1, 3)), *reshards(draw, (0, 3)), *leaving),
        dynamodb=mixed_trouble(chance, worst=0.03),
        kinesis=mixed_trouble(chance, worst=0.03),
        children_plan=ChildrenPlan(poison_every=chance.pick((200, 350, 1_000))),
        failures=replace(DEAD_LETTERS, poison_tries=chance.pick((1, 2, 3))),
    )
