"""How loaded one worker is, and how loaded it would be with a lease more or less.

Different metrics are compared by one number, the relative load: the worker's value over its fair share, which is the
fleet's average or the worker's own ceiling where that is lower. 1 is balanced; the most loaded metric of a worker
counts. It knows no leases, only their weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.leases.stats import CPU, MEMORY, NETWORK_IN, NETWORK_OUT, THROUGHPUT, MetricName

_TITLES: Final = {CPU: "cpu", MEMORY: "memory", NETWORK_IN: "network in", NETWORK_OUT: "network out"}


@dataclass(slots=True)
class Load:
    """One worker during one decision; the values follow what is decided.

    Args:
        worker_id: the worker.
        values: percent of each metric.
        shares: the fair share of each metric in percent, above 0.
        ceilings: the operating range of each metric.
        costs: percentage points of each metric for one unit of lease weight.
        leases: how many it reads, leases on their way to it included.
        weight: of those leases.
        throughput_kbps: of those leases.
    """

    worker_id: WorkerId
    values: dict[MetricName, float]
    shares: dict[MetricName, float]
    ceilings: dict[MetricName, float]
    costs: dict[MetricName, float]
    leases: int = 0
    weight: float = 0.0
    throughput_kbps: float = 0.0

    @property
    def leading(self) -> MetricName:
        """The metric in which it is most loaded."""
        return max(self.values, key=lambda name: self.values[name] / self.shares[name])

    @property
    def relative(self) -> float:
        """The relative load."""
        return self.relative_with(0)

    def relative_with(self, weight: float) -> float:
        """The relative load if it read a lease of this weight as well."""
        return max(
            (value + self.costs[name] * weight) / self.shares[name] for name, value in self.values.items()
        )

    @property
    def is_above_ceiling(self) -> bool:
        """Whether some metric is beyond its operating range."""
        return any(value > self.ceilings[name] for name, value in self.values.items())

    @property
    def excess_points(self) -> float:
        """By how many percentage points its leading metric is above the fair share; negative below."""
        name = self.leading
        return self.values[name] - self.shares[name]

    def count(self, weight: float, throughput_kbps: float, leases: int = 1) -> None:
        """Count a lease, or with negative figures one less, without a change of the values."""
        self.leases += leases
        self.weight += weight
        self.throughput_kbps += throughput_kbps

    def shift(self, weight: float) -> None:
        """Change the values as if it read so much more, or less."""
        for name, cost in self.costs.items():
            self.values[name] = max(0.0, self.values[name] + cost * weight)

    def add(self, weight: float, throughput_kbps: float) -> None:
        """Let it read a lease more."""
        self.count(weight, throughput_kbps)
        self.shift(weight)

    def drop(self, weight: float, throughput_kbps: float) -> None:
        """Let it read a lease less."""
        self.count(-weight, -throughput_kbps, leases=-1)
        self.shift(-weight)

    def describe(self, name: MetricName) -> str:
        """A value for people."""
        if name == THROUGHPUT:
            return f"{self.throughput_kbps:.0f} KiB/s"
        return f"{self.values[name]:.0f} %"


def title(name: MetricName) -> str:
    """What people call a metric."""
    return _TITLES.get(name, "throughput" if name == THROUGHPUT else str(name))
