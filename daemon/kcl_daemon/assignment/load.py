"""How loaded one worker is, and how loaded it would be with a lease more or less.

Different metrics are compared by one number, the relative load: the worker's value over its fair share, which is the
fleet's average or the worker's own ceiling where that is lower. 1 is balanced; the most loaded metric of a worker
counts. It knows no leases, only their weight.

The state of a fleet in loads (KCL: LeaseAssignmentManager.InMemoryStorageView): what each lease weighs, what each worker bears.

What is done about it is decided elsewhere.

What an operator can say about balancing, as values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from statistics import fmean
from typing import Final, TypeAlias

from kcl_daemon.assignment.plan import Fleet
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

_TITLES: Final = {CPU: "cpu", MEMORY: "memory", NETWORK_IN: "network in", NETWORK_OUT: "network out"}


@dataclass(slots=True)
class WorkerLoad:
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


def metric_title(name: MetricName) -> str:
    """What people call a metric."""
    return _TITLES.get(name, "throughput" if name == THROUGHPUT else str(name))


Sharing: TypeAlias = tuple[WorkerId, ...]
"""Workers that share a host."""

# A metric whose average is below this percentage is the noise of idle hosts and decides nothing.
_SPEAKING_PERCENT: Final = 5.0
# An idle lease still weighs this part of an average one: it may wake up, and ten thousand of them are not nothing.
_LEAST_WEIGHT: Final = 0.1
# A worker that reads this part of a fair share shows by its own figures what a lease costs it.
_TELLING_SHARE: Final = 0.25


@dataclass(frozen=True, slots=True)
class LeaseWeights:
    """What leases weigh in predictions.

    Args:
        average_kbps: mean of the known throughputs; leases without a figure are taken for average.
        measured: whether any lease has a figure.
    """

    average_kbps: float
    measured: bool

    @property
    def is_idle(self) -> bool:
        """Whether no throughput is known or there is none; every lease then weighs 1."""
        return self.average_kbps == 0

    def kbps(self, lease: Lease) -> float:
        """Throughput of a lease, the average where it is not known."""
        return self.average_kbps if lease.throughput_kbps is None else lease.throughput_kbps

    def weight(self, lease: Lease) -> float:
        """What a lease counts in predictions, above 0."""
        return max(self.kbps(lease), _LEAST_WEIGHT * self.average_kbps) or 1.0

    def is_felt(self, lease: Lease) -> bool:
        """Whether a move of the lease would change the loads, as far as anybody knows."""
        if self.is_idle:
            return True
        return (
            lease.throughput_kbps is not None and lease.throughput_kbps >= _LEAST_WEIGHT * self.average_kbps
        )


@dataclass(frozen=True, slots=True)
class FleetLoad:
    """The loads of a fleet as they will be once the hand-offs under way are done.

    Args:
        loads: of the workers that may be given leases.
        waiting: unfinished leases for which a worker must be found.
        scale: what leases weigh.
        target_weight: a worker's fair share of lease weight, above 0.
        quiet: whether workers report metrics and all of them are too low to mean anything.
        hosts: of each host with several workers those that report its CPU. Which of them reads what does not show there.
    """

    loads: Mapping[WorkerId, WorkerLoad]
    waiting: tuple[Lease, ...]
    scale: LeaseWeights
    target_weight: float
    quiet: bool
    hosts: tuple[Sharing, ...] = ()


def smoothed(averages: Iterable[float], alpha: float) -> float | None:
    """The value of a metric: moving average over what was reported, failed captures left out; None: no figure."""
    value: float | None = None
    for average in averages:
        if average >= 0:
            value = average if value is None else alpha * average + (1 - alpha) * value
    return value


def measure_fleet(fleet: Fleet, *, alpha: float) -> FleetLoad:
    """The loads of a fleet.

    Workers whose latest capture failed are left out, unless all fail: then somebody must read all the same.
    Differs from KCL: the average of the synthetic metric is taken over all workers, not only over those without
    figures, so that a worker without CPU figures among others is balanced too; and it has no ceiling.

    Args:
        fleet: as the leader sees it.
        alpha: weight of the newer value in the moving average of the metrics.
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
            fleet_costs=costs,
            weight=reading[worker],
            target_weight=target_weight,
        )
        for worker, each in figures.items()
    }
    waiting = _count_leases(unfinished, fleet, loads, scale)
    return FleetLoad(loads, waiting, scale, target_weight, quiet=bool(averages) and not speaking, hosts=hosts)


def _hosts(fleet: Fleet, figures: Mapping[WorkerId, Mapping[MetricName, float]]) -> tuple[Sharing, ...]:
    """The workers that report the CPU of the same host, by host; those that are alone on theirs are left out."""
    found: dict[str, list[WorkerId]] = {}
    for worker in figures:
        row = fleet.stats.get(worker)
        if row is not None and row.host is not None and CPU in figures[worker]:
            found.setdefault(row.host, []).append(worker)
    return tuple(tuple(workers) for _, workers in sorted(found.items()) if len(workers) > 1)


def _share(sharing: Sharing, figures: Mapping[WorkerId, dict[MetricName, float]]) -> None:
    """One host has one CPU: that its workers report at different times is no difference between them."""
    mean = fmean(figures[worker][CPU] for worker in sharing)
    for worker in sharing:
        figures[worker][CPU] = mean


def _scale(unfinished: Iterable[Lease]) -> LeaseWeights:
    known = [lease.throughput_kbps for lease in unfinished if lease.throughput_kbps is not None]
    return LeaseWeights(fmean(known) if known else 0.0, measured=bool(known))


def _weigh(
    unfinished: Iterable[Lease], fleet: Fleet, workers: Collection[WorkerId], scale: LeaseWeights
) -> tuple[dict[WorkerId, float], float]:
    """What each worker reads now, and the fair share of what they will read in all."""
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
    """Points for one unit of weight on an average worker; too high by what the host does besides, which is safe."""
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
    fleet_costs: Mapping[MetricName, float],
    weight: float,
    target_weight: float,
) -> WorkerLoad:
    """A worker with nothing yet but its values; the leases that it reads are counted afterwards."""
    used = {name: value for name, value in figures.items() if name in speaking}
    if not used:
        percent = 100 / target_weight
        return WorkerLoad(
            row.worker_id,
            values={THROUGHPUT: percent * weight},
            shares={THROUGHPUT: 100.0},
            ceilings={THROUGHPUT: inf},
            costs={THROUGHPUT: percent},
        )
    ceilings = {name: float(row.operating_ranges.get(name, OPERATING_RANGE_DEFAULT)) for name in used}
    costs = dict(fleet_costs)
    if weight > 0:
        # The figures of a worker that reads little say more of its host than of its leases.
        trust = min(1.0, weight / (_TELLING_SHARE * target_weight)) ** 2
        costs = {name: costs[name] * (1 - trust) + value / weight * trust for name, value in used.items()}
    return WorkerLoad(
        row.worker_id,
        values=used,
        shares={name: min(speaking[name], ceilings[name]) for name in used},
        ceilings=ceilings,
        costs={name: costs[name] for name in used},
    )


def _count_leases(
    unfinished: Iterable[Lease], fleet: Fleet, loads: Mapping[WorkerId, WorkerLoad], scale: LeaseWeights
) -> tuple[Lease, ...]:
    """Count each lease for its future owner; returns those that have none.

    The reported values cover what a worker reads now, so only leases on their way change them.
    """
    waiting: list[Lease] = []
    for lease in unfinished:
        now, future = fleet.reader(lease), fleet.future_owner(lease)
        weight = scale.weight(lease)
        if now != future and now is not None and now in loads:
            loads[now].shift(-weight)
        if future is None:
            waiting.append(lease)
        elif future in loads:
            loads[future].count(weight, scale.kbps(lease))
            if now != future:
                loads[future].shift(weight)
    return tuple(waiting)


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceOptions:
    """How workers are balanced; the leader's options count for all workers (G7b).

    Args:
        rebalance_threshold_percentage: leases move when a worker is further than this from its fair share.
        dampening_percentage: how much of what a worker has too much leaves it in one run; its figures lag behind.
        allow_throughput_overshoot: whether the smallest lease may move where each lease is more than that.
        max_throughput_per_host_kbps: a worker above it is given nothing more, in KiB per second; balancing does not
            lift one above it. Nothing is taken from a worker because of it.
        ema_alpha: weight of the newer value in the moving average of a worker's figures.
        balance_this_run: whether to balance, or only to place leases that nobody reads. Not twice on the same
            figures: workers report every 30 s, and what has been moved shows only then.
    """

    rebalance_threshold_percentage: float = 10
    dampening_percentage: float = 60
    allow_throughput_overshoot: bool = True
    max_throughput_per_host_kbps: float = inf
    ema_alpha: float = 0.5
    balance_this_run: bool = True

    @property
    def threshold(self) -> float:
        """The threshold as a part of the fair share."""
        return self.rebalance_threshold_percentage / 100

    def has_room(self, load: WorkerLoad, max_leases: int) -> bool:
        """Whether a worker may be given a lease that nobody reads."""
        return load.leases < max_leases and load.throughput_kbps <= self.max_throughput_per_host_kbps

    def has_room_for(self, load: WorkerLoad, max_leases: int, throughput_kbps: float) -> bool:
        """Whether a lease may be moved to a worker for balance."""
        return (
            load.leases < max_leases
            and load.throughput_kbps + throughput_kbps <= self.max_throughput_per_host_kbps
        )
