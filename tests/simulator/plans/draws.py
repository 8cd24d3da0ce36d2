"""What scenarios draw from chance: sizes, load, moments, and the kinds of trouble.

Owns the ranges. Knows nothing of which scenario wants what (`scenarios`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from kcl_daemon.config.retrieval import RetrievalSettings
from kcl_local.kinesis.arguments import KinesisOptions, ReadLimits
from tests.simulator.chance import Chance
from tests.simulator.faults.behaviour import EVERY_MISCHIEF, ChildrenPlan, Mischief
from tests.simulator.faults.life import Service
from tests.simulator.faults.network import Trouble
from tests.simulator.fleet.aggregates import AggregatesPlan
from tests.simulator.plans.plan import (
    BOUND_S,
    CutOff,
    Event,
    Kill,
    Merge,
    Plan,
    Planned,
    Split,
    Start,
    Target,
    Who,
)

_RARE_READS_MS: Final = 8_000
_FEW_RECORDS: Final = 1_000


@dataclass(frozen=True, slots=True)
class Sizes:
    """What a person may set instead of chance.

    Args:
        workers: that start with the run.
        shards: of the stream at its start.
        seconds: how long producers write.
    """

    workers: int | None = None
    shards: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Draw:
    """Chance and sizes for one plan; `seed`: from which chance is drawn."""

    chance: Chance
    sizes: Sizes
    seed: int = 0

    def workers(self, low: int, high: int) -> int:
        """How many workers start with the run."""
        drawn = self.chance.between(low, high)
        return self.sizes.workers or drawn

    def plan(self, *, faults_s: float, bound_s: float = BOUND_S, shards: tuple[int, int] = (1, 10)) -> Plan:
        """A plan without faults: load, calm after `faults_s`, time enough to see that all is well afterwards."""
        chance = self.chance
        drawn_shards = self.sizes.shards or chance.between(*shards)
        ends_at_s = faults_s + bound_s + chance.uniform(20.0, 60.0)
        return Plan(
            shards=drawn_shards,
            records_per_s=drawn_shards * chance.uniform(0.2, 1.5),
            backlog=chance.pick((0, 0, 200, 3000)),
            events=(),
            calm_at_s=faults_s,
            ends_at_s=max(ends_at_s, self.sizes.seconds or 0.0),
            # Most of what comes when all is well would be the same.
            ends_early=self.sizes.seconds is None and chance.fork("ends").happens(0.8),
            bound_s=bound_s,
            retrieval=RetrievalSettings(
                max_records=chance.pick((10_000, 10_000, 500, 150)),
                idle_time_between_reads_ms=chance.fork("pace").pick(
                    (pause_ms := chance.pick((1_500, 1_500, 250)), pause_ms, pause_ms, None)
                ),
                prefetch_batches=chance.pick((4, 4, 1)),
            ),
            calls_for_empty=chance.happens(0.1),
            skew_s=chance.pick((0.0, 2.0)),
            drift=chance.pick((0.0, 1e-4)),
        )

    def long_plan(self, *, faults_s: float, bound_s: float, shards: tuple[int, int]) -> Plan:
        """A plan for half an hour and more, with rare reads and few records: they would cost most of the time."""
        plan = self.plan(faults_s=faults_s, bound_s=bound_s, shards=shards)
        return replace(
            plan,
            records_per_s=min(plan.records_per_s, _FEW_RECORDS / plan.ends_at_s),
            retrieval=replace(plan.retrieval, idle_time_between_reads_ms=_RARE_READS_MS),
        )

    def kill(self, *pauses_s: float | None) -> Kill:
        """SIGKILL for some worker; a replacement after one of these pauses, now and then under the same name."""
        chance = self.chance
        return Kill(self.target(), chance.pick(pauses_s), keeps_name=chance.happens(0.3))

    def arrivals(self, workers: int, within_s: float = 20.0) -> list[Planned]:
        """Workers that start with the run or a little later."""
        together = self.chance.happens(0.5)
        return [
            Planned(0.0 if together or first == 0 else self.chance.uniform(0.0, within_s), Start())
            for first in range(workers)
        ]

    def target(self) -> Target:
        """Some worker; the leader as often as all others."""
        return Who.LEADER if self.chance.happens(0.5) else self.chance.between(0, 100)

    def some(
        self, make: Callable[[], Event], *, count: tuple[int, int], between_s: tuple[float, float]
    ) -> list[Planned]:
        """A few events at drawn moments."""
        moments = sorted(self.chance.uniform(*between_s) for _ in range(self.chance.between(*count)))
        return [Planned(moment, make()) for moment in moments]


def with_aggregates(
    draw: Draw, plan: Plan, *, seeds: float = 0.4, may_stray: bool = True, are_of_kpl: bool = False
) -> Plan:
    """The plan with aggregates in its streams, for a part of the seeds; nothing else in it changes with that.

    Args:
        may_stray: children may be without the records of other shards, and get them in doubt; a landing log has all or none.
        are_of_kpl: there are no such records, and nothing that the KPL would not write.
    """
    chance = draw.chance.fork("aggregates")
    if not chance.happens(seeds):
        return plan
    strays = 0.0 if are_of_kpl else chance.pick((0.0, 0.1, 0.5))
    keeps = chance.happens(0.5) if may_stray else True
    return replace(
        plan,
        aggregates=AggregatesPlan(
            share=chance.pick((0.1, 0.5, 1.0)),
            most=chance.pick((3, 12, 60)),
            explicit=chance.pick((0.0, 0.2, 1.0)),
            strays=strays,
            odd=0.0 if are_of_kpl else chance.pick((0.0, 0.1, 0.3)),
        ),
        delivery=replace(plan.delivery, keeps_other_shards=keeps),
    )


def mixed_trouble(chance: Chance, *, worst: float) -> Trouble:
    """A mixture of throttling, failures and slowness."""
    return Trouble(
        throttled=chance.uniform(0.0, worst),
        lost=chance.uniform(0.0, worst),
        unanswered=chance.uniform(0.0, worst / 2),
        slow=chance.uniform(0.0, worst / 2),
        latency_s=chance.pick(((0.002, 0.02), (0.02, 0.2), (0.1, 1.5))),
        slow_s=chance.pick(((0.5, 5.0), (1.0, 30.0))),
    )


def short_iterators(chance: Chance) -> KinesisOptions:
    """A stream that refuses reads above its limits, with iterators that do not live long."""
    return KinesisOptions(
        limits=chance.pick((None, ReadLimits())), iterator_ttl_s=chance.pick((300.0, 300.0, 20.0, 4.0))
    )


def bad_children(chance: Chance, *, worst: float = 0.04) -> ChildrenPlan:
    """Children of which some do some things wrong."""
    kinds = [kind for kind in EVERY_MISCHIEF if chance.happens(0.5)] or [Mischief.EXIT]
    return ChildrenPlan(
        mischief={kind: chance.uniform(0.0, worst) for kind in kinds},
        stubborn=chance.pick((0.0, 0.3)),
        start_fails=chance.pick((0.0, 0.2)),
    )


def cuts(draw: Draw, service: Service, count: tuple[int, int]) -> list[Planned]:
    """Some workers do not reach a service for a while."""
    return draw.some(
        lambda: CutOff(draw.target(), service, draw.chance.pick((3.0, 12.0, 40.0, 90.0))),
        count=count,
        between_s=(5.0, 120.0),
    )


def reshards(
    draw: Draw, count: tuple[int, int], *, between_s: tuple[float, float] = (5.0, 140.0)
) -> list[Planned]:
    """Splits and merges."""
    chance = draw.chance
    return draw.some(
        lambda: (Split if chance.happens(0.6) else Merge)(chance.between(0, 100)),
        count=count,
        between_s=between_s,
    )
