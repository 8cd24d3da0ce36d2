"""At the end of a shard: the leases of its child shards, before it may be called finished (KCL: ShutdownTask).

The order keeps the lineage whole whenever the worker dies: the names of the child shards on the parent, which shows that
its row is there still (KCL names them last), then their leases, then the record processor is told and checkpoints
SHARD_END. Whoever takes the lease over in between does it all again; every step is harmless the second time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kcl_daemon.consumer.parts import ConsumerParts
from kcl_daemon.coordination.keeper import HeldLease
from kcl_daemon.coordination.renewals import lease_labels
from kcl_daemon.errors import AwsError, Unavailable
from kcl_daemon.leases.lease import Lease, ShardId, WorkerId
from kcl_daemon.leases.row import MalformedRowError, creation, lease_from_row
from kcl_daemon.metrics import kcl_shards as told_of
from kcl_daemon.ports import Log
from kcl_daemon.progress.cause import Cause
from kcl_daemon.shards.children import awaited_parents, child_leases
from kcl_daemon.shards.shard import ChildShard

_RETRY_LEAST_S: Final = 0.05
_RETRY_MOST_S: Final = 10.0


async def create_child_leases(
    parts: ConsumerParts, held: HeldLease, children: tuple[ChildShard, ...], log: Log
) -> None:
    """Write the names down and create what is missing; tries until it is done.

    Cancellable at any point and repeatable. LeaseLost where the lease goes meanwhile.
    """
    pause_s = max(parts.settings.leases.task_backoff_ms / 1000, _RETRY_LEAST_S)
    named = not children
    told = frozenset[ShardId]()
    while True:
        try:
            if not named:
                with parts.meters.operation(told_of.SHUTDOWN_CHILDREN, **lease_labels(held.lease)):
                    await parts.keeper.write_children(held, frozenset(child.shard_id for child in children))
                named = True
            awaited = await _try(parts, held, children, log)
            if not awaited:
                return
            held.progress.waits(Cause.PARENT, ", ".join(sorted(awaited)))
            tell = log.debug if awaited == told else log.info
            tell("child_lease_waits", parents=sorted(awaited))
            told = awaited
        except AwsError as error:
            held.progress.waits(Cause.DYNAMODB, str(error))
            log.warning("child_leases_failed", error=str(error))
        await parts.clock.sleep(pause_s)
        pause_s = min(2 * pause_s, _RETRY_MOST_S)


async def _try(
    parts: ConsumerParts, held: HeldLease, children: tuple[ChildShard, ...], log: Log
) -> frozenset[ShardId]:
    """One attempt; not done where parents of a merged shard are still to come, which it gives."""
    for child in child_leases(children, _heir(parts), held.lease.stream):
        lease = replace(child, stream_created_s=held.lease.stream_created_s)
        if await parts.table.get(lease.lease_key) is not None:
            continue
        awaited = await _awaited(parts, held, lease)
        if awaited:
            return awaited
        await _create(parts, lease, log)
    if children:
        parts.on_leases_created()
    return frozenset()


def _heir(parts: ConsumerParts) -> WorkerId | None:
    """This worker, where it may have one lease more for the one that it is about to finish."""
    settings = parts.settings
    has_room = len(parts.keeper.held) <= settings.leases.max_leases_for_worker
    return WorkerId(settings.worker_id) if has_room else None


async def _create(parts: ConsumerParts, lease: Lease, log: Log) -> None:
    """Create a lease, and hold it from then on if it is to be ours.

    Not cancelled in between: nobody would know for a while that a lease of ours is there.
    """
    began_s = parts.clock.monotonic()
    with parts.clock.move_on_after(parts.timings.call_s) as scope:
        scope.shield = True
        creating, at = told_of.SHUTDOWN_CREATE, told_of.SHUTDOWN_CREATE_AT
        with parts.meters.operation(creating), parts.meters.operation(at):
            written = await parts.table.put(*creation(lease))
        if written.applied:
            log.info("child_lease_created", child_shard_id=lease.shard_id, owner=lease.lease_owner)
            if lease.lease_owner is not None:
                parts.on_lease_written(lease, began_s)
    if scope.cancelled_caught:
        raise Unavailable(f"no answer within {parts.timings.call_s:g} s", operation="PutItem")


async def _awaited(parts: ConsumerParts, held: HeldLease, child: Lease) -> frozenset[ShardId]:
    """Parents of a merged shard whose leases are still to come."""
    parents: dict[ShardId, Lease | None] = {held.lease.shard_id: held.lease}
    for parent in sorted(child.parent_shard_ids - parents.keys()):
        row = await parts.table.get(child.key_of(parent))
        if row is None:
            parts.meters.add(told_of.SHUTDOWN_NO_PARENT_LEASE)
            parents[parent] = None
            continue
        try:
            parents[parent] = lease_from_row(row)
        except MalformedRowError:
            return frozenset(
                {parent}
            )  # the leader reports it; until it is repaired nobody knows how far it is
    if None not in parents.values():
        return frozenset()
    shards = await parts.kinesis.list_shards(parts.streams.of(child).ref)
    if not parents.keys() <= {shard.shard_id for shard in shards}:
        parts.meters.add(told_of.SHUTDOWN_NO_PARENT)
    return awaited_parents(child, parents, shards)
