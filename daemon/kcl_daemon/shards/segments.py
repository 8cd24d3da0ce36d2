"""Is a shard a segment of a snapshot, and does that matter here? What a snapshot needs beyond that is in `snapshot`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kcl_daemon.leases.lease import ShardId
from kcl_daemon.shards.lineage import created_ms

if TYPE_CHECKING:
    from kcl_daemon.leases.lease import Lease

_SEGMENT: Final = re.compile(r"snapshot-([0-9]{13})-([0-9]{4})-([0-9]{4})", re.ASCII)


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
