"""Shows the fleet that this worker lives, by its row in the worker metrics table (KCL: WorkerMetricStatsReporter).

A Java leader averages each metric over the workers that report it (KCL: VarianceBasedLeaseAssignmentDecider). Java measures
the CPU on ECS, EKS and EC2 only, we on every Linux host. Under a Java leader without a CPU figure the few that report one
would be their own average, which leaves no room for a lease: they would starve. So there our rows have none either, and
the leader goes by throughput, as it does for its Java workers. A leader of ours balances workers with and without.

Looks at the parts of a worker in each renewal period and tells what they are like: held leases, leader, loop.

Owns the pace of the looks. Counts nothing that happens in between; that is told where it happens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final

from kcl_daemon.errors import AwsError
from kcl_daemon.fleet.elector import Elector
from kcl_daemon.fleet.lease_renewer import LeaseRenewer, lease_labels
from kcl_daemon.fleet.timings import Timings, Wakeup
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.leases.row import Conditions, Row, RowUpdate
from kcl_daemon.leases.worker_row import CPU, ROW_EXISTS, Incarnation, incarnation_of, report, worker_from_row
from kcl_daemon.metrics import kcl, own
from kcl_daemon.migrations.kcl2_loops import ClientVersionMonitor, ShuffleLeader
from kcl_daemon.migrations.kcl2_rules import ClientVersion
from kcl_daemon.ports import NO_METERS, Clock, Log, Meters, Table
from kcl_daemon.progress.watchdog import Watchdog, lag_s

# A Java worker first reports after so many captures of its CPU.
_FIRST_CAPTURES: Final = 2


def _no_java_leader() -> WorkerId | None:
    return None


def _ignore_other(_other: Incarnation) -> bool:
    """The default of `on_other`."""
    return False


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
        cpu_averages: Callable[[], Sequence[Decimal]] | None = None,
        cpu_host: str | None = None,
        java_leader: Callable[[], WorkerId | None] = _no_java_leader,
        meters: Meters = NO_METERS,
        incarnation: Incarnation | None = None,
        on_other: Callable[[Incarnation], bool] = _ignore_other,
    ) -> None:
        """Over the table of worker rows.

        Args:
            table: of the worker rows.
            worker_id: who reports.
            clock: when.
            timings: how often.
            log: for reports that fail.
            cpu_averages: ends the window and gives the averages, oldest first; None: the CPU is not measured.
            cpu_host: the host whose CPU that is, where others on it report the same.
            java_leader: who leads, where that is a Java worker.
            meters: for the calls.
            incarnation: which process we are; None: the row does not say.
            on_other: called when another process with our worker id has reported again after a report of ours, so that
                both live; whether the row is the other's from now on.
        """
        self._incarnation = incarnation
        self._on_other = on_other
        self._has_reported = False
        self._other: Incarnation | None = None
        self._meters = meters
        self._cpu_averages = cpu_averages
        self._cpu_host = cpu_host
        self._java_leader = java_leader
        self._wakeup = Wakeup(clock)
        self._leader_has_cpu: bool | None = None
        self._has_figures = False
        self._table = table
        self._me = worker_id
        self._clock = clock
        self._timings = timings
        self._log = log

    def wake(self) -> None:
        """Report now: another leader goes by other figures, or another process seems to have our worker id."""
        self._wakeup.wake()

    async def run(self) -> None:
        """Report now, in each period and when nudged; a failed report is tried again ten times sooner. For ever."""
        while True:
            reported = await self.report()
            await self._wakeup.wait(self._pause_s() if reported else self._timings.report_s / 10)
            if self._other is not None:
                await self._clock.sleep(min(self._timings.poll_s, self._timings.report_s))

    def _pause_s(self) -> float:
        """Until the next report; soon where a Java leader takes a worker without the CPU figure it expects for idle."""
        if self._cpu_averages is not None and self._leader_has_cpu and not self._has_figures:
            return min(self._timings.report_s, _FIRST_CAPTURES * self._timings.capture_s)
        return self._timings.report_s

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
        await self._poll_leader()
        row = self._row()
        try:
            with self._clock.move_on_after(self._timings.call_s):
                standing = await self._table.update(replace(row, require=(*ROW_EXISTS, *self._ours)))
                if not standing.applied and not self._is_of_another(standing.row):
                    await self._table.update(row)
                self._has_reported = True
                return True
            self._log.warning("worker_report_failed", error=f"no answer within {self._timings.call_s:g} s")
        except AwsError as error:
            self._log.warning("worker_report_failed", error=str(error))
        return False

    async def _poll_leader(self) -> None:
        """Whether a Java leader reports its CPU. What cannot be read leaves that as it was."""
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
        """What this worker says of itself now; the CPU figures of the period end here, sent or not."""
        averages = [float(average) for average in (self._cpu_averages or tuple)()]
        self._has_figures = bool(averages)
        if self._leader_has_cpu is False:
            averages = []
        return report(
            self._me,
            now_s=self._clock.wall_ms() // 1000,
            metrics={CPU: averages},
            host=self._cpu_host,
            incarnation=self._incarnation,
        )

    @property
    def _ours(self) -> Conditions:
        return () if self._incarnation is None else self._incarnation.is_that_of_the_row

    def _is_of_another(self, row: Row | None) -> bool:
        """Whether the row is left to another process with our worker id.

        Before our first report it may be that of a predecessor, and the first report of one that has died may arrive
        late. Whoever writes it once more lives.
        """
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
        """Take the row away. Never raises for AWS: a row left behind grows old."""
        try:
            with self._clock.move_on_after(self._timings.call_s):
                deleted = await self._table.delete(self._me, self._ours)
                # A row that names no process was written anew by hand or by an older version.
                if not deleted.applied and deleted.row is not None and incarnation_of(deleted.row) is None:
                    await self._table.delete(self._me)
        except AwsError as error:
            self._log.warning("worker_report_failed", error=str(error), advice="the row expires by itself")


_BY_SHUFFLE = frozenset({ClientVersion.INIT, ClientVersion.UPGRADE_FROM_2X, ClientVersion.V2X})


@dataclass(frozen=True, slots=True)
class GaugeInputs:
    """What is looked at.

    Args:
        renewer: of the leases.
        elector: the one by the lock.
        shuffle: whether this worker leads by shuffle.
        versions: tell which of the two counts.
        watchdog: of the shards.
    """

    renewer: LeaseRenewer
    elector: Elector
    shuffle: ShuffleLeader
    versions: ClientVersionMonitor
    watchdog: Watchdog


class Gauges:
    """The loop.

    Args:
        watched: the parts.
        may_change: whether this application may change from one kind of leader to the other.
        buffered: bytes that readers have in hand.
        period_s: from one look to the next.
        meters: told of all.
        clock: for the looks.
    """

    def __init__(
        self,
        watched: GaugeInputs,
        *,
        may_change: bool,
        buffered: Callable[[], int],
        period_s: float,
        meters: Meters,
        clock: Clock,
    ) -> None:
        self._watched = watched
        self._may_change = may_change
        self._buffered = buffered
        self._period_s = period_s
        self._meters = meters
        self._clock = clock

    async def run(self) -> None:
        """Look in each period; for ever."""
        while True:
            asked_s = self._clock.monotonic()
            await self._clock.sleep(self._period_s)
            self._meters.add(own.LOOP_LAG, max(0.0, self._clock.monotonic() - asked_s - self._period_s))
            self.poll()

    def poll(self) -> None:
        """One look."""
        watched, add = self._watched, self._meters.add
        held = watched.renewer.held
        watched.renewer.renewals.tick(len(held))
        now_s = self._clock.monotonic()
        add(own.LEASE_AGE, max((now_s - each.moved_s for each in held.values()), default=0.0))
        add(own.BUFFERED_BYTES, self._buffered())
        by_shuffle = watched.versions.version in _BY_SHUFFLE
        leads = watched.shuffle.leads if by_shuffle else watched.elector.is_leader
        add(kcl.IS_LEADER, float(leads))
        if self._may_change:
            add(kcl.DECIDER_SHUFFLE if by_shuffle else kcl.DECIDER_LOCK)
        if not by_shuffle:
            add(own.LEADERLESS, watched.elector.leaderless_s)
        self._record_shards(now_s)

    def _record_shards(self, now_s: float) -> None:
        watchdog, add = self._watched.watchdog, self._meters.add
        for shard in watchdog.active_leases.shards:
            behind_s = lag_s(shard.progress, watchdog.limits, now_s)
            if behind_s is not None:
                add(kcl.PROCESS_BEHIND, behind_s, **lease_labels(shard.lease))
                add(kcl.APPLICATION_BEHIND, behind_s)
