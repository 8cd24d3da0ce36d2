"""Generated shard lineages: any sequence of splits and merges, some old shards forgotten."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from kcl_daemon.leases.lease import MAX_HASH, HashRange, ShardId
from kcl_daemon.shards.shard import Shard


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

    def _close(self, closing: Shard) -> None:
        index = self.shards.index(closing)
        self.shards[index] = replace(closing, ending_sequence_number=len(self.shards) * 1000 - 1)

    def _add(self, start: int, end: int, parents: tuple[Shard, ...]) -> None:
        self.shards.append(shard(len(self.shards), start, end, parents))


@st.composite
def lineages(draw: st.DrawFn) -> list[Shard]:
    """The shards that Kinesis would list: a history of reshards, possibly with its oldest closed shards gone."""
    tree = Tree(draw(st.integers(1, 4)))
    for splits, index in draw(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=10)):
        if splits:
            tree.split(index)
        else:
            tree.merge(index)
    forgotten = draw(st.integers(0, len(tree.shards)))
    return [each for number, each in enumerate(tree.shards) if each.is_open or number >= forgotten]
