"""Deletes finished leases that nothing needs any more (KCL: LeaseCleanupManager).

`shards.cleanup` decides; every delete is conditional on the row being finished still. When to look is others' business.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import anyio

from kcl_daemon.errors import AwsError
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import Lease
from kcl_daemon.ports import Log, Table
from kcl_daemon.shards.cleanup import Judged, Verdict, judge_finished
from kcl_daemon.shards.shard import Shard

_AT_ONCE: Final = 10
# Who looks has other things to do as well; the rest goes at the next look.
_MOST_AT_A_LOOK: Final = 200


def _anybody(_: Lease) -> bool:
    """The default of `may`."""
    return True


def _nobody_counts() -> None:
    """The default of `on_deleted`."""


class Remover:
    """Deletes what may go.

    Args:
        table: the lease table.
        log: what was deleted is told, what waits only for those who look closely.
        may: which finished leases are this worker's to delete.
        on_deleted: called for each that was deleted.
    """

    def __init__(
        self,
        *,
        table: Table,
        log: Log,
        may: Callable[[Lease], bool] = _anybody,
        on_deleted: Callable[[], None] = _nobody_counts,
    ) -> None:
        self._table = table
        self._log = log
        self._may = may
        self._on_deleted = on_deleted

    async def remove(self, leases: Sequence[Lease], shards: Sequence[Shard] | None = None) -> None:
        """Generation by generation: a lease may go when those of its parents are gone.

        Args:
            leases: all of one stream.
            shards: all that Kinesis lists; None: nobody asked.

        Raises:
            AwsError: a delete failed; what was deleted is, the next look goes on.
        """
        left = {lease.lease_key: lease for lease in leases}
        deleted = 0
        while True:
            judged = judge_finished(left.values(), shards)
            ready = [each for each in judged if each.verdict is not Verdict.WAITS and self._may(each.lease)]
            going = ready[: _MOST_AT_A_LOOK - deleted]
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
            self._on_deleted()
            self._log.info("lease_deleted", lease_key=lease.lease_key, reason=each.reason)
        return written.applied
