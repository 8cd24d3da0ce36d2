"""Which shard follows which: order, generations, and who may go first (KCL: HierarchicalShardSyncer, ShardPrioritization).

Pure. Owns the order of shards and of their leases; knows nothing of which leases are needed (`sync`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kcl_daemon.leases.lease import Lease, LeaseKey, ShardId
from kcl_daemon.shards.shard import Shard


def in_order(shards: Iterable[Shard]) -> list[Shard]:
    """By starting sequence number, then by name; a child shard's numbers lie above those of its parents."""
    return sorted(shards, key=lambda shard: (shard.starting_sequence_number, shard.shard_id))


def children_by_parent(shards: Iterable[Shard]) -> dict[ShardId, frozenset[ShardId]]:
    """For each shard that is some listed shard's parent, which ones."""
    children: dict[ShardId, set[ShardId]] = {}
    for shard in shards:
        for parent in shard.parent_shard_ids:
            children.setdefault(parent, set()).add(shard.shard_id)
    return {parent: frozenset(found) for parent, found in children.items()}


def unexpected_children(shards: Iterable[Shard]) -> frozenset[ShardId]:
    """The shards that have a parent which is still open: the list was made while the stream changed."""
    by_id = {shard.shard_id: shard for shard in shards}
    return frozenset(
        shard.shard_id
        for shard in by_id.values()
        if any(parent in by_id and by_id[parent].is_open for parent in shard.parent_shard_ids)
    )


def generations(leases: Iterable[Lease]) -> list[list[Lease]]:
    """Leases in groups: each comes after all of its parents that are among them; the order within a group is kept.

    Those of one group may be created side by side. A child shard must not get its lease before a parent does: nothing
    would make it wait.

    Args:
        leases: parents before their children.
    """
    groups: list[list[Lease]] = []
    depths: dict[ShardId, int] = {}
    for lease in leases:
        depth = 1 + max((depths[parent] for parent in lease.parent_shard_ids if parent in depths), default=-1)
        depths[lease.shard_id] = depth
        if depth == len(groups):
            groups.append([])
        groups[depth].append(lease)
    return groups


def waiting_depths(leases: Iterable[Lease]) -> dict[LeaseKey, int]:
    """How many generations of unfinished leases each unfinished lease waits for; 0: it may be read now.

    Args:
        leases: all there are, of one stream or of many.
    """
    unfinished = {lease.lease_key: lease for lease in leases if not lease.is_finished}
    depths: dict[LeaseKey, int] = {}
    for key in unfinished:
        _find_depth(key, unfinished, depths)
    return depths


def _find_depth(key: LeaseKey, unfinished: Mapping[LeaseKey, Lease], depths: dict[LeaseKey, int]) -> None:
    # An explicit stack: lineages may be thousands of generations deep.
    stack, entered = [key], set[LeaseKey]()
    while stack:
        current = stack[-1]
        lease = unfinished[current]
        parents = [parent for each in lease.parent_shard_ids if (parent := lease.key_of(each)) in unfinished]
        unknown = [parent for parent in parents if parent not in depths and parent not in entered]
        if unknown and current not in depths:
            entered.add(current)
            stack.extend(unknown)
            continue
        stack.pop()
        depths.setdefault(current, 1 + max((depths.get(parent, 0) for parent in parents), default=-1))


def parents_first(leases: Iterable[Lease], depth_most: int) -> list[Lease]:
    """The leases in the order in which they should be given away, without those that would only wait.

    (KCL: ParentsFirstShardPrioritization.)

    Args:
        leases: all there are, of one stream or of many.
        depth_most: a lease that nobody owns and that waits for more generations than this is left out. Owned ones stay:
            they count in what their owner has.
    """
    everything = list(leases)
    depths = waiting_depths(everything)
    return sorted(
        (
            lease
            for lease in everything
            if lease.lease_owner is not None or depths.get(lease.lease_key, 0) <= depth_most
        ),
        key=lambda lease: depths.get(lease.lease_key, 0),
    )
