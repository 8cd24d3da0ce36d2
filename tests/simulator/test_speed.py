"""How fast the simulator is: ten minutes of a fleet in seconds, or nobody runs thousands of seeds."""

from __future__ import annotations

from dataclasses import replace

from tests.reference_work import pieces_of
from tests.simulator.plans.draws import Sizes
from tests.simulator.plans.plan import Plan
from tests.simulator.runner import Outcome, run_plan
from tests.simulator.scenarios.all import draw_plan

# In pieces of reference work: 1,700 to 2,400 were seen. Reading empty shards, keeping leases and leading cost two thirds.
PIECES_MOST = 3_300
RECORDS_PER_S = 5.0
# What the loop runs is the same on every machine: 155,000 when this was written.
CALLBACKS_MOST = 175_000


def test_ten_minutes_of_ten_workers_and_forty_shards_take_seconds() -> None:
    plan = draw_plan("steady", 1, Sizes(workers=10, shards=40, seconds=600.0))
    plan = replace(
        plan,
        records_per_s=RECORDS_PER_S,
        retrieval=replace(plan.retrieval, idle_time_between_reads_ms=1_500),
    )
    outcome, pieces = measured(plan)
    print(  # noqa: T201 - the figure, for people who run this with -s
        f"{outcome.virtual_s:.0f} virtual seconds, {outcome.records} records: "
        f"{pieces:.0f} pieces of reference work, {outcome.callbacks} callbacks"
    )
    assert outcome.violation is None
    assert outcome.virtual_s > 600.0
    assert outcome.callbacks < CALLBACKS_MOST
    assert pieces < PIECES_MOST


def measured(plan: Plan) -> tuple[Outcome, float]:
    outcomes: list[Outcome] = []
    pieces = pieces_of(lambda: outcomes.append(run_plan(plan, scenario="steady", seed=1)))
    return outcomes[0], pieces
