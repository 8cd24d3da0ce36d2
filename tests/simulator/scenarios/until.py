"""Jobs that end (`runUntil`): their scenario, and what must be so when one has ended.

Owns the rules. The course of such a run is in `runner`: jobs follow each other while records never stop coming.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from kcl_daemon.config.children import ConcurrencySettings, LaneCounts
from kcl_daemon.config.retrieval import RetrievalMode
from kcl_protocol.messages import Record
from tests.simulator.clock import EPOCH_S
from tests.simulator.plans.draws import (
    Draw,
    bad_children,
    mixed_trouble,
    reshards,
    with_aggregates,
)
from tests.simulator.plans.plan import Event, Pause, Plan, Stop
from tests.simulator.rules.truth import Truth
from tests.simulator.violation import report

_FAULTS_S: Final = 120.0


@dataclass(slots=True)
class UntilRules:
    """Of one job: records from `upper_s` on are nobody's, those before `lower_s` are everybody's (virtual seconds).

    Both are the same where the bound is a time; of a job to the tip they depend on when its workers started.
    """

    lower_s: float
    upper_s: float

    def delivered(self, records: Sequence[Record]) -> None:
        """A child was given these."""
        for record in records:
            arrived_ms = record.approximate_arrival_timestamp or 0
            if arrived_ms / 1000 >= EPOCH_S + self.upper_s:
                late_s = arrived_ms / 1000 - EPOCH_S - self.upper_s
                report("beyond_bound", f"{record.sequence_number} arrived {late_s:.3f} s after the bound")

    def ended(self, truth: Truth) -> None:
        """All workers have ended by themselves."""
        for shard in truth.wanted:
            for place, written_s in enumerate(shard.written_at_s):
                is_given = shard.deliveries[place] or place in shard.left_out
                if written_s < self.lower_s - 0.001 and not is_given:
                    number = shard.positions[place]
                    report(
                        "before_bound_missing",
                        f"{shard.shard_id}: {number} of {written_s:.3f} s was never delivered",
                    )


def until(draw: Draw) -> Plan:
    """Jobs that end at a time or at the tip, one after the other, while records come, workers die and shards split."""
    chance = draw.chance
    plan = with_aggregates(draw, draw.plan(faults_s=_FAULTS_S, bound_s=150.0, shards=(1, 6)))

    def trouble() -> Event:
        pause = Pause(draw.target(), chance.pick((2.0, 15.0, 45.0)))
        kinds: tuple[Event, ...] = (draw.kill(1.0, 5.0, None), Stop(draw.target(), 3.0), pause)
        return chance.pick(kinds)

    lanes = LaneCounts(chance.pick((1, 1, 3)))
    return replace(
        plan,
        events=(*reshards(draw, (0, 4)), *draw.some(trouble, count=(0, 4), between_s=(2.0, _FAULTS_S))),
        retrieval=replace(
            plan.retrieval,
            mode=chance.pick((RetrievalMode.POLLING, RetrievalMode.POLLING, RetrievalMode.FANOUT)),
        ),
        jobs=tuple(
            chance.pick((None, chance.uniform(-20.0, 5.0), chance.uniform(5.0, 60.0)))
            for _ in range(chance.between(2, 3))
        ),
        job_workers=draw.workers(1, 3),
        concurrency=ConcurrencySettings(lanes=lanes),
        streams=chance.pick(((), (), (), ("one", "two"))),
        dynamodb=mixed_trouble(chance, worst=0.04),
        kinesis=mixed_trouble(chance, worst=0.04),
        children_plan=bad_children(chance, worst=0.01),
        child_timeout_s=20.0,
    )
