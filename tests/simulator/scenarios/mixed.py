"""Scenarios of a fleet that is half Java: our workers beside a model of Java's, on the same rows.

Owns the ranges of these. Java's patience sets the bounds: a dead Java leader is replaced after 120 to 180 s, a dead
worker's leases after two runs of the leader, 20 s apart, and a lease is found 10 s after it was given.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tests.simulator.faults.network import Trouble
from tests.simulator.plans.draws import Draw, mixed_trouble, reshards, with_aggregates
from tests.simulator.plans.plan import (
    AddAttribute,
    AddRows,
    Event,
    Kill,
    Kind,
    Pause,
    Plan,
    Planned,
    Start,
    Stop,
)

# A leader's end, two runs of the next one, a lease found and its first records read.
_BOUND_S: Final = 270.0
# A leader may go in the middle of three generations of shards.
_RESHARD_BOUND_S: Final = 330.0
# A Java leader whose first leases were only half made finds the hole when it has seen it three times, two minutes apart.
_HOLE_BOUND_S: Final = 500.0
# A Java worker that comes first makes the leases within a minute; nobody is disturbed before that.
_SETTLED_S: Final = 90.0
_FLEETS: Final = (
    (Kind.JAVA, Kind.OURS),
    (Kind.OURS, Kind.JAVA),
    (Kind.JAVA, Kind.OURS, Kind.JAVA, Kind.OURS),
    (Kind.OURS, Kind.JAVA, Kind.OURS, Kind.JAVA),
    (Kind.JAVA, Kind.JAVA, Kind.OURS),
)


def _arrivals(draw: Draw) -> list[Planned]:
    """One after the other: two that start on an empty table in the same seconds trouble Java (tables 9.2.7)."""
    chance = draw.chance
    fleet = chance.pick(_FLEETS)
    workers = draw.sizes.workers or len(fleet)
    begins_s, planned = 0.0, list[Planned]()
    for number in range(workers):
        planned.append(Planned(begins_s, Start(fleet[number % len(fleet)])))
        begins_s += chance.uniform(10.0, 30.0) if number == 0 else chance.uniform(0.0, 15.0)
    return planned


def _plan(draw: Draw, *, faults_s: float, bound_s: float = _BOUND_S) -> Plan:
    plan = draw.long_plan(faults_s=faults_s, bound_s=bound_s, shards=(2, 8))
    return replace(
        with_aggregates(draw, plan, are_of_kpl=True),
        java_names_entities=draw.chance.happens(0.5),
        java_reports_cpu=draw.chance.happens(0.5),
    )


def mixed_fleet(draw: Draw) -> Plan:
    """Java workers and ours in one fleet: killed, stopped, paused, resharded; each kind leads in turn."""
    faults_s = 420.0
    plan = _plan(draw, faults_s=faults_s, bound_s=_RESHARD_BOUND_S)
    chance = draw.chance

    def disturbance() -> Event:
        kind = chance.random()
        if kind < 0.4:
            return Kill(draw.target(), chance.pick((0.5, 5.0, 40.0)), keeps_name=chance.happens(0.3))
        if kind < 0.7:
            return Stop(draw.target(), chance.uniform(0.0, 10.0))
        return Pause(draw.target(), chance.pick((5.0, 15.0, 45.0, 150.0)))

    return replace(
        plan,
        events=(
            *_arrivals(draw),
            *draw.some(disturbance, count=(2, 6), between_s=(_SETTLED_S, faults_s)),
            *reshards(draw, (0, 3), between_s=(_SETTLED_S, faults_s)),
        ),
    )


def mixed_fleet_later(draw: Draw) -> Plan:
    """Beside Java workers and ours a later version writes rows and attributes that nobody knows; all of them stay."""
    faults_s = 300.0
    plan = _plan(draw, faults_s=faults_s, bound_s=_RESHARD_BOUND_S)
    later = draw.some(AddRows, count=(1, 2), between_s=(30.0, 120.0))
    attributes = draw.some(AddAttribute, count=(0, 2), between_s=(_SETTLED_S, 250.0))
    # Always under new names: who takes the lock writes it anew, also over its own.
    leaving = draw.some(
        lambda: (
            Kill(draw.target(), draw.chance.pick((0.5, 10.0)))
            if draw.chance.happens(0.6)
            else Stop(draw.target(), 3.0)
        ),
        count=(1, 4),
        between_s=(130.0, faults_s),
    )
    changes = reshards(draw, (0, 2), between_s=(_SETTLED_S, faults_s))
    return replace(plan, events=(*_arrivals(draw), *later, *attributes, *leaving, *changes))


def mixed_fleet_troubled(draw: Draw) -> Plan:
    """The same kinds where DynamoDB throttles, is slow or does not answer, and some writes come late."""
    plan = _plan(draw, faults_s=300.0, bound_s=_HOLE_BOUND_S)
    chance = draw.chance
    worst = chance.pick((0.02, 0.06))
    trouble: Trouble = replace(
        mixed_trouble(chance, worst=worst), belated=chance.uniform(0.0, worst), unanswered=chance.uniform(0.0, worst)
    )  # fmt: skip
    kills = draw.some(lambda: draw.kill(0.5, 10.0), count=(0, 2), between_s=(_SETTLED_S, 200.0))
    return replace(plan, events=(*_arrivals(draw), *kills), dynamodb=trouble)
