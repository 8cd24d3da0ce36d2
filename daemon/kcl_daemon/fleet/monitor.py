from __future__ import annotations

from collections.abc import Callable
from typing import Final

from kcl_daemon.assignment.plan import Fleet, LeaseLimits
from kcl_daemon.context import WorkerContext
from kcl_daemon.fleet.lease_renewer import MalformedRowLog
from kcl_daemon.leases.expiry import LivenessLog, WorkerObservation, see_workers
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.row import is_lease_row
from kcl_daemon.leases.worker_row import WorkerRow, is_worker_row, workers_of
from kcl_daemon.ports import Tables

# A worker that reports a little late lives.
_LATE_REPORTS: Final = 1.5


class FleetMonitor:
    def __init__(
        self,
        context: WorkerContext,
        *,
        tables: Tables,
        limits: LeaseLimits,
        malformed: MalformedRowLog,
        prioritize: Callable[[list[Lease]], list[Lease]] = list,
    ) -> None:
        self._context = context
        self._prioritize = prioritize
        self._me = context.worker_id
        self._tables = tables
        self.limits = limits
        self._clock = context.clock
        self._timings = context.timings
        self._malformed = malformed
        self._book = LivenessLog(unclaimed_s=context.timings.unclaimed_s)
        self._workers_read_s: float | None = None
        self._workers_are_fresh = False
        self._polled_s: float | None = None
        self.leases: list[Lease] = []
        self.workers: list[WorkerRow] = []
        self._apart: list[WorkerRow] = []
        self._in_leases: list[WorkerRow] = []
        self._seen: list[dict[WorkerId, WorkerObservation]] = [{}, {}]
        self.unreadable_leases: frozenset[str] = frozenset()
        self.unreadable_workers = 0

    async def poll(self) -> None:
        """After an error earlier results stay."""
        began_s = self._clock.monotonic()
        lease_rows = await self._tables.leases.scan()
        self._workers_are_fresh = False
        self._in_leases = workers_of(lease_rows, self._tables.leases.key_attribute)
        if self._tables.share_one_table:
            self._apart, self._workers_are_fresh, self._workers_read_s = [], True, began_s
            self.unreadable_workers = sum(map(is_worker_row, lease_rows)) - len(self._in_leases)
        elif self._workers_are_due(began_s):
            await self._poll_workers(began_s)
        read = [(self._malformed.lease(row), row) for row in lease_rows if is_lease_row(row)]
        self.leases = [lease for lease, _ in read if lease is not None]
        key = self._tables.leases.key_attribute
        self.unreadable_leases = frozenset(str(row.get(key)) for lease, row in read if lease is None)
        self._polled_s = began_s
        self._remember(began_s)

    def _workers_are_due(self, now_s: float) -> bool:
        period_s = self._timings.workers_poll_s(self.pause_s)
        return self._workers_read_s is None or now_s - self._workers_read_s >= period_s

    async def refresh_workers(self) -> bool:
        """Unless `poll` did; returns whether. Before an assignment: a worker that has just left must get nothing."""
        if self._workers_are_fresh:
            return False
        await self._poll_workers(self._clock.monotonic())
        self._remember(self._book.polled_s)
        return True

    async def has_row(self, worker_id: WorkerId) -> bool:
        return await self._tables.worker_metrics.get(worker_id) is not None

    def stands_by(self, worker_id: WorkerId) -> bool:
        return any(each.stands_by for each in self.workers if each.worker_id == worker_id)

    async def _poll_workers(self, began_s: float) -> None:
        rows = await self._tables.worker_metrics.scan()
        self._apart = workers_of(rows, self._tables.worker_metrics.key_attribute)
        self.unreadable_workers = len(rows) - len(self._apart)
        self._workers_read_s, self._workers_are_fresh = began_s, True

    def _remember(self, began_s: float) -> None:
        self.workers = latest_of(self._apart, self._in_leases)
        now_s = self._clock.monotonic()
        both = zip((self._apart, self._in_leases), self._seen, strict=True)
        self._seen = [see_workers(rows, seen, now_s) for rows, seen in both]
        self._book = self._book.poll(
            [lease for lease in self.leases if not lease.is_finished],
            self.workers,
            began_s=began_s,
            ended_s=now_s,
            failover_s=self._timings.failover_s,
            workers_read_s=self._workers_read_s,
        )

    def forget(self) -> None:
        self._book = LivenessLog(unclaimed_s=self._timings.unclaimed_s)
        self._workers_read_s = self._polled_s = None
        self._seen = [{}, {}]

    def reports(self) -> tuple[list[WorkerRow], list[WorkerRow]] | None:
        """Of both tables, by our clock; None: some must be watched for longer."""
        now_s, active_s = self._clock.monotonic(), self._timings.active_s
        wall_s = self._clock.wall_ms() / 1000
        if any(each.is_doubtful(wall_s, now_s, active_s) for seen in self._seen for each in seen.values()):
            return None
        apart, in_leases = (
            [seen[each.worker_id].redated(each, wall_s - now_s) for each in rows if each.worker_id in seen]
            for rows, seen in zip((self._apart, self._in_leases), self._seen, strict=True)
        )
        return apart, in_leases

    @property
    def age_s(self) -> float | None:
        return None if self._polled_s is None else self._clock.monotonic() - self._polled_s

    def another(self) -> FleetMonitor:
        return FleetMonitor(
            self._context,
            tables=self._tables,
            limits=self.limits,
            malformed=self._malformed,
            prioritize=self._prioritize,
        )

    def reported_s(self, worker_id: WorkerId) -> float | None:
        seen = self._book.workers.get(worker_id)
        return None if seen is None or not seen.changed else self._clock.monotonic() - seen.since_s

    def is_report_late(self, worker_id: WorkerId) -> bool:
        late_s = _LATE_REPORTS * self._timings.report_s
        wall_s = self._clock.wall_ms() / 1000
        return any(
            wall_s - each.last_update_s > late_s for each in self.workers if each.worker_id == worker_id
        )

    def has_lived_since(self, worker_id: WorkerId, since_s: float) -> bool:
        return self._book.has_lived_since(worker_id, since_s)

    @property
    def pause_s(self) -> float:
        return self._timings.leader_poll_s(
            alone=self.is_alone,
            leases=sum(not lease.is_finished for lease in self.leases),
            workers=len(self.workers),
        )

    @property
    def is_idle(self) -> bool:
        leases = sum(not lease.is_finished for lease in self.leases)
        return 0 < leases <= len(self.workers)

    @property
    def deputy(self) -> WorkerId | None:
        others = sorted(self.living_workers() - {self._me})
        if not others or self.is_idle:
            return None
        return next((worker for worker in others if worker > self._me), others[0])

    @property
    def is_alone(self) -> bool:
        others = {worker.worker_id for worker in self.workers} & self.living_workers()
        owners = {lease.actual_owner for lease in self.leases if not lease.is_finished}
        return bool(self.workers) and (others | owners) <= {self._me}

    def fleet(self) -> Fleet:
        book, failover_s = self._book, self._timings.failover_s
        overdue_s = self._timings.handoff_s + failover_s
        standby_s = self._timings.standby_s
        owned = [lease for lease in self.leases if lease.actual_owner is not None]
        return Fleet(
            leases=self._prioritize(self.leases),
            abandoned=book.abandoned(failover_s),
            overdue=_keys(
                owned, lambda lease: book.handoff_s(lease) > overdue_s + standby_s * bool(lease.standby)
            ),
            workers=self.living_workers(),
            limits=self.limits,
            stats={worker.worker_id: worker for worker in self.workers},
            ages_s={lease.lease_key: book.still_s(lease) for lease in owned},
            unclaimed=book.unclaimed,
        )

    def living_workers(self) -> frozenset[WorkerId]:
        living = self._book.reporting(wall_s=self._clock.wall_ms() / 1000, active_s=self._timings.active_s)
        # We live, even if our leases were late; but not if our row is gone.
        return living | ({self._me} if self._me in self._book.workers else frozenset())


def latest_of(apart: list[WorkerRow], in_leases: list[WorkerRow]) -> list[WorkerRow]:
    if not apart or not in_leases:
        return apart or in_leases
    latest = {worker.worker_id: worker for worker in apart}
    for worker in in_leases:
        before = latest.get(worker.worker_id)
        if before is None or worker.last_update_s >= before.last_update_s:
            latest[worker.worker_id] = worker
    return list(latest.values())


def _keys(leases: list[Lease], chosen: Callable[[Lease], bool]) -> frozenset[LeaseKey]:
    return frozenset(lease.lease_key for lease in leases if chosen(lease))
