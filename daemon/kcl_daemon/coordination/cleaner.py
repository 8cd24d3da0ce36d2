"""Deletes the leases of finished shards when nothing needs them any more (leader only; KCL: LeaseCleanupManager).

Owns when it was done last. What may go, and how it goes, is the remover's business.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from kcl_daemon.config.shard_settings import ShardSettings
from kcl_daemon.coordination.remover import Remover
from kcl_daemon.errors import AwsError
from kcl_daemon.leases.lease import Lease
from kcl_daemon.ports import Clock, Log, Table
from kcl_daemon.shards.shard import Shard


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
        self._remover = Remover(table=table, log=log, on_deleted=self._deleted)
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
                    await self._remover.remove(leases, shards)
            elif self._is_over(self._completed_s, self._settings.cleanup_completed_ms):
                await self._remover.remove(leases)
        except AwsError as error:
            self._log.info("lease_cleanup_failed", error=str(error))

    def _deleted(self) -> None:
        self._completed_s = self._clock.monotonic()

    def _is_over(self, since_s: float, period_ms: int) -> bool:
        return self._clock.monotonic() - since_s >= period_ms / 1000
