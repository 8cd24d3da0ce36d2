"""The leader decides who reads what, and writes it (KCL: LeaseAssignmentManager)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, assert_never

import anyio
from anyio.abc import TaskGroup

from kcl_daemon import faults
from kcl_daemon.assignment.plan import AssignmentPlan, Fleet, LeaseMove, MoveKind, Strategy, by_lease_count
from kcl_daemon.assignment.utilization import BalanceOptions, by_utilization
from kcl_daemon.config.balance import AssignmentStrategy
from kcl_daemon.config.settings import Settings
from kcl_daemon.context import Wakeup, WorkerContext, for_each, raise_first
from kcl_daemon.errors import AccessDenied, AwsError
from kcl_daemon.fleet.elector import Elector
from kcl_daemon.fleet.monitor import FleetMonitor
from kcl_daemon.fleet.shard_sync import ShardSync
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import Lease, LeaseKey, StreamIdentity, WorkerId
from kcl_daemon.leases.row import RowUpdate
from kcl_daemon.leases.worker_row import WorkerRow, unchanged
from kcl_daemon.metrics import kcl
from kcl_daemon.ports import Meters, Table, Tables

if TYPE_CHECKING:
    from kcl_daemon.fleet.many_streams import MultiStreamShardSync


class _SyncRun:
    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()
        self.created = False
        self.is_late = False


class BackgroundSync:
    """One shard sync at a time, beside the assignment, which waits `timings.poll_s` for it."""

    def __init__(
        self,
        context: WorkerContext,
        shard_sync: ShardSync | MultiStreamShardSync,
        *,
        on_late: Callable[[], None],
    ) -> None:
        self._context = context
        self._shard_sync = shard_sync
        self._on_late = on_late
        self._poll: _SyncRun | None = None

    def begin(self) -> None:
        self.stop()
        self._shard_sync.begin()

    def stop(self) -> None:
        if self._poll is not None:
            self._poll.scope.cancel()
            self._poll = None

    def audited(self) -> frozenset[StreamIdentity | None]:
        """The streams whose shards all have a lease; None stands for the only one. Empty while a sync runs."""
        return self._shard_sync.audited if self._poll is None else frozenset()

    async def ensure(self, leases: Sequence[Lease], background: TaskGroup) -> bool:
        """Returns whether to read the leases again. Logs errors. A slow sync continues in `background`."""
        if self._poll is not None:
            return False
        poll = self._poll = _SyncRun()
        background.start_soon(self._carry_out, poll, leases)
        with self._context.clock.move_on_after(self._context.timings.poll_s):
            await poll.ended.wait()
            return poll.created
        poll.is_late = True
        return True

    async def _carry_out(self, poll: _SyncRun, leases: Sequence[Lease]) -> None:
        try:
            with poll.scope:
                poll.created = await self._ensure(leases)
        finally:
            if self._poll is poll:
                self._poll = None
            poll.ended.set()
        if poll.is_late and poll.created:
            self._on_late()

    async def _ensure(self, leases: Sequence[Lease]) -> bool:
        try:
            return await self._shard_sync.ensure(leases)
        except AwsError as error:
            log = self._context.log
            report = log.error if isinstance(error, AccessDenied) else log.warning
            report("lease_sync_failed", error=str(error))
            return False


@dataclass(frozen=True, slots=True)
class AssignmentStrategies:
    """`balance` also evens out load. It runs rarely: figures lag behind moves."""

    place: Strategy
    balance: Strategy
    graceful: bool = True


def assignment_strategies(settings: Settings) -> AssignmentStrategies:
    balance, graceful = settings.balance, settings.leases.graceful_handoff
    if balance.strategy is AssignmentStrategy.LEASE_COUNT_BASED:
        return AssignmentStrategies(place=by_lease_count, balance=by_lease_count, graceful=graceful)
    options = BalanceOptions(
        rebalance_threshold_percentage=balance.rebalance_threshold_percentage,
        dampening_percentage=balance.dampening_percentage,
        allow_throughput_overshoot=balance.allow_throughput_overshoot,
        max_throughput_per_host_kbps=balance.max_throughput_per_host_kbps,
        ema_alpha=balance.worker_metrics_ema_alpha,
    )
    return AssignmentStrategies(
        place=by_utilization(replace(options, balance_this_run=False)),
        balance=by_utilization(options),
        graceful=graceful,
    )


def record_fleet_metrics(meters: Meters, monitor: FleetMonitor, fleet: Fleet, plan: AssignmentPlan) -> None:
    unfinished = [lease for lease in fleet.leases if not lease.is_finished]
    owners = {lease.lease_owner for lease in monitor.leases if lease.lease_owner is not None}
    codes = {worker.worker_id: worker.support_code or 0 for worker in monitor.workers}
    meters.add(kcl.ASSIGNMENT_LEASES, len(fleet.leases))
    meters.add(kcl.ASSIGNMENT_WORKERS, len(fleet.workers))
    meters.add(kcl.ASSIGNMENT_EXPIRED, sum(map(fleet.is_free, unfinished)))
    meters.add(kcl.ASSIGNMENT_SPILL, len(plan.unplaced))
    meters.add(kcl.ASSIGNMENT_MOVES, len(plan.moves))
    meters.add(kcl.ASSIGNMENT_INVALID_WORKERS, monitor.unreadable_workers)
    meters.add(kcl.ASSIGNMENT_FAILING_WORKERS, sum(worker.is_failing for worker in monitor.workers))
    meters.add(kcl.ASSIGNMENT_MALFORMED, len(monitor.unreadable_leases))
    meters.add(kcl.FLEET_SUPPORT, min((codes.get(owner, 0) for owner in owners), default=0))


_PERIOD_S: Final = 3600.0


async def delete_stale_workers(
    context: WorkerContext, table: Table, workers: Iterable[WorkerRow], *, stale_s: float
) -> None:
    """Delete rows not updated for `stale_s` (KCL: MigrationAwareLAMDataManager). Never raises for AWS."""
    oldest_s = context.clock.wall_ms() / 1000 - stale_s
    for worker in workers:
        if worker.last_update_s >= oldest_s:
            continue
        try:
            deleted = await table.delete(worker.worker_id, unchanged(worker))
        except AwsError as error:
            context.log.info("worker_row_not_deleted", gone=worker.worker_id, error=str(error))
            continue
        if deleted.applied:
            faults.maybe("after-worker-row-deleted")
            context.log.info("worker_row_deleted", gone=worker.worker_id, last_update_s=worker.last_update_s)


_MAX_FAILURES: Final = 3
_MAX_PARALLEL_WRITES: Final = 10
# In renewal periods.
_LATE: Final = 1.5
# In failover times: how long balancing waits for workers to find new leases; some never do.
_MAX_REBALANCE_DELAY: Final = 2.0


@dataclass(frozen=True, slots=True)
class AssignmentListener:
    """Hears of each poll; gets all leases as read, each assigned lease, and why."""

    on_seen: Callable[[list[Lease]], None]
    on_assigned: Callable[[Lease, float], None]
    on_decided: Callable[[LeaseKey, str, float], None]
    holds: Callable[[LeaseKey], bool]
    on_polled: Callable[[], None] = lambda: None


class Assigner:
    def __init__(
        self,
        context: WorkerContext,
        *,
        tables: Tables,
        monitor: FleetMonitor,
        elector: Elector,
        shard_sync: ShardSync | MultiStreamShardSync,
        strategies: AssignmentStrategies,
        stale_worker_s: float,
        listener: AssignmentListener,
    ) -> None:
        self._context = context
        self._meters = context.meters
        self._tables = tables
        self._monitor = monitor
        self._elector = elector
        self._strategies = strategies
        self._stale_worker_s = stale_worker_s
        self._reaped_s = context.clock.monotonic()
        self._clock = context.clock
        self._timings = context.timings
        self._log = context.log
        self._listener = listener
        self._wakeup = Wakeup(context.clock)
        self._sync = BackgroundSync(context, shard_sync, on_late=self._wakeup.wake)
        self._failures = 0
        self._balanced_s: float | None = None
        self._balanced_workers: frozenset[WorkerId] = frozenset()
        self._delayed_s: float | None = None
        self._reminded: frozenset[tuple[LeaseKey, int]] = frozenset()
        self.complete: Sequence[Lease] | None = None
        """As the leader read them last, of the streams of `BackgroundSync.audited`; None: not known yet."""

    def wake(self) -> None:
        self._wakeup.wake()

    def begin_term(self) -> None:
        self._sync.begin()
        self._failures, self.complete = 0, None
        self._balanced_s = self._delayed_s = None
        self._wakeup.wake()

    async def run(self) -> None:
        async with anyio.create_task_group() as background:
            while True:
                leading = self._elector.is_leader
                await self._wakeup.wait(self._monitor.pause_s if leading else self._timings.poll_s)
                if self._elector.is_leader:
                    await self._lead(background)
                else:
                    await self._follow()

    async def _follow(self) -> None:
        self._sync.stop()
        if self._elector.may_lead_soon:
            await self._prepare()
        else:
            self._monitor.forget()

    async def _lead(self, background: TaskGroup) -> None:
        try:
            with self._meters.operation(kcl.ASSIGNMENT):
                await self._run_once(background)
            self._failures = 0
        except AwsError as error:
            self._failures += 1
            self._log.warning("assignment_failed", error=str(error), failures=self._failures)
            if self._failures >= _MAX_FAILURES:
                self._failures = 0
                self._meters.add(kcl.ASSIGNMENT_RESIGNED)
                await self._elector.resign(stand_back=True)

    async def _run_once(self, background: TaskGroup) -> None:
        audited = self._sync.audited()
        await self._load()
        if await self._sync.ensure(self._monitor.leases, background):
            audited = self._sync.audited()
            await self._load()
        if audited:
            self.complete = [lease for lease in self._monitor.leases if lease.stream in audited]
        await self._assign()
        self._listener.on_seen(self._monitor.leases)
        await self._delete_stale_workers()

    async def _delete_stale_workers(self) -> None:
        now_s, stale_s = self._clock.monotonic(), self._stale_worker_s
        if now_s - self._reaped_s >= min(_PERIOD_S, stale_s):
            self._reaped_s = now_s
            await delete_stale_workers(
                self._context, self._tables.worker_metrics, self._monitor.workers, stale_s=stale_s
            )

    async def _load(self) -> None:
        with self._meters.operation(kcl.ASSIGNMENT_LOAD):
            await self._monitor.poll()
        self._listener.on_polled()

    def _warn_of_malformed(self, fleet: Fleet) -> None:
        late = frozenset(
            (lease.lease_key, lease.lease_counter)
            for lease in fleet.leases
            if fleet.ages_s.get(lease.lease_key, 0.0) > _LATE * self._timings.renew_s
            and lease.actual_owner != self._elector.worker_id
        )
        if late - self._reminded:
            self._elector.report()
        self._reminded = late

    async def _prepare(self) -> None:
        try:
            await self._monitor.poll()
        except AwsError as error:
            self._log.debug("assignment_preparation_failed", error=str(error))

    async def _assign(self) -> None:
        fleet, balancing, plan = self._plan()
        if plan.moves and await self._monitor.refresh_workers():
            fleet, balancing, plan = self._plan()
        if plan.unplaced:
            self._log.warning(
                "leases_without_worker", count=len(plan.unplaced), examples=list(plan.unplaced[:3])
            )
        record_fleet_metrics(self._meters, self._monitor, fleet, plan)
        moves = tuple(move for move in plan.moves if not self._is_too_soon(move))
        try:
            with self._meters.operation(kcl.ASSIGNMENT_WRITE):
                await self._carry_out_all(moves)
        finally:
            if any(move.to != self._elector.worker_id for move in moves):
                self._elector.report()
        if balancing and moves == plan.moves:
            self._balanced_s, self._balanced_workers = self._clock.monotonic(), fleet.workers
            self._delayed_s = None
        self._warn_of_malformed(fleet)

    def _is_too_soon(self, move: LeaseMove) -> bool:
        """After a restart our leases are not held yet: nobody could finish and release them."""
        is_ours = move.lease.lease_owner == self._elector.worker_id and move.how is MoveKind.HANDOFF
        return is_ours and not self._listener.holds(move.lease.lease_key)

    def _plan(self) -> tuple[Fleet, bool, AssignmentPlan]:
        fleet = self._monitor.fleet()
        balancing = self._balance_is_due(fleet.workers) and not self._is_delayed(fleet)
        reported = kcl.ASSIGNMENT_BALANCE if balancing else kcl.ASSIGNMENT_PLACE
        with self._meters.operation(reported):
            plan = (self._strategies.balance if balancing else self._strategies.place)(fleet)
        return fleet, balancing, plan

    def _balance_is_due(self, workers: frozenset[WorkerId]) -> bool:
        if self._balanced_s is None or workers != self._balanced_workers:
            return True
        return self._clock.monotonic() - self._balanced_s >= self._timings.balance_s

    def _is_delayed(self, fleet: Fleet) -> bool:
        """Balancing waits for workers to find new leases. Java's finds them by `leaseOwner`, which a handoff changes."""
        me, now_s = self._elector.worker_id, self._clock.monotonic()
        if all(lease.actual_owner == me for lease in fleet.leases if lease.lease_key in fleet.unclaimed):
            self._delayed_s = None
            return False
        if self._delayed_s is None:
            self._delayed_s = now_s
        return now_s - self._delayed_s < max(
            _MAX_REBALANCE_DELAY * self._timings.failover_s, self._timings.unclaimed_s
        )

    async def _carry_out_all(self, moves: tuple[LeaseMove, ...]) -> None:
        errors = await for_each(moves, self._carry_out, at_once=_MAX_PARALLEL_WRITES)
        self._meters.add(kcl.ASSIGNMENT_FAILED, len(errors))
        raise_first(errors)

    def _write_for(self, move: LeaseMove) -> RowUpdate:
        match move.how:
            case MoveKind.TAKE:
                return self._assignment(move, only_if_untouched=True)
            case MoveKind.HANDOFF if self._strategies.graceful:
                standby = self._timings.standby_s > 0 and self._monitor.stands_by(move.to)
                return lease_row.handoff(move.lease, move.to, standby=standby)
            case MoveKind.HANDOFF | MoveKind.FORCE:
                return self._assignment(move)
            case _:
                assert_never(move.how)

    def _assignment(self, move: LeaseMove, *, only_if_untouched: bool = False) -> RowUpdate:
        update = lease_row.assignment(move.lease, move.to, only_if_untouched=only_if_untouched)
        if move.to != self._elector.worker_id:
            return update
        return lease_row.claimed(update, move.lease, self._context.service_ms)

    async def _carry_out(self, move: LeaseMove) -> None:
        began_s = self._clock.monotonic()
        written = await self._tables.leases.update(self._write_for(move))
        if not written.applied or written.row is None:
            self._log.info("lease_assignment_overtaken", reason=move.reason)
            return
        faults.maybe("after-lease-assigned")
        self._log.info("lease_assigned", lease_key=move.lease.lease_key, to=move.to, reason=move.reason)
        self._listener.on_decided(move.lease.lease_key, move.reason, began_s)
        lease = lease_row.readable_lease(written.row)
        if lease is not None:
            self._listener.on_assigned(lease, began_s)
