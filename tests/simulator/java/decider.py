"""What a Java leader decides: its variance rule on plain values, queue and all.

Owns the decision, worked out from KCL's source and not from the daemon's own rules. Host and
lease limits are left out, as they are unlimited by default. Where no throughput is known Java divides 0 by 0; the
value is 0 here, which gives the same order: all workers are equal then, and two of them get everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from tests.simulator.chance import Chance

_THRESHOLD: Final = 0.10
_DAMPENING: Final = 0.60
_CEILING: Final = 100.0
_SYNTHETIC: Final = "T"


@dataclass(slots=True, eq=False)
class Load:
    """One active worker as the leader's memory has it during one run."""

    worker_id: WorkerId
    metrics: dict[str, float]
    kbps: float = 0.0

    def headroom(self, averages: Mapping[str, float]) -> float:
        """G14: of the metric that leaves least."""
        return min(
            1.0 if value == 0 else (averages[name] - value) / value for name, value in self.metrics.items()
        )


@dataclass(slots=True)
class Queue:
    """A binary heap as java.util.PriorityQueue sifts it, because its order among equals shows."""

    averages: Mapping[str, float]
    items: list[Load] = field(default_factory=list[Load])

    def offer(self, load: Load) -> None:
        """Put a worker in."""
        items, key = self.items, load.headroom(self.averages)
        items.append(load)
        place = len(items) - 1
        while place > 0:
            parent = (place - 1) // 2
            if key <= items[parent].headroom(self.averages):
                break
            items[place] = items[parent]
            place = parent
        items[place] = load

    def poll(self) -> Load | None:
        """Take the one with the greatest headroom out."""
        items = self.items
        if not items:
            return None
        best, last = items[0], items.pop()
        if not items:
            return best
        key, place = last.headroom(self.averages), 0
        while (child := 2 * place + 1) < len(items):
            if child + 1 < len(items) and items[child + 1].headroom(self.averages) > items[child].headroom(
                self.averages
            ):
                child += 1
            if key >= items[child].headroom(self.averages):
                break
            items[place] = items[child]
            place = child
        items[place] = last
        return best


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one run goes by.

    Args:
        leases: all of them.
        loose: keys of those that are expired or unowned, the one that stood still longest first.
        overdue: keys of those whose hand-off has passed its deadline.
        metrics: of each active worker, in the order of their rows; empty: it has no figures.
    """

    leases: Mapping[LeaseKey, Lease]
    loose: tuple[LeaseKey, ...]
    overdue: frozenset[LeaseKey]
    metrics: Mapping[WorkerId, Mapping[str, float]]


class Decision:
    """One run of the variance rule; `moves` is what it comes to."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.moves: dict[LeaseKey, WorkerId] = {}
        self._snapshot = snapshot
        leases = snapshot.leases
        known = [lease.throughput_kbps for lease in leases.values() if lease.throughput_kbps is not None]
        average = sum(known) / len(known) if known else 0.0
        self._kbps = {
            key: average if lease.throughput_kbps is None else lease.throughput_kbps
            for key, lease in leases.items()
        }
        workers = max(1, len(snapshot.metrics))
        self._target_kbps = average * len(leases) / workers
        self._target_leases = max(1, len(leases) // workers)
        self._owners = {key: lease.actual_owner for key, lease in leases.items()}
        self._loads = {worker_id: self._load(worker_id) for worker_id in snapshot.metrics}
        self._averages = self._fleet_averages()
        self._queue = Queue(self._averages)
        for load in self._loads.values():
            self._queue.offer(load)

    def place(self) -> None:
        """G15: what nobody reads."""
        for key in self._snapshot.loose:
            best = self._queue.poll()
            if best is None:
                return
            if self._owners[key] != best.worker_id or key in self._snapshot.overdue:
                self._give(key, best)
            self._queue.offer(best)

    def balance(self, chance: Chance) -> None:
        """By the metric by which most would be taken."""
        plans = [plan for name in sorted(self._averages) if (plan := self._donors(name))]
        if not plans:
            return
        taking = max(plans, key=lambda plan: sum(plan.values()))
        for worker_id, take_kbps in sorted(taking.items(), key=lambda item: -item[1]):
            for key in self._chosen(worker_id, take_kbps, chance):
                best = self._queue.poll()
                if best is None or self._would_overload(best, key):
                    break
                if self._owners[key] != best.worker_id:
                    self._give(key, best)
                self._queue.offer(best)

    def _load(self, worker_id: WorkerId) -> Load:
        kbps = sum(self._kbps[key] for key, owner in self._owners.items() if owner == worker_id)
        share = min(_CEILING, 100 * kbps / self._target_kbps) if self._target_kbps else 0.0
        return Load(worker_id, dict(self._snapshot.metrics[worker_id]) or {_SYNTHETIC: share}, kbps)

    def _fleet_averages(self) -> dict[str, float]:
        values: dict[str, list[float]] = {}
        for load in self._loads.values():
            for name, value in load.metrics.items():
                values.setdefault(name, []).append(value)
        return {name: sum(each) / len(each) for name, each in values.items()}

    def _rise(self, name: str, key: LeaseKey) -> float:
        """G15.2: what a lease adds to a metric."""
        average = self._averages[name]
        if self._target_kbps:
            return self._kbps[key] * average / self._target_kbps
        return average / self._target_leases

    def _give(self, key: LeaseKey, to: Load) -> None:
        giver = self._loads.get(self._owners[key] or WorkerId(""))
        if giver is not None:
            giver.kbps -= self._kbps[key]
        to.kbps += self._kbps[key]
        for name in to.metrics:
            to.metrics[name] += self._rise(name, key)
        self._owners[key] = to.worker_id
        self.moves[key] = to.worker_id

    def _donors(self, name: str) -> dict[WorkerId, float]:
        """How much throughput each too busy worker is to give; nothing where all are within the band."""
        average = self._averages[name]
        values = {load.worker_id: load.metrics[name] for load in self._loads.values() if name in load.metrics}
        upper, lower = average * (1 + _THRESHOLD), average * (1 - _THRESHOLD)
        if not any(value > upper or value < lower or value > _CEILING for value in values.values()):
            return {}
        busy = [worker_id for worker_id, value in values.items() if value >= upper or value > _CEILING]
        busy = busy or [max(values, key=lambda worker_id: values[worker_id])]
        return {
            worker_id: (values[worker_id] - average) / values[worker_id] * _DAMPENING * self._loads[worker_id].kbps
            for worker_id in busy
            if values[worker_id] > 0
        }  # fmt: skip

    def _chosen(self, worker_id: WorkerId, take_kbps: float, chance: Chance) -> list[LeaseKey]:
        """G19."""
        mine = [key for key, owner in self._owners.items() if owner == worker_id]
        for place in range(len(mine) - 1, 0, -1):
            other = chance.between(0, place)
            mine[place], mine[other] = mine[other], mine[place]
        if self._loads[worker_id].kbps <= 0:
            return mine[:1]
        chosen: list[LeaseKey] = []
        remaining = take_kbps
        for key in mine:
            if remaining - self._kbps[key] > 0:
                chosen.append(key)
                remaining -= self._kbps[key]
        if not chosen and mine:
            chosen = [min(mine, key=lambda key: self._kbps[key])]
        return chosen

    def _would_overload(self, load: Load, key: LeaseKey) -> bool:
        """G20."""
        return any(
            value + self._rise(name, key) > min(self._averages[name], _CEILING)
            for name, value in load.metrics.items()
        )
