"""Deletes the rows of workers that are long gone (leader only; KCL: MigrationAwareLAMDataManager)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kcl_daemon.errors import AwsError
from kcl_daemon.leases.stats import WorkerRow, unchanged
from kcl_daemon.ports import Clock, Log, Table

# Rows are judged by the date their worker wrote; an hour is time enough to be wrong about a date and late with a sweep.
_PERIOD_S: Final = 3600.0


class Sweeper:
    """Now and then takes away what nobody has reported to for very long."""

    def __init__(self, *, table: Table, stale_s: float, clock: Clock, log: Log) -> None:
        self._table = table
        self._stale_s = stale_s
        self._clock = clock
        self._log = log
        self._swept_s = clock.monotonic()

    async def sweep(self, workers: Iterable[WorkerRow]) -> None:
        """Delete what is stale, if it is time to look.

        A row that is reported to meanwhile stays. Never raises for AWS: the next sweep tries again.
        """
        now_s = self._clock.monotonic()
        if now_s - self._swept_s < min(_PERIOD_S, self._stale_s):
            return
        self._swept_s = now_s
        oldest_s = self._clock.wall_ms() / 1000 - self._stale_s
        for worker in workers:
            if worker.last_update_s < oldest_s:
                await self._delete(worker)

    async def _delete(self, worker: WorkerRow) -> None:
        try:
            deleted = await self._table.delete(worker.worker_id, unchanged(worker))
        except AwsError as error:
            self._log.info("worker_row_not_deleted", gone=worker.worker_id, error=str(error))
            return
        if deleted.applied:
            self._log.info("worker_row_deleted", gone=worker.worker_id, last_update_s=worker.last_update_s)
