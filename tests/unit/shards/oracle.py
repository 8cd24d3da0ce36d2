"""The rules of the shard sync read again, by plain recursion and without memory: slow, and shares nothing with the code.

Every question begins anew from the shards and leases. The rules are those of KCL's HierarchicalShardSyncer; "ours" are the
two that KCL does not have.
"""

from __future__ import annotations

from collections.abc import Iterable

from kcl_daemon.leases.lease import Lease, ShardId
from kcl_daemon.shards.lineage import InitialPosition, Shard, StartAt
from kcl_protocol.sequence import TRIM_HORIZON, ExtendedSequenceNumber


class SlowOracle:
    """What one sync must create.

    Args:
        all_layers: as KCL 1.x and 2.0 do it.
        plain: without our two rules: what KCL 3 does.
    """

    def __init__(
        self,
        shards: Iterable[Shard],
        leases: Iterable[Lease],
        position: InitialPosition,
        *,
        all_layers: bool = False,
        plain: bool = False,
    ) -> None:
        self.shards = {each.shard_id: each for each in shards}
        self.leases = {each.shard_id: each for each in leases}
        self.position = position
        self.all_layers = all_layers
        self.plain = plain

    def created(self) -> dict[ShardId, ExtendedSequenceNumber]:
        """Shard ids and where they begin."""
        result: dict[ShardId, ExtendedSequenceNumber] = {}
        for shard_id in self.shards:
            checkpoint = self.checkpoint_for(shard_id)
            if checkpoint is not None:
                result[shard_id] = checkpoint
        return result

    def checkpoint_for(self, shard_id: ShardId) -> ExtendedSequenceNumber | None:
        if shard_id in self.leases or not self.is_needed(shard_id):
            return None
        if self.is_marked(shard_id) or self.is_open_root(shard_id) or self.is_missing_parent(shard_id):
            return self.position.checkpoint
        if self.descends(shard_id) and self.all_layers:
            at_timestamp = self.position.at is StartAt.TIMESTAMP
            return self.position.checkpoint if at_timestamp else TRIM_HORIZON
        if not self.plain and self.is_stranded(shard_id):
            return TRIM_HORIZON
        return None

    def is_needed(self, shard_id: ShardId) -> bool:
        """An open shard without a lease, none of whose parents is open, or one that leads to such a shard."""
        shard = self.shards[shard_id]
        if shard_id in self.leases:
            return False
        if shard.is_open:
            return not any(
                parent in self.shards and self.shards[parent].is_open for parent in shard.parent_shard_ids
            )
        return any(
            shard_id in other.parent_shard_ids and self.is_needed(other.shard_id)
            for other in self.shards.values()
        )

    def parents(self, shard_id: ShardId) -> list[ShardId]:
        """Those that are listed; ours: and those that still have a lease."""
        if shard_id not in self.shards:
            return []
        return [
            parent
            for parent in self.shards[shard_id].parent_shard_ids
            if parent in self.shards or (parent in self.leases and not self.plain)
        ]

    def descends(self, shard_id: ShardId) -> bool:
        """M5.2."""
        if shard_id in self.leases:
            return True
        return any(self.descends(parent) or self.is_marked(parent) for parent in self.parents(shard_id))

    def is_marked(self, shard_id: ShardId) -> bool:
        """M5.4: no descendant, and reading begins in the past."""
        return (
            shard_id not in self.leases
            and self.position.at is not StartAt.LATEST
            and not self.descends(shard_id)
        )

    def is_open_root(self, shard_id: ShardId) -> bool:
        """M5.5."""
        return self.shards[shard_id].is_open and not self.descends(shard_id)

    def is_missing_parent(self, shard_id: ShardId) -> bool:
        """M5.3: no descendant, but the other parent of a merge is one."""
        return not self.descends(shard_id) and any(
            shard_id in other.parent_shard_ids
            and self.is_needed(other.shard_id)
            and self.descends(other.shard_id)
            for other in self.shards.values()
        )

    def leads(self, shard_id: ShardId) -> bool:
        """Ours: whether somebody reads it or will come to it."""
        if shard_id in self.leases:
            return not self.leases[shard_id].is_finished
        if shard_id not in self.shards or not self.is_needed(shard_id):
            return False
        return self.checkpoint_for(shard_id) is not None or any(map(self.leads, self.parents(shard_id)))

    def is_stranded(self, shard_id: ShardId) -> bool:
        """Ours: it comes after finished shards only, so nobody will come to it."""
        return self.descends(shard_id) and not any(map(self.leads, self.parents(shard_id)))
