"""Scenarios where only some records are for the children, or records are gathered; what a filter means, worked out once more.

Owns the filters that are drawn. Knows nothing of the daemon's language of patterns but how to write these few.
"""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import dataclass, replace
from typing import Final

from kcl_daemon.config.children import ConcurrencySettings, FailureSettings, LaneCounts
from kcl_daemon.config.retrieval import RetrievalMode
from kcl_daemon.records.record_filter import RecordFilter
from tests.simulator.faults.behaviour import Behaviour, ChildrenPlan, When
from tests.simulator.plans.draws import (
    Draw,
    bad_children,
    mixed_trouble,
    reshards,
    with_aggregates,
)
from tests.simulator.plans.plan import Pause, Plan, Stop
from tests.simulator.scenarios.lanes import with_lanes
from tests.simulator.scenarios.poison import DEAD_LETTERS

_KEYS: Final = 9
_DIGITS: Final = "0123456789"


@dataclass(frozen=True, slots=True)
class Kept:
    """Which records are for the children: of these keys, and whose text ends with one of these digits.

    Args:
        keys: names; none: of any key.
        digits: the last one of the text.
        but: all texts that do not end so.
    """

    keys: tuple[str, ...] = ()
    digits: str = _DIGITS
    but: bool = False

    def __call__(self, key: str | None, data: str) -> bool:
        """Whether a record is for the children; `data` in base64. What is no text is not."""
        try:
            text = b64decode(data).decode()
        except UnicodeDecodeError:
            return False
        return text.endswith(tuple(self.digits)) is not self.but and (not self.keys or key in self.keys)

    @property
    def pattern(self) -> str:
        """The same as a pattern."""
        suffix: list[object] = [{"suffix": digit} for digit in self.digits] or ["never"]
        fields: dict[str, object] = {"data": suffix}
        if self.but:
            fields = {"data": [{"anything-but": {"suffix": list(self.digits)}}]}
        return json.dumps({**fields, "partitionKey": list(self.keys)} if self.keys else fields)


@dataclass(frozen=True, slots=True)
class KeptKeys:
    """Records of these keys are for the children, whatever their data are."""

    keys: tuple[str, ...]

    def __call__(self, key: str | None, _data: str) -> bool:
        """Whether a record is for the children."""
        return key in self.keys

    @property
    def pattern(self) -> str:
        """The same as a pattern."""
        return json.dumps({"partitionKey": list(self.keys)})


def filtered(draw: Draw) -> Plan:
    """Some records are for nobody: children get only the others, and the checkpoint of a quiet shard does not grow old."""
    chance = draw.chance
    plan = with_aggregates(draw, draw.plan(faults_s=150.0, bound_s=130.0, shards=(1, 5)))
    kept = chance.pick(
        (
            Kept(digits=chance.pick(("3", "07", "13579"))),
            Kept(digits=chance.pick(("3", "07")), but=True),
            Kept(keys=("key-1", "key-5")),
            Kept(keys=("key-2",), digits="02468"),
            Kept(digits=""),
        )
    )
    events = [
        *draw.arrivals(draw.workers(1, 3)),
        *reshards(draw, (0, 3)),
        *draw.some(lambda: draw.kill(0.5, 5.0, 20.0), count=(0, 2), between_s=(5.0, 140.0)),
        *draw.some(lambda: Stop(draw.target(), chance.uniform(0.0, 5.0)), count=(0, 2), between_s=(5.0, 140.0)),
        *draw.some(lambda: Pause(draw.target(), chance.uniform(1.0, 40.0)), count=(0, 1), between_s=(5.0, 100.0)),
    ]  # fmt: skip
    behaviour = Behaviour(chance.pick(tuple(When)), explicit=chance.happens(0.5))
    return replace(
        plan,
        events=tuple(events),
        keeps=kept,
        delivery=replace(plan.delivery, record_filter=RecordFilter.of(kept.pattern)),
        keys=_KEYS,
        dynamodb=mixed_trouble(chance, worst=0.04),
        kinesis=mixed_trouble(chance, worst=0.04),
        children_plan=chance.pick((ChildrenPlan(behaviour=behaviour), bad_children(chance, worst=0.02))),
        retrieval=replace(
            plan.retrieval,
            mode=chance.pick((RetrievalMode.POLLING, RetrievalMode.POLLING, RetrievalMode.FANOUT)),
        ),
        concurrency=ConcurrencySettings(lanes=LaneCounts(chance.pick((1, 1, 1, 3)))),
        child_timeout_s=20.0,
    )


def windows(draw: Draw) -> Plan:
    """Batches of a size, with a filter now and then: what is gathered comes in time, before a stop and at the end of a shard."""
    chance = draw.chance
    plan = replace(filtered(draw), backlog=chance.pick((0, 300)))
    window_ms = chance.pick((None, 500, 5_000, 20_000))
    # A child takes up to seconds for a batch, whatever is in it.
    most_records = chance.pick((30, 100)) if window_ms is None else chance.pick((None, 30, 100))
    shaped = replace(
        plan.delivery,
        batch_window_ms=window_ms,
        batch_max_records=most_records,
        batch_max_bytes=chance.pick((None, 400, 2_000)),
    )
    if chance.happens(0.5):
        return replace(plan, delivery=shaped)
    return replace(plan, delivery=replace(shaped, record_filter=None), keeps=None)


def aged(draw: Draw) -> Plan:
    """Records that are too old become letters, and no others do: in batches of a size, with a filter, with lanes."""
    chance = draw.chance
    plan = windows(draw)
    if chance.happens(0.4):
        plan = with_lanes(draw, plan)
    return replace(
        plan,
        backlog=min(plan.backlog, 60),  # a letter takes up to half a second, one after the other
        failures=FailureSettings(
            dead_letters=DEAD_LETTERS.dead_letters, max_age_ms=chance.pick((8_000, 20_000, 40_000))
        ),
        # Another owner does not take a record for younger again.
        skew_s=0.0,
        drift=0.0,
    )
