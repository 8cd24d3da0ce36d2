"""Capabilities in pairs that the scenarios do not have: that the rules of one know what the other does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kcl_daemon.config.retrieval import DeliverySettings
from kcl_daemon.records.forms import ShardOrder
from kcl_daemon.records.record_filter import RecordFilter
from tests.simulator.chance import Chance
from tests.simulator.plans.draws import Draw, Sizes
from tests.simulator.plans.plan import Plan
from tests.simulator.runner import run_plan
from tests.simulator.scenarios.all import SCENARIOS
from tests.simulator.scenarios.filtered import Kept
from tests.simulator.scenarios.lanes import with_lanes

NAMES = ("stream-0", "stream-1", "stream-2")
ODD = Kept(digits="13579")


def of_many_streams(plan: Plan) -> Plan:
    return replace(plan, streams=NAMES, shards=2)


def with_filter(plan: Plan) -> Plan:
    return replace(plan, keeps=ODD, delivery=DeliverySettings(record_filter=RecordFilter.of(ODD.pattern)))


def in_order(plan: Plan) -> Plan:
    """The copy of a table is the table only if each item keeps its lane."""
    return replace(plan, concurrency=replace(plan.concurrency, order=ShardOrder.KEY))


PAIRS: dict[str, Callable[[Draw], Plan]] = {
    "rejects of many streams": lambda draw: of_many_streams(SCENARIOS["rejects"](draw)),
    "poison of many streams": lambda draw: of_many_streams(SCENARIOS["poison_records"](draw)),
    "a bounded run with a filter": lambda draw: with_filter(SCENARIOS["until"](draw)),
    "lanes after a Java fleet": lambda draw: with_lanes(draw, SCENARIOS["foreign_epochs"](draw)),
    "lanes of a snapshot": lambda draw: in_order(with_lanes(draw, SCENARIOS["dynamodb_snapshot"](draw))),
}


def drawn(pair: str, seed: int) -> Plan:
    return PAIRS[pair](Draw(Chance(f"{pair}/{seed}/plan"), Sizes()))


# In seed 7 a lane waits for a letter to be stored while the lane that was slow before has nothing to do.
@pytest.mark.parametrize(("pair", "seed"), [*((pair, 1) for pair in PAIRS), ("rejects of many streams", 7)])
def test_a_pair_ends_without_a_violation(pair: str, seed: int) -> None:
    outcome = run_plan(drawn(pair, seed), scenario=pair, seed=seed)
    assert outcome.violation is None
    assert outcome.checkpoints > 0
