"""The end of a shard: the leases of its child shards (KCL: ShutdownTask).

The child shard ids are written to the parent lease first, then the child leases are created. If the worker dies in
between, the next owner repeats every step.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import anyio

from kcl_daemon import faults
from kcl_daemon.consumer.context import ConsumerContext
from kcl_daemon.errors import AwsError, LeaseLost
from kcl_daemon.fleet.lease_renewer import HeldLease, lease_labels
from kcl_daemon.leases.lease import Lease, ShardId, WorkerId
from kcl_daemon.leases.row import MalformedRowError, creation, lease_from_row
from kcl_daemon.metrics import kcl as shard_metrics
from kcl_daemon.ports import Log
from kcl_daemon.progress.progress import WaitReason
from kcl_daemon.shards.lineage import ChildShard, awaited_parents, awaited_segments, child_leases

_RETRY_LEAST_S: Final = 0.05
_RETRY_MOST_S: Final = 10.0


async def create_child_leases(
    parts: ConsumerContext, held: HeldLease, children: tuple[ChildShard, ...], log: Log
) -> bool | None:
    """True once all exist; None: the lease is lost. Cancellable and repeatable at any point."""
    pause_s = max(parts.settings.leases.task_backoff_ms / 1000, _RETRY_LEAST_S)
    named = not children
    logged = frozenset[ShardId]()
    while True:
        try:
            if not named:
                with parts.context.meters.operation(
                    shard_metrics.SHUTDOWN_CHILDREN, **lease_labels(held.lease)
                ):
                    await parts.renewer.write_children(held, frozenset(child.shard_id for child in children))
                named = True
            missing = await _try_to_create(parts, held, children, log)
            if not missing:
                return True
            held.progress.waits(WaitReason.PARENT, ", ".join(sorted(missing)))
            log_event = log.debug if missing == logged else log.info
            log_event("child_lease_waits", parents=sorted(missing))
            logged = missing
        except LeaseLost:
            return None
        except AwsError as error:
            held.progress.waits(WaitReason.DYNAMODB, str(error))
            log.warning("child_leases_failed", error=str(error))
        await parts.context.clock.sleep(pause_s)
        pause_s = min(2 * pause_s, _RETRY_MOST_S)


async def _try_to_create(
    parts: ConsumerContext, held: HeldLease, children: tuple[ChildShard, ...], log: Log
) -> frozenset[ShardId]:
    """Parents of a merged shard that have no lease yet; empty if done."""
    parents: dict[ShardId, Lease | None] = {held.lease.shard_id: held.lease}
    for child in child_leases(children, _first_owner(parts), held.lease.stream):
        fence = None if child.lease_owner is None else child.next_fence(parts.context.service_ms)
        lease = replace(child, stream_created_s=held.lease.stream_created_s, fence=fence)
        if await parts.table.get(lease.lease_key) is not None:
            continue
        missing = await _missing_parents(parts, lease, parents)
        if missing:
            return missing
        await _create(parts, lease, log)
    if children:
        parts.on_leases_created()
    return frozenset()


def _first_owner(parts: ConsumerContext) -> WorkerId | None:
    """This worker, unless it is above its lease limit."""
    mine = parts.settings.lease_limits.of(parts.context.worker_id, *parts.renewer.leases)
    return mine.worker_id if mine.has_room() else None


async def _create(parts: ConsumerContext, lease: Lease, log: Log) -> None:
    """Not cancellable: a lease of ours could exist without anyone knowing."""
    began_s = parts.context.clock.monotonic()
    creating, at = shard_metrics.SHUTDOWN_CREATE, shard_metrics.SHUTDOWN_CREATE_AT
    operation = parts.context.meters.operation
    with anyio.CancelScope(shield=True):
        with operation(creating), operation(at):
            written = await parts.context.call(parts.table.put(*creation(lease)), "PutItem")
        if written.applied:
            faults.maybe("after-child-lease-created")
            log.info("child_lease_created", child_shard_id=lease.shard_id, owner=lease.lease_owner)
            if lease.lease_owner is not None:
                parts.on_lease_written(lease, began_s)


async def _missing_parents(
    parts: ConsumerContext, child: Lease, parents: dict[ShardId, Lease | None]
) -> frozenset[ShardId]:
    """`parents` are known already; all children of a table's stream may have the same."""
    for parent in sorted(child.parent_shard_ids - parents.keys()):
        row = await parts.table.get(child.key_of(parent))
        if row is None:
            parts.context.meters.add(shard_metrics.SHUTDOWN_NO_PARENT_LEASE)
            parents[parent] = None
            continue
        try:
            parents[parent] = lease_from_row(row)
        except MalformedRowError:
            return frozenset({parent})  # the leader reports it; its checkpoint is unknown
    if None not in parents.values():
        return frozenset()
    segments = awaited_segments(parents)
    if segments:
        return segments
    shards = await parts.kinesis.list_shards(parts.streams.of(child).ref)
    if not parents.keys() <= {shard.shard_id for shard in shards}:
        parts.context.meters.add(shard_metrics.SHUTDOWN_NO_PARENT)
    return awaited_parents(child, parents, shards)
