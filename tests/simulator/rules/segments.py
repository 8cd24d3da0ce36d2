"""The rules of a snapshot's segments: each item that is there all the while is given once, in the order of the scan.

Owns what is left of each segment. Which item is in which segment, and where, it knows from the simulated service.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from zlib import crc32

from kcl_protocol.messages import Record
from tests.simulator.rules.deliveries import Incarnation
from tests.simulator.rules.items import Change, change_of, key_of
from tests.simulator.rules.truth import Position, ShardTruth, position_of
from tests.simulator.violation import report


def rank_of(item: str) -> int:
    """Where an item stands in a scan."""
    return crc32(item.encode())


def segment_of(item: str, count: int) -> int:
    """In which of so many segments an item is."""
    return rank_of(item) * count >> 32


@dataclass(slots=True)
class SegmentTruth(ShardTruth):
    """One segment, a shard that is closed.

    Args:
        steady: items that were there when it began, and are there still.
        left: those that were not given to a child yet.
        ranks: of each position that was given.
        began_s: virtual time.
    """

    steady: set[str] = field(default_factory=set[str])
    left: set[str] = field(default_factory=set[str])
    ranks: dict[Position, int] = field(default_factory=dict[Position, int])
    began_s: float = 0.0

    @property
    def is_scan(self) -> bool:
        """It is one."""
        return True

    def rank(self, position: Position) -> int:
        """By the hash of its item; it was given."""
        return self.ranks[position]

    @property
    def owed(self) -> set[int]:
        """Of the items that were there all the while."""
        return {rank_of(item) for item in self.steady}

    @property
    def all_delivered(self) -> bool:
        """Whether nothing is left."""
        return not self.left

    @property
    def missing(self) -> tuple[str, float]:
        """Some item that is left, and when the scan began."""
        return min(self.left, key=rank_of), self.began_s

    def place_after(self, position: Position) -> int:
        """The rank from which on items come after a position."""
        return self.ranks.get(position, -1) + 1

    def take(self, child: Incarnation, records: Sequence[Record]) -> list[Change]:
        """A child was given items."""
        found = [change_of(record) for record in records]
        for record, change in zip(records, found, strict=True):
            rank = rank_of(change.item)
            if change.new is None or change.old is not None:
                report("altered_record", f"{child} was given {change}, which is no item of a scan")
            if child.keeps_order and child.next_place is not None and rank < child.next_place:
                report("out_of_order", f"{child} was given {change.item} after what comes later in the scan")
            skipped = [
                item
                for item in self.steady
                if (child.next_place or 0) <= rank_of(item) < rank and child.is_for(key_of(item))
            ]
            if skipped and child.keeps_order:
                report(
                    "record_skipped", f"{child} was given {change.item} where {sorted(skipped)} come first"
                )
            child.next_place = rank + 1
            self.ranks[position_of(record)] = rank
            self.left.discard(change.item)
        return found


class Segments:
    """The segments of all tables of a run, by the prefix of their lease keys."""

    def __init__(self, add: Callable[[ShardTruth], object]) -> None:
        self._add = add
        self._found: dict[str, dict[str, SegmentTruth]] = {}

    def lease_created(self, key: str, items: Iterable[str], at_s: float) -> bool:
        """Whether a lease was made for the first segment of a table."""
        prefix, word, rest = key.rpartition("snapshot-")
        if not word:
            return False
        known = self._found.setdefault(prefix, {})
        begun, index, count = rest.split("-")
        if any(not name.startswith(f"{prefix}{word}{begun}-") for name in known):
            report("second_snapshot", f"{key} was made beside {sorted(known)}")
        if key not in known:
            left = {item for item in items if segment_of(item, int(count)) == int(index)}
            segment = SegmentTruth(key, is_closed=True, steady=left, left=set(left), began_s=at_s)
            known[key] = segment
            self._add(segment)
        return len(known) == 1

    def item_deleted(self, prefix: str, item: str) -> None:
        """It need not be given any more."""
        for segment in self._found.get(prefix, {}).values():
            segment.left.discard(item)
            segment.steady.discard(item)

    def of(self, prefix: str) -> list[SegmentTruth]:
        """All of a table."""
        return list(self._found.get(prefix, {}).values())
