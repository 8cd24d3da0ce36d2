from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from functools import cached_property
from typing import Final, Generic, TypeAlias, TypeVar

from kcl_daemon.text import NONE

Of = TypeVar("Of")
Labels: TypeAlias = tuple[tuple[str, str], ...]
Samples: TypeAlias = list[tuple[Labels, float]]
Cells: TypeAlias = Mapping[str, str]
"""By the names of their columns."""

PREFIX: Final = "kcl"
SHARD: Final = ("shard_id", "stream")
"""`stream` only with many."""


class MetricLevel(IntEnum):
    """The numbers are KCL's."""

    DETAILED = 9_000
    SUMMARY = 10_000


class MetricUnit(Enum):
    """The values are CloudWatch's, where seconds become milliseconds."""

    COUNT = "Count"
    SECONDS = "Milliseconds"
    BYTES = "Bytes"
    NONE = "None"


class MetricKind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


_SUFFIXES: Final = {MetricUnit.SECONDS: "_seconds", MetricUnit.BYTES: "_bytes"}
_UNITS: Final = {"_seconds": MetricUnit.SECONDS, "_bytes": MetricUnit.BYTES, None: MetricUnit.COUNT}
_OTLP_UNITS: Final = {MetricUnit.SECONDS: "s", MetricUnit.BYTES: "By"}


@dataclass(frozen=True, slots=True, eq=False)
class Family:
    """`stem`: without prefix, unit and `_total`; `buckets`: without the infinite bound; `from_snapshot`: not counted."""

    stem: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    unit: MetricUnit = MetricUnit.COUNT
    buckets: tuple[float, ...] = ()
    from_snapshot: bool = False

    @property
    def name(self) -> str:
        return f"{PREFIX}_{self.stem}{_SUFFIXES.get(self.unit, '')}"

    @property
    def sample_names(self) -> tuple[str, ...]:
        match self.kind:
            case MetricKind.COUNTER:
                return (f"{self.name}_total",)
            case MetricKind.GAUGE:
                return (self.name,)
            case MetricKind.HISTOGRAM:
                return tuple(f"{self.name}_{ending}" for ending in ("bucket", "count", "sum"))

    @property
    def otlp_name(self) -> str:
        """Collectors derive the same Prometheus names from it."""
        return f"{PREFIX}.{self.stem}"

    @property
    def otlp_unit(self) -> str:
        return _OTLP_UNITS.get(self.unit, "")


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """`operation` empty: not on CloudWatch. `family` None: only in `OPERATIONS`, or nowhere. `fixed`: constant labels."""

    operation: str
    name: str
    unit: MetricUnit = MetricUnit.COUNT
    level: MetricLevel = MetricLevel.SUMMARY
    labels: tuple[str, ...] = ()
    by_worker: bool = False
    family: Family | None = None
    fixed: Labels = ()

    @property
    def dimensions(self) -> tuple[str, ...]:
        shard = ("ShardId", "StreamId") if "shard_id" in self.labels else ()
        return ("Operation", *shard, *(("WorkerIdentifier",) if self.by_worker else ()))


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """KCL's `Success` (1 or 0) and `Time`, and our histogram. `step` empty: the whole operation."""

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
    """`success` and `time`: which of the two KCL has."""
    before = f"{step}." if step else ""

    def metric(ending: str, unit: MetricUnit) -> Metric:
        return Metric(name, f"{before}{ending}", unit, level, labels=labels, by_worker=by_worker)

    return Operation(
        name,
        step,
        metric("Success", MetricUnit.COUNT) if success else None,
        metric("Time", MetricUnit.SECONDS) if time else None,
    )


_ROW: Final = re.compile(r"(\w+) ([a-z_]+?)(_seconds|_bytes)?(?:\{([a-z_,]+)\})?: (.+)")


def families(table: str, *, from_snapshot: bool = False) -> dict[str, Family]:
    """From lines such as `counter shard_bytes{shard_id}: What it counts.`; a name ends in its unit."""
    found: dict[str, Family] = {}
    for line in table.strip().splitlines():
        row = _ROW.fullmatch(line.strip())
        assert row is not None, f"not a row of the table: {line}"
        kind, stem, ending, labels, text = row.groups()
        found[stem + (ending or "")] = Family(
            stem,
            MetricKind(kind),
            text,
            tuple(labels.split(",")) if labels else (),
            _UNITS[ending],
            from_snapshot=from_snapshot,
        )
    return found


@dataclass(frozen=True, slots=True)
class Column:
    """A narrow terminal cuts what is `shortened`, and leaves out columns in the order of `drops`; 0: never."""

    heading: str = ""
    number: bool = field(default=True, kw_only=True)
    shortened: bool = field(default=False, kw_only=True)
    drops: int = field(default=0, kw_only=True)
    name: str = field(default="", kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or self.heading)


@dataclass(frozen=True, slots=True)
class Shown(Column, Generic[Of]):
    """A column, a metric, or both; `unit` writes the value (None: not known) into the cell, or `text` does."""

    value: Callable[[Of], float | None] = lambda _: None
    unit: Callable[[float], str] = str
    metric: Family | None = None
    text: Callable[[Of], str] | None = None

    @property
    def cell(self) -> Callable[[Of], str]:
        value_of, unit = self.value, self.unit

        def written(each: Of) -> str:
            return NONE if (value := value_of(each)) is None else unit(value)

        return self.text or written


def sample(metric: Family, value: Callable[[Of], float | None]) -> Shown[Of]:
    return Shown(value=value, metric=metric)


def words(
    heading: str, text: Callable[[Of], str], *, shortened: bool = False, drops: int = 0, name: str = ""
) -> Shown[Of]:
    return Shown(heading, text=text, number=False, shortened=shortened, drops=drops, name=name)


@dataclass(frozen=True, slots=True)
class StatusTable:
    """`left_out` counts dropped rows."""

    title: str
    columns: tuple[Column, ...]
    empty: str
    rows: tuple[Cells, ...] = ()
    left_out: int = 0


@dataclass(frozen=True)
class Table(Generic[Of]):
    """`empty` is said in place of rows."""

    title: str
    shown: tuple[Shown[Of], ...]
    empty: str = "none"

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        return tuple(each for each in self.shown if each.heading)

    @cached_property
    def _cells(self) -> list[tuple[str, Callable[[Of], str]]]:
        return [(each.name, each.cell) for each in self.shown if each.heading]

    @property
    def families(self) -> Iterator[Family]:
        return (each.metric for each in self.shown if each.metric is not None)

    def cells(self, each: Of) -> dict[str, str]:
        return {name: cell(each) for name, cell in self._cells}

    def of(self, rows: Iterable[Of], title: str = "") -> StatusTable:
        return StatusTable(title or self.title, self.columns, self.empty, tuple(map(self.cells, rows)))

    def samples(self, rows: Sequence[tuple[Of, Labels]]) -> Iterator[tuple[Family, Samples]]:
        for each in self.shown:
            if each.metric is not None:
                values = ((labels, each.value(row)) for row, labels in rows)
                yield each.metric, [(labels, float(value)) for labels, value in values if value is not None]
