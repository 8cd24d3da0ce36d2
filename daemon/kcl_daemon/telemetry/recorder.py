"""The `Meters` of a daemon: values go to CloudWatch, Prometheus and OTLP.

`CountedLog` counts warnings, errors and the events that have a metric.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Self, TypeAlias

from kcl_daemon.metrics import own
from kcl_daemon.metrics.metric import OPERATIONS, Metric, Operation
from kcl_daemon.ports import Log, Meters
from kcl_daemon.telemetry.cloudwatch import StatisticSets, StatisticWindow
from kcl_daemon.telemetry.prometheus import Counter, Gauge, Histogram, Totals

_Total: TypeAlias = Counter | Gauge | Histogram


class _Cell:
    __slots__ = ("_total", "_window")

    def __init__(self, window: StatisticWindow | None, total: _Total | None) -> None:
        self._window = window
        self._total = total

    def add(self, value: float) -> None:
        if self._window is not None:
            self._window.add(value)
        if self._total is not None:
            self._total.add(value)


class _OperationCell:
    """Creates its two series, success and failure, on first use."""

    __slots__ = ("_make", "_series", "_success", "_time")

    def __init__(
        self, success: StatisticWindow | None, time: StatisticWindow | None, make: Callable[[bool], _Total]
    ) -> None:
        self._success = success
        self._time = time
        self._make = make
        self._series: dict[bool, _Total] = {}

    def add(self, seconds: float, ok: bool) -> None:
        if self._success is not None:
            self._success.add(1.0 if ok else 0.0)
        if self._time is not None:
            self._time.add(seconds)
        series = self._series.get(ok)
        if series is None:
            series = self._series[ok] = self._make(ok)
        series.add(seconds)


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
        self._cells: dict[object, _Cell] = {}
        self._operations: dict[object, _OperationCell] = {}

    def add(self, metric: Metric, value: float = 1.0, /, **labels: str) -> None:
        key = (metric, *labels.items()) if labels else metric
        cell = self._cells.get(key)
        if cell is None:
            cell = self._new_cell(key, metric, labels)
        cell.add(value)

    def operation(self, operation: Operation, /, **labels: str) -> RecordedSpan:
        return RecordedSpan(self, operation, labels)

    def done(self, operation: Operation, seconds: float, ok: bool = True, /, **labels: str) -> None:
        key = (operation, *labels.items()) if labels else operation
        cell = self._operations.get(key)
        if cell is None:
            cell = self._new_operation(key, operation, labels)
        cell.add(seconds, ok)

    def sweep(self) -> None:
        """Forget idle series; call it every minute."""
        self._statistics.forget()
        self._totals.sweep()
        self._cells.clear()
        self._operations.clear()

    def _new_cell(self, key: object, metric: Metric, labels: dict[str, str]) -> _Cell:
        assert labels.keys() <= set(metric.labels), (
            f"{metric.name} has labels {metric.labels}, not {[*labels]}"
        )
        family = metric.family
        total = None
        if family is not None and not family.from_snapshot:
            total = self._totals.series(family, (*metric.fixed, *labels.items()))
        cell = self._cells[key] = _Cell(self._statistics.window(metric, labels.items()), total)
        return cell

    def _new_operation(self, key: object, operation: Operation, labels: dict[str, str]) -> _OperationCell:
        def make(ok: bool) -> _Total:
            outcome = "success" if ok else "failure"
            named = (("operation", operation.name), ("step", operation.step), ("outcome", outcome))
            return self._totals.series(OPERATIONS, named)

        def window(metric: Metric | None) -> StatisticWindow | None:
            return None if metric is None else self._statistics.window(metric, labels.items())

        cell = _OperationCell(window(operation.success), window(operation.time), make)
        self._operations[key] = cell
        return cell


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
