"""Meters for the tests of metrics: real ones, and what they came to."""

from __future__ import annotations

from collections.abc import Sequence

from kcl_daemon.metrics.metric import Family, Metric, MetricLevel
from kcl_daemon.ports import Statistic
from kcl_daemon.telemetry.cloudwatch import CloudWatchOptions, StatisticSets
from kcl_daemon.telemetry.prometheus import Histogram, Totals
from kcl_daemon.telemetry.recorder import MetricsRecorder
from tests.unit.fakes import LoopClock

WORKER = "w-1"


class Gathered:
    """A recorder with everything that it fills."""

    def __init__(
        self,
        *,
        level: MetricLevel | None = MetricLevel.DETAILED,
        dimensions: Sequence[str] | None = None,
        queue_most: int = 10_000,
    ) -> None:
        shown = None if dimensions is None else frozenset(dimensions)
        self.statistics = StatisticSets(CloudWatchOptions(level, shown, WORKER, queue_most))
        self.totals = Totals()
        self.meters = MetricsRecorder(LoopClock().monotonic, self.statistics, self.totals)

    def value(self, what: Metric | Family, **labels: str) -> float | None:
        """The series of these labels; of a histogram how many values it has."""
        family = what.family if isinstance(what, Metric) else what
        fixed = what.fixed if isinstance(what, Metric) else ()
        for found, series in self.totals.families():
            if found is family:
                total = dict(series).get((*fixed, *labels.items()))
                if total is None:
                    return None
                return sum(total.counts) if isinstance(total, Histogram) else total.value
        return None

    def take(self) -> dict[str, Statistic]:
        """What waits for CloudWatch, by name."""
        return {each.name: each for each in self.statistics.take(10_000)}


class MemoryCloudWatch:
    """The port as a list of calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[Statistic]]] = []

    async def put(self, namespace: str, statistics: Sequence[Statistic]) -> None:
        self.calls.append((namespace, list(statistics)))

    @property
    def reported(self) -> list[Statistic]:
        return [each for _, statistics in self.calls for each in statistics]
