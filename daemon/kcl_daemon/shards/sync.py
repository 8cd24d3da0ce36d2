"""Which leases a stream's shards need (KCL: HierarchicalShardSyncer, M1 - M5, and the auditor's holes, M6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kcl_daemon.leases.lease import MAX_HASH, HashRange, Lease, LeaseKey, ShardId
from kcl_daemon.shards.shard import InitialPosition, Shard, StartAt
from kcl_protocol.sequence import TRIM_HORIZON, ExtendedSequenceNumber


def new_lease(shard: Shard, checkpoint: ExtendedSequenceNumber) -> Lease:
    """A lease for a shard that nobody owns yet."""
    return Lease(
        lease_key=LeaseKey(shard.shard_id),
        lease_counter=0,
        checkpoint=checkpoint,
        parent_shard_ids=shard.parent_shard_ids,
        hash_range=shard.hash_range,
    )


def first_hole(ranges: Iterable[HashRange]) -> HashRange | None:
    """The first stretch of hashes that no range covers, None where they cover everything; overlaps are fine."""
    covered_to = -1
    for hash_range in sorted(ranges, key=lambda each: (each.start, each.end)):
        if hash_range.start > covered_to + 1:
            return HashRange(covered_to + 1, hash_range.start - 1)
        covered_to = max(covered_to, hash_range.end)
    return None if covered_to >= MAX_HASH else HashRange(covered_to + 1, MAX_HASH)


def lease_hole(leases: Iterable[Lease]) -> HashRange | None:
    """The first stretch of hashes that no unfinished lease covers; None too where a range is not known."""
    ranges = [lease.hash_range for lease in leases if not lease.is_finished]
    known = [hash_range for hash_range in ranges if hash_range is not None]
    return first_hole(known) if len(known) == len(ranges) else None


def leases_for_empty_table(shards: Iterable[Shard], position: InitialPosition) -> list[Lease]:
    """One lease for each shard that is open at the initial position (M4); the rest follow as child shards."""
    return [new_lease(shard, position.checkpoint) for shard in _in_order(shards)]


def missing_leases(
    shards: Iterable[Shard], existing: Iterable[LeaseKey], position: InitialPosition
) -> list[Lease]:
    """The leases to add to a table that has some already, one layer at a time (M5).

    Every open shard ends up reachable: it has a lease, or an ancestor that has one leads to it.

    Args:
        shards: all that Kinesis lists, open and closed.
        existing: lease keys in the table, finished ones included.
        position: where a shard without known ancestors begins.
    """
    by_id = {shard.shard_id: shard for shard in shards}
    walk = _Walk(by_id, frozenset(existing), position)
    for shard in _in_order(by_id.values()):
        if (
            shard.is_open
            and LeaseKey(shard.shard_id) not in walk.existing
            and not walk.descends(shard.shard_id)
        ):
            walk.wanted[shard.shard_id] = position.checkpoint
    return [
        new_lease(shard, walk.wanted[shard.shard_id])
        for shard in _in_order(by_id.values())
        if shard.shard_id in walk.wanted
    ]


def _in_order(shards: Iterable[Shard]) -> list[Shard]:
    return sorted(shards, key=lambda shard: (shard.starting_sequence_number, shard.shard_id))


class _Walk:
    """One pass over the lineage, children before parents, each shard looked at once."""

    def __init__(
        self, by_id: Mapping[ShardId, Shard], existing: frozenset[LeaseKey], position: InitialPosition
    ) -> None:
        self._by_id = by_id
        self.existing = existing
        self._position = position
        self._from_the_beginning = position.at is not StartAt.LATEST
        self.wanted: dict[ShardId, ExtendedSequenceNumber] = {}
        self._known: dict[ShardId, bool] = {}

    def descends(self, shard_id: ShardId) -> bool:
        """Whether a shard has a lease, or comes after one that has or will get one; marks the ones to create."""
        # An explicit stack: lineages are thousands of generations deep on streams that scale every day.
        stack = [shard_id]
        while stack:
            current = stack[-1]
            shard = self._by_id.get(current)
            pending = (
                [] if shard is None or LeaseKey(current) in self.existing else self._unknown_parents(shard)
            )
            if current not in self._known and pending:
                stack.extend(pending)
                continue
            stack.pop()
            if current not in self._known:
                self._known[current] = self._look(current, shard)
        return self._known[shard_id]

    def _unknown_parents(self, shard: Shard) -> list[ShardId]:
        return [parent for parent in sorted(shard.parent_shard_ids) if parent not in self._known]

    def _look(self, shard_id: ShardId, shard: Shard | None) -> bool:
        if LeaseKey(shard_id) in self.existing:
            return True
        if shard is None:
            return False
        parents = [parent for parent in sorted(shard.parent_shard_ids) if parent in self._by_id]
        if any(self._known[parent] or parent in self.wanted for parent in parents):
            for parent in parents:
                self._want_parent(parent)
            return True
        if self._from_the_beginning:
            self.wanted[shard_id] = self._position.checkpoint
        return False

    def _want_parent(self, parent: ShardId) -> None:
        if LeaseKey(parent) in self.existing:
            return
        if parent in self.wanted or not self._known[parent]:
            follows = self._known[parent] and self._position.at is not StartAt.TIMESTAMP
            self.wanted[parent] = TRIM_HORIZON if follows else self._position.checkpoint
