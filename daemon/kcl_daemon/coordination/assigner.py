"""The leader's work: look at leases and workers, decide who reads what, write it (KCL: LeaseAssignmentManager)."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from kcl_daemon.assignment.plan import Fleet, How, Move, Strategy
from kcl_daemon.coordination.elector import Elector
from kcl_daemon.coordination.nudge import Nudge
from kcl_daemon.coordination.syncer import Syncer
from kcl_daemon.coordination.timings import Timings
from kcl_daemon.errors import AccessDenied, AwsError
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.expiry import Watchbook
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.stats import WorkerRow, worker_from_row
from kcl_daemon.ports import Clock, Log, Tables

# So many runs in a row may fail before another worker had better lead.
_FAILURES_MOST = 3
_WRITES_AT_ONCE = 10


class Assigner:
    """Runs on every worker, decides on the leader.

    A worker that sees the leader fall silent begins to look as well, so that it knows which leases stand still by the
    time it may take over.
    """

    def __init__(
        self,
        *,
        worker_id: WorkerId,
        tables: Tables,
        elector: Elector,
        syncer: Syncer,
        strategy: Strategy,
        max_leases_for_worker: int,
        clock: Clock,
        timings: Timings,
        log: Log,
        on_assigned: Callable[[Lease, float], None],
    ) -> None:
        self._me = worker_id
        self._tables = tables
        self._elector = elector
        self._syncer = syncer
        self._strategy = strategy
        self._max_leases_for_worker = max_leases_for_worker
        self._clock = clock
        self._timings = timings
        self._log = log
        self._on_assigned = on_assigned
        self._nudge = Nudge(clock)
        self._book = Watchbook()
        self._failures = 0
        self._reported: set[str] = set()
        elector.on_elected(self._begin)

    def nudge(self) -> None:
        """Run now, if we lead: something has changed."""
        self._nudge.nudge()

    def _begin(self) -> None:
        self._syncer.begin()
        self._failures = 0
        self._nudge.nudge()

    async def run(self) -> None:
        """Run in each period, or when nudged; for ever."""
        while True:
            await self._nudge.wait(self._timings.look_s)
            if self._elector.is_leader:
                await self._lead()
            elif self._elector.may_lead_soon:
                await self._prepare()
            else:
                self._book = Watchbook()  # what is not watched goes stale

    async def _lead(self) -> None:
        try:
            leases = await self._look()
            if await self._complete(leases):
                leases = await self._look()
            await self._assign(leases)
            self._failures = 0
        except AwsError as error:
            self._failures += 1
            self._log.warning("assignment_failed", error=str(error), failures=self._failures)
            if self._failures >= _FAILURES_MOST:
                self._failures = 0
                await self._elector.resign()

    async def _complete(self, leases: list[Lease]) -> bool:
        """Create what is missing. That failing is no reason to leave the leases that exist without owners."""
        try:
            return await self._syncer.ensure(leases)
        except AwsError as error:
            tell = self._log.error if isinstance(error, AccessDenied) else self._log.warning
            tell("lease_sync_failed", error=str(error))
            return False

    async def _prepare(self) -> None:
        try:
            await self._look()
        except AwsError as error:
            self._log.debug("assignment_preparation_failed", error=str(error))

    async def _look(self) -> list[Lease]:
        began_s = self._clock.monotonic()
        workers = await self._read_workers()
        leases = await self._read_leases()
        unfinished = [lease for lease in leases if not lease.is_finished]  # others stand still rightly
        self._book = self._book.look(
            unfinished,
            workers,
            began_s=began_s,
            ended_s=self._clock.monotonic(),
            failover_s=self._timings.failover_s,
        )
        return leases

    async def _read_leases(self) -> list[Lease]:
        leases: list[Lease] = []
        for row in await self._tables.leases.scan():
            if not lease_row.is_lease_row(row):
                continue
            try:
                leases.append(lease_row.lease_from_row(row))
            except lease_row.MalformedRowError as malformed:
                if malformed.key not in self._reported:
                    self._reported.add(malformed.key)
                    self._log.error(
                        "lease_row_malformed",
                        lease_key=malformed.key,
                        error=str(malformed),
                        advice="repair or delete the row",
                    )
        return leases

    async def _read_workers(self) -> list[WorkerRow]:
        table = self._tables.worker_metrics
        rows = [worker_from_row(row, key_attribute=table.key_attribute) for row in await table.scan()]
        return [row for row in rows if row is not None]

    async def _assign(self, leases: list[Lease]) -> None:
        plan = self._strategy(self._fleet(leases))
        if plan.unplaced:
            self._log.warning(
                "leases_without_worker", count=len(plan.unplaced), examples=list(plan.unplaced[:3])
            )
        limiter = anyio.CapacityLimiter(_WRITES_AT_ONCE)
        failures: list[AwsError] = []

        async def carry_out(move: Move) -> None:
            async with limiter:
                try:
                    await self._carry_out(move)
                except AwsError as error:
                    failures.append(error)

        async with anyio.create_task_group() as writes:
            for move in plan.moves:
                writes.start_soon(carry_out, move)
        if failures:
            raise failures[0]

    def _fleet(self, leases: list[Lease]) -> Fleet:
        failover_s = self._timings.failover_s
        overdue_s = self._timings.handoff_s + failover_s
        return Fleet(
            leases=leases,
            abandoned=_keys(leases, lambda lease: self._book.still_s(lease) > failover_s),
            overdue=_keys(leases, lambda lease: self._book.handoff_s(lease) > overdue_s),
            workers=self._living_workers(),
            max_leases_for_worker=self._max_leases_for_worker,
        )

    def _living_workers(self) -> frozenset[WorkerId]:
        living = self._book.reporting(wall_s=self._clock.wall_ms() / 1000, active_s=self._timings.active_s)
        # Of ourselves we know that we live, whatever our leases have gone through; but not if our row is gone.
        return living | ({self._me} if self._me in self._book.workers else frozenset())

    async def _carry_out(self, move: Move) -> None:
        began_s = self._clock.monotonic()
        match move.how:
            case How.HAND_OFF:
                update = lease_row.handoff(move.lease, move.to)
            case How.TAKE:
                update = lease_row.assignment(move.lease, move.to, only_if_untouched=True)
            case How.FORCE:
                update = lease_row.assignment(move.lease, move.to)
        written = await self._tables.leases.update(update)
        if not written.applied or written.row is None:
            self._log.info("lease_assignment_overtaken", reason=move.reason)
            return
        self._log.info("lease_assigned", lease_key=move.lease.lease_key, to=move.to, reason=move.reason)
        if move.how is not How.HAND_OFF:
            self._on_assigned(lease_row.lease_from_row(written.row), began_s)


def _keys(leases: list[Lease], chosen: Callable[[Lease], bool]) -> frozenset[LeaseKey]:
    return frozenset(lease.lease_key for lease in leases if lease.actual_owner is not None and chosen(lease))
