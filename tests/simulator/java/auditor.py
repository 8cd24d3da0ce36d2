"""The Java leader's search for holes in the leases, and what it then creates (PeriodicShardSyncManager).

Owns one worker's memory of the hole it has seen. Rows without hash range and the initial positions
LATEST and AT_TIMESTAMP are left out: the plans have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kcl_daemon.leases.lease import MAX_HASH, HashRange, Lease, ShardId
from kcl_daemon.leases.row import is_lease_row, lease_from_row
from kcl_daemon.shards.lineage import Shard, StartAt
from kcl_protocol.sequence import TRIM_HORIZON
from tests.simulator.java import rows as java_rows
from tests.simulator.java.host import Host
from tests.simulator.java.lock import JavaLock

_SEEN_BEFORE_SYNC: Final = 3
Hole = tuple[int, int]


class JavaAuditor:
    """Looks on every worker, finds on the leader."""

    def __init__(self, host: Host, lock: JavaLock) -> None:
        assert host.position.at is StartAt.TRIM_HORIZON
        self._host = host
        self._lock = lock
        self._hole: Hole | None = None
        self._seen = 0

    async def poll(self) -> None:
        """M6: no lease at all is made good at once, a hole when it was seen three times in a row."""
        if not await self._lock.is_leader():
            return
        rows = await self._host.tables.leases.scan()
        leases = {lease.shard_id: lease for lease in map(lease_from_row, filter(is_lease_row, rows))}
        hole = first_hole(leases)
        self._seen = self._seen + 1 if hole is not None and hole == self._hole else int(hole is not None)
        self._hole = hole
        if not leases or self._seen >= _SEEN_BEFORE_SYNC:
            await self._sync(leases)

    async def _sync(self, leases: Mapping[ShardId, Lease]) -> None:
        host = self._host
        shards = {shard.shard_id: shard for shard in await host.kinesis.list_shards(host.stream)}
        missing = [shards[shard_id] for shard_id in without_lease(shards, frozenset(leases))]
        host.log.info("java_hole_filled", shards=[shard.shard_id for shard in missing])
        for shard in sorted(missing, key=lambda shard: (shard.starting_sequence_number, shard.shard_id)):
            row, condition = java_rows.new_lease(
                host.dialect,
                shard.shard_id,
                parents=shard.parent_shard_ids,
                hash_range=shard.hash_range,
                position=TRIM_HORIZON,
            )
            await host.tables.leases.put(row, condition)
        self._hole, self._seen = None, 0


def first_hole(leases: Mapping[ShardId, Lease]) -> Hole | None:
    """M6.3: the first hashes that no unfinished lease covers; overlaps are fine."""
    ranges: list[HashRange] = [
        lease.hash_range
        for lease in leases.values()
        if lease.hash_range is not None and not lease.is_finished
    ]
    covered = -1
    for each in sorted(ranges, key=lambda each: (each.start, each.end)):
        if each.start > covered + 1:
            return covered + 1, each.start - 1
        covered = max(covered, each.end)
    return None if covered >= MAX_HASH else (covered + 1, MAX_HASH)


def without_lease(shards: Mapping[ShardId, Shard], leased: frozenset[ShardId]) -> list[ShardId]:
    """M5 for TRIM_HORIZON: of the open shards and their ancestors the first layer that has no lease."""
    wanted: list[ShardId] = []
    known: dict[ShardId, bool] = {}

    def descends(shard_id: ShardId) -> bool:
        """Whether the shard, or one before it, has a lease or is to get one."""
        if shard_id not in known:
            known[shard_id] = shard_id in leased or comes_later(shards[shard_id])
        return known[shard_id]

    def comes_later(shard: Shard) -> bool:
        parents = [parent for parent in sorted(shard.parent_shard_ids) if parent in shards]
        descending = [parent for parent in parents if descends(parent)]
        if not any(parent in descending or parent in wanted for parent in parents):
            wanted.append(shard.shard_id)
            return False
        wanted.extend(
            parent
            for parent in parents
            if parent not in leased and parent not in descending and parent not in wanted
        )
        return True

    for shard in shards.values():
        if shard.is_open:
            descends(shard.shard_id)
    return wanted
