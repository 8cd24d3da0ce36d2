"""The leader's work: look at leases and workers, decide who reads what, write it (KCL: LeaseAssignmentManager)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, assert_never

import anyio
from anyio.abc import TaskGroup

from kcl_daemon.assignment.plan import Fleet, How, Move, Plan
from kcl_daemon.coordination.completion import Completion
from kcl_daemon.coordination.elector import Elector
from kcl_daemon.coordination.fleet_figures import tell_fleet
from kcl_daemon.coordination.many_syncer import ManySyncer
from kcl_daemon.coordination.nudge import Nudge
from kcl_daemon.coordination.overview import Overview
from kcl_daemon.coordination.strategies import Strategies
from kcl_daemon.coordination.sweeper import Sweeper
from kcl_daemon.coordination.syncer import Syncer
from kcl_daemon.coordination.timings import Timings
from kcl_daemon.errors import AwsError
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.table import RowUpdate
from kcl_daemon.metrics import kcl
from kcl_daemon.ports import Clock, Log, Table
from kcl_daemon.ports_metrics import NO_METERS, Meters

# So many runs in a row may fail before another worker had better lead.
_FAILURES_MOST: Final = 3
_WRITES_AT_ONCE: Final = 10
# A lease that has stood still for so many renewal periods should have been renewed.
_LATE: Final = 1.5
# In fail-over times: so long evening out waits for workers to find what they were given. Some never do.
_PUT_OFF_MOST: Final = 2.0


def _nobody_minds(_key: LeaseKey, _reason: str, _at_s: float) -> None:
    """The default of `on_decided`."""


class Assigner:
    """Runs on every worker, decides on the leader.

    A worker that sees the leader fall silent begins to look as well, so that it knows which leases stand still by the
    time it may take over.
    """

    def __init__(
        self,
        *,
        table: Table,
        overview: Overview,
        elector: Elector,
        syncer: Syncer | ManySyncer,
        sweeper: Sweeper,
        strategies: Strategies,
        clock: Clock,
        timings: Timings,
        log: Log,
        on_seen: Callable[[list[Lease]], None],
        on_assigned: Callable[[Lease, float], None],
        on_decided: Callable[[LeaseKey, str, float], None] = _nobody_minds,
        meters: Meters = NO_METERS,
    ) -> None:
        self._meters = meters
        self._table = table
        self._overview = overview
        self._elector = elector
        self._sweeper = sweeper
        self._strategies = strategies
        self._clock = clock
        self._timings = timings
        self._log = log
        self._on_seen = on_seen
        self._on_assigned = on_assigned
        self._on_decided = on_decided
        self._nudge = Nudge(clock)
        self._completion = Completion(
            syncer, patience_s=timings.look_s, clock=clock, log=log, on_late=self._nudge.nudge
        )
        self._failures = 0
        self._balanced_s: float | None = None
        self._balanced_workers: frozenset[WorkerId] = frozenset()
        self._put_off_s: float | None = None
        self._reminded: frozenset[tuple[LeaseKey, int]] = frozenset()
        elector.on_elected(self._begin)

    def nudge(self) -> None:
        """Run now, if we lead: something has changed."""
        self._nudge.nudge()

    def _begin(self) -> None:
        self._completion.begin()
        self._failures = 0
        self._balanced_s = self._put_off_s = None
        self._nudge.nudge()

    async def run(self) -> None:
        """Run in each period, or when nudged; for ever."""
        async with anyio.create_task_group() as beside:
            while True:
                leading = self._elector.is_leader
                await self._nudge.wait(self._overview.pause_s if leading else self._timings.look_s)
                if self._elector.is_leader:
                    await self._lead(beside)
                else:
                    await self._follow()

    async def _follow(self) -> None:
        self._completion.stop()
        if self._elector.may_lead_soon:
            await self._prepare()
        else:
            self._overview.forget()

    async def _lead(self, beside: TaskGroup) -> None:
        try:
            with self._meters.operation(kcl.ASSIGNMENT):
                await self._run_once(beside)
            self._failures = 0
        except AwsError as error:
            self._failures += 1
            self._log.warning("assignment_failed", error=str(error), failures=self._failures)
            if self._failures >= _FAILURES_MOST:
                self._failures = 0
                self._meters.add(kcl.ASSIGNMENT_RESIGNED)
                await self._elector.resign(stand_back=True)

    async def _run_once(self, beside: TaskGroup) -> None:
        await self._load()
        # That failing, or taking its time, is no reason to leave the leases that exist without owners.
        if await self._completion.ensure(self._overview.leases, beside):
            await self._load()
        await self._assign()
        self._on_seen(self._overview.leases)
        await self._sweeper.sweep(self._overview.workers)

    async def _load(self) -> None:
        with self._meters.operation(kcl.ASSIGNMENT_LOAD):
            await self._overview.look()

    def _remind(self, fleet: Fleet) -> None:
        """Where a lease stands still that should have been renewed by now, perhaps its owner has not heard of it."""
        late = frozenset(
            (lease.lease_key, lease.lease_counter)
            for lease in fleet.leases
            if fleet.ages_s.get(lease.lease_key, 0.0) > _LATE * self._timings.renew_s
            and lease.actual_owner != self._elector.worker_id
        )
        if late - self._reminded:
            self._elector.tell()
        self._reminded = late

    async def _prepare(self) -> None:
        try:
            await self._overview.look()
        except AwsError as error:
            self._log.debug("assignment_preparation_failed", error=str(error))

    async def _assign(self) -> None:
        fleet, balancing, plan = self._plan()
        if plan.moves and await self._overview.refresh_workers():
            fleet, balancing, plan = self._plan()
        if plan.unplaced:
            self._log.warning(
                "leases_without_worker", count=len(plan.unplaced), examples=list(plan.unplaced[:3])
            )
        tell_fleet(self._meters, self._overview, fleet, plan)
        try:
            with self._meters.operation(kcl.ASSIGNMENT_WRITE):
                await self._carry_out_all(plan.moves)
        finally:
            if any(move.to != self._elector.worker_id for move in plan.moves):
                self._elector.tell()
        if balancing:
            self._balanced_s, self._balanced_workers = self._clock.monotonic(), fleet.workers
            self._put_off_s = None
        self._remind(fleet)

    def _plan(self) -> tuple[Fleet, bool, Plan]:
        """The fleet, whether load is evened out now, and what to do."""
        fleet = self._overview.fleet()
        balancing = self._balance_is_due(fleet.workers) and not self._is_put_off(fleet)
        told = kcl.ASSIGNMENT_BALANCE if balancing else kcl.ASSIGNMENT_PLACE
        with self._meters.operation(told):
            plan = (self._strategies.balance if balancing else self._strategies.place)(fleet)
        return fleet, balancing, plan

    def _balance_is_due(self, workers: frozenset[WorkerId]) -> bool:
        """Now and then, and at once when workers have come or gone."""
        if self._balanced_s is None or workers != self._balanced_workers:
            return True
        return self._clock.monotonic() - self._balanced_s >= self._timings.balance_s

    def _is_put_off(self, fleet: Fleet) -> bool:
        """Whether evening out waits a moment for workers that have not found yet what they were given.

        A hand-off of such a lease would hide it from a Java owner, who would never pass it on: it is found by its
        `leaseOwner`, who then is another.
        """
        me, now_s = self._elector.worker_id, self._clock.monotonic()
        if all(lease.actual_owner == me for lease in fleet.leases if lease.lease_key in fleet.unclaimed):
            self._put_off_s = None
            return False
        if self._put_off_s is None:
            self._put_off_s = now_s
        return now_s - self._put_off_s < max(
            _PUT_OFF_MOST * self._timings.failover_s, self._timings.unclaimed_s
        )

    async def _carry_out_all(self, moves: tuple[Move, ...]) -> None:
        limiter = anyio.CapacityLimiter(_WRITES_AT_ONCE)
        failures: list[AwsError] = []

        async def carry_out(move: Move) -> None:
            async with limiter:
                try:
                    await self._carry_out(move)
                except AwsError as error:
                    failures.append(error)

        async with anyio.create_task_group() as writes:
            for move in moves:
                writes.start_soon(carry_out, move)
        self._meters.add(kcl.ASSIGNMENT_FAILED, len(failures))
        if failures:
            raise failures[0]

    def _write_for(self, move: Move) -> RowUpdate:
        match move.how:
            case How.TAKE:
                return lease_row.assignment(move.lease, move.to, only_if_untouched=True)
            case How.HAND_OFF if self._strategies.graceful:
                return lease_row.handoff(move.lease, move.to)
            case How.HAND_OFF | How.FORCE:
                return lease_row.assignment(move.lease, move.to)
            case _:
                assert_never(move.how)

    async def _carry_out(self, move: Move) -> None:
        began_s = self._clock.monotonic()
        written = await self._table.update(self._write_for(move))
        if not written.applied or written.row is None:
            self._log.info("lease_assignment_overtaken", reason=move.reason)
            return
        self._log.info("lease_assigned", lease_key=move.lease.lease_key, to=move.to, reason=move.reason)
        self._on_decided(move.lease.lease_key, move.reason, began_s)
        try:
            lease = lease_row.lease_from_row(written.row)
        except lease_row.MalformedRowError:
            return  # the next look reports it
        self._on_assigned(lease, began_s)
