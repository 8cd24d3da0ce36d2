"""What AWS charges, by its list prices."""

from __future__ import annotations

from dataclasses import fields
from math import inf

import pytest

from kcl_prove.parts import BudgetReached, Usage
from kcl_prove.prices import PRICES, Budget, cost, cost_items, total
from tests.unit.prove.accounts import Clock


def test_everything_that_is_used_has_a_price() -> None:
    assert set(PRICES) == {each.name for each in fields(Usage)}


@pytest.mark.parametrize(
    ("usage", "dollars"),
    [
        (Usage(), 0.0),
        (Usage(shard_hours=10), 0.15),
        (Usage(put_units=1_000_000, dynamodb_writes=2_000_000), 1.264),
        (Usage(on_demand_stream_hours=1, on_demand_in_gb=1, on_demand_out_gb=2), 0.20),
        (Usage(fan_out_shard_hours=4, fan_out_gb=1, fis_action_minutes=3, dynamodb_reads=8_000_000), 1.373),
    ],
)
def test_dollars(usage: Usage, dollars: float) -> None:
    assert cost(usage) == pytest.approx(dollars)
    assert sum(item.dollars for item in cost_items(usage)) == pytest.approx(dollars)


def test_an_item_is_named_with_its_amount() -> None:
    (item,) = cost_items(Usage(put_units=500_000))
    assert (item.unit, item.amount) == ("million PUT units of 25 KB", 0.5)


def test_an_expense_above_the_budget_is_refused_and_not_counted() -> None:
    budget = Budget(0.3, Clock())
    budget.spend(Usage(shard_hours=10))
    with pytest.raises(BudgetReached, match=r"0\.45 dollars, above --most 0\.30; 0\.15 dollars are used"):
        budget.spend(Usage(shard_hours=20))
    assert budget.used == Usage(shard_hours=10)
    budget.spend(Usage(shard_hours=10))
    assert budget.used == total([Usage(shard_hours=20)])


def test_a_negative_expense_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        Budget(inf, Clock()).spend(Usage(shard_hours=-1))
