"""Shards and their order, and what leases show of it (KCL: HierarchicalShardSyncer, ShardPrioritization).

No KCL row names its stream's creation, but sequence numbers grow from one stream of a name to the next.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

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
from kcl_protocol.sequence import TRIM_HORIZON, ExtendedSequenceNumber

_SEGMENT: Final = re.compile(r"snapshot-([0-9]{13})-([0-9]{4})-([0-9]{4})", re.ASCII)

_CREATED: Final = re.compile(r"shardId-([0-9]{20})-.+", re.ASCII)
_ORDINAL: Final = re.compile(r"shardId-([0-9]{12})", re.ASCII)
NO_HASH_KEYS: Final = HashRange(0, 1)
"""Of every shard of a DynamoDB stream (KCL's adapter 2.x: KinesisMapperUtil)."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One entry of ListShards. `parent_shard_ids` is empty for an original shard or forgotten parents."""

    shard_id: ShardId
    hash_range: HashRange
    parent_shard_ids: frozenset[ShardId]
    starting_sequence_number: int
    ending_sequence_number: int | None = None

    @property
    def is_open(self) -> bool:
        return self.ending_sequence_number is None


@dataclass(frozen=True, slots=True)
class ChildShard:
    shard_id: ShardId
    parent_shard_ids: frozenset[ShardId]
    hash_range: HashRange


class StartAt(Enum):
    TRIM_HORIZON = "TRIM_HORIZON"
    LATEST = "LATEST"
    TIMESTAMP = "AT_TIMESTAMP"


@dataclass(frozen=True, slots=True)
class InitialPosition:
    """`timestamp_s` (epoch seconds) is set only with `TIMESTAMP`."""

    at: StartAt = StartAt.LATEST
    timestamp_s: float | None = None

    @property
    def checkpoint(self) -> ExtendedSequenceNumber:
        return ExtendedSequenceNumber(self.at.value)


def created_ms(shard_id: ShardId) -> int | None:
    """When a shard of DynamoDB was created, by its id, in epoch milliseconds."""
    match = _CREATED.fullmatch(shard_id)
    return None if match is None else int(match[1])


def in_order(shards: Iterable[Shard]) -> list[Shard]:
    """Parents first, else by number; the numbers of each stream of a DynamoDB table may begin anew."""
    by_id = {shard.shard_id: shard for shard in shards}
    ordered, entered = dict[ShardId, Shard](), set[ShardId]()
    for shard in sorted(by_id.values(), key=lambda each: (each.starting_sequence_number, each.shard_id)):
        stack = [shard]
        while stack:
            top = stack[-1]
            before = [each for each in top.parent_shard_ids if each in by_id and each not in ordered]
            if before and top.shard_id not in entered:
                entered.add(top.shard_id)
                stack.extend(by_id[each] for each in sorted(before, reverse=True))
            else:
                stack.pop()
                ordered.setdefault(top.shard_id, top)
    return list(ordered.values())


def children_by_parent(shards: Iterable[Shard]) -> dict[ShardId, frozenset[ShardId]]:
    children: dict[ShardId, set[ShardId]] = {}
    for shard in shards:
        for parent in shard.parent_shard_ids:
            children.setdefault(parent, set()).add(shard.shard_id)
    return {parent: frozenset(found) for parent, found in children.items()}


def unexpected_children(shards: Iterable[Shard]) -> frozenset[ShardId]:
    """Children of open shards: the list was made in the middle of a reshard."""
    by_id = {shard.shard_id: shard for shard in shards}
    return frozenset(
        shard.shard_id
        for shard in by_id.values()
        if any(parent in by_id and by_id[parent].is_open for parent in shard.parent_shard_ids)
    )


def generations(leases: Iterable[Lease]) -> list[list[Lease]]:
    """Groups that may each be created in parallel; `leases` has parents first."""
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
    """The generations of unfinished leases that each unfinished lease waits for."""
    unfinished = {lease.lease_key: lease for lease in leases if not lease.is_finished}
    depths: dict[LeaseKey, int] = {}
    for key in unfinished:
        _find_depth(key, unfinished, depths)
    return depths


def _find_depth(key: LeaseKey, unfinished: Mapping[LeaseKey, Lease], depths: dict[LeaseKey, int]) -> None:
    # Not recursive: there may be thousands of generations.
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


def parents_first(leases: Iterable[Lease], max_depth: int | None) -> list[Lease]:
    """In order of assignment (KCL: ParentsFirstShardPrioritization).

    Free leases that wait for more than `max_depth` generations are left out; owned ones count for their owner.
    """
    everything = list(leases)
    if max_depth is None:
        return everything
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
    """KCL: HierarchicalShardSyncer. `first_owner` gets the first one; KCL leaves all to the leader, seconds later."""
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
    """A parent without a lease (None) does not block."""
    return frozenset(
        shard_id
        for shard_id in lease.parent_shard_ids
        if (parent := parents.get(shard_id)) is not None and not parent.is_finished
    )


def awaited_parents(
    child: Lease, parents: Mapping[ShardId, Lease | None], shards: Iterable[Shard]
) -> frozenset[ShardId]:
    """The parents of a merged shard that have no lease yet, but will get one.

    Until then the child's lease must not be created: it would not wait. KCL guesses here, and gives up one time in
    thirty. A missing lease still comes, unless Kinesis has forgotten the parent: cleanup keeps it until the children
    have begun.
    """
    missing = {shard_id for shard_id in child.parent_shard_ids if parents.get(shard_id) is None}
    return frozenset(shard.shard_id for shard in shards if shard.shard_id in missing)


def first_hole(ranges: Iterable[HashRange]) -> HashRange | None:
    """Overlaps are fine. None if the shards have no hash keys."""
    covered_to = -1
    for hash_range in sorted(ranges, key=lambda each: (each.start, each.end)):
        if hash_range == NO_HASH_KEYS:
            return None
        if hash_range.start > covered_to + 1:
            return HashRange(covered_to + 1, hash_range.start - 1)
        covered_to = max(covered_to, hash_range.end)
    return None if covered_to >= MAX_HASH else HashRange(covered_to + 1, MAX_HASH)


def lease_hole(leases: Iterable[Lease]) -> HashRange | None:
    """Leases that are finished or have no range hide no hole (KCL: PeriodicShardSyncManager)."""
    ranges = (lease.hash_range for lease in leases if not lease.is_finished)
    return first_hole(hash_range for hash_range in ranges if hash_range is not None)


def without_range(leases: Iterable[Lease]) -> list[Lease]:
    return [lease for lease in leases if lease.hash_range is None and not lease.is_finished]


def missing_hash_ranges(leases: Iterable[Lease], shards: Iterable[Shard]) -> list[tuple[Lease, HashRange]]:
    ranges = {shard.shard_id: shard.hash_range for shard in shards}
    return [(lease, ranges[lease.shard_id]) for lease in without_range(leases) if lease.shard_id in ranges]


@dataclass(frozen=True, slots=True)
class HoleWatch:
    """Counts audits in a row with the same hole.

    A reshard looks like a hole while the parent is finished and its child leases are not read yet.
    """

    hole: HashRange | None = None
    times: int = 0

    def seen(self, hole: HashRange | None) -> HoleWatch:
        if hole is None:
            return HoleWatch()
        return HoleWatch(hole, self.times + 1 if hole == self.hole else 1)

    def is_believed(self, confidence: int) -> bool:
        return self.hole is not None and self.times >= confidence


def leases_of_another(leases: Iterable[Lease], shards: Iterable[Shard]) -> Iterator[tuple[Lease, str]]:
    """Leases that cannot belong to these shards, and why not. List the shards after reading the leases."""
    by_id = {shard.shard_id: shard for shard in shards}
    newest = max((_ordinal(each) for each in by_id), default=-1)
    for lease in leases:
        shard = by_id.get(lease.shard_id)
        why = _why_of_another(lease, shard) if shard else _why_never_had(lease, by_id, newest)
        if why is not None:
            yield lease, why


def finished_but_open(leases: Iterable[Lease], shards: Iterable[Shard]) -> list[Lease]:
    """Nobody reads such a shard.

    A Java worker leaves one when its fan-out consumer is deleted or the stream is not found (KCL:
    FanOutRecordsPublisher, KinesisDataFetcher).
    """
    is_open = {shard.shard_id for shard in shards if shard.is_open}
    return [
        lease
        for lease in leases
        if lease.is_finished and not lease.child_shard_ids and lease.shard_id in is_open
    ]


def leases_match_shards(leases: Iterable[Lease], shards: Sequence[Shard]) -> bool | None:
    """None: the positions prove nothing. List the shards after reading the leases."""
    leases = list(leases)
    if any(leases_of_another(leases, shards)):
        return False
    listed = {shard.shard_id for shard in shards}
    return (
        True if any(each.shard_id in listed and not each.checkpoint.is_sentinel for each in leases) else None
    )


def _why_of_another(lease: Lease, shard: Shard) -> str | None:
    name = lease.shard_id
    if lease.hash_range not in (None, shard.hash_range):
        return f"the lease of {name} has other hash keys than the shard"
    if lease.is_finished:
        is_other = shard.is_open and bool(lease.child_shard_ids)
        return f"the lease of {name} names child shards, and the shard is open" if is_other else None
    if not lease.checkpoint.is_sentinel and _number(lease) < shard.starting_sequence_number:
        return f"the checkpoint {lease.checkpoint} of {name} is before the first record of the shard"
    return None


def _why_never_had(lease: Lease, shards: Mapping[ShardId, Shard], newest: int) -> str | None:
    """A forgotten shard was closed before those that have its hash keys now began, and has a lower number.

    A new shard may be listed later than its parents.
    """
    if not shards or not lease.parent_shard_ids.isdisjoint(shards):
        return None
    if _ordinal(lease.shard_id) > newest >= 0:
        return f"the stream never had the shard {lease.shard_id} of a lease"
    keys = lease.hash_range
    if lease.is_finished or lease.checkpoint.is_sentinel or keys is None:
        return None
    if any(
        each.starting_sequence_number <= _number(lease)
        for each in shards.values()
        if each.hash_range.start <= keys.end and keys.start <= each.hash_range.end
    ):
        return f"the stream lacks {lease.shard_id}, and the shards after it began before its checkpoint {lease.checkpoint}"
    return None


def _ordinal(shard_id: ShardId) -> int:
    match = _ORDINAL.fullmatch(shard_id)
    return -1 if match is None else int(match[1])


def _number(lease: Lease) -> int:
    return int(lease.checkpoint.sequence_number)


def why_unlike(leases: Sequence[Lease], shards: Sequence[Shard], *, of_dynamodb: bool) -> str | None:
    """Why these leases are not of this stream, or nothing shows that they are; None: they may be."""
    for _, why in () if of_dynamodb else leases_of_another(leases, shards):
        return why
    listed = {shard.shard_id for shard in shards}
    unfinished = [lease.shard_id for lease in leases if not lease.is_finished]
    if unfinished and not any(lease.shard_id in listed for lease in leases):
        return f"the stream has none of the shards of the leases, such as {min(unfinished)}"
    return None


@dataclass(frozen=True, slots=True)
class Segment:
    """Segment `index` of `count`, of a scan that began at `begun_ms` (epoch milliseconds)."""

    begun_ms: int
    index: int
    count: int

    @property
    def shard_id(self) -> ShardId:
        return ShardId(f"snapshot-{self.begun_ms:013}-{self.index:04}-{self.count:04}")

    @property
    def all(self) -> tuple[Segment, ...]:
        return tuple(Segment(self.begun_ms, index, self.count) for index in range(self.count))


def segment_of(shard_id: str) -> Segment | None:
    """None: it is a shard of a stream."""
    found = _SEGMENT.fullmatch(shard_id)
    return None if found is None else Segment(*map(int, found.groups()))


def needed_since_ms(shard_id: ShardId, read_parents: Iterable[ShardId]) -> int | None:
    """From when on all changes of a shard must be read, if its parents were; None: not known."""
    began, parents = created_ms(shard_id), list(read_parents)
    if began is None or not parents:
        return None
    scans = (found.begun_ms for each in parents if (found := segment_of(each)) is not None)
    return max([began, *scans])


def awaited_segments(parents: Mapping[ShardId, Lease | None]) -> frozenset[ShardId]:
    """The parents without a lease that are segments: the leader has not made all their leases yet."""
    return frozenset(
        each for each, lease in parents.items() if lease is None and segment_of(each) is not None
    )
