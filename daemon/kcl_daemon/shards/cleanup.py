"""Which finished leases may be forgotten (KCL: LeaseCleanupManager).

Pure. A finished lease is what keeps a lineage together: while it is there, nobody takes its child shards for shards
that come from nowhere. So it stays until they have begun.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from kcl_daemon.leases.lease import Lease, ShardId
from kcl_daemon.shards.lineage import children_by_parent
from kcl_daemon.shards.shard import Shard
from kcl_protocol.sequence import AT_TIMESTAMP, TRIM_HORIZON


class Verdict(Enum):
    """What becomes of a finished lease."""

    COMPLETED = "its child shards are being read"
    GARBAGE = "Kinesis no longer has the shard"
    WAITS = "it is still needed"


@dataclass(frozen=True, slots=True)
class Judged:
    """One finished lease.

    Args:
        lease: as it was read.
        verdict: whether it may go.
        reason: for people; names what it waits for.
    """

    lease: Lease
    verdict: Verdict
    reason: str


def judge_finished(leases: Iterable[Lease], shards: Iterable[Shard] | None = None) -> list[Judged]:
    """Judge every finished lease of one stream; parents come before their children.

    Args:
        leases: all of the stream.
        shards: all that Kinesis lists; None: nobody asked. Then a lease whose row does not name its child shards
            stays, and so does one whose child shard has no lease.
    """
    known = {lease.shard_id: lease for lease in leases}
    listed = None if shards is None else list(shards)
    children = children_by_parent(listed or ())
    ids = None if listed is None else frozenset(shard.shard_id for shard in listed)
    finished = sorted(
        (lease for lease in known.values() if lease.is_finished), key=lambda each: each.lease_key
    )
    return [_judge(lease, known, children.get(lease.shard_id, frozenset()), ids) for lease in finished]


def _judge(
    lease: Lease,
    known: Mapping[ShardId, Lease],
    listed_children: frozenset[ShardId],
    listed: frozenset[ShardId] | None,
) -> Judged:
    def waits(reason: str, shards: Iterable[ShardId] = ()) -> Judged:
        return Judged(lease, Verdict.WAITS, " ".join((reason, *sorted(shards))))

    older = [parent for parent in lease.parent_shard_ids if parent in known]
    if older:
        return waits("its parents come first:", older)
    children = lease.child_shard_ids | listed_children
    gone = listed is not None and lease.shard_id not in listed
    if not children and not gone:
        return waits("its child shards are unknown")
    without_lease = [
        child for child in children if child not in known and (listed is None or child in listed)
    ]
    if without_lease:
        return waits("no lease yet for", without_lease)
    not_begun = [child for child in children if child in known and not has_begun(known[child])]
    if not_begun:
        return waits("not begun yet:", not_begun)
    verdict = Verdict.GARBAGE if gone else Verdict.COMPLETED
    return Judged(lease, verdict, verdict.value)


def has_begun(lease: Lease) -> bool:
    """Whether a shard's reading does not depend on its parents any more (M11b).

    A lease at LATEST never did.
    """
    return lease.checkpoint not in {TRIM_HORIZON, AT_TIMESTAMP}
