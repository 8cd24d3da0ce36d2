"""What a metric is: its name on CloudWatch, its family on Prometheus and OTLP, and how the two differ.

Pure values. The lists are in `kcl`, `kcl_shards` and `ours`; who counts, and where the figures go, is not known here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final, TypeAlias

Labels: TypeAlias = tuple[tuple[str, str], ...]
"""Names and values that tell the series of one family apart."""

PREFIX: Final = "kcl"
SHARD: Final = ("shard_id", "stream")
"""Labels of what is told for each shard; `stream` only where there are many."""


class MetricLevel(IntEnum):
    """How much is told; numbers are KCL's."""

    DETAILED = 9_000
    SUMMARY = 10_000


class MetricUnit(Enum):
    """What values are given in. CloudWatch is told milliseconds for seconds."""

    COUNT = "Count"
    SECONDS = "Milliseconds"
    BYTES = "Bytes"
    NONE = "None"


class MetricKind(Enum):
    """What becomes of the values of a family; named as Prometheus names its types."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


_SUFFIXES: Final = {MetricUnit.SECONDS: "_seconds", MetricUnit.BYTES: "_bytes"}
_OTLP_UNITS: Final = {MetricUnit.SECONDS: "s", MetricUnit.BYTES: "By"}


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """Series of one name on Prometheus and OTLP.

    Args:
        stem: the name without prefix, unit and `_total`.
        kind: what becomes of values.
        help: one sentence for people.
        labels: what tells its series apart; labels that a metric has beyond these are left out.
        unit: of the values.
        buckets: upper bounds of a histogram, without the last, infinite one.
        from_snapshot: read off the worker's state when it is asked for, not counted on the way.
    """

    stem: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    unit: MetricUnit = MetricUnit.COUNT
    buckets: tuple[float, ...] = ()
    from_snapshot: bool = False

    @property
    def name(self) -> str:
        """The name with its unit, as the text format's `# TYPE` line has it in OpenMetrics."""
        return f"{PREFIX}_{self.stem}{_SUFFIXES.get(self.unit, '')}"

    @property
    def sample_names(self) -> tuple[str, ...]:
        """The names of its samples on Prometheus."""
        match self.kind:
            case MetricKind.COUNTER:
                return (f"{self.name}_total",)
            case MetricKind.GAUGE:
                return (self.name,)
            case MetricKind.HISTOGRAM:
                return tuple(f"{self.name}_{ending}" for ending in ("bucket", "count", "sum"))

    @property
    def otlp_name(self) -> str:
        """The name on OTLP. A collector that turns it into Prometheus' form comes to the same names."""
        return f"{PREFIX}.{self.stem}"

    @property
    def otlp_unit(self) -> str:
        """The unit on OTLP, in UCUM."""
        return _OTLP_UNITS.get(self.unit, "")


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One figure of KCL's on CloudWatch, or one of ours.

    Args:
        operation: dimension `Operation`; empty: not on CloudWatch.
        name: on CloudWatch.
        unit: of the values.
        level: at which it is told.
        labels: what is given with each value: `SHARD`, or those of the family.
        by_worker: whether CloudWatch is told the worker (`WorkerIdentifier`).
        family: on Prometheus and OTLP; None: not there, or there as an `Operation`.
        fixed: labels of the family that are always the same.
        java_only: why it is never told here, though KCL has it; empty: it is told.
    """

    operation: str
    name: str
    unit: MetricUnit = MetricUnit.COUNT
    level: MetricLevel = MetricLevel.SUMMARY
    labels: tuple[str, ...] = ()
    by_worker: bool = False
    family: Family | None = None
    fixed: Labels = ()
    java_only: str = ""

    @property
    def dimensions(self) -> tuple[str, ...]:
        """Names of its dimensions on CloudWatch."""
        shard = ("ShardId", "StreamId") if "shard_id" in self.labels else ()
        return ("Operation", *shard, *(("WorkerIdentifier",) if self.by_worker else ()))


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """Something that is done, may fail and takes time: KCL's `Success` (1 or 0) and `Time`, and one histogram of ours.

    Args:
        name: KCL's name of the operation.
        step: KCL's name of a part of it; empty: the whole.
        success: on CloudWatch, if it is there.
        time: on CloudWatch, if it is there.
    """

    name: str
    step: str
    success: Metric | None
    time: Metric | None


OPERATIONS: Final = Family(
    "operation_duration",
    MetricKind.HISTOGRAM,
    "What the daemon does, how long it takes and how it ends. Operations and steps are KCL's, as on CloudWatch.",
    labels=("operation", "step", "outcome"),
    unit=MetricUnit.SECONDS,
    buckets=(0.005, 0.025, 0.1, 0.5, 2.0, 10.0, 60.0),
)


def operation(
    name: str,
    step: str = "",
    *,
    level: MetricLevel = MetricLevel.SUMMARY,
    success: bool = True,
    time: bool = True,
    labels: tuple[str, ...] = (),
    by_worker: bool = False,
) -> Operation:
    """An operation with KCL's names: `Success` and `Time`, behind the step where it is one.

    Args:
        name: dimension `Operation`.
        step: what stands before `.Success` and `.Time`.
        level: of both.
        success: whether KCL tells the one.
        time: whether KCL tells the other.
        labels: as of a `Metric`.
        by_worker: as of a `Metric`.
    """
    before = f"{step}." if step else ""

    def metric(ending: str, unit: MetricUnit) -> Metric:
        """One of the two."""
        return Metric(name, f"{before}{ending}", unit, level, labels=labels, by_worker=by_worker)

    return Operation(
        name,
        step,
        metric("Success", MetricUnit.COUNT) if success else None,
        metric("Time", MetricUnit.SECONDS) if time else None,
    )


def counter(
    stem: str,
    text: str,
    labels: tuple[str, ...] = (),
    unit: MetricUnit = MetricUnit.COUNT,
    *,
    from_snapshot: bool = False,
) -> Family:
    """A family that only grows."""
    return Family(stem, MetricKind.COUNTER, text, labels, unit, from_snapshot=from_snapshot)


def gauge(
    stem: str,
    text: str,
    labels: tuple[str, ...] = (),
    unit: MetricUnit = MetricUnit.COUNT,
    *,
    from_snapshot: bool = False,
) -> Family:
    """A family of values as they are now."""
    return Family(stem, MetricKind.GAUGE, text, labels, unit, from_snapshot=from_snapshot)
