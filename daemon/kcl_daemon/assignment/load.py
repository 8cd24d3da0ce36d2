"""How loaded each worker is, and would be after a move (KCL: LeaseAssignmentManager.InMemoryStorageView).

The fair share is the fleet's average, or the worker's own operating range if that is lower.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from statistics import fmean
from typing import Final, TypeAlias

from kcl_daemon.assignment.plan import Fleet, LeaseLimits, WorkerLeases
from kcl_daemon.leases.lease import Lease, WorkerId
from kcl_daemon.leases.worker_row import (
    CPU,
    MEMORY,
    NETWORK_IN,
    NETWORK_OUT,
    OPERATING_RANGE_DEFAULT,
    THROUGHPUT,
    MetricName,
    WorkerRow,
)

Sharing: TypeAlias = tuple[WorkerId, ...]
_SPEAKING_PERCENT: Final = 5.0
# An idle lease may wake up.
_LEAST_WEIGHT: Final = 0.1
# With this part of a fair share, a worker's own figures show what a lease costs.
_SHARE_FOR_OWN_FIGURES: Final = 0.25
_TITLES: Final = {CPU: "cpu", MEMORY: "memory", NETWORK_IN: "network in", NETWORK_OUT: "network out"}


@dataclass(slots=True)
class WorkerLoad(WorkerLeases):
    """By metric. Moves change the values.

    Args:
        values, shares, ceilings: percent; the fair share is above 0.
        costs: percentage points per unit of lease weight.
        weight, throughput_kbps: with leases on their way.
    """

    values: dict[MetricName, float]
    shares: dict[MetricName, float]
    ceilings: dict[MetricName, float]
    costs: dict[MetricName, float]
    weight: float = 0.0
    throughput_kbps: float = 0.0

    @property
    def leading(self) -> MetricName:
        return max(self.values, key=lambda name: self.values[name] / self.shares[name])

    @property
    def relative(self) -> float:
        return self.relative_with(0)

    def relative_with(self, weight: float) -> float:
        return max(
            (value + self.costs[name] * weight) / self.shares[name] for name, value in self.values.items()
        )

    @property
    def is_above_ceiling(self) -> bool:
        return any(value > self.ceilings[name] for name, value in self.values.items())

    @property
    def excess_points(self) -> float:
        name = self.leading
        return self.values[name] - self.shares[name]

    def hold(self, lease: Lease, weight: float, throughput_kbps: float, by: int = 1) -> None:
        self.count(lease, by=by)
        self.weight += by * weight
        self.throughput_kbps += by * throughput_kbps

    def shift(self, weight: float) -> None:
        for name, cost in self.costs.items():
            self.values[name] = max(0.0, self.values[name] + cost * weight)

    def add(self, lease: Lease, weight: float, throughput_kbps: float) -> None:
        self.hold(lease, weight, throughput_kbps)
        self.shift(weight)

    def drop(self, lease: Lease, weight: float, throughput_kbps: float) -> None:
        self.hold(lease, weight, throughput_kbps, by=-1)
        self.shift(-weight)

    def describe(self, name: MetricName) -> str:
        if name == THROUGHPUT:
            return f"{self.throughput_kbps:.0f} KiB/s"
        return f"{self.values[name]:.0f} %"


def metric_title(name: MetricName) -> str:
    return _TITLES.get(name, "throughput" if name == THROUGHPUT else str(name))


@dataclass(frozen=True, slots=True)
class LeaseWeights:
    average_kbps: float
    measured: bool

    @property
    def is_idle(self) -> bool:
        return self.average_kbps == 0

    def kbps(self, lease: Lease) -> float:
        return self.average_kbps if lease.throughput_kbps is None else lease.throughput_kbps

    def weight(self, lease: Lease) -> float:
        return max(self.kbps(lease), _LEAST_WEIGHT * self.average_kbps) or 1.0

    def is_felt(self, lease: Lease) -> bool:
        if self.is_idle:
            return True
        return (
            lease.throughput_kbps is not None and lease.throughput_kbps >= _LEAST_WEIGHT * self.average_kbps
        )


@dataclass(frozen=True, slots=True)
class FleetLoad:
    """The loads once all handoffs are done.

    Args:
        waiting: unfinished leases that need a worker.
        target_weight: a worker's fair share, above 0.
        quiet: all reported metrics are too low to mean anything.
        hosts: workers that report one host's CPU, which cannot tell them apart.
    """

    loads: Mapping[WorkerId, WorkerLoad]
    waiting: tuple[Lease, ...]
    scale: LeaseWeights
    target_weight: float
    quiet: bool
    hosts: tuple[Sharing, ...] = ()


def smoothed(averages: Iterable[float], alpha: float) -> float | None:
    """Exponential moving average without failed captures."""
    value: float | None = None
    for average in averages:
        if average >= 0:
            value = average if value is None else alpha * average + (1 - alpha) * value
    return value


def measure_fleet(fleet: Fleet, *, alpha: float) -> FleetLoad:
    """Workers whose latest capture failed are left out, unless all failed.

    Unlike in KCL, the average throughput is over all workers, to balance those without CPU figures too. `alpha`: of the
    newer value.
    """
    unfinished = fleet.unfinished
    scale = _scale(unfinished)
    figures = {worker: _figures(fleet.stats.get(worker), alpha) for worker in _eligible(fleet)}
    hosts = _hosts(fleet, figures)
    for sharing in hosts:
        _share(sharing, figures)
    averages = _averages(figures.values())
    speaking = {name: value for name, value in averages.items() if value >= _SPEAKING_PERCENT}
    reading, target_weight = _weigh(unfinished, fleet, figures.keys(), scale)
    costs = _fleet_reading_costs(figures, reading, speaking, target_weight)
    loads = {
        worker: _load(
            fleet.stats.get(worker, WorkerRow(worker, 0)),
            each,
            speaking,
            limits=fleet.limits,
            fleet_costs=costs,
            weight=reading[worker],
            target_weight=target_weight,
        )
        for worker, each in figures.items()
    }
    waiting = _count_leases(unfinished, fleet, loads, scale)
    return FleetLoad(loads, waiting, scale, target_weight, quiet=bool(averages) and not speaking, hosts=hosts)


def _hosts(fleet: Fleet, figures: Mapping[WorkerId, Mapping[MetricName, float]]) -> tuple[Sharing, ...]:
    found: dict[str, list[WorkerId]] = {}
    for worker in figures:
        row = fleet.stats.get(worker)
        if row is not None and row.host is not None and CPU in figures[worker]:
            found.setdefault(row.host, []).append(worker)
    return tuple(tuple(workers) for _, workers in sorted(found.items()) if len(workers) > 1)


def _share(sharing: Sharing, figures: Mapping[WorkerId, dict[MetricName, float]]) -> None:
    mean = fmean(figures[worker][CPU] for worker in sharing)
    for worker in sharing:
        figures[worker][CPU] = mean


def _scale(unfinished: Iterable[Lease]) -> LeaseWeights:
    known = [lease.throughput_kbps for lease in unfinished if lease.throughput_kbps is not None]
    return LeaseWeights(fmean(known) if known else 0.0, measured=bool(known))


def _weigh(
    unfinished: Iterable[Lease], fleet: Fleet, workers: Collection[WorkerId], scale: LeaseWeights
) -> tuple[dict[WorkerId, float], float]:
    reading: dict[WorkerId, float] = dict.fromkeys(workers, 0.0)
    total = 0.0
    for lease in unfinished:
        now, future = fleet.reader(lease), fleet.future_owner(lease)
        if now is not None and now in reading:
            reading[now] += scale.weight(lease)
        if future is None or future in reading:
            total += scale.weight(lease)
    return reading, (total / len(workers) if total and workers else 1.0)


def _eligible(fleet: Fleet) -> list[WorkerId]:
    able = sorted(fleet.workers)
    well = [worker for worker in able if (row := fleet.stats.get(worker)) is None or not row.is_failing]
    return well or able


def _figures(row: WorkerRow | None, alpha: float) -> dict[MetricName, float]:
    figures: dict[MetricName, float] = {}
    for name, averages in ({} if row is None else row.metrics).items():
        value = smoothed(averages, alpha)
        if value is not None and name != THROUGHPUT:
            figures[name] = value
    return figures


def _averages(figures: Iterable[Mapping[MetricName, float]]) -> dict[MetricName, float]:
    values: dict[MetricName, list[float]] = {}
    for each in figures:
        for name, value in each.items():
            values.setdefault(name, []).append(value)
    return {name: fmean(each) for name, each in values.items()}


def _fleet_reading_costs(
    figures: Mapping[WorkerId, Mapping[MetricName, float]],
    reading: Mapping[WorkerId, float],
    speaking: Mapping[MetricName, float],
    target_weight: float,
) -> dict[MetricName, float]:
    """Points per unit of weight on an average worker. The host's other work makes it too high, which is safe."""
    costs: dict[MetricName, float] = {}
    for name, average in speaking.items():
        reporting = [worker for worker, each in figures.items() if name in each]
        weight = sum(reading[worker] for worker in reporting)
        costs[name] = average * len(reporting) / weight if weight else average / target_weight
    return costs


def _load(
    row: WorkerRow,
    figures: Mapping[MetricName, float],
    speaking: Mapping[MetricName, float],
    *,
    limits: LeaseLimits,
    fleet_costs: Mapping[MetricName, float],
    weight: float,
    target_weight: float,
) -> WorkerLoad:
    used = {name: value for name, value in figures.items() if name in speaking}
    if not used:
        percent = 100 / target_weight
        return WorkerLoad(
            row.worker_id,
            values={THROUGHPUT: percent * weight},
            shares={THROUGHPUT: 100.0},
            ceilings={THROUGHPUT: inf},
            costs={THROUGHPUT: percent},
            limits=limits,
        )
    ceilings = {name: float(row.operating_ranges.get(name, OPERATING_RANGE_DEFAULT)) for name in used}
    costs = dict(fleet_costs)
    if weight > 0:
        # With few leases, the figures show the host more than its leases.
        trust = min(1.0, weight / (_SHARE_FOR_OWN_FIGURES * target_weight)) ** 2
        costs = {name: costs[name] * (1 - trust) + value / weight * trust for name, value in used.items()}
    return WorkerLoad(
        row.worker_id,
        values=used,
        shares={name: min(speaking[name], ceilings[name]) for name in used},
        ceilings=ceilings,
        costs={name: costs[name] for name in used},
        limits=limits,
    )


def _count_leases(
    unfinished: Iterable[Lease], fleet: Fleet, loads: Mapping[WorkerId, WorkerLoad], scale: LeaseWeights
) -> tuple[Lease, ...]:
    """Reported values cover what a worker reads now, so only leases on their way change them."""
    waiting: list[Lease] = []
    for lease in unfinished:
        now, future = fleet.reader(lease), fleet.future_owner(lease)
        weight = scale.weight(lease)
        if now != future and now is not None and now in loads:
            loads[now].shift(-weight)
        if future is None:
            waiting.append(lease)
        elif future in loads:
            loads[future].hold(lease, weight, scale.kbps(lease))
            if now != future:
                loads[future].shift(weight)
    return tuple(waiting)


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceOptions:
    """The leader's options count for all workers; `config.balance` explains them.

    Args:
        max_throughput_per_host_kbps: a worker above it gets no more, but loses nothing.
        balance_this_run: workers report every 30 s, so do not balance twice on the same figures.
    """

    rebalance_threshold_percentage: float = 10
    dampening_percentage: float = 60
    allow_throughput_overshoot: bool = True
    max_throughput_per_host_kbps: float = inf
    ema_alpha: float = 0.5
    balance_this_run: bool = True

    @property
    def threshold(self) -> float:
        return self.rebalance_threshold_percentage / 100

    def is_full(self, load: WorkerLoad) -> bool:
        return load.is_full or load.throughput_kbps > self.max_throughput_per_host_kbps

    def has_room_for(self, load: WorkerLoad, lease: Lease, throughput_kbps: float) -> bool:
        after_kbps = load.throughput_kbps + throughput_kbps
        return load.has_room(lease) and after_kbps <= self.max_throughput_per_host_kbps
