"""Shows the fleet that this worker lives, by its row in the worker metrics table (KCL: WorkerMetricStatsReporter)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal

from kcl_daemon.coordination.timings import Timings
from kcl_daemon.errors import AwsError
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.leases.stats import CPU, STANDING, report
from kcl_daemon.leases.table import RowUpdate
from kcl_daemon.metrics import kcl
from kcl_daemon.ports import Clock, Log, Table
from kcl_daemon.ports_metrics import NO_METERS, Meters


class Reporter:
    """Writes this worker's row, and takes it away at the end so that no leader gives leases to a stopped worker."""

    def __init__(
        self,
        *,
        table: Table,
        worker_id: WorkerId,
        clock: Clock,
        timings: Timings,
        log: Log,
        cpu_averages: Callable[[], Sequence[Decimal]] = tuple,
        meters: Meters = NO_METERS,
    ) -> None:
        self._meters = meters
        self._cpu_averages = cpu_averages
        self._table = table
        self._me = worker_id
        self._clock = clock
        self._timings = timings
        self._log = log

    async def run(self) -> None:
        """Report now and then in each period; a failed report is tried again ten times sooner. For ever."""
        while True:
            reported = await self.report()
            await self._clock.sleep(self._timings.report_s if reported else self._timings.report_s / 10)

    async def report(self) -> bool:
        """Write the row once; False where that did not work.

        A row that stands is written only while it stands. The stop does not wait for a report that is under way, and
        one that arrived after the row was taken away would show the fleet a worker that has left.
        """
        with self._meters.operation(kcl.REPORT) as span:
            written = await self._written()
            if not written:
                span.failed()
        return written

    async def _written(self) -> bool:
        row = self._row()
        try:
            with self._clock.move_on_after(self._timings.call_s):
                if not (await self._table.update(replace(row, require=STANDING))).applied:
                    await self._table.update(row)
                return True
            self._log.warning("worker_report_failed", error=f"no answer within {self._timings.call_s:g} s")
        except AwsError as error:
            self._log.warning("worker_report_failed", error=str(error))
        return False

    def _row(self) -> RowUpdate:
        """What this worker says of itself now; the CPU figures of the period end here, sent or not."""
        averages = [float(average) for average in self._cpu_averages()]
        return report(self._me, now_s=self._clock.wall_ms() // 1000, metrics={CPU: averages})

    async def retire(self) -> None:
        """Take the row away. Never raises for AWS: a row left behind grows old."""
        try:
            with self._clock.move_on_after(self._timings.call_s):
                await self._table.delete(self._me)
        except AwsError as error:
            self._log.warning("worker_report_failed", error=str(error), advice="the row grows old by itself")
