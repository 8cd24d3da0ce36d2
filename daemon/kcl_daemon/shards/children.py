"""What follows a shard: the leases of its child shards, and whose turn it is (KCL: ShutdownTask, BlockOnParentShardTask)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kcl_daemon.leases.lease import Lease, ShardId, WorkerId, lease_key_of
from kcl_daemon.leases.stream import StreamIdentity
from kcl_daemon.shards.shard import ChildShard, Shard
from kcl_protocol.sequence import TRIM_HORIZON


def child_leases(
    children: Iterable[ChildShard], heir: WorkerId | None = None, stream: StreamIdentity | None = None
) -> list[Lease]:
    """Leases for the shards that follow, always from their beginning, whatever the configured position (KCL: HierarchicalShardSyncer).

    Args:
        children: as the parent's last answer names them.
        heir: who reads the first of them; the others are nobody's yet. KCL leaves all to the leader, which is seconds
            later; one for one, who reads the parent has as much to do as before.
        stream: the parent's, where there are many.
    """
    return [
        Lease(
            lease_key=lease_key_of(stream, child.shard_id),
            stream=stream,
            lease_counter=0,
            checkpoint=TRIM_HORIZON,
            lease_owner=None if number else heir,
            parent_shard_ids=child.parent_shard_ids,
            hash_range=child.hash_range,
        )
        for number, child in enumerate(sorted(children, key=lambda child: child.shard_id))
    ]


def unfinished_parents(lease: Lease, parents: Mapping[ShardId, Lease | None]) -> frozenset[ShardId]:
    """The parents that must finish first; one without a lease does not block.

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
    child: Lease, parents: Mapping[ShardId, Lease | None], shards: Iterable[Shard]
) -> frozenset[ShardId]:
    """The parents of a merged shard that have no lease yet, but will have one.

    While there is one, the child shard's lease must not be created: nothing would make it wait for that parent. KCL
    guesses here (it gives up one time in thirty). But a parent's lease is never cleaned up before its child
    shards have begun; so one that is missing is still to come, when an ancestor ends, or it was lost, and then the
    auditor brings it back. Only a parent that Kinesis has forgotten will not come.

    Args:
        child: the lease about to be created.
        parents: its parents' leases as read, None where there is none.
        shards: every shard that Kinesis still lists.
    """
    missing = {shard_id for shard_id in child.parent_shard_ids if parents.get(shard_id) is None}
    return frozenset(shard.shard_id for shard in shards if shard.shard_id in missing)
