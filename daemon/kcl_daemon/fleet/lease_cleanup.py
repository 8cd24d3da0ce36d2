"""Deletes finished leases (KCL: LeaseCleanupManager); `shards.sync` decides.

Under a Java leader, workers delete their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

from kcl_daemon import faults
from kcl_daemon.config.balance import ShardSettings
from kcl_daemon.context import WorkerContext, for_each, raise_first
from kcl_daemon.errors import AwsError
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import Lease, LeaseKey, StreamIdentity, WorkerId
from kcl_daemon.ports import Table
from kcl_daemon.shards.lineage import Shard
from kcl_daemon.shards.sync import CleanupVerdict, JudgedLease, judge_finished

_MAX_PARALLEL_DELETES: Final = 10
_MAX_DELETES_PER_RUN: Final = 200
# Shards of DynamoDB live four hours and come by the hundred.
_MAX_DELETES_OF_DYNAMODB: Final = 2_000
# A create that got no answer may still arrive. After the delete it would begin the shard again.
_ON_ITS_WAY_S: Final = 35.0


async def delete_finished(
    context: WorkerContext,
    table: Table,
    leases: Sequence[Lease],
    shards: Sequence[Shard] | None = None,
    *,
    on_deleted: Callable[[], None] | None = None,
    owner: WorkerId | None = None,
    keep: Collection[LeaseKey] = (),
    most: int = _MAX_DELETES_PER_RUN,
) -> None:
    """A lease may go when those of its parents are gone.

    With `shards` None Kinesis was not asked. With an `owner` only its leases go.

    Raises:
        AwsError: after all were tried; the next look continues.
    """
    left = {lease.lease_key: lease for lease in leases}
    deleted = 0

    async def delete(each: JudgedLease) -> None:
        nonlocal deleted
        key = each.lease.lease_key
        written = await table.delete(key, lease_row.if_still_finished(each.lease))
        if written.applied:
            faults.maybe("after-finished-lease-deleted")
            deleted += 1
            if on_deleted is not None:
                on_deleted()
            context.log.info("lease_deleted", lease_key=key, reason=each.reason)

    while True:
        judged = judge_finished(left.values(), shards)
        ready = [each for each in judged if each.verdict is not CleanupVerdict.WAITS]
        own = [each for each in ready if owner is None or each.lease.lease_owner == owner]
        own = [each for each in own if each.lease.lease_key not in keep]
        before, going = deleted, own[: most - deleted]
        if not going:
            break
        raise_first(await for_each(going, delete, at_once=_MAX_PARALLEL_DELETES))
        for each in going:
            del left[each.lease.lease_key]
        if deleted - before < len(going):
            break
    for each in judged:
        if each.verdict is CleanupVerdict.WAITS:
            context.log.debug("finished_lease_kept", lease_key=each.lease.lease_key, reason=each.reason)


class LeaseCleanup:
    """`shards` returns None if its list cannot be relied on.

    `of_dynamodb`: finished leases go at once when they outnumber the others, and the last lease of all stays.
    """

    def __init__(
        self,
        context: WorkerContext,
        *,
        table: Table,
        shards: Callable[[Sequence[Lease]], Awaitable[Sequence[Shard] | None]],
        settings: ShardSettings,
        of_dynamodb: bool = False,
    ) -> None:
        self._context = context
        self._table = table
        self._shards = shards
        self._settings = settings
        self._of_dynamodb = of_dynamodb
        self._clock = context.clock
        self._finished_s: dict[LeaseKey, float] = {}
        self._polled_s = self._completed_s = self._garbage_s = context.clock.monotonic()

    async def clean(self, leases: Sequence[Lease]) -> None:
        """Never raises for AWS."""
        now_s = self._clock.monotonic()
        over = [lease.lease_key for lease in leases if lease.is_finished]
        self._finished_s = {key: self._finished_s.get(key, now_s) for key in over}
        finished = len(self._finished_s)
        is_crowded = self._of_dynamodb and 2 * finished > len(leases)
        is_due = is_crowded or self._is_over(self._polled_s, self._settings.cleanup_ms)
        if not self._settings.cleanup_finished or not is_due:
            return
        self._polled_s = self._clock.monotonic()
        if not finished:
            return
        try:
            if self._is_over(self._garbage_s, self._settings.cleanup_garbage_ms):
                self._garbage_s = self._polled_s
                shards = await self._shards(leases)
                if shards is not None:
                    await self._delete(leases, shards)
            elif is_crowded or self._is_over(self._completed_s, self._settings.cleanup_completed_ms):
                await self._delete(leases)
        except AwsError as error:
            self._context.log.info("lease_cleanup_failed", error=str(error))

    async def _delete(self, leases: Sequence[Lease], shards: Sequence[Shard] | None = None) -> None:
        now_s = self._clock.monotonic()
        keep = {key for key, since_s in self._finished_s.items() if now_s - since_s < _ON_ITS_WAY_S}
        if self._of_dynamodb:
            from kcl_daemon.shards.table_streams import only_memory

            keep |= {last for last in (only_memory(leases),) if last is not None}
        await delete_finished(
            self._context,
            self._table,
            leases,
            shards,
            on_deleted=self._deleted,
            keep=keep,
            most=_MAX_DELETES_OF_DYNAMODB if self._of_dynamodb else _MAX_DELETES_PER_RUN,
        )

    def _deleted(self) -> None:
        self._completed_s = self._clock.monotonic()

    def _is_over(self, since_s: float, period_ms: int) -> bool:
        return self._clock.monotonic() - since_s >= period_ms / 1000


async def clean_own_leases(
    context: WorkerContext,
    *,
    table: Table,
    finished: Callable[[], Collection[str]],
    leading: Callable[[], bool],
    settings: ShardSettings,
) -> None:
    """Returns if cleanup is off; never raises for AWS. The table is read only if `finished` has keys."""
    period_s = max(settings.cleanup_ms, settings.cleanup_completed_ms) / 1000
    old = set[LeaseKey]()
    while settings.cleanup_finished:
        await context.clock.sleep(max(0.0, period_s - _ON_ITS_WAY_S))
        old |= {LeaseKey(key) for key in finished()}
        await context.clock.sleep(_ON_ITS_WAY_S)
        if leading() or not finished():
            continue
        found = defaultdict[StreamIdentity | None, list[Lease]](list)
        try:
            for row in await table.scan():
                if (lease := lease_row.readable_lease(row)) is not None:
                    found[lease.stream].append(lease)
            over = {each.lease_key for leases in found.values() for each in leases if each.is_finished}
            fresh, old = over - old, over
            for leases in found.values():
                await delete_finished(context, table, leases, owner=context.worker_id, keep=fresh)
        except AwsError as error:
            context.log.info("lease_cleanup_failed", error=str(error))
