"""What a leader tells of its fleet after each look (KCL: the figures of LeaseAssignmentManager)."""

from __future__ import annotations

from kcl_daemon.assignment.plan import Fleet, Plan
from kcl_daemon.coordination.overview import Overview
from kcl_daemon.metrics import kcl
from kcl_daemon.ports_metrics import Meters


def tell_fleet(meters: Meters, overview: Overview, fleet: Fleet, plan: Plan) -> None:
    """One look, and what was decided on it."""
    unfinished = [lease for lease in fleet.leases if not lease.is_finished]
    owners = {lease.lease_owner for lease in overview.leases if lease.lease_owner is not None}
    codes = {worker.worker_id: worker.support_code or 0 for worker in overview.workers}
    meters.add(kcl.ASSIGNMENT_LEASES, len(fleet.leases))
    meters.add(kcl.ASSIGNMENT_WORKERS, len(fleet.workers))
    meters.add(kcl.ASSIGNMENT_EXPIRED, sum(map(fleet.is_free, unfinished)))
    meters.add(kcl.ASSIGNMENT_SPILL, len(plan.unplaced))
    meters.add(kcl.ASSIGNMENT_MOVES, len(plan.moves))
    meters.add(kcl.ASSIGNMENT_INVALID_WORKERS, overview.unreadable_workers)
    meters.add(kcl.ASSIGNMENT_FAILING_WORKERS, sum(worker.is_failing for worker in overview.workers))
    meters.add(kcl.ASSIGNMENT_MALFORMED, overview.unreadable_leases)
    meters.add(kcl.FLEET_SUPPORT, min((codes.get(owner, 0) for owner in owners), default=0))
