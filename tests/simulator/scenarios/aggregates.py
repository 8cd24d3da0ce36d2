"""The scenario of KPL aggregates: checkpoints, deaths, cuts and filters in the middle of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kcl_daemon.config.retrieval import DeliverySettings, RetrievalMode, RetrievalSettings
from kcl_daemon.records.record_filter import RecordFilter
from tests.simulator.chance import Chance
from tests.simulator.faults.behaviour import Behaviour, ChildrenPlan, Mischief, When
from tests.simulator.faults.network import CALM
from tests.simulator.plans.draws import Draw, mixed_trouble, reshards, with_aggregates
from tests.simulator.plans.plan import Event, Plan, Scale, Stop
from tests.simulator.scenarios.filtered import Kept
from tests.simulator.scenarios.lanes import with_lanes

_WHENS: Final = (When.MIDDLE_OF_BATCH, When.TWICE_A_BATCH, When.EACH_BATCH, When.EVERY_NTH)


def aggregates(draw: Draw) -> Plan:
    """Children checkpoint in the middle of aggregates and die there, workers die and stop, shards split, merge and double."""
    chance = draw.chance
    plan = draw.plan(faults_s=150.0, bound_s=130.0, shards=(1, 4))

    def leaving() -> Event:
        return draw.kill(0.5, 5.0, 20.0) if chance.happens(0.6) else Stop(draw.target(), 3.0)

    plan = with_aggregates(draw, _shaped(chance, plan), seeds=1.0)
    plan = with_lanes(draw, plan) if chance.happens(0.4) else plan
    if chance.happens(0.25):
        assert plan.aggregates is not None
        plan = replace(
            plan, chooses_shards=True, aggregates=replace(plan.aggregates, keyless=chance.pick((0.0, 0.5)))
        )
    trouble = chance.happens(0.6)
    return replace(
        plan,
        events=(
            *draw.arrivals(draw.workers(1, 3)),
            *reshards(draw, (0, 2)),
            *draw.some(lambda: Scale(chance.happens(0.6)), count=(0, 2), between_s=(20.0, 140.0)),
            *draw.some(leaving, count=(0, 4), between_s=(5.0, 140.0)),
        ),
        backlog=min(plan.backlog, 300),  # small batches of slow children take their time
        keys=chance.pick((3, 50, 1 << 40)),
        dynamodb=mixed_trouble(chance, worst=0.04),
        kinesis=mixed_trouble(chance, worst=0.04) if trouble else CALM,
        children_plan=ChildrenPlan(
            behaviour=Behaviour(
                chance.pick(_WHENS),
                explicit=chance.happens(0.5),
                process_s=chance.pick(((0.005, 0.1), (0.1, 1.0))),
                takes_frames=chance.happens(0.5),
            ),
            mischief={Mischief.EXIT_INSIDE: chance.pick((0.02, 0.1)), Mischief.EXIT: 0.01},
        ),
    )  # fmt: skip


def _shaped(chance: Chance, plan: Plan) -> Plan:
    """With a filter, and with batches of a size, now and then."""
    kept = Kept(digits=chance.pick(("3", "07", "13579")), but=chance.happens(0.5))
    is_filtered, is_cut = chance.happens(0.4), chance.happens(0.5)
    return replace(
        plan,
        keeps=kept if is_filtered else None,
        delivery=DeliverySettings(
            record_filter=RecordFilter.of(kept.pattern) if is_filtered else None,
            batch_window_ms=chance.pick((None, 500, 5_000)) if is_cut else None,
            batch_max_records=chance.pick((7, 30)) if is_cut else None,
        ),
        retrieval=RetrievalSettings(
            max_records=chance.pick((10_000, 500, 20)),
            idle_time_between_reads_ms=chance.pick((1_500, 250)),
            mode=chance.pick((RetrievalMode.POLLING, RetrievalMode.POLLING, RetrievalMode.FANOUT)),
        ),
    )
