"""At the end of a shard: the leases of its child shards, before it may be called finished (KCL: ShutdownTask, M8).

The order keeps the lineage whole whenever the worker dies: child leases first, then their names on the parent, then the
record processor is told and checkpoints SHARD_END. Whoever takes the lease over in between does it all again; every
step is harmless the second time.
"""

from __future__ import annotations

from typing import Final

from kcl_daemon.consumer.parts import ConsumerParts
from kcl_daemon.coordination.keeper import HeldLease
from kcl_daemon.errors import AwsError
from kcl_daemon.leases.lease import Lease, LeaseKey, ShardId
from kcl_daemon.leases.row import MalformedRowError, creation, is_lease_row, lease_from_row
from kcl_daemon.ports import Log
from kcl_daemon.shards.children import awaited_parents, child_leases
from kcl_daemon.shards.shard import ChildShard

_RETRY_S: Final = 1.0
_RETRY_MOST_S: Final = 10.0


async def create_child_leases(
    parts: ConsumerParts, held: HeldLease, children: tuple[ChildShard, ...], log: Log
) -> None:
    """Create what is missing and write the names down; tries until it is done.

    Cancellable at any point and repeatable. LeaseLost where the lease goes meanwhile.
    """
    pause_s = _RETRY_S
    while True:
        try:
            if await _try(parts, held, children, log):
                return
        except AwsError as error:
            log.warning("child_leases_failed", error=str(error))
        await parts.clock.sleep(pause_s)
        pause_s = min(2 * pause_s, _RETRY_MOST_S)


async def _try(parts: ConsumerParts, held: HeldLease, children: tuple[ChildShard, ...], log: Log) -> bool:
    """One attempt; False where a parent of a merged shard is still to come."""
    for lease in child_leases(children):
        if await parts.table.get(lease.lease_key) is not None:
            continue
        if len(lease.parent_shard_ids) > 1:
            awaited = await _awaited(parts, lease)
            if awaited:
                log.info("child_lease_waits", child_shard_id=lease.shard_id, parents=sorted(awaited))
                return False
        written = await parts.table.put(*creation(lease))
        if written.applied:
            log.info("child_lease_created", child_shard_id=lease.shard_id)
    if children:
        await parts.keeper.write_children(held, frozenset(child.shard_id for child in children))
        parts.on_leases_created()
    return True


async def _awaited(parts: ConsumerParts, lease: Lease) -> frozenset[ShardId]:
    """Parents of a merged shard whose leases are still to come."""
    leases: dict[LeaseKey, Lease] = {}
    for row in await parts.table.scan():
        if is_lease_row(row):
            try:
                known = lease_from_row(row)
            except MalformedRowError:
                continue  # the leader reports it
            leases[known.lease_key] = known
    if all(LeaseKey(parent) in leases for parent in lease.parent_shard_ids):
        return frozenset()
    shards = {shard.shard_id: shard for shard in await parts.kinesis.list_shards(parts.stream)}
    return awaited_parents(lease, leases, shards)
