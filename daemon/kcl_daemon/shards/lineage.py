"""Which shard follows which: order, generations, and who may go first (KCL: HierarchicalShardSyncer, ShardPrioritization).

Pure. Owns the order of shards and of their leases; knows nothing of which leases are needed (`sync`).

A shard as Kinesis tells of it, and the position where reading begins.

What follows a shard: the leases of its child shards, and whose turn it is (KCL: ShutdownTask, BlockOnParentShardTask).

Holes: hashes that nobody reads or will read, and when to believe in one (KCL: PeriodicShardSyncManager).

Pure. Knows nothing of how a hole is filled (`sync`).

Leases that are of another stream than the one that now has the name: it was deleted and created again.

Pure. Nothing in a row that KCL writes says which stream it was, but positions tell: sequence numbers grow from one stream
to the next of the same name, and a shard that has child shards is not open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from kcl_daemon.leases.lease import (
    MAX_HASH,
    HashRange,
    Lease,
    LeaseKey,
    ShardId,
    StreamIdentity,
    WorkerId,
    lease_key_of,
)
from kcl_protocol.sequence import AT_TIMESTAMP, LATEST, TRIM_HORIZON, ExtendedSequenceNumber


@dataclass(frozen=True, slots=True)
class Shard:
    """One entry of ListShards.

    Args:
        shard_id: its name.
        hash_range: the hashes it takes.
        parent_shard_ids: none for an original shard or one whose parents have been forgotten, two after a merge.
        starting_sequence_number: lowest possible number in it.
        ending_sequence_number: None while it is open.
    """

    shard_id: ShardId
    hash_range: HashRange
    parent_shard_ids: frozenset[ShardId]
    starting_sequence_number: int
    ending_sequence_number: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether producers can still write to it."""
        return self.ending_sequence_number is None


@dataclass(frozen=True, slots=True)
class ChildShard:
    """One entry of `ChildShards`, told with the last answer of a closed shard."""

    shard_id: ShardId
    parent_shard_ids: frozenset[ShardId]
    hash_range: HashRange


class StartAt(Enum):
    """Where reading begins in a shard without a checkpoint."""

    TRIM_HORIZON = "TRIM_HORIZON"
    LATEST = "LATEST"
    TIMESTAMP = "AT_TIMESTAMP"


@dataclass(frozen=True, slots=True)
class InitialPosition:
    """The configured starting point; `timestamp_s` (epoch seconds) only with `TIMESTAMP`."""

    at: StartAt = StartAt.LATEST
    timestamp_s: float | None = None

    @property
    def checkpoint(self) -> ExtendedSequenceNumber:
        """The sentinel that a new lease starts with."""
        return {
            StartAt.TRIM_HORIZON: TRIM_HORIZON,
            StartAt.LATEST: LATEST,
            StartAt.TIMESTAMP: AT_TIMESTAMP,
        }[self.at]


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


def parents_first(leases: Iterable[Lease], max_depth: int) -> list[Lease]:
    """The leases in the order in which they should be given away, without those that would only wait.

    (KCL: ParentsFirstShardPrioritization.)

    Args:
        leases: all there are, of one stream or of many.
        max_depth: a lease that nobody owns and that waits for more generations than this is left out. Owned ones stay:
            they count in what their owner has.
    """
    everything = list(leases)
    depths = waiting_depths(everything)
    return sorted(
        (
            lease
            for lease in everything
            if lease.lease_owner is not None or depths.get(lease.lease_key, 0) <= max_depth
        ),
        key=lambda lease: depths.get(lease.lease_key, 0),
    )


def child_leases(
    children: Iterable[ChildShard], first_owner: WorkerId | None = None, stream: StreamIdentity | None = None
) -> list[Lease]:
    """Leases for the shards that follow, always from their beginning, whatever the configured position (KCL: HierarchicalShardSyncer).

    Args:
        children: as the parent's last answer names them.
        first_owner: who reads the first of them; the others are nobody's yet. KCL leaves all to the leader, which is seconds
            later; one for one, who reads the parent has as much to do as before.
        stream: the parent's, where there are many.
    """
    return [
        Lease(
            lease_key=lease_key_of(stream, child.shard_id),
            stream=stream,
            lease_counter=0,
            checkpoint=TRIM_HORIZON,
            lease_owner=None if number else first_owner,
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


def first_hole(ranges: Iterable[HashRange]) -> HashRange | None:
    """The first stretch of hashes that no range covers, None where they cover everything; overlaps are fine."""
    covered_to = -1
    for hash_range in sorted(ranges, key=lambda each: (each.start, each.end)):
        if hash_range.start > covered_to + 1:
            return HashRange(covered_to + 1, hash_range.start - 1)
        covered_to = max(covered_to, hash_range.end)
    return None if covered_to >= MAX_HASH else HashRange(covered_to + 1, MAX_HASH)


def lease_hole(leases: Iterable[Lease]) -> HashRange | None:
    """The first stretch of hashes that no unfinished lease is known to cover.

    A lease without a range covers nothing: its shard is listed no more, or the range would have been filled in. One such
    row must not hide every hole (KCL: PeriodicShardSyncManager).
    """
    ranges = (lease.hash_range for lease in leases if not lease.is_finished)
    return first_hole(hash_range for hash_range in ranges if hash_range is not None)


def without_range(leases: Iterable[Lease]) -> list[Lease]:
    """The unfinished leases whose hashes are not known: rows of old versions."""
    return [lease for lease in leases if lease.hash_range is None and not lease.is_finished]


def missing_hash_ranges(leases: Iterable[Lease], shards: Iterable[Shard]) -> list[tuple[Lease, HashRange]]:
    """What to write down for leases whose hashes are not known, as far as their shards are listed."""
    ranges = {shard.shard_id: shard.hash_range for shard in shards}
    return [(lease, ranges[lease.shard_id]) for lease in without_range(leases) if lease.shard_id in ranges]


@dataclass(frozen=True, slots=True)
class HoleWatch:
    """What successive audits of one stream have seen.

    A reshard looks like a hole for a moment: the parent is finished, its child leases have not been read yet.

    Args:
        hole: at the last audit.
        times: in how many audits in a row it was this one.
    """

    hole: HashRange | None = None
    times: int = 0

    def seen(self, hole: HashRange | None) -> HoleWatch:
        """After one more audit; another hole starts the count again, none clears it."""
        if hole is None:
            return HoleWatch()
        return HoleWatch(hole, self.times + 1 if hole == self.hole else 1)

    def is_believed(self, confidence: int) -> bool:
        """Whether the same hole was there so many times in a row."""
        return self.hole is not None and self.times >= confidence


def leases_of_former_stream(leases: Iterable[Lease], shards: Iterable[Shard]) -> list[Lease]:
    """The leases that cannot be of these shards, by name.

    Such a lease has the name of a listed shard, but names its child shards while that shard is open, or its checkpoint
    lies before the shard's first number.

    Args:
        leases: all of one stream.
        shards: all that Kinesis lists, asked for after the leases were read.
    """
    by_id = {shard.shard_id: shard for shard in shards}
    return sorted(
        (
            lease
            for lease in leases
            if (shard := by_id.get(lease.shard_id)) is not None and _is_of_another(lease, shard)
        ),
        key=lambda lease: lease.lease_key,
    )


def finished_but_open(leases: Iterable[Lease], shards: Iterable[Shard]) -> list[Lease]:
    """The leases that are finished, without child shards, although their shards are open: nobody reads these.

    A Java worker finishes a shard like that when its fan-out consumer is taken away, or the stream is not found
    (KCL: FanOutRecordsPublisher, KinesisDataFetcher).

    Args:
        leases: all of one stream.
        shards: all that Kinesis lists, asked for after the leases were read.
    """
    is_open = {shard.shard_id for shard in shards if shard.is_open}
    return [
        lease
        for lease in leases
        if lease.is_finished and not lease.child_shard_ids and lease.shard_id in is_open
    ]


def leases_match_shards(leases: Iterable[Lease], shards: Sequence[Shard]) -> bool | None:
    """Whether leases are of these shards, by their positions; None: those do not tell.

    Args:
        leases: all that have one identity.
        shards: all that Kinesis lists, asked for after the leases were read.
    """
    leases = list(leases)
    if leases_of_former_stream(leases, shards):
        return False
    listed = {shard.shard_id for shard in shards}
    return (
        True if any(each.shard_id in listed and not each.checkpoint.is_sentinel for each in leases) else None
    )


def _is_of_another(lease: Lease, shard: Shard) -> bool:
    if lease.is_finished:
        return shard.is_open and bool(lease.child_shard_ids)
    if lease.checkpoint.is_sentinel:
        return False
    return int(lease.checkpoint.sequence_number) < shard.starting_sequence_number
