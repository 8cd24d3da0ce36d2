"""Collects statistic sets and sends or drops them (KCL: CloudWatchPublisherRunnable, MetricAccumulatingQueue)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import anyio

from kcl_daemon.errors import AwsError, Unavailable
from kcl_daemon.metrics.metric import Metric, MetricLevel, MetricUnit
from kcl_daemon.metrics.own import CLOUDWATCH_LOST
from kcl_daemon.ports import Clock, CloudWatch, Log, Meters, Statistic

_NAMES: Final = {"shard_id": "ShardId", "stream": "StreamId"}
_Key: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]
MAX_BATCH: Final = 500
"""CloudWatch allows 1,000; KCL sends 20."""
CALL_S: Final = 5.0
"""KCL: CloudWatchMetricsPublisher."""
# A pause even under load; KCL has none.
_LEAST_PAUSE_S: Final = 1.0
_FINAL_FLUSH_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class CloudWatchOptions:
    """`level` None sends no metrics; `dimensions` None allows all."""

    level: MetricLevel | None
    dimensions: frozenset[str] | None
    worker_id: str
    queue_most: int = 10_000


class StatisticWindow:
    __slots__ = ("_dimensions", "_owner", "_scale", "count", "key", "least", "most", "total", "unit")

    def __init__(self, owner: StatisticSets, key: _Key, unit: MetricUnit) -> None:
        self._owner = owner
        self._scale = 1000.0 if unit is MetricUnit.SECONDS else 1.0
        self.key = key
        self._dimensions = dict(key[1])
        self.unit = unit
        self.count = 0
        self.total = self.least = self.most = 0.0

    def add(self, value: float) -> None:
        value *= self._scale
        if self.count:
            if value < self.least:
                self.least = value
            elif value > self.most:
                self.most = value
        else:
            if not self._owner.enter(self):
                return
            self.least = self.most = value
        self.count += 1
        self.total += value

    def take(self) -> Statistic:
        """The next value starts a new set."""
        taken = Statistic(
            self.key[0], self.unit.value, self._dimensions, self.count, self.total, self.least, self.most
        )
        self.count, self.total = 0, 0.0
        return taken


class StatisticSets:
    """`dropped` counts values since the last `take` that a full queue refused."""

    def __init__(self, options: CloudWatchOptions) -> None:
        self._options = options
        self.on_half_full: Callable[[], None] | None = None
        self._windows: dict[_Key, StatisticWindow] = {}
        self._waiting: deque[StatisticWindow] = deque()
        self._many = max(1, options.queue_most // 2)
        self.dropped = 0

    def window(self, metric: Metric, labels: Iterable[tuple[str, str]]) -> StatisticWindow | None:
        """None if the metric is not sent."""
        level = self._options.level
        if level is None or not metric.operation or metric.level < level:
            return None
        given = {_NAMES[name]: value for name, value in labels if name in _NAMES}
        given |= {"Operation": metric.operation, "WorkerIdentifier": self._options.worker_id}
        shown = self._options.dimensions
        dimensions = tuple(
            (name, given[name])
            for name in metric.dimensions
            if name in given and (shown is None or name in shown)
        )
        key = (metric.name, dimensions)
        found = self._windows.get(key)
        if found is None:
            found = self._windows[key] = StatisticWindow(self, key, metric.unit)
        return found

    def enter(self, window: StatisticWindow) -> bool:
        """False if the queue is full."""
        if len(self._waiting) >= self._options.queue_most:
            self.dropped += 1
            return False
        self._waiting.append(window)
        if len(self._waiting) == self._many and self.on_half_full is not None:
            self.on_half_full()
        return True

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def take(self, most: int) -> list[Statistic]:
        return [self._waiting.popleft().take() for _ in range(min(most, len(self._waiting)))]

    def forget(self) -> None:
        """Or windows of released shards would stay forever."""
        waiting = set(map(id, self._waiting))
        self._windows = {key: window for key, window in self._windows.items() if id(window) in waiting}


class CloudWatchExporter:
    """Flushes every `buffer_s` seconds, or when the queue is half full."""

    def __init__(
        self,
        statistics: StatisticSets,
        *,
        cloudwatch: CloudWatch,
        namespace: str,
        buffer_s: float,
        meters: Meters,
        clock: Clock,
        log: Log,
    ) -> None:
        self._statistics = statistics
        self._cloudwatch = cloudwatch
        self._namespace = namespace
        self._buffer_s = buffer_s
        self._meters = meters
        self._clock = clock
        self._log = log
        self._many = anyio.Event()
        self._options = anyio.Lock()
        self._is_over = False
        self._failures = 0
        statistics.on_half_full = self.flush_soon

    def flush_soon(self) -> None:
        self._many.set()

    async def run(self) -> None:
        least_s = min(_LEAST_PAUSE_S, self._buffer_s)
        while True:
            await self._clock.sleep(least_s)
            with self._clock.move_on_after(self._buffer_s - least_s):
                await self._many.wait()
            self._many = anyio.Event()
            if self._is_over:
                return
            await self.flush()

    async def shutdown(self) -> None:
        """Send the rest within a few seconds, even when cancelled; call it while `run` still runs."""
        self._is_over = True
        with self._clock.move_on_after(_FINAL_FLUSH_S) as scope:
            scope.shield = True
            await self.flush()

    async def flush(self) -> None:
        """Waits for a flush in progress; never raises for AWS."""
        async with self._options:
            await self._flush()

    async def _flush(self) -> None:
        dropped, self._statistics.dropped = self._statistics.dropped, 0
        if dropped:
            self._meters.add(CLOUDWATCH_LOST, dropped)
            self._log.warning(
                "metrics_dropped",
                count=dropped,
                advice="more metrics than metricsMaxQueueSize; raise it, or send fewer with metricsLevel or "
                "metricsEnabledDimensions",
            )
        left = self._statistics.waiting
        while batch := self._statistics.take(min(MAX_BATCH, left)):
            left -= len(batch)
            await self._report(batch)

    async def _report(self, batch: Sequence[Statistic]) -> None:
        try:
            with self._clock.move_on_after(CALL_S):
                await self._cloudwatch.put(self._namespace, batch)
                self._reported()
                return
            raise Unavailable(f"no answer within {CALL_S:g} s", operation="PutMetricData")
        except AwsError as error:
            self._failed(error, len(batch))

    def _reported(self) -> None:
        if self._failures:
            self._log.info("metrics_sent_again", failures=self._failures)
        self._failures = 0

    def _failed(self, error: AwsError, count: int) -> None:
        self._failures += 1
        self._meters.add(CLOUDWATCH_LOST, count)
        report = self._log.warning if self._failures == 1 else self._log.debug
        report(
            "metrics_not_sent",
            error=str(error),
            count=count,
            advice="grant cloudwatch:PutMetricData, or set metricsLevel=NONE; these metrics are lost, records "
            "are still processed",
        )
