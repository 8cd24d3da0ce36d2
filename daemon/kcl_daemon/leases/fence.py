"""Whether a lease is still ours when a write was refused or its answer got lost (KCL: DynamoDBLeaseRefresher.renewLease).

A worker has at most one write under way for a lease, and every write of its own raises the counter by exactly one. So
the row tells what became of a write whose answer never came.
"""

from __future__ import annotations

from dataclasses import dataclass

from kcl_daemon.leases.lease import Lease, WorkerId
from kcl_daemon.leases.row import MalformedRowError, Row, lease_from_row


@dataclass(frozen=True, slots=True)
class StillOurs:
    """We hold it, as this lease.

    Args:
        lease: the row as it is now.
        moved: whether an earlier write of ours took effect after all.
    """

    lease: Lease
    moved: bool


@dataclass(frozen=True, slots=True)
class LeaseGone:
    """We do not hold it any more.

    Args:
        reason: why, for people.
        by_namesake: somebody has written it under our worker id.
    """

    reason: str
    by_duplicate: bool = False


def judge_written_row(
    held: Lease, row: Row | None, *, me: WorkerId, uncertain: bool
) -> StillOurs | LeaseGone:
    """What a row says about a lease that we believe to hold.

    Args:
        held: the lease as it was after our last write that is known to have taken effect.
        row: what the table holds now.
        me: our worker id.
        uncertain: whether a write of ours may have taken effect without our knowing.
    """
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
