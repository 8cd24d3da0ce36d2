"""Several children for one shard: what a worker's death costs."""

from __future__ import annotations

from kcl_daemon.config.children import ConcurrencySettings, LaneCounts
from tests.simulator.faults.behaviour import Behaviour, ChildrenPlan, Mischief
from tests.simulator.plans.plan import Kill, Plan, Planned, Start
from tests.simulator.runner import run_plan


def repeats(*, remembers: bool) -> int:
    """How many records come twice where workers die while single children hang."""
    plan = Plan(
        shards=1,
        records_per_s=40.0,
        events=(
            *(Planned(at_s, Start()) for at_s in (0.0, 30.0, 60.0, 90.0)),
            *(Planned(at_s, Kill(number, None)) for number, at_s in enumerate((45.0, 75.0, 105.0))),
        ),
        calm_at_s=150.0,
        ends_at_s=300.0,
        bound_s=120.0,
        children_plan=ChildrenPlan(
            behaviour=Behaviour(process_s=(0.01, 0.1)), mischief={Mischief.HANG: 0.005}
        ),
        child_timeout_s=20.0,
        concurrency=ConcurrencySettings(lanes=LaneCounts(8), remembers=remembers),
        keys=1000,
    )
    outcome = run_plan(plan, scenario="lanes", seed=1)
    assert outcome.violation is None
    return outcome.repeats


def test_remembered_positions_of_lanes_halve_the_repeats_after_a_workers_death() -> None:
    assert repeats(remembers=True) < repeats(remembers=False) / 2
