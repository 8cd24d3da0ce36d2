"""Generated shard lineages: any sequence of splits and merges, some old shards forgotten; and lease tables over them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from kcl_daemon.leases.lease import MAX_HASH, HashRange, Lease, ShardId
from kcl_daemon.shards.lineage import InitialPosition, Shard, StartAt
from kcl_daemon.shards.sync import new_lease
from kcl_protocol.sequence import LATEST, SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber

OLDEST = InitialPosition(StartAt.TRIM_HORIZON)
NEWEST = InitialPosition(StartAt.LATEST)
SINCE = InitialPosition(StartAt.TIMESTAMP, 1000.0)
positions = st.sampled_from([OLDEST, NEWEST, SINCE])
checkpoints = st.sampled_from([TRIM_HORIZON, LATEST, ExtendedSequenceNumber("99999999"), SHARD_END])


def shard(number: int, start: int, end: int, parents: tuple[Shard, ...] = ()) -> Shard:
    return Shard(
        ShardId(f"shardId-{number:012d}"),
        HashRange(start, end),
        frozenset(parent.shard_id for parent in parents),
        starting_sequence_number=number * 1000,
    )


class Tree:
    """A stream's shards as they are split and merged."""

    def __init__(self, count: int) -> None:
        width = (MAX_HASH + 1) // count
        self.shards = [
            shard(number, number * width, MAX_HASH if number == count - 1 else (number + 1) * width - 1)
            for number in range(count)
        ]

    def open(self) -> list[Shard]:
        return sorted((each for each in self.shards if each.is_open), key=lambda each: each.hash_range.start)

    def split(self, index: int) -> None:
        parent = self.open()[index % len(self.open())]
        if parent.hash_range.end - parent.hash_range.start < 4:
            return
        middle = (parent.hash_range.start + parent.hash_range.end) // 2
        self._close(parent)
        self._add(parent.hash_range.start, middle, (parent,))
        self._add(middle + 1, parent.hash_range.end, (parent,))

    def merge(self, index: int) -> None:
        shards = self.open()
        if len(shards) < 2:
            return
        left, right = shards[index % (len(shards) - 1)], shards[index % (len(shards) - 1) + 1]
        self._close(left)
        self._close(right)
        self._add(left.hash_range.start, right.hash_range.end, (left, right))

    def children(self, shard_id: ShardId) -> list[Shard]:
        return [each for each in self.shards if shard_id in each.parent_shard_ids]

    def _close(self, closing: Shard) -> None:
        index = self.shards.index(closing)
        self.shards[index] = replace(closing, ending_sequence_number=len(self.shards) * 1000 - 1)

    def _add(self, start: int, end: int, parents: tuple[Shard, ...]) -> None:
        self.shards.append(shard(len(self.shards), start, end, parents))


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """A history of reshards."""
    tree = Tree(draw(st.integers(1, 4)))
    for splits, index in draw(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=10)):
        if splits:
            tree.split(index)
        else:
            tree.merge(index)
    return tree


@st.composite
def lineages(draw: st.DrawFn) -> list[Shard]:
    """The shards that Kinesis would list: a history of reshards, possibly with its oldest closed shards gone."""
    tree = draw(trees())
    forgotten = draw(st.integers(0, len(tree.shards)))
    return [each for number, each in enumerate(tree.shards) if each.is_open or number >= forgotten]


@dataclass(frozen=True)
class Found:
    """A stream and a lease table as somebody may find them."""

    listed: list[Shard]
    leases: list[Lease]
    position: InitialPosition

    def __repr__(self) -> str:
        shards = {
            each.shard_id[-3:]: [parent[-3:] for parent in each.parent_shard_ids] for each in self.listed
        }
        leases = {lease.shard_id[-3:]: str(lease.checkpoint) for lease in self.leases}
        return f"{shards} {leases} {self.position.at}"


@st.composite
def tables(draw: st.DrawFn) -> Found:
    """Any tree, trimmed anyhow, with any leases, also of shards that are forgotten."""
    tree = draw(trees())
    forgotten = draw(st.integers(0, len(tree.shards)))
    listed = [each for number, each in enumerate(tree.shards) if each.is_open or number >= forgotten]
    chosen = draw(st.sets(st.sampled_from([each.shard_id for each in tree.shards])))
    leases = [
        replace(new_lease(each, TRIM_HORIZON), checkpoint=draw(checkpoints))
        for each in tree.shards
        if each.shard_id in chosen
    ]
    return Found(draw(st.permutations(listed)), leases, draw(positions))


def leases_of(shards: Iterable[Shard], *names: str, at: ExtendedSequenceNumber = LATEST) -> list[Lease]:
    """Leases for some of these shards."""
    return [new_lease(each, at) for each in shards if each.shard_id in names]
