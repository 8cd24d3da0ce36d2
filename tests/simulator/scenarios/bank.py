"""The scenario of exactly once: transfers while readers die, stop, sleep beyond their leases and wake."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tests.simulator.faults.behaviour import Behaviour, ChildrenPlan, Mischief, When
from tests.simulator.plans.draws import Draw, mixed_trouble, reshards, with_aggregates
from tests.simulator.plans.plan import DieAtWrites, Pause, Plan, Planned, Stop
from tests.simulator.rules.bank import BankPlan

# A lease lasts ten seconds: who wakes after twelve to twenty finds that another has just begun.
_PAUSES_S: Final = ((1.0, 9.0), (11.0, 20.0), (20.0, 60.0))


def bank(draw: Draw) -> Plan:
    """Each transfer is carried out once, whatever happens to workers and children."""
    chance = draw.chance
    plan = with_aggregates(draw, draw.plan(faults_s=120.0, bound_s=100.0, shards=(1, 4)), are_of_kpl=True)
    deaths = chance.between(0, 4)
    at = tuple(chance.between(1, 60) for _ in range(deaths))
    dying = Planned(0.0, DieAtWrites(at, tuple(chance.happens(0.5) for _ in range(deaths))))

    def pause() -> Pause:
        return Pause(
            draw.target(), chance.uniform(*chance.pick(_PAUSES_S)), with_children=chance.happens(0.7)
        )

    events = [
        dying,
        *draw.arrivals(draw.workers(2, 4)),
        *reshards(draw, (0, 2), between_s=(10.0, 100.0)),
        *draw.some(pause, count=(0, 3), between_s=(5.0, 90.0)),
        *draw.some(lambda: draw.kill(0.5, 5.0, 20.0), count=(0, 3), between_s=(5.0, 110.0)),
        *draw.some(
            lambda: Stop(draw.target(), chance.uniform(0.0, 5.0)), count=(0, 2), between_s=(5.0, 110.0)
        ),
    ]
    worst = chance.pick((0.0, 0.01, 0.05))
    slowest_s = chance.pick((0.05, 0.5, 2.0))
    return replace(
        plan,
        events=tuple(events),
        backlog=chance.pick((0, 200, 400)),
        retrieval=replace(plan.retrieval, max_records=chance.pick((20, 50, 500))),
        dynamodb=mixed_trouble(chance, worst=0.03),
        kinesis=mixed_trouble(chance, worst=0.03),
        children_plan=ChildrenPlan(
            behaviour=Behaviour(
                chance.pick(tuple(When)),
                explicit=chance.happens(0.5),
                process_s=(slowest_s / 5, slowest_s),
            ),
            mischief={
                kind: chance.uniform(0.0, worst)
                for kind in (Mischief.EXIT, Mischief.EXIT_LATER, Mischief.DAWDLE)
            },
        ),
        bank=BankPlan(
            sleeps_s=tuple(chance.uniform(*chance.pick(_PAUSES_S)) for _ in range(chance.between(1, 5)))
        ),
    )
