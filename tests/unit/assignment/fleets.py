"""Fleets for tests of assignment: values, and a model of hosts whose CPU follows what they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kcl_daemon.assignment.plan import Fleet, LeaseLimits, LeaseMove
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.worker_row import CPU, WorkerRow
from kcl_protocol.sequence import SHARD_END, TRIM_HORIZON

A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")


def lease(
    number: int,
    owner: WorkerId | None = None,
    kbps: float | None = None,
    *,
    old_owner: WorkerId | None = None,
    finished: bool = False,
) -> Lease:
    return Lease(
        LeaseKey(f"shard-{number:06d}"),
        5,
        SHARD_END if finished else TRIM_HORIZON,
        lease_owner=owner,
        checkpoint_owner=old_owner,
        throughput_kbps=kbps,
    )


def reports(**cpu: float | tuple[float, ...]) -> dict[WorkerId, WorkerRow]:
    """Rows of workers by their CPU: one figure or all of them."""
    return {
        WorkerId(name): WorkerRow(
            WorkerId(name),
            1,
            {CPU: figures if isinstance(figures, tuple) else (figures,)},
            {CPU: 100},
        )
        for name, figures in cpu.items()
    }


def on_one_host(rows: Mapping[WorkerId, WorkerRow]) -> dict[WorkerId, WorkerRow]:
    """The same rows, of workers that report the CPU of one host."""
    return {worker: replace(row, host="boot-1") for worker, row in rows.items()}


def fleet(
    leases: Sequence[Lease],
    *workers: WorkerId,
    stats: Mapping[WorkerId, WorkerRow] | None = None,
    abandoned: frozenset[LeaseKey] = frozenset(),
    overdue: frozenset[LeaseKey] = frozenset(),
    ages_s: Mapping[LeaseKey, float] | None = None,
    most: int = 2**31 - 1,
) -> Fleet:
    return Fleet(
        leases,
        abandoned,
        overdue,
        frozenset(workers),
        LeaseLimits(most),
        stats=dict(stats or {}),
        ages_s=dict(ages_s or {}),
    )


def applied(leases: Sequence[Lease], moves: Sequence[LeaseMove]) -> list[Lease]:
    """The leases once all moves are done."""
    to = {move.lease.lease_key: move.to for move in moves}
    return [
        replace(each, lease_owner=to.get(each.lease_key, each.lease_owner), checkpoint_owner=None)
        for each in leases
    ]


@dataclass(frozen=True, slots=True)
class Host:
    """A machine: busy percent = base + cost x KiB/s read, and no more than 100."""

    base_percent: float
    cost_percent: float

    def busy(self, kbps: float) -> float:
        return min(100.0, self.base_percent + self.cost_percent * kbps)


def loads(leases: Sequence[Lease], hosts: Mapping[WorkerId, Host]) -> dict[WorkerId, float]:
    """The CPU of each host; at 100 % it would fall behind as well, which the model leaves out."""
    return {
        worker: host.busy(sum(each.throughput_kbps or 0 for each in leases if each.lease_owner == worker))
        for worker, host in hosts.items()
    }
