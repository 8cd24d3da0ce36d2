"""Writes this worker's row (KCL: WorkerMetricStatsReporter).

A Java leader averages each metric over the workers that report it. Java measures CPU on ECS, EKS and EC2 only: under a Java leader
without CPU our few workers would be their own average and get no leases, so our rows have none either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Final

from kcl_daemon import faults
from kcl_daemon.context import Wakeup, WorkerContext
from kcl_daemon.errors import AwsError
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.leases.row import Row, RowUpdate
from kcl_daemon.leases.worker_row import (
    CPU,
    FAILED,
    ROW_EXISTS,
    Incarnation,
    incarnation_of,
    report,
    worker_from_row,
)
from kcl_daemon.metrics import kcl
from kcl_daemon.ports import Table

_FIRST_CAPTURES: Final = 2
_RETIRE_TRIES: Final = 3
_RETIRE_PAUSE_S: Final = 0.2


class Reporter:
    def __init__(
        self,
        context: WorkerContext,
        *,
        table: Table,
        cpu_averages: Callable[[], Sequence[Decimal]] | None = None,
        cpu_host: str | None = None,
        java_leader: Callable[[], WorkerId | None],
        incarnation: Incarnation,
        on_other: Callable[[Incarnation], bool],
        run_until_ms: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`cpu_averages` ends the window, oldest first; None: not measured. `cpu_host`: several workers share that CPU.

        `on_other`: another live process keeps writing our row; returns whether to leave it the row.
        """
        self._incarnation = incarnation
        self._ours = incarnation.is_that_of_the_row
        self._on_other = on_other
        self._run_until_ms = run_until_ms
        self.load: Callable[[float | None], str | None] = lambda _cpu: None
        self._has_reported = False
        self._other: Incarnation | None = None
        self._context = context
        self._meters = context.meters
        self._cpu_averages = cpu_averages
        self._cpu_host = cpu_host
        self._java_leader = java_leader
        self._wakeup = Wakeup(context.clock)
        self._leader_has_cpu: bool | None = None
        self._has_figures = False
        self._table = table
        self._me = context.worker_id
        self._clock = context.clock
        self._timings = context.timings
        self._log = context.log

    def wake(self) -> None:
        self._wakeup.wake()

    async def run(self) -> None:
        while True:
            reported = await self.report()
            await self._wakeup.wait(self._pause_s() if reported else self._timings.report_s / 10)
            if self._other is not None:
                await self._clock.sleep(min(self._timings.poll_s, self._timings.report_s))

    def _pause_s(self) -> float:
        """Short while a Java leader would take us for idle, because we have no CPU figure yet."""
        if self._cpu_averages is not None and self._leader_has_cpu and not self._has_figures:
            return min(self._timings.report_s, _FIRST_CAPTURES * self._timings.capture_s)
        return self._timings.report_s

    async def report(self) -> bool:
        """False if it failed. The first write requires that the row exists: shutdown may have deleted it."""
        with self._meters.operation(kcl.REPORT) as span:
            written = await self._written()
            if not written:
                span.failed()
        return written

    async def _written(self) -> bool:
        await self._poll_leader()
        row = self._row()
        try:
            with self._clock.move_on_after(self._timings.call_s):
                standing = await self._table.update(replace(row, require=(*ROW_EXISTS, *self._ours)))
                if not standing.applied and not self._is_of_another(standing.row):
                    await self._table.update(row)
                faults.maybe("after-worker-reported")
                self._has_reported = True
                return True
            self._log.warning("worker_report_failed", error=f"no answer within {self._timings.call_s:g} s")
        except AwsError as error:
            self._log.warning("worker_report_failed", error=str(error))
        return False

    async def _poll_leader(self) -> None:
        leader = self._java_leader()
        if leader is None or self._cpu_averages is None:
            self._learned(None, leader)
            return
        try:
            with self._clock.move_on_after(self._timings.call_s):
                found = worker_from_row(
                    await self._table.get(leader) or {}, key_attribute=self._table.key_attribute
                )
                if found is not None:
                    self._learned(CPU in found.metrics, leader)
        except AwsError as error:
            self._log.debug("leader_report_unreadable", leader=leader, error=str(error))

    def _learned(self, has_cpu: bool | None, leader: WorkerId | None) -> None:
        withheld, self._leader_has_cpu = self._leader_has_cpu is False, has_cpu
        if has_cpu is False and not withheld:
            self._log.info("cpu_metric_withheld", leader=leader)
        elif withheld and has_cpu is not False:
            self._log.info("cpu_metric_reported_again", leader=leader)

    def _row(self) -> RowUpdate:
        averages = [float(average) for average in (self._cpu_averages or tuple)()]
        self._has_figures = bool(averages)
        cpu = averages[-1] / 100 if averages and averages[-1] != FAILED else None
        if self._leader_has_cpu is False:
            averages = []
        return report(
            self._me,
            now_s=self._clock.wall_ms() // 1000,
            metrics={CPU: averages},
            host=self._cpu_host,
            incarnation=self._incarnation,
            stands_by=self._timings.standby_s > 0,
            run_until_ms=self._run_until_ms(),
            load=self.load(cpu),
        )

    def _is_of_another(self, row: Row | None) -> bool:
        """Until our first report the row may be a dead process's."""
        before, self._other = self._other, None
        other = None if row is None else incarnation_of(row)
        if other is None or other == self._incarnation or not self._has_reported:
            return False
        self._other = other
        if before != other:
            self.wake()
            return False
        return self._on_other(other)

    async def retire(self) -> None:
        """Never raises for AWS: the row expires."""
        with self._clock.move_on_after(self._timings.call_s):
            for attempt in range(_RETIRE_TRIES):
                try:
                    await self._context.call(
                        self._delete_row(), timeout_s=self._timings.call_s / _RETIRE_TRIES
                    )
                except AwsError as error:
                    log_event = self._log.warning if attempt + 1 == _RETIRE_TRIES else self._log.debug
                    log_event("worker_report_failed", error=str(error), advice="the row expires by itself")
                    await self._clock.sleep(_RETIRE_PAUSE_S)
                else:
                    return

    async def _delete_row(self) -> None:
        deleted = await self._table.delete(self._me, self._ours)
        faults.maybe("after-own-row-deleted")
        if not deleted.applied and deleted.row is not None and incarnation_of(deleted.row) is None:
            await self._table.delete(self._me)
