"""What follows a shard: the leases of its child shards, and whose turn it is (KCL: ShutdownTask M8, BlockOnParentShardTask)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kcl_daemon.leases.lease import Lease, LeaseKey, ShardId
from kcl_daemon.shards.shard import ChildShard, Shard
from kcl_protocol.sequence import TRIM_HORIZON


def child_leases(children: Iterable[ChildShard]) -> list[Lease]:
    """Leases for the shards that follow, always from their beginning, whatever the configured position (T4.3)."""
    return [
        Lease(
            lease_key=LeaseKey(child.shard_id),
            lease_counter=0,
            checkpoint=TRIM_HORIZON,
            parent_shard_ids=child.parent_shard_ids,
            hash_range=child.hash_range,
        )
        for child in sorted(children, key=lambda child: child.shard_id)
    ]


def unfinished_parents(lease: Lease, parents: Mapping[ShardId, Lease | None]) -> frozenset[ShardId]:
    """The parents that must finish first; one without a lease does not block (O2).

    Args:
        lease: of the shard that wants to begin.
        parents: its parents' leases as read, None where there is none.
    """
    return frozenset(
        shard_id
        for shard_id in lease.parent_shard_ids
        if (parent := parents.get(shard_id)) is not None and not parent.is_finished
    )


def awaited_parents(
    child: Lease, leases: Mapping[LeaseKey, Lease], shards: Mapping[ShardId, Shard]
) -> frozenset[ShardId]:
    """The parents of a merged shard whose leases do not exist yet but will, because an ancestor is still being read.

    While there is one, the child shard's lease must not be created: nothing would make it wait for that parent. KCL
    guesses here (it gives up one time in thirty, M8.2); the lineage knows.

    Args:
        child: the lease about to be created.
        leases: every lease in the table.
        shards: every shard that Kinesis still lists.
    """
    return frozenset(
        parent
        for parent in child.parent_shard_ids
        if LeaseKey(parent) not in leases and _has_unfinished_ancestor(parent, leases, shards)
    )


def _has_unfinished_ancestor(
    shard_id: ShardId, leases: Mapping[LeaseKey, Lease], shards: Mapping[ShardId, Shard]
) -> bool:
    pending, seen = [shard_id], {shard_id}
    while pending:
        shard = shards.get(pending.pop())
        for parent in sorted(shard.parent_shard_ids) if shard is not None else ():
            lease = leases.get(LeaseKey(parent))
            if lease is not None and not lease.is_finished:
                return True
            if parent not in seen:
                seen.add(parent)
                pending.append(parent)
    return False
