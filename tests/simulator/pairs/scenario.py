"""The scenarios of the covering array: a seed is a row, and chance for the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tests.simulator.faults.behaviour import Behaviour, ChildrenPlan, When
from tests.simulator.pairs.array import Row, row_of
from tests.simulator.pairs.factors import FACTORS
from tests.simulator.pairs.makes import Value
from tests.simulator.plans.draws import Draw
from tests.simulator.plans.plan import Plan

_FAULTS_S: Final = 110.0
_BOUND_S: Final = 130.0
_SHARDS: Final = (1, 4)


def pairs(draw: Draw) -> Plan:
    """One row of the array of all pairs of what bears on records: 300 seeds play each pair."""
    return composed(draw, row_of(draw.seed))


def triples(draw: Draw) -> Plan:
    """The same of all triples of what bears on positions."""
    return composed(draw, row_of(draw.seed, 3))


def values_of(row: Row) -> list[Value]:
    """In the order in which they change a plan; of factors that a row has not, the first."""
    chosen = dict(row)
    return [
        next(value for value in factor.values if value.name == chosen.get(factor.name, factor.values[0].name))
        for factor in FACTORS
    ]


def composed(draw: Draw, row: Row) -> Plan:
    """A plan that has all values of a row, and chance for the rest."""
    chance, values = draw.chance, values_of(row)
    faults_s = max(_FAULTS_S, *(value.lasts_s for value in values))
    bound_s = max(_BOUND_S, *(value.bound_s for value in values))
    plan = draw.plan(faults_s=faults_s, bound_s=bound_s, shards=_SHARDS)
    slowest_s = chance.pick((0.05, 0.3, 1.0))
    plan = replace(
        plan,
        events=tuple(draw.arrivals(draw.workers(1, 3))),
        ends_early=True,
        calls_for_empty=False,
        records_per_s=min(plan.records_per_s, 3.0),
        children_plan=ChildrenPlan(
            behaviour=Behaviour(When.EACH_BATCH, process_s=(slowest_s / 10, slowest_s))
        ),
        child_timeout_s=20.0,
    )
    for value in values:
        plan = value.change(draw, plan)
    return plan
