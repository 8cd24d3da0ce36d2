"""The segments of a snapshot as shards, and what follows them.

A segment is a closed shard with no parents. Its children are the shards of the stream that were open when the
snapshot began: they wait for all segments, as a merged shard waits for its parents. So lineage, hand-overs and
clean-up know nothing of snapshots.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kcl_daemon.leases.lease import Lease, ShardId
from kcl_daemon.shards.lineage import Shard


@dataclass(frozen=True, slots=True)
class Segment:
    """Segment `index` of `count`, of a scan that began at `begun_ms` (epoch milliseconds)."""

    begun_ms: int
    index: int
    count: int

    @property
    def shard_id(self) -> ShardId:
        return ShardId(f"snapshot-{self.begun_ms:013}-{self.index:04}-{self.count:04}")


def segment_of(shard_id: ShardId) -> Segment | None:
    """None: it is a shard of a stream."""
    raise NotImplementedError


def segment_shards(begun_ms: int, count: int) -> tuple[Shard, ...]:
    raise NotImplementedError


def with_segments(shards: Sequence[Shard], leases: Iterable[Lease]) -> tuple[Shard, ...]:
    """The shards of the stream that count, after the segments that `leases` have; without such leases: as they are."""
    raise NotImplementedError


def position_number(ordinal: int, key: bytes, digits: int) -> str:
    """The sequence number of an item: grows with `ordinal`, and has the item's key, so a scan can go on after it."""
    raise NotImplementedError


def position_of(number: str) -> tuple[int, bytes]:
    """The ordinal and the key in a sequence number."""
    raise NotImplementedError
