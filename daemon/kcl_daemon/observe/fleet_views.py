"""PURE: the rows of leases and workers, as the page, the metrics and the commands see them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from kcl_daemon.leases.lease import Lease, WorkerId
from kcl_daemon.leases.stats import CPU, WorkerRow
from kcl_daemon.observe.snapshot import LeaseView, WorkerView


def lease_view(lease: Lease) -> LeaseView:
    """A lease of the table."""
    return LeaseView(
        key=lease.lease_key,
        shard_id=lease.shard_id,
        stream=None if lease.stream is None else lease.stream.name,
        owner=lease.actual_owner,
        checkpoint=str(lease.checkpoint),
        parents=tuple(sorted(lease.parent_shard_ids)),
        children=tuple(sorted(lease.child_shard_ids)),
        next_owner=None if lease.checkpoint_owner is None else lease.lease_owner,
        stream_id=None if lease.stream is None else str(lease.stream),
    )


def worker_views(
    rows: Iterable[WorkerRow], leases: Sequence[Lease], reported_s: Callable[[WorkerId], float | None]
) -> tuple[WorkerView, ...]:
    """The workers, by name: those that report, and those that own a lease all the same.

    Args:
        rows: of those that report.
        leases: all; finished ones count for nobody.
        reported_s: age of a worker's last report, as `WorkerView` has it.
    """
    held = Counter(lease.actual_owner for lease in leases if not lease.is_finished)
    figures = {row.worker_id: _cpu(row) for row in rows}
    owners = {owner for owner in held if owner is not None}
    return tuple(
        WorkerView(worker, held[worker], figures.get(worker), reported_s(worker))
        for worker in sorted(figures.keys() | owners)
    )


def _cpu(row: WorkerRow) -> float | None:
    averages = row.metrics.get(CPU, ())
    return averages[-1] if averages and averages[-1] >= 0 else None
