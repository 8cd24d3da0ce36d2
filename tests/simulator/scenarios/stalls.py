"""The scenario of shards that stand still for long, for every reason there is; what is asserted is that nobody is left to guess.

Owns its draw; `scenarios` lists it with the others. Knows nothing of how a plan is carried out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tests.simulator.faults.behaviour import Behaviour, ChildrenPlan, Mischief, When
from tests.simulator.faults.life import Service
from tests.simulator.faults.network import Trouble
from tests.simulator.plans.draws import Draw, mixed_trouble, reshards
from tests.simulator.plans.plan import CutOff, Plan

# A child that hangs at the last moment is noticed, ended in steps and replaced after a pause.
_BOUND_S: Final = 190.0
_STUCK_S: Final = (15.0, 30.0, 45.0)


def stalled(draw: Draw) -> Plan:
    """Children that hang or cannot get over a record, Kinesis or DynamoDB away for minutes: each stall has a cause and an event."""
    chance = draw.chance
    plan = draw.plan(faults_s=260.0, bound_s=_BOUND_S, shards=(1, 6))
    cuts = draw.some(
        lambda: CutOff(
            draw.target(),
            chance.pick((Service.KINESIS, Service.KINESIS, Service.DYNAMODB)),
            chance.pick((40.0, 90.0, 150.0)),
        ),
        count=(0, 3),
        between_s=(5.0, 120.0),
    )
    behaviour = Behaviour(
        chance.pick(tuple(When)),
        explicit=chance.happens(0.5),
        process_s=chance.pick(((0.01, 0.1), (0.5, 3.0))),
    )
    mischief = chance.pick(
        (
            {Mischief.HANG: chance.uniform(0.005, 0.1)},
            {Mischief.EXIT: 1.0},
            {Mischief.EXIT: 0.4, Mischief.HANG: 0.1},
            {Mischief.NO_CHECKPOINT_AT_END: 0.9},
            {},
        )
    )
    return replace(
        plan,
        events=(*draw.arrivals(draw.workers(1, 3)), *cuts, *reshards(draw, (0, 2))),
        kinesis=chance.pick((mixed_trouble(chance, worst=0.1), Trouble(throttled=0.97))),
        dynamodb=mixed_trouble(chance, worst=chance.pick((0.0, 0.1))),
        children_plan=ChildrenPlan(
            behaviour=behaviour, mischief=mischief, start_fails=chance.pick((0.0, 0.5, 1.0))
        ),
        child_stuck_s=chance.pick(_STUCK_S),
    )
