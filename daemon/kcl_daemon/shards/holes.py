"""Holes: hashes that nobody reads or will read, and when to believe in one (KCL: PeriodicShardSyncManager).

Pure. Knows nothing of how a hole is filled (`sync`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kcl_daemon.leases.lease import MAX_HASH, HashRange, Lease
from kcl_daemon.shards.shard import Shard


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


def found_ranges(leases: Iterable[Lease], shards: Iterable[Shard]) -> list[tuple[Lease, HashRange]]:
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
