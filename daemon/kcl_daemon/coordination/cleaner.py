"""Deletes the leases of finished shards when nothing needs them any more (leader only; KCL: LeaseCleanupManager, M11).

Owns when it was done last. `shards.cleanup` decides; every delete is conditional on the row being finished still.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import anyio

from kcl_daemon.config.shard_settings import ShardSettings
from kcl_daemon.errors import AwsError
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import Lease
from kcl_daemon.ports import Clock, Log, Table
from kcl_daemon.shards.cleanup import Judged, Verdict, judge_finished
from kcl_daemon.shards.shard import Shard

_AT_ONCE: Final = 10
# The leader has other things to do as well; the rest goes at the next look.
_MOST_AT_A_LOOK: Final = 200


class Cleaner:
    """One for a stream.

    Args:
        table: the lease table.
        shards: gives all shards of the stream; None where that must not be relied on now.
        settings: how often.
        clock: for that.
        log: what was deleted is told, what waits only for those who look closely.
    """

    def __init__(
        self,
        *,
        table: Table,
        shards: Callable[[Sequence[Lease]], Awaitable[Sequence[Shard] | None]],
        settings: ShardSettings,
        clock: Clock,
        log: Log,
    ) -> None:
        self._table = table
        self._shards = shards
        self._settings = settings
        self._clock = clock
        self._log = log
        self._looked_s = self._completed_s = self._garbage_s = clock.monotonic()

    async def clean(self, leases: Sequence[Lease]) -> None:
        """Delete what may go, if it is time to look. Never raises for AWS: the next look tries again.

        As in KCL, the time until the next clean-up runs only from one that led to something.

        Args:
            leases: all of the stream.
        """
        if not self._settings.cleanup_finished or not self._is_over(
            self._looked_s, self._settings.cleanup_ms
        ):
            return
        self._looked_s = self._clock.monotonic()
        if not any(lease.is_finished for lease in leases):
            return
        try:
            if self._is_over(self._garbage_s, self._settings.cleanup_garbage_ms):
                self._garbage_s = self._looked_s
                shards = await self._shards(leases)
                if shards is not None:
                    await self._delete(leases, shards)
            elif self._is_over(self._completed_s, self._settings.cleanup_completed_ms):
                await self._delete(leases, None)
        except AwsError as error:
            self._log.info("lease_cleanup_failed", error=str(error))

    def _is_over(self, since_s: float, period_ms: int) -> bool:
        return self._clock.monotonic() - since_s >= period_ms / 1000

    async def _delete(self, leases: Sequence[Lease], shards: Sequence[Shard] | None) -> None:
        """Generation by generation: a lease may go when those of its parents are gone."""
        left = {lease.lease_key: lease for lease in leases}
        deleted = 0
        while True:
            judged = judge_finished(left.values(), shards)
            going = [each for each in judged if each.verdict is not Verdict.WAITS][
                : _MOST_AT_A_LOOK - deleted
            ]
            if not going:
                break
            gone = await self._delete_all(going)
            deleted += len(gone)
            for each in going:
                del left[each.lease.lease_key]
            if len(gone) < len(going):
                break  # what has changed meanwhile is for the next look
        for each in judged:
            if each.verdict is Verdict.WAITS:
                self._log.debug("finished_lease_kept", lease_key=each.lease.lease_key, reason=each.reason)

    async def _delete_all(self, going: Sequence[Judged]) -> list[Judged]:
        """Those that were deleted; the first error is raised when all were tried."""
        limiter, failures, gone = anyio.CapacityLimiter(_AT_ONCE), list[AwsError](), list[Judged]()

        async def delete(each: Judged) -> None:
            """One of them."""
            async with limiter:
                try:
                    if await self._delete_one(each):
                        gone.append(each)
                except AwsError as error:
                    failures.append(error)

        async with anyio.create_task_group() as deletes:
            for each in going:
                deletes.start_soon(delete, each)
        if failures:
            raise failures[0]
        return gone

    async def _delete_one(self, each: Judged) -> bool:
        lease = each.lease
        written = await self._table.delete(lease.lease_key, lease_row.still_finished(lease))
        if written.applied:
            self._completed_s = self._clock.monotonic()
            self._log.info("lease_deleted", lease_key=lease.lease_key, reason=each.reason)
        return written.applied
