"""Whether a lease is still ours after a refused write or a lost answer (KCL: DynamoDBLeaseRefresher.renewLease).

A worker has one write in flight per lease, and each raises the counter by one: the row shows which took effect.
"""

from __future__ import annotations

from dataclasses import dataclass

from kcl_daemon.leases.lease import Lease, WorkerId
from kcl_daemon.leases.row import MalformedRowError, Row, lease_from_row


@dataclass(frozen=True, slots=True)
class StillOurs:
    """`moved`: an earlier write of ours took effect after all."""

    lease: Lease
    moved: bool


@dataclass(frozen=True, slots=True)
class LeaseGone:
    """`by_duplicate`: another process wrote the lease under our worker id."""

    reason: str
    by_duplicate: bool = False


def judge_written_row(
    held: Lease, row: Row | None, *, me: WorkerId, uncertain: bool
) -> StillOurs | LeaseGone:
    """`held`: after our last write known to have taken effect; `uncertain`: a later one may have, unanswered."""
    if row is None:
        return LeaseGone("its row was deleted")
    try:
        lease = lease_from_row(row)
    except MalformedRowError as malformed:
        return LeaseGone(str(malformed))
    taken = _taken_by_another(lease, me)
    if taken is not None:
        return LeaseGone(taken)
    ahead = lease.lease_counter - held.lease_counter
    if ahead == 0 or (ahead == 1 and uncertain):
        return StillOurs(lease, moved=ahead == 1)
    return LeaseGone(
        f"its counter is {lease.lease_counter}, not {held.lease_counter}: was it assigned to this worker "
        "again, or does another process use this worker's id?",
        by_duplicate=True,
    )


def _taken_by_another(lease: Lease, me: WorkerId) -> str | None:
    if lease.actual_owner is None:
        return "it has no owner now"
    if lease.actual_owner != me:
        return f"{lease.actual_owner} owns it now"
    if lease.checkpoint_owner == lease.lease_owner:
        return "its handoff names this worker on both sides"
    return None
