"""Posts all metrics over OTLP/HTTP to a collector (`metricsOtlpEndpoint`). Imported only if one is set."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from anyio import CapacityLimiter, to_thread
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Buckets,
    ExponentialHistogram,
    ExponentialHistogramDataPoint,
    Gauge,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Histogram as HistogramData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from kcl_daemon import __version__
from kcl_daemon.metrics.metric import Family, Labels, MetricKind
from kcl_daemon.metrics.own import OTLP_LOST, RECORD_LATENCY
from kcl_daemon.ports import Clock, Log, Meters
from kcl_daemon.progress.flow import SCHEMA, ZERO, LatencyHistogram, upper_bound_s
from kcl_daemon.telemetry.prometheus import Histogram, Totals, Value, everything, is_of_shard
from kcl_daemon.telemetry.snapshot import Snapshot

_CALL_S: Final = 5.0
_FINAL_FLUSH_S: Final = 6.0
_NS: Final = 1_000_000
_CUMULATIVE: Final = AggregationTemporality.CUMULATIVE
_ADVICE: Final = (
    "check that the collector listens there for OTLP over HTTP, or remove metricsOtlpEndpoint; records are "
    "still processed"
)


class OtlpExporter:
    """`who` becomes resource attributes; no snapshot: there is no worker yet."""

    def __init__(
        self,
        endpoint: str,
        *,
        who: dict[str, str],
        totals: Totals,
        snapshot: Callable[[], Snapshot | None],
        period_s: float,
        meters: Meters,
        clock: Clock,
        log: Log,
    ) -> None:
        self._exporter = OTLPMetricExporter(endpoint=endpoint, timeout=_CALL_S)
        _silence_sdk_logs()
        self._resource = Resource({"service.name": "kcl-daemon", "service.version": __version__, **who})
        self._totals = totals
        self._snapshot = snapshot
        self._period_s = period_s
        self._meters = meters
        self._clock = clock
        self._log = log
        self._began_ns = clock.wall_ms() * _NS
        self._failures = 0
        self._is_over = False
        self._threads = CapacityLimiter(1)

    async def run(self) -> None:
        while True:
            await self._clock.sleep(self._period_s)
            if self._is_over:
                return
            await self.post()

    async def shutdown(self) -> None:
        """Post once more, within a few seconds, and close."""
        self._is_over = True
        with self._clock.move_on_after(_FINAL_FLUSH_S) as scope:
            scope.shield = True
            await self.post()
        self._exporter.shutdown()

    async def post(self) -> None:
        """Never raises for the collector."""
        now_ns = self._clock.wall_ms() * _NS
        series = [(family, _frozen(found)) for family, found in everything(self._totals, self._snapshot())]

        def work() -> str | None:
            """The error. It is slow, so it runs in a thread."""
            data = _data(series, self._resource, self._began_ns, now_ns)
            try:
                done = self._exporter.export(data, timeout_millis=_CALL_S * 1000)
            except Exception as error:  # noqa: BLE001 - whatever the exporter lets through must not end a worker
                return f"{type(error).__name__}: {error}"
            return None if done is MetricExportResult.SUCCESS else "the collector did not accept them"

        self._note(await to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._threads))

    def _note(self, problem: str | None) -> None:
        if problem is None:
            if self._failures:
                self._log.info("otlp_export_works_again", failures=self._failures)
            self._failures = 0
            return
        self._failures += 1
        self._meters.add(OTLP_LOST)
        report = self._log.warning if self._failures == 1 else self._log.debug
        report("otlp_export_failed", error=problem, advice=_ADVICE)


def _silence_sdk_logs() -> None:
    """The SDK's lines would mix with ours."""
    theirs = logging.getLogger("opentelemetry")
    theirs.addHandler(logging.NullHandler())
    theirs.propagate = False


def _frozen(series: Iterable[tuple[Labels, Value]]) -> list[tuple[Labels, Value]]:
    """What is exported of it: of latencies those of shards, which a collector can add up."""
    return [
        (labels, each.copy() if isinstance(each, (Histogram, LatencyHistogram)) else each)
        for labels, each in series
        if not isinstance(each, LatencyHistogram) or is_of_shard(labels)
    ]


def _data(
    series: Sequence[tuple[Family, Sequence[tuple[Labels, Value]]]],
    resource: Resource,
    began_ns: int,
    now_ns: int,
) -> MetricsData:
    metrics = [_metric(family, found, began_ns, now_ns) for family, found in series]
    scope = ScopeMetrics(InstrumentationScope("kcl-daemon", __version__), metrics, "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _metric(family: Family, series: Sequence[tuple[Labels, Value]], began_ns: int, now_ns: int) -> Metric:
    data: Sum | Gauge | HistogramData | ExponentialHistogram
    latencies = [(labels, each) for labels, each in series if isinstance(each, LatencyHistogram)]
    if family is RECORD_LATENCY:
        data = ExponentialHistogram(
            [_exponential(*each, began_ns, now_ns) for each in latencies], _CUMULATIVE
        )
    elif family.kind is MetricKind.HISTOGRAM:
        points = [
            _histogram(labels, value, began_ns, now_ns)
            for labels, value in series
            if isinstance(value, Histogram)
        ]
        data = HistogramData(points, _CUMULATIVE)
    else:
        numbers = [
            NumberDataPoint(dict(labels), began_ns, now_ns, float(value))
            for labels, value in series
            if not isinstance(value, (Histogram, LatencyHistogram))
        ]
        data = (
            Gauge(numbers)
            if family.kind is MetricKind.GAUGE
            else Sum(numbers, _CUMULATIVE, is_monotonic=True)
        )
    return Metric(family.otlp_name, family.help, family.otlp_unit, data)


def _histogram(labels: Labels, value: Histogram, began_ns: int, now_ns: int) -> HistogramDataPoint:
    return HistogramDataPoint(
        attributes=dict(labels),
        start_time_unix_nano=began_ns,
        time_unix_nano=now_ns,
        count=sum(value.counts),
        sum=value.total,
        bucket_counts=tuple(value.counts),
        explicit_bounds=value.bounds,
        min=value.least,
        max=value.most,
    )


def _exponential(
    labels: Labels, value: LatencyHistogram, began_ns: int, now_ns: int
) -> ExponentialHistogramDataPoint:
    """OTLP counts buckets by their lower bounds."""
    buckets = value.buckets
    first = min((each for each in buckets if each != ZERO), default=0)
    last = max(buckets, default=first)
    counts = [buckets.get(each, 0) for each in range(first, last + 1)] if last >= first else []
    return ExponentialHistogramDataPoint(
        attributes=dict(labels),
        start_time_unix_nano=began_ns,
        time_unix_nano=now_ns,
        count=value.count,
        sum=value.total_s,
        scale=SCHEMA,
        zero_count=buckets.get(ZERO, 0),
        positive=Buckets(first - 1, counts),
        negative=Buckets(0, []),
        flags=0,
        min=0.0 if ZERO in buckets else upper_bound_s(first - 1),
        max=upper_bound_s(last),
    )
