"""Who leads in a fleet that still follows KCL 2.x (KCL: DeterministicShuffleShardSyncLeaderDecider).

Nobody is elected: every worker works out the leader from the owners in the lease table. Two workers that read it at
different moments may both lead, or neither, until they look again; so all that a leader does must bear that. When to
look is told here as well, because all workers should keep the same pace.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kcl_daemon.leases.java_random import java_order, shuffled
from kcl_daemon.leases.lease import Lease, WorkerId

_SEED: Final = 1947
_SECOND_LOOK_AFTER_S: Final = 60.0
_LOOK_EVERY_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether this worker leads.

    Args:
        leads: it does.
        leader: the one that does; None where no lease has an owner, then every worker leads.
        reason: for people.
    """

    leads: bool
    leader: WorkerId | None
    reason: str


def shuffle_leader(leases: Iterable[Lease]) -> WorkerId | None:
    """The leader among the owners of these leases, whether or not they still live; None where there is no owner."""
    owners = {lease.lease_owner for lease in leases if lease.lease_owner is not None}
    return shuffled(java_order(owners), _SEED)[0] if owners else None


def verdict(me: WorkerId, leases: Iterable[Lease]) -> Verdict:
    """Whether `me` leads, from all leases of the table."""
    leader = shuffle_leader(leases)
    if leader is None:
        return Verdict(leads=True, leader=None, reason="no lease has an owner, so every worker leads")
    if leader == me:
        return Verdict(leads=True, leader=leader, reason="the shuffle of the lease owners names this worker")
    return Verdict(leads=False, leader=leader, reason=f"the shuffle of the lease owners names {leader}")


def look_again_after_s(looks: int) -> float:
    """How long the verdict holds: a minute the first time, then five minutes."""
    return _SECOND_LOOK_AFTER_S if looks <= 1 else _LOOK_EVERY_S
