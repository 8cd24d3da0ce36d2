"""Deletes the finished leases that bear this worker's name, where whoever leads does not (KCL: LeaseCleanupManager).

A leader of ours deletes all finished leases and gives none away. A Java leader gives them to workers like others, and each
worker is to delete its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection

from kcl_daemon.config.shard_settings import ShardSettings
from kcl_daemon.coordination.remover import Remover
from kcl_daemon.errors import AwsError
from kcl_daemon.leases.lease import Lease, WorkerId
from kcl_daemon.leases.row import MalformedRowError, is_lease_row, lease_from_row
from kcl_daemon.leases.stream import StreamIdentity
from kcl_daemon.leases.table import Row
from kcl_daemon.ports import Clock, Log, Table


class OwnCleaner:
    """One worker's.

    Args:
        table: the lease table; it is read whole, and only if there is something to delete.
        worker_id: this worker.
        finished: keys of finished leases that bear its name, as it has noticed by the way.
        leading: whether this worker leads; then it deletes all finished leases elsewhere.
        settings: how often.
        clock: for that.
        log: what was deleted is told.
    """

    def __init__(
        self,
        *,
        table: Table,
        worker_id: WorkerId,
        finished: Callable[[], Collection[str]],
        leading: Callable[[], bool],
        settings: ShardSettings,
        clock: Clock,
        log: Log,
    ) -> None:
        self._table = table
        self._finished = finished
        self._leading = leading
        self._settings = settings
        self._clock = clock
        self._log = log
        self._remover = Remover(table=table, log=log, may=lambda lease: lease.lease_owner == worker_id)

    async def run(self) -> None:
        """Look in each period, for ever, or never where clean-up is off. Never raises for AWS: the next look tries again."""
        period_s = max(self._settings.cleanup_ms, self._settings.cleanup_completed_ms) / 1000
        while self._settings.cleanup_finished:
            await self._clock.sleep(period_s)
            if self._leading() or not self._finished():
                continue
            try:
                for leases in (await self._by_stream()).values():
                    await self._remover.remove(leases)
            except AwsError as error:
                self._log.info("lease_cleanup_failed", error=str(error))

    async def _by_stream(self) -> dict[StreamIdentity | None, list[Lease]]:
        found = defaultdict[StreamIdentity | None, list[Lease]](list)
        for row in await self._table.scan():
            lease = _parsed(row) if is_lease_row(row) else None
            if lease is not None:
                found[lease.stream].append(lease)
        return found


def _parsed(row: Row) -> Lease | None:
    """None for a row that cannot be read; whoever leads tells of it."""
    try:
        return lease_from_row(row)
    except MalformedRowError:
        return None
