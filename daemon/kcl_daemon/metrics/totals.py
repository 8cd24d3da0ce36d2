"""What has come together since the start: the series of Prometheus and OTLP.

Pure. Owns how values are added up, and which series are forgotten: those of shards that went, and gauges that nobody
sets any more.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from math import inf
from typing import Final, Protocol

from kcl_daemon.metrics.metric import Family, Kind, Labels

# Sweeps without a value; gauges grow old more quickly than counts.
_GAUGE_SWEEPS: Final = 3
_SERIES_SWEEPS: Final = 15


class Total(Protocol):
    """One series."""

    idle: int
    """Sweeps since the last value."""

    def add(self, value: float) -> None:
        """One value."""
        ...


class Counter:
    """A sum."""

    __slots__ = ("idle", "value")

    def __init__(self) -> None:
        self.idle = 0
        self.value = 0.0

    def add(self, value: float) -> None:
        """So much more."""
        self.idle = 0
        self.value += value


class Gauge:
    """The latest value."""

    __slots__ = ("idle", "value")

    def __init__(self) -> None:
        self.idle = 0
        self.value = 0.0

    def add(self, value: float) -> None:
        """It is this now."""
        self.idle = 0
        self.value = float(value)


class Histogram:
    """How many values there were below each bound; `counts` has one more for those above all."""

    __slots__ = ("bounds", "counts", "idle", "least", "most", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.idle = 0
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.least = inf
        self.most = -inf

    def add(self, value: float) -> None:
        """One value."""
        self.idle = 0
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value
        self.least = min(self.least, value)
        self.most = max(self.most, value)

    def copy(self) -> Histogram:
        """The same as it is now, which no later value changes."""
        copied = Histogram(self.bounds)
        copied.counts = [*self.counts]
        copied.total, copied.least, copied.most = self.total, self.least, self.most
        return copied


def new_total(family: Family) -> Counter | Gauge | Histogram:
    """An empty series of a family."""
    match family.kind:
        case Kind.COUNTER:
            return Counter()
        case Kind.GAUGE:
            return Gauge()
        case Kind.HISTOGRAM:
            return Histogram(family.buckets)


class Totals:
    """All series."""

    def __init__(self) -> None:
        self._series: dict[Family, dict[Labels, Counter | Gauge | Histogram]] = {}

    def series(self, family: Family, labels: Iterable[tuple[str, str]]) -> Counter | Gauge | Histogram:
        """The series of these labels, those that the family does not have left out."""
        wanted = tuple(label for label in labels if label[0] in family.labels)
        of_family = self._series.setdefault(family, {})
        found = of_family.get(wanted)
        if found is None:
            found = of_family[wanted] = new_total(family)
        return found

    def begin(self, counts: Iterable[tuple[Family, Labels]]) -> None:
        """Have these from now on, at 0: a series that comes with its first event is no increase to Prometheus."""
        for family, labels in counts:
            self.series(family, labels)

    def families(self) -> Iterator[tuple[Family, list[tuple[Labels, Counter | Gauge | Histogram]]]]:
        """All that there is now."""
        for family, series in list(self._series.items()):
            yield family, list(series.items())

    def sweep(self) -> bool:
        """To be called in equal periods; whether something was forgotten.

        Counts of the whole worker stay. Those of a shard go when nothing has been added for long, and gauges soon: what
        a leader has seen must not be told for ever by one that leads no more.
        """
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
    if family.kind is Kind.GAUGE:
        return _GAUGE_SWEEPS
    return _SERIES_SWEEPS if "shard_id" in family.labels else None
