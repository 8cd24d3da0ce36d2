"""What has come together since CloudWatch was last told: statistic sets (KCL: MetricAccumulatingQueue).

Pure. Owns level, dimensions and the bound of the queue. Knows neither the loop that empties it nor the service.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from kcl_daemon.metrics.metric import Level, Metric, Unit
from kcl_daemon.ports_metrics import Statistic

_NAMES: Final = {"shard_id": "ShardId", "stream": "StreamId"}
_Key: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]


def _nobody_waits() -> None:
    """The default of `on_many`."""


@dataclass(frozen=True, slots=True)
class Telling:
    """What is told to CloudWatch.

    Args:
        level: figures below it are not; None: none are.
        dimensions: names that figures are told apart by; None: all.
        worker_id: of this worker.
        queue_most: sets that wait at most; what comes beyond is dropped and counted.
    """

    level: Level | None
    dimensions: frozenset[str] | None
    worker_id: str
    queue_most: int = 10_000


class Window:
    """One statistic set that gathers."""

    __slots__ = ("_owner", "_scale", "count", "key", "least", "most", "total", "unit")

    def __init__(self, owner: StatisticSets, key: _Key, unit: Unit) -> None:
        self._owner = owner
        self._scale = 1000.0 if unit is Unit.SECONDS else 1.0
        self.key = key
        self.unit = unit
        self.count = 0
        self.total = self.least = self.most = 0.0

    def add(self, value: float) -> None:
        """One value, in the metric's unit."""
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
        """The set; the next value begins a new one."""
        taken = Statistic(
            self.key[0], self.unit.value, dict(self.key[1]), self.count, self.total, self.least, self.most
        )
        self.count, self.total = 0, 0.0
        return taken


class StatisticSets:
    """The queue.

    Args:
        telling: what is told.

    Attributes:
        on_many: called when half the queue is full.
        dropped: values that found the queue full, since the last `take`.
    """

    def __init__(self, telling: Telling) -> None:
        self._telling = telling
        self.on_many: Callable[[], None] = _nobody_waits
        self._windows: dict[_Key, Window] = {}
        self._waiting: deque[Window] = deque()
        self._many = max(1, telling.queue_most // 2)
        self.dropped = 0

    def window(self, metric: Metric, labels: Iterable[tuple[str, str]]) -> Window | None:
        """Where the values of a metric gather; None: CloudWatch is not told. Same dimensions, same window."""
        level = self._telling.level
        if level is None or not metric.operation or metric.level < level:
            return None
        given = {_NAMES[name]: value for name, value in labels if name in _NAMES}
        given |= {"Operation": metric.operation, "WorkerIdentifier": self._telling.worker_id}
        shown = self._telling.dimensions
        dimensions = tuple(
            (name, given[name])
            for name in metric.dimensions
            if name in given and (shown is None or name in shown)
        )
        key = (metric.name, dimensions)
        found = self._windows.get(key)
        if found is None:
            found = self._windows[key] = Window(self, key, metric.unit)
        return found

    def enter(self, window: Window) -> bool:
        """A window has its first value; False where the queue is full."""
        if len(self._waiting) >= self._telling.queue_most:
            self.dropped += 1
            return False
        self._waiting.append(window)
        if len(self._waiting) == self._many:
            self.on_many()
        return True

    @property
    def waiting(self) -> int:
        """Sets that wait."""
        return len(self._waiting)

    def take(self, most: int) -> list[Statistic]:
        """The oldest sets, as many as that at most; they wait no more."""
        return [self._waiting.popleft().take() for _ in range(min(most, len(self._waiting)))]

    def forget(self) -> None:
        """Drop windows that are empty: those of shards that went would stay for ever otherwise."""
        waiting = set(map(id, self._waiting))
        self._windows = {key: window for key, window in self._windows.items() if id(window) in waiting}
