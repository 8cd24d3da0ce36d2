"""Exporters that run beside the worker. Loaded only where figures are exported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import anyio

from kcl_daemon.app import Adapters
from kcl_daemon.config.metrics_and_page import MetricsLevel
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.metrics.metric import MetricLevel
from kcl_daemon.ports import Clock
from kcl_daemon.retrieval.readers import MeteredFanOut, MeteredKinesis
from kcl_daemon.telemetry.cloudwatch import CloudWatchExporter, CloudWatchOptions, StatisticSets
from kcl_daemon.telemetry.prometheus import PrometheusExposition, Totals
from kcl_daemon.telemetry.recorder import KNOWN_COUNTS, CountedLog, MetricsRecorder
from kcl_daemon.telemetry.snapshot import Snapshot

_LEVELS: Final = {
    MetricsLevel.NONE: None,
    MetricsLevel.SUMMARY: MetricLevel.SUMMARY,
    MetricsLevel.DETAILED: MetricLevel.DETAILED,
}
_ALL: Final = "ALL"
_SWEEP_S: Final = 60.0


class MeteredWorker(Protocol):
    async def run(self) -> None: ...

    def request_stop(self) -> None: ...


class Exporter(Protocol):
    async def run(self) -> None: ...

    async def shutdown(self) -> None:
        """Publish the rest within a few seconds, while `run` still runs."""
        ...


@dataclass(frozen=True, slots=True)
class Telemetry:
    _totals: Totals
    _snapshot: Callable[[], Snapshot | None]
    _adapters: Adapters
    _recorder: MetricsRecorder | None
    _exporters: Sequence[Exporter]

    @property
    def adapters(self) -> Adapters:
        recorder, adapters = self._recorder, self._adapters
        if recorder is None:
            return adapters
        fan_out = adapters.fan_out
        return replace(
            adapters,
            meters=recorder,
            log=CountedLog(adapters.log, recorder),
            kinesis=MeteredKinesis(adapters.kinesis, recorder),
            fan_out=None if fan_out is None else MeteredFanOut(fan_out, recorder),
        )

    def exposition(self) -> PrometheusExposition:
        """Needs `serves_metrics` at `telemetry_of`."""
        return PrometheusExposition(self._totals, self._snapshot)

    def background(self, worker: MeteredWorker) -> MeteredWorker:
        recorder = self._recorder
        if recorder is None:
            return worker
        return _WorkerWithExporters(worker, recorder, self._exporters, self._adapters.clock)


def telemetry_of(
    settings: Settings,
    adapters: Adapters,
    *,
    snapshot: Callable[[], Snapshot | None],
    serves_metrics: bool = False,
) -> Telemetry:
    """Counts nothing if nothing is exported.

    `snapshot` is first called when figures are exported. `serves_metrics`: `exposition` is served. Raises
    ConfigurationError if OTLP packages are missing.
    """
    metrics = settings.metrics
    level = _LEVELS[metrics.level] if adapters.cloudwatch is not None else None
    totals = Totals()
    if level is None and metrics.otlp_endpoint is None and not serves_metrics:
        return Telemetry(totals, snapshot, adapters, None, ())
    shown = None if _ALL in metrics.dimensions else frozenset(metrics.dimensions)
    statistics = StatisticSets(CloudWatchOptions(level, shown, settings.worker_id, metrics.queue_most))
    totals.begin(KNOWN_COUNTS)
    recorder = MetricsRecorder(adapters.clock.monotonic, statistics, totals)
    exporters: list[Exporter] = []
    if level is not None and adapters.cloudwatch is not None:
        publisher = CloudWatchExporter(
            statistics,
            cloudwatch=adapters.cloudwatch,
            namespace=metrics.namespace or settings.application_name,
            buffer_s=metrics.buffer_ms / 1000,
            meters=recorder,
            clock=adapters.clock,
            log=adapters.log,
        )
        exporters.append(publisher)
    if metrics.otlp_endpoint is not None:
        exporters.append(
            _otlp(
                settings,
                metrics.otlp_endpoint,
                totals=totals,
                snapshot=snapshot,
                recorder=recorder,
                adapters=adapters,
            )
        )
    return Telemetry(totals, snapshot, adapters, recorder, exporters)


def _otlp(
    settings: Settings,
    endpoint: str,
    *,
    totals: Totals,
    snapshot: Callable[[], Snapshot | None],
    recorder: MetricsRecorder,
    adapters: Adapters,
) -> Exporter:
    try:
        from kcl_daemon.telemetry.otlp import OtlpExporter  # an extra, and slow to load
    except ImportError as error:
        raise ConfigurationError(
            f"metricsOtlpEndpoint is set but {error.name} is not installed: pip install "
            "'kcl-daemon[otlp]', or remove the property"
        ) from error
    return OtlpExporter(
        endpoint,
        who={"kcl.application": settings.application_name, "service.instance.id": settings.worker_id},
        totals=totals,
        snapshot=snapshot,
        period_s=settings.metrics.otlp_period_ms / 1000,
        meters=recorder,
        clock=adapters.clock,
        log=adapters.log,
    )


class _WorkerWithExporters:
    def __init__(
        self, worker: MeteredWorker, recorder: MetricsRecorder, exporters: Sequence[Exporter], clock: Clock
    ) -> None:
        self._worker = worker
        self._recorder = recorder
        self._exporters = exporters
        self._clock = clock

    def request_stop(self) -> None:
        self._worker.request_stop()

    async def run(self) -> None:
        failure: Exception | None = None
        async with anyio.create_task_group() as background:
            for exporter in self._exporters:
                background.start_soon(exporter.run)
            background.start_soon(self._sweep)
            try:
                await self._worker.run()
            except Exception as error:  # noqa: BLE001 - raised again below, when its figures have been told
                failure = error
            # To cancel `run` would cut off a call: nobody would know whether it arrived.
            async with anyio.create_task_group() as shutdowns:
                for exporter in self._exporters:
                    shutdowns.start_soon(exporter.shutdown)
            background.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _sweep(self) -> None:
        while True:
            await self._clock.sleep(_SWEEP_S)
            self._recorder.sweep()
