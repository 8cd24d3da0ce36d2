"""Totals since the start, and their text for Prometheus or OpenMetrics, or its protobuf format.

Idle series are forgotten. `prometheus_client` writes the text much more slowly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Final, TypeAlias

from anyio.lowlevel import checkpoint

from kcl_daemon.capacity.figures import Bound, Capacity
from kcl_daemon.metrics import own
from kcl_daemon.metrics.metric import Family, Labels, MetricKind, Samples
from kcl_daemon.progress.flow import LatencyHistogram, below
from kcl_daemon.telemetry import protobuf
from kcl_daemon.telemetry.helper_views import LANDING, QUERIES, SPARK_SHARDS, LandingView, SparkView
from kcl_daemon.telemetry.shards import FIGURES, LANES, LanedShard, ShardView
from kcl_daemon.telemetry.snapshot import LatencyView, Snapshot

_F: Final = own.FROM_SNAPSHOT
FROM_SNAPSHOT: Final[tuple[Family, ...]] = (
    *_F.values(),
    *(family for table in (FIGURES, LANES, QUERIES, SPARK_SHARDS, LANDING) for family in table.families),
    own.RECORD_LATENCY,
)

# Sweeps without a value before a series is forgotten.
_GAUGE_SWEEPS: Final = 3
_SERIES_SWEEPS: Final = 15
# This many series take about a millisecond.
_PIECE: Final = 200
_END: Final = b"# EOF\n"
_ESCAPED: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


class Scalar:
    """A counter, or a gauge. `idle`: sweeps since the last value."""

    __slots__ = ("_is_gauge", "idle", "value")

    def __init__(self, *, is_gauge: bool) -> None:
        self._is_gauge = is_gauge
        self.idle = 0
        self.value = 0.0

    def add(self, value: float) -> None:
        self.idle = 0
        self.value = float(value) if self._is_gauge else self.value + value


class Histogram:
    """The last of `counts` is of values above all bounds."""

    __slots__ = ("bounds", "counts", "idle", "least", "most", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.idle = 0
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.least = inf
        self.most = -inf

    def add(self, value: float) -> None:
        self.idle = 0
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
        self.least = min(self.least, value)
        self.most = max(self.most, value)

    def copy(self) -> Histogram:
        copied = Histogram(self.bounds)
        copied.counts = [*self.counts]
        copied.total, copied.least, copied.most = self.total, self.least, self.most
        return copied


Total: TypeAlias = Scalar | Histogram


class Totals:
    def __init__(self) -> None:
        self._series: dict[Family, dict[Labels, Total]] = {}

    def series(self, family: Family, labels: Iterable[tuple[str, str]]) -> Total:
        """Ignores labels that the family does not have."""
        wanted = tuple(label for label in labels if label[0] in family.labels)
        of_family = self._series.setdefault(family, {})
        found = of_family.get(wanted)
        if found is None:
            is_histogram = family.kind is MetricKind.HISTOGRAM
            found = of_family[wanted] = (
                Histogram(family.buckets)
                if is_histogram
                else Scalar(is_gauge=family.kind is MetricKind.GAUGE)
            )
        return found

    def begin(self, counts: Iterable[tuple[Family, Labels]]) -> None:
        """Prometheus sees no increase where a series begins."""
        for family, labels in counts:
            self.series(family, labels)

    def families(self) -> Iterator[tuple[Family, list[tuple[Labels, Total]]]]:
        for family, series in list(self._series.items()):
            yield family, list(series.items())

    def sweep(self) -> bool:
        """Forget idle series: those of a shard late, gauges soon, as a former leader must not export old values."""
        forgotten = False
        for family, series in self._series.items():
            most = _most_sweeps(family)
            for labels, total in list(series.items()):
                total.idle += 1
                if most is not None and total.idle > most:
                    del series[labels]
                    forgotten = True
        return forgotten


def _most_sweeps(family: Family) -> int | None:
    if family.kind is MetricKind.GAUGE:
        return _GAUGE_SWEEPS
    return _SERIES_SWEEPS if "shard_id" in family.labels else None


def spark_samples(view: SparkView) -> Iterator[tuple[Family, Samples]]:
    yield from QUERIES.samples([(each, (("query", each.name),)) for each in view.queries])
    yield from SPARK_SHARDS.samples([(each, (("shard_id", each.shard_id),)) for each in view.shards])


def landing_samples(view: LandingView) -> Iterator[tuple[Family, Samples]]:
    yield from LANDING.samples([(each, _labels_of_landing(each.name)) for each in view.shards])
    cause = "" if view.trouble is None else view.trouble.cause
    yield _F["landing_store_trouble"], [((("cause", cause),), float(view.trouble is not None))]


def _labels_of_landing(name: str) -> Labels:
    stream, _, shard_id = name.rpartition("/")
    return (("shard_id", shard_id), ("stream", stream)) if stream else (("shard_id", shard_id),)


Value: TypeAlias = float | Histogram | LatencyHistogram


def everything(
    totals: Totals, snapshot: Snapshot | None
) -> Iterator[tuple[Family, Iterator[tuple[Labels, Value]]]]:
    """Histograms may still change."""
    if snapshot is not None:
        for family, found in samples(snapshot):
            if found:
                yield family, iter(found)
        if snapshot.latencies:
            yield own.RECORD_LATENCY, ((_labels(each), each.histogram) for each in snapshot.latencies)
    for family, series in totals.families():
        if series:
            yield (
                family,
                ((labels, each if isinstance(each, Histogram) else each.value) for labels, each in series),
            )


def samples(snapshot: Snapshot) -> Iterator[tuple[Family, Samples]]:
    yield from _of_worker(snapshot)
    named = [(shard, _labels(shard)) for shard in snapshot.shards]
    yield (
        _F["shard_waits_seconds"],
        [((*labels, ("cause", shard.cause.value)), shard.waits_s) for shard, labels in named],
    )
    yield from FIGURES.samples(named)
    laned = [(LanedShard(shard, shard.lanes), labels) for shard, labels in named if shard.lanes is not None]
    yield from LANES.samples(laned)
    if snapshot.spark is not None:
        yield from spark_samples(snapshot.spark)
    if snapshot.landing is not None:
        yield from landing_samples(snapshot.landing)


def _of_worker(snapshot: Snapshot) -> Iterator[tuple[Family, Samples]]:
    who = (
        ("worker_id", snapshot.worker_id),
        ("application", snapshot.application),
        ("version", snapshot.version),
    )
    yield _F["worker"], [(who, 1.0)]
    yield _F["worker_uptime_seconds"], [((), snapshot.uptime_s)]
    yield _F["worker_started"], [((), float(snapshot.started))]
    yield _F["worker_stopping"], [((), float(snapshot.stopping))]
    if snapshot.clock_ahead_s is not None:
        yield _F["clock_ahead_seconds"], [((), snapshot.clock_ahead_s)]
    capacity = snapshot.capacity
    if capacity is not None and snapshot.leads and capacity.by == snapshot.worker_id:
        yield from _of_capacity(capacity)


def _of_capacity(capacity: Capacity) -> Iterator[tuple[Family, Samples]]:
    whole = capacity.whole
    yield _F["workers_wanted"], [((), float(capacity.wanted))]
    for name, value in (("capacity_drain_seconds", whole.drains_s), ("capacity_speed", whole.speed)):
        yield _F[name], [] if value is None else [((), value)]
    yield _F["capacity_bound"], [((("bound", each.value),), float(each is whole.binds)) for each in Bound]


def is_of_shard(labels: Labels) -> bool:
    return bool(labels) and labels[0][0] == "shard_id"


def classic(latency: LatencyHistogram, bounds: tuple[float, ...]) -> Histogram:
    """Whole records below each bound (see `below`)."""
    found, counted = Histogram(bounds), 0
    for place, count in enumerate(below(sorted(latency.buckets.items()), bounds)):
        found.counts[place] = int(count) - counted
        counted = int(count)
    found.counts[-1], found.total = latency.count - counted, latency.total_s
    return found


def _labels(shard: ShardView | LatencyView) -> Labels:
    named = () if shard.shard_id is None else (("shard_id", shard.shard_id),)
    return named if shard.stream_id is None else (*named, ("stream", shard.stream_id))


_Series: TypeAlias = tuple[Labels, Value]


@dataclass(frozen=True, slots=True)
class ExpositionText:
    content_type: str
    body: bytes


class PrometheusExposition:
    """No snapshot: there is no worker yet."""

    def __init__(self, totals: Totals, snapshot: Callable[[], Snapshot | None] = lambda: None) -> None:
        # 0.1 s: too long for rendering, and for every start.
        from prometheus_client import CollectorRegistry, ProcessCollector  # see above
        from prometheus_client.exposition import choose_encoder  # see above

        self._totals = totals
        self._snapshot = snapshot
        self._choose = choose_encoder
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)

    async def render(self, accept: str = "") -> ExpositionText:
        """OpenMetrics or protobuf if the header `Accept` asks for it; yields after each millisecond."""
        if protobuf.wanted(accept):
            return ExpositionText(protobuf.CONTENT_TYPE, b"".join([each async for each in self._encoded()]))
        try:
            write, content_type = self._choose(accept)
        except TypeError:  # a version that is no number
            write, content_type = self._choose("")
        open_metrics = "openmetrics" in content_type
        pieces: list[str] = []
        known: dict[Labels, str] = {}
        for family, series in everything(self._totals, self._snapshot()):
            pieces.append(_head(family, open_metrics=open_metrics))
            while some := list(islice(series, _PIECE)):
                pieces.extend(_lines(family, some, known))
                await checkpoint()
        process = bytes(write(self._process)).removesuffix(_END)
        body = "".join(pieces).encode() + process
        return ExpositionText(content_type, body + _END if open_metrics else body)

    async def _encoded(self) -> AsyncIterator[bytes]:
        """The histograms of shards are native."""
        known: dict[Labels, bytes] = {}
        for family, series in everything(self._totals, self._snapshot()):
            metrics: list[bytes] = []
            while some := list(islice(series, _PIECE)):
                metrics += _messages(family, some, known)
                await checkpoint()
            yield protobuf.family(_head_name(family), family.help, family.kind, metrics)
        for process in self._process.collect():
            kind = MetricKind(process.type)
            for sample in process.samples:
                labels = protobuf.labels_of(tuple(sample.labels.items()))
                message = protobuf.value(labels, kind, sample.value)
                yield protobuf.family(sample.name, process.documentation, kind, (message,))


def _messages(family: Family, series: Iterable[_Series], known: dict[Labels, bytes]) -> Iterator[bytes]:
    for labels, value in series:
        name = known.get(labels)
        if name is None:
            name = known[labels] = protobuf.labels_of(labels)
        if isinstance(value, LatencyHistogram):
            if is_of_shard(labels):
                yield protobuf.native(name, value)
                continue
            value = classic(value, family.buckets)  # noqa: PLW2901 - the same in another form
        if isinstance(value, Histogram):
            yield protobuf.classic(name, value.bounds, value.counts, value.total)
        else:
            yield protobuf.value(name, family.kind, value)


def _head_name(family: Family) -> str:
    """Prometheus names a counter by its sample, OpenMetrics by its family."""
    return family.sample_names[0] if family.kind is MetricKind.COUNTER else family.name


def _head(family: Family, *, open_metrics: bool) -> str:
    name = family.name if open_metrics else _head_name(family)
    return f"# HELP {name} {family.help.translate(_ESCAPED) if open_metrics else family.help}\n# TYPE {name} {family.kind.value}\n"


def _lines(family: Family, series: Iterable[_Series], known: dict[Labels, str]) -> Iterator[str]:
    name = family.sample_names[0]
    for labels, value in series:
        if isinstance(value, LatencyHistogram):
            if not is_of_shard(labels):
                yield from _lines(family, [(labels, classic(value, family.buckets))], known)
            continue
        text = known.get(labels)
        if text is None:
            text = known[labels] = ",".join(
                f'{each}="{reported.translate(_ESCAPED)}"' for each, reported in labels
            )
        if isinstance(value, Histogram):
            yield from _of_histogram(family.name, text, value)
        else:
            yield f"{name}{{{text}}} {value!r}\n" if text else f"{name} {value!r}\n"


def _of_histogram(name: str, labels: str, value: Histogram) -> Iterator[str]:
    below = 0
    before = f"{labels}," if labels else ""
    for bound, count in zip((*map(repr, value.bounds), "+Inf"), value.counts, strict=True):
        below += count
        yield f'{name}_bucket{{{before}le="{bound}"}} {below}.0\n'
    shown = f"{{{labels}}}" if labels else ""
    yield f"{name}_count{shown} {below}.0\n{name}_sum{shown} {value.total!r}\n"
