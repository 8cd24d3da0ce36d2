"""Each value of each factor: it changes a plan, and says by what it is seen."""

from __future__ import annotations

import pytest

from tests.simulator.chance import Chance
from tests.simulator.pairs.array import covering_array
from tests.simulator.pairs.factors import FACTORS
from tests.simulator.pairs.scenario import composed
from tests.simulator.plans.draws import Draw, Sizes


def test_values_of_a_factor_have_names_of_their_own() -> None:
    names = [factor.name for factor in FACTORS]
    assert len(set(names)) == len(names)
    for factor in FACTORS:
        values = [value.name for value in factor.values]
        assert len(set(values)) == len(values) >= 2, factor.name


@pytest.mark.parametrize("number", range(0, 70, 7))
def test_a_row_and_a_seed_make_the_same_plan_again(number: int) -> None:
    row = covering_array().rows[number]
    first, second = (composed(Draw(Chance("plan"), Sizes(), number), row) for _ in range(2))
    assert (first.events, first.points, first.failures) == (
        second.events,
        second.points,
        second.failures,
    )


def test_the_plan_of_a_row_has_what_its_values_say() -> None:
    wanted = {("source", "snapshot"), ("lanes", "remembered")}
    row = next(row for row in covering_array().rows if wanted <= set(row))
    plan = composed(Draw(Chance("plan"), Sizes()), row)
    assert plan.changes is not None
    assert plan.changes.snapshot
    assert plan.concurrency.remembers
