"""How fast the simulator is: ten minutes of a fleet in seconds, or nobody runs thousands of seeds."""

from __future__ import annotations

import time  # CPU time, which is the thing measured
from dataclasses import replace

from tests.simulator.draws import Sizes
from tests.simulator.runner import run_plan
from tests.simulator.scenarios import draw_plan

# Ten workers and forty shards for ten minutes take about that much CPU on a machine of today. Reading empty shards,
# keeping leases and leading cost two thirds of it; each record more a second costs about 0.2 s more.
TYPICAL_S = 3.0
# Shared machines were seen to take six times as long for the same work; the number of callbacks tells of mistakes first.
SLACK = 10.0
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
    began_s = time.process_time()
    outcome = run_plan(plan, scenario="steady", seed=1)
    cpu_s = time.process_time() - began_s
    print(  # noqa: T201 - the figure, for people who run this with -s
        f"{outcome.virtual_s:.0f} virtual seconds, {outcome.records} records: "
        f"{cpu_s:.1f} CPU seconds, {outcome.callbacks} callbacks"
    )
    assert outcome.violation is None
    assert outcome.virtual_s > 600.0
    assert outcome.callbacks < CALLBACKS_MOST
    assert cpu_s < TYPICAL_S * SLACK
