"""The `Meters` of a daemon: values go to CloudWatch, Prometheus and OTLP.

`CountedLog` counts warnings, errors and the events that have a metric.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import ModuleType, TracebackType
from typing import Final, Self, TypeAlias

from kcl_daemon.metrics import kcl, own
from kcl_daemon.metrics.metric import OPERATIONS, Family, Labels, Metric, MetricKind, Operation
from kcl_daemon.ports import Log, Meters
from kcl_daemon.telemetry.cloudwatch import StatisticSets
from kcl_daemon.telemetry.prometheus import Totals

_Add: TypeAlias = Callable[[float], object]


class RecordedSpan:
    __slots__ = ("_began_s", "_labels", "_ok", "_operation", "_recorder")

    def __init__(self, recorder: MetricsRecorder, operation: Operation, labels: dict[str, str]) -> None:
        self._recorder = recorder
        self._operation = operation
        self._labels = labels
        self._ok = True
        self._began_s = 0.0

    def __enter__(self) -> Self:
        self._began_s = self._recorder.now_s()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and not issubclass(kind, Exception):
            return  # cancelled: neither failed nor done
        seconds = self._recorder.now_s() - self._began_s
        self._recorder.done(self._operation, seconds, self._ok and kind is None, **self._labels)

    def failed(self) -> None:
        self._ok = False


class MetricsRecorder:
    def __init__(self, now_s: Callable[[], float], statistics: StatisticSets, totals: Totals) -> None:
        self.now_s = now_s
        self._statistics = statistics
        self._totals = totals
        self._adders: dict[object, tuple[_Add, ...]] = {}
        self._operations: dict[object, tuple[tuple[_Add, ...], tuple[_Add, ...]]] = {}

    def add(self, metric: Metric, value: float = 1.0, /, **labels: str) -> None:
        key = (metric, *labels.items()) if labels else metric
        adders = self._adders.get(key)
        if adders is None:
            adders = self._adders[key] = self._adders_of(metric, labels)
        for add in adders:
            add(value)

    def operation(self, operation: Operation, /, **labels: str) -> RecordedSpan:
        return RecordedSpan(self, operation, labels)

    def done(self, operation: Operation, seconds: float, ok: bool = True, /, **labels: str) -> None:
        key = (operation, ok, *labels.items())
        adders = self._operations.get(key)
        if adders is None:
            adders = self._operations[key] = self._operation_adders_of(operation, ok, labels)
        successes, times = adders
        for add in successes:
            add(1.0 if ok else 0.0)
        for add in times:
            add(seconds)

    def sweep(self) -> None:
        """Call it every minute."""
        self._statistics.forget()
        self._totals.sweep()
        self._adders.clear()
        self._operations.clear()

    def _adders_of(self, metric: Metric, labels: dict[str, str]) -> tuple[_Add, ...]:
        assert labels.keys() <= set(metric.labels), (
            f"{metric.name} has labels {metric.labels}, not {[*labels]}"
        )
        family = metric.family
        if family is None or family.from_snapshot:
            return self._windows(metric, labels)
        total = self._totals.series(family, (*metric.fixed, *labels.items()))
        return (*self._windows(metric, labels), total.add)

    def _operation_adders_of(
        self, operation: Operation, ok: bool, labels: dict[str, str]
    ) -> tuple[tuple[_Add, ...], tuple[_Add, ...]]:
        outcome = "success" if ok else "failure"
        named = (("operation", operation.name), ("step", operation.step), ("outcome", outcome))
        times = self._windows(operation.time, labels)
        return self._windows(operation.success, labels), (*times, self._totals.series(OPERATIONS, named).add)

    def _windows(self, metric: Metric | None, labels: dict[str, str]) -> tuple[_Add, ...]:
        """CloudWatch's window, if the metric is sent there."""
        window = None if metric is None else self._statistics.window(metric, labels.items())
        return () if window is None else (window.add,)


OF_EVENTS: Final[Mapping[str, Metric]] = {
    "shard_stalled": own.STALLS,
    "child_started": own.CHILDREN_STARTED,
    "child_failed": own.CHILDREN_FAILED,
    "consumer_crashed": own.CRASHES,
    "checkpoint_refused": own.REFUSED,
    "lease_row_malformed": own.MALFORMED_ROWS,
    "aggregate_malformed": own.MALFORMED_AGGREGATES,
    "position_trimmed": own.TRIMMED,
    "child_stray_output": own.STRAY_LINES,
    "record_skipped": own.SKIPPED,
    "record_set_aside": own.DEAD_LETTERS,
}
"""The metric of an event, at any level."""


class CountedLog:
    def __init__(self, log: Log, meters: Meters) -> None:
        self._log = log
        self._meters = meters

    def bind(self, **fields: object) -> CountedLog:
        return CountedLog(self._log.bind(**fields), self._meters)

    def debug(self, event: str, /, **fields: object) -> object:
        self._count(event)
        return self._log.debug(event, **fields)

    def info(self, event: str, /, **fields: object) -> object:
        self._count(event)
        return self._log.info(event, **fields)

    def warning(self, event: str, /, **fields: object) -> object:
        self._count(event)
        self._meters.add(own.EVENTS, level="warning", event=event)
        return self._log.warning(event, **fields)

    def error(self, event: str, /, **fields: object) -> object:
        self._count(event)
        self._meters.add(own.EVENTS, level="error", event=event)
        return self._log.error(event, **fields)

    def _count(self, event: str) -> None:
        metric = OF_EVENTS.get(event)
        if metric is not None:
            self._meters.add(metric)


def _metrics(module: ModuleType) -> Iterator[Metric]:
    for name, value in vars(module).items():
        if name.startswith("_"):
            continue
        for each in value.values() if isinstance(value, dict) else (value,):
            if isinstance(each, Metric):
                yield each
            elif isinstance(each, Operation):
                yield from (part for part in (each.success, each.time) if part is not None)


CLOUDWATCH_METRICS: Final[tuple[Metric, ...]] = tuple(_metrics(kcl))

OWN: Final[tuple[Metric, ...]] = tuple(_metrics(own))


def _known_counts() -> Iterator[tuple[Family, Labels]]:
    for each in (*CLOUDWATCH_METRICS, *OWN):
        family = each.family
        if family is None or family.from_snapshot or family.kind is not MetricKind.COUNTER:
            continue
        if {name for name, _ in each.fixed} == set(family.labels):
            yield family, each.fixed


KNOWN_COUNTS: Final[tuple[tuple[Family, Labels], ...]] = tuple(_known_counts())
"""Counts whose labels are known before anything happens."""
