"""A leader that wants what cannot be is noticed by the rules of capacity."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcl_daemon.capacity.figures import Capacity, capacity_text
from kcl_daemon.fleet import capacity_watch
from tests.simulator.faults.behaviour import Behaviour, ChildrenPlan
from tests.simulator.plans.plan import Kill, Plan, Planned, Start, Who
from tests.simulator.runner import Outcome, run_plan


def outcome() -> Outcome:
    """Two workers and three shards; the leader dies."""
    plan = Plan(
        shards=3,
        records_per_s=4.0,
        events=(Planned(0.0, Start()), Planned(5.0, Start()), Planned(80.0, Kill(Who.LEADER, 1.0))),
        calm_at_s=120.0,
        ends_at_s=160.0,
        bound_s=60.0,
        children_plan=ChildrenPlan(behaviour=Behaviour()),
    )
    return run_plan(plan, scenario="sabotage of capacity", seed=1)


def violation() -> str | None:
    found = outcome().violation
    return None if found is None else found.name


def test_capacity_rows_of_all_leaders_are_right() -> None:
    assert violation() is None


@pytest.mark.parametrize("wanted", [0, 4])
def test_a_leader_that_wants_too_few_or_too_many_is_noticed(
    wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(capacity: Capacity) -> str:
        return capacity_text(replace(capacity, wanted=wanted))

    monkeypatch.setattr(capacity_watch, "capacity_text", wrong)
    assert violation() == "wanted_out_of_bounds"


def test_a_worker_that_says_too_much_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity_watch, "load_text", lambda _: "x" * 5_000)
    assert violation() == "load_too_long"
