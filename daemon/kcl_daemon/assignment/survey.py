"""The state of a fleet in loads (KCL: LeaseAssignmentManager.InMemoryStorageView): what each lease weighs, what each worker bears.

What is done about it is decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from statistics import fmean
from typing import Final, TypeAlias

from kcl_daemon.assignment.load import Load
from kcl_daemon.assignment.plan import Fleet
from kcl_daemon.leases.lease import Lease, WorkerId
from kcl_daemon.leases.stats import CPU, OPERATING_RANGE_DEFAULT, THROUGHPUT, MetricName, WorkerRow

Sharing: TypeAlias = tuple[WorkerId, ...]
"""Workers that share a host."""

# A metric whose average is below this percentage is the noise of idle hosts and decides nothing.
_SPEAKING_PERCENT: Final = 5.0
# An idle lease still weighs this part of an average one: it may wake up, and ten thousand of them are not nothing.
_LEAST_WEIGHT: Final = 0.1
# A worker that reads this part of a fair share shows by its own figures what a lease costs it.
_TELLING_SHARE: Final = 0.25


@dataclass(frozen=True, slots=True)
class Scale:
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
class Survey:
    """The loads of a fleet as they will be once the hand-offs under way are done.

    Args:
        loads: of the workers that may be given leases.
        waiting: unfinished leases for which a worker must be found.
        scale: what leases weigh.
        target_weight: a worker's fair share of lease weight, above 0.
        quiet: whether workers report metrics and all of them are too low to mean anything.
        hosts: of each host with several workers those that report its CPU. Which of them reads what does not show there.
    """

    loads: Mapping[WorkerId, Load]
    waiting: tuple[Lease, ...]
    scale: Scale
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


def survey(fleet: Fleet, *, alpha: float) -> Survey:
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
    costs = _fleet_costs(figures, reading, speaking, target_weight)
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
    return Survey(loads, waiting, scale, target_weight, quiet=bool(averages) and not speaking, hosts=hosts)


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


def _scale(unfinished: Iterable[Lease]) -> Scale:
    known = [lease.throughput_kbps for lease in unfinished if lease.throughput_kbps is not None]
    return Scale(fmean(known) if known else 0.0, measured=bool(known))


def _weigh(
    unfinished: Iterable[Lease], fleet: Fleet, workers: Collection[WorkerId], scale: Scale
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


def _fleet_costs(
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
) -> Load:
    """A worker with nothing yet but its values; the leases that it reads are counted afterwards."""
    used = {name: value for name, value in figures.items() if name in speaking}
    if not used:
        percent = 100 / target_weight
        return Load(
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
    return Load(
        row.worker_id,
        values=used,
        shares={name: min(speaking[name], ceilings[name]) for name in used},
        ceilings=ceilings,
        costs={name: costs[name] for name in used},
    )


def _count_leases(
    unfinished: Iterable[Lease], fleet: Fleet, loads: Mapping[WorkerId, Load], scale: Scale
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
