"""Takes leases as KCL 2.x does, during an upgrade and after a rollback (KCL: LeaseCoordinator, DynamoDBLeaseTaker).

All workers, Java and ours, must aim at the same number of leases. So the rules are exactly KCL's: leases are stolen without asking, and
finished leases count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final, TypeAlias

import anyio
from anyio.abc import TaskGroup

from kcl_daemon import faults
from kcl_daemon.assignment.plan import LeaseLimits, WorkerLeases
from kcl_daemon.config.balance import LeaseSettings
from kcl_daemon.context import Wakeup, WorkerContext, for_each, raise_first
from kcl_daemon.errors import AwsError, Throttled, Unavailable
from kcl_daemon.fleet.assigner import BackgroundSync
from kcl_daemon.fleet.client_version import CLIENT_VERSION_CODEC
from kcl_daemon.fleet.lease_renewer import HeldLease, LeaseRenewer, MalformedRowLog
from kcl_daemon.fleet.many_streams import MultiStreamShardSync
from kcl_daemon.fleet.monitor import FleetMonitor, latest_of
from kcl_daemon.fleet.shard_sync import ShardSync
from kcl_daemon.leases.layout import UnusableState
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.row import RowUpdate, claimed, is_lease_row, steal_or_take
from kcl_daemon.metrics import kcl
from kcl_daemon.migrations.kcl2_rules import (
    CHECK_EVERY_S,
    NotReady,
    ShuffleElection,
    Upgrade,
    UpgradeReadiness,
    consider_upgrade,
    elect_by_shuffle,
    next_poll_after_s,
    upgrade_readiness,
)
from kcl_daemon.ports import IndexState, Table, Tables

Pick: TypeAlias = Callable[[int], int]
"""A random number from 0 to below the given one."""

_VERY_OLD_FAILOVERS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TakingOptions:
    """A lease unchanged for `failover_s` is free.

    `priority` takes leases unchanged for three failover times whatever the target (`enablePriorityLeaseAssignment`).
    """

    failover_s: float = 10.0
    limits: LeaseLimits = field(default_factory=LeaseLimits)
    max_leases_to_steal: int = 1
    priority: bool = True

    @property
    def period_s(self) -> float:
        return 2 * (self.failover_s + 0.025)


@dataclass(frozen=True, slots=True)
class CounterHistory:
    """The counter of each lease, and since when (monotonic seconds) this worker has seen it."""

    counters: Mapping[LeaseKey, tuple[int, float]] = field(default_factory=dict[LeaseKey, tuple[int, float]])
    polled_s: float = 0.0
    scan_s: float = 0.0

    def poll(self, leases: Iterable[Lease], *, began_s: float, ended_s: float) -> CounterHistory:
        counters = {lease.lease_key: (lease.lease_counter, self._since_s(lease, ended_s)) for lease in leases}
        return CounterHistory(counters, began_s, ended_s - began_s)

    def _since_s(self, lease: Lease, now_s: float) -> float:
        before = self.counters.get(lease.lease_key)
        if before is None:
            return -inf if lease.lease_owner is None else now_s
        return before[1] if before[0] == lease.lease_counter else now_s

    def age_s(self, lease: Lease) -> float:
        return self.polled_s - self.counters[lease.lease_key][1]


@dataclass(frozen=True, slots=True)
class LeaseTake:
    """The write is refused if another worker was faster."""

    lease: Lease
    update: RowUpdate
    stolen_from: WorkerId | None
    reason: str


@dataclass(frozen=True, slots=True)
class TakingPlan:
    """What to take in this run.

    Args:
        read_again: the scan was slow, so read each lease again before stealing it.
        spill_over: by how much the target exceeds `limits`.
        very_old: free leases unchanged for three failover times.
    """

    takes: tuple[LeaseTake, ...]
    read_again: bool
    target: int
    spill_over: int
    workers: int
    mine: int
    free: int
    very_old: int


def plan_taking(
    me: WorkerId, leases: Sequence[Lease], seen: CounterHistory, options: TakingOptions, pick: Pick
) -> TakingPlan:
    """`pick` is random, so that workers do not all want the same leases."""
    free = [lease for lease in leases if lease.lease_owner is None or seen.age_s(lease) > options.failover_s]
    held = _held(me, leases, {lease.lease_key for lease in free})
    wanted = 1 if len(held) >= len(leases) else -(-len(leases) // len(held))
    target = min(wanted, options.limits.for_worker)
    very_old = _very_old(free, seen, options)
    source, count, stolen_from, why = _wanted(me, held, free, very_old, target=target, options=options)
    takes = tuple(
        LeaseTake(lease, steal_or_take(lease, me), stolen_from, f"{lease.lease_key}: {why}")
        for lease in _some(source, count, pick, options.limits.of(me, *held[me]))
    )
    return TakingPlan(
        takes=takes,
        read_again=seen.scan_s > options.failover_s / 6 and any(take.stolen_from for take in takes),
        target=target,
        spill_over=wanted - target,
        workers=len(held),
        mine=len(held[me]),
        free=len(free),
        very_old=len(very_old),
    )


def if_still_takeable(take: LeaseTake, now: Lease | None, me: WorkerId) -> LeaseTake | None:
    if now is None or now.lease_owner != take.stolen_from:
        return None
    return LeaseTake(now, steal_or_take(now, me), take.stolen_from, take.reason)


def _held(me: WorkerId, leases: Iterable[Lease], free: set[LeaseKey]) -> dict[WorkerId, list[Lease]]:
    held: dict[WorkerId, list[Lease]] = {me: []}
    for lease in leases:
        if lease.lease_owner is not None and lease.lease_key not in free:
            held.setdefault(lease.lease_owner, []).append(lease)
    return held


def _very_old(free: Iterable[Lease], seen: CounterHistory, options: TakingOptions) -> list[Lease]:
    if not options.priority:
        return []
    oldest_s = _VERY_OLD_FAILOVERS * options.failover_s
    return [lease for lease in free if seen.age_s(lease) > oldest_s]


def _wanted(
    me: WorkerId,
    held: Mapping[WorkerId, Sequence[Lease]],
    free: Sequence[Lease],
    very_old: Sequence[Lease],
    *,
    target: int,
    options: TakingOptions,
) -> tuple[Sequence[Lease], int, WorkerId | None, str]:
    """Which leases to choose from, how many, from which live worker, and why."""
    mine, others = len(held[me]), sorted(worker for worker in held if worker != me)
    need = target - mine
    if very_old:
        return very_old, options.limits.for_worker - mine, None, "was not renewed for a long time"
    if free:
        return free, need, None, f"is free, this worker has {mine} leases of {target}"
    if need <= 0 or not others:
        return (), 0, None, ""
    most = max(others, key=lambda worker: len(held[worker]))
    theirs = len(held[most])
    count = min(need, max(theirs - target, 0))
    if count == 0 and need > 1 and theirs >= target:
        count = 1
    why = f"{most} has {theirs} leases, this worker {mine}, {target} is the target"
    return held[most], min(count, options.max_leases_to_steal), most, why


def _some(leases: Sequence[Lease], count: int, pick: Pick, mine: WorkerLeases) -> list[Lease]:
    left = list(leases)
    chosen: list[Lease] = []
    while left and len(chosen) < count:
        index = pick(len(left))
        left[index], left[-1] = left[-1], left[index]
        lease = left.pop()
        if mine.has_room(lease):
            mine.count(lease)
            chosen.append(lease)
    return chosen


_MAX_PARALLEL_WRITES: Final = 10
_THROTTLED_TRIES: Final = 3  # KCL: DynamoDBLeaseTaker
_PAUSE_FIRST_S: Final = 1.0


class ShuffleLeader:
    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._verdict: ShuffleElection | None = None
        self._polls = 0
        self._polled_s = 0.0

    @property
    def leads(self) -> bool:
        return self._verdict is not None and self._verdict.leads

    def poll(self, leases: Iterable[Lease]) -> bool:
        """If the poll is due. True if this worker begins to lead."""
        now_s = self._context.clock.monotonic()
        if self._polls and now_s - self._polled_s < next_poll_after_s(self._polls):
            return False
        before, self._verdict = self._verdict, elect_by_shuffle(self._context.worker_id, leases)
        self._polls, self._polled_s = self._polls + 1, now_s
        if before is None or before.leads != self._verdict.leads:
            self._context.log.info(
                "leader_by_shuffle", leads=self._verdict.leads, reason=self._verdict.reason
            )
        return self._verdict.leads and not (before is not None and before.leads)

    def forget(self) -> None:
        self._verdict, self._polls = None, 0


class LeaseTaker:
    """Finished leases are kept and renewed, but without a consumer: else they would look abandoned."""

    def __init__(
        self,
        context: WorkerContext,
        *,
        table: Table,
        renewer: LeaseRenewer,
        leader: ShuffleLeader,
        shard_sync: ShardSync | MultiStreamShardSync,
        options: TakingOptions,
        malformed: MalformedRowLog,
        on_found: Callable[[HeldLease], None],
    ) -> None:
        self._meters = context.meters
        self._table = table
        self._context = context
        self._me = context.worker_id
        self._renewer = renewer
        self._leader = leader
        self._options = options
        self._clock = context.clock
        self._log = context.log
        self._malformed = malformed
        self._on_found = on_found
        self._wakeup = Wakeup(context.clock)
        self._sync = BackgroundSync(context, shard_sync, on_late=self._wakeup.wake)
        self._seen = CounterHistory()
        self._writing = anyio.Lock()
        self._settled = False
        self._unreadable = 0
        self.complete: Sequence[Lease] = ()
        """As `Assigner.complete`; none while another worker leads."""

    def wake(self) -> None:
        self._wakeup.wake()

    async def run(self) -> None:
        self.complete = ()
        async with anyio.create_task_group() as background:
            failures = 0
            while True:
                try:
                    with self._meters.operation(kcl.TAKING):
                        await self._run_round(background)
                    failures = 0
                except AwsError as error:
                    failures += 1
                    self._log.warning("lease_taking_failed", error=str(error), failures=failures)
                period_s = self._options.period_s
                pause_s = _PAUSE_FIRST_S * 2.0 ** min(failures - 1, 10) if failures else period_s
                await self._wakeup.wait(min(pause_s, period_s))

    async def settle(self) -> None:
        """Returns when no write is in flight that could make a lease ours, or after a timeout."""
        self._settled = True
        with self._clock.move_on_after(2 * self._context.timings.call_s):
            async with self._writing:
                pass

    async def _run_round(self, background: TaskGroup) -> None:
        audited = self._sync.audited()
        leases = await self._poll()
        if self._leader.poll(leases):
            self._sync.begin()
            audited = frozenset()
        if not self._leader.leads:
            self._sync.stop()
        elif await self._sync.ensure(leases, background):
            audited = self._sync.audited()
            leases = await self._poll()
        known = self._leader.leads and not self._unreadable
        self.complete = [lease for lease in leases if known and lease.stream in audited]
        async with self._writing:
            if self._settled:
                return
            ours = [lease for lease in leases if self._may_take(lease)]
            raise_first(await for_each(ours, self._resume, at_once=_MAX_PARALLEL_WRITES))
            plan = plan_taking(self._me, leases, self._seen, self._options, self._pick)
            self._report(plan, len(leases))
            await self._carry_out(plan)

    def _report(self, plan: TakingPlan, leases: int) -> None:
        add = self._meters.add
        add(kcl.TAKING_LEASES, leases)
        add(kcl.TAKING_WORKERS, plan.workers)
        add(kcl.TAKING_EXPIRED, plan.free)
        add(kcl.TAKING_VERY_OLD, plan.very_old)
        add(kcl.TAKING_SPILL, plan.spill_over)
        add(kcl.TAKING_NEEDED, max(0, plan.target - plan.mine))
        add(kcl.TAKING_WANTED, len(plan.takes))

    async def _poll(self) -> list[Lease]:
        began_s = self._clock.monotonic()
        with self._meters.operation(kcl.TAKING_LIST):
            rows = await self._table.scan()
        leases = [lease for row in rows if (lease := self._malformed.lease(row)) is not None]
        self._unreadable = sum(map(is_lease_row, rows)) - len(leases)
        self._seen = self._seen.poll(leases, began_s=began_s, ended_s=self._clock.monotonic())
        return leases

    def _pick(self, below: int) -> int:
        return min(int(self._context.randomness.uniform(0, below)), below - 1)

    def _may_take(self, lease: Lease) -> bool:
        """Named as owner without holding it: an earlier process had it, another worker assigned it, or an answer was lost."""
        ours = lease.lease_owner == self._me and lease.checkpoint_owner is None
        return ours and not self._renewer.holds(lease.lease_key)

    async def _resume(self, lease: Lease) -> None:
        held = await self._renewer.claim(lease)
        if held is not None:
            self._found(held, "its row names this worker")

    async def _carry_out(self, plan: TakingPlan) -> None:
        takes = [take for take in plan.takes if not self._renewer.holds(take.lease.lease_key)]
        self._log.debug(
            "lease_taking_planned",
            takes=len(takes),
            target=plan.target,
            workers=plan.workers,
            mine=plan.mine,
            free=plan.free,
        )
        if plan.spill_over:
            self._log.warning("leases_without_worker", count=plan.spill_over)

        async def carry_out(take: LeaseTake) -> None:
            fresh: LeaseTake | None = take
            if plan.read_again and take.stolen_from is not None:
                now = await self._get(take.lease.lease_key)
                fresh = None if now is None else if_still_takeable(take, now, self._me)
            if fresh is not None:
                with self._meters.operation(kcl.TAKING_ONE):
                    await self._take(fresh)

        raise_first(await for_each(takes, carry_out, at_once=_MAX_PARALLEL_WRITES))

    async def _take(self, take: LeaseTake) -> None:
        began_s = self._clock.monotonic()
        try:
            taken = await self._written(take)
        except Unavailable:
            # The write may have taken effect.
            now = await self._get(take.lease.lease_key)
            taken = now if now is not None and self._is_own_take(take, now) else None
        self._meters.add(kcl.TAKING_TAKEN if taken is not None else kcl.TAKING_MISSED)
        if taken is None:
            self._log.info("lease_taking_overtaken", reason=take.reason)
        elif not self._renewer.holds(taken.lease_key):
            self._found(self._renewer.adopt(taken, moved_s=began_s), take.reason)

    def _is_own_take(self, take: LeaseTake, now: Lease) -> bool:
        moved = now.lease_counter == take.lease.lease_counter + 1
        return moved and now.lease_owner == self._me and now.checkpoint_owner is None

    async def _written(self, take: LeaseTake) -> Lease | None:
        attempt = 1
        update = claimed(take.update, take.lease, self._context.service_ms)
        while True:
            try:
                written = await self._context.call(self._table.update(update), "UpdateItem")
            except Throttled:
                if attempt == _THROTTLED_TRIES:
                    raise
                attempt += 1
            else:
                faults.maybe("after-lease-taken")
                return self._malformed.lease(written.row) if written.applied else None

    async def _get(self, key: LeaseKey) -> Lease | None:
        return self._malformed.lease(await self._context.call(self._table.get(key), "GetItem"))

    def _found(self, held: HeldLease, reason: str) -> None:
        self._log.info(
            "lease_taken", lease_key=held.key, checkpoint=str(held.lease.checkpoint), reason=reason
        )
        if not held.lease.is_finished:
            self._on_found(held)


class Upgrader:
    def __init__(
        self,
        context: WorkerContext,
        *,
        tables: Tables,
        monitor: FleetMonitor,
        leader: ShuffleLeader,
        on_upgraded: Callable[[], None],
    ) -> None:
        self._context = context
        self._tables = tables
        self._monitor = monitor
        self._leader = leader
        self._on_upgraded = on_upgraded
        self._log = context.log
        self._ready_since_s: float | None = None
        self._reported = ""

    async def run(self) -> None:
        self._ready_since_s, self._reported = None, ""
        while True:
            await self._context.clock.sleep(CHECK_EVERY_S)
            try:
                await self._check()
            except AwsError as error:
                # A failed check does not mean that the fleet is not ready.
                self._context.meters.add(kcl.MIGRATION_FAULT)
                self._log.warning("upgrade_check_failed", error=str(error))

    async def _check(self) -> None:
        if not self._leader.leads:
            self._ready_since_s = None
            return
        if (ready := await self._readiness()) is None:
            return
        self._context.meters.add(kcl.MIGRATION_INDEX, ready.index_active)
        self._context.meters.add(kcl.MIGRATION_REPORTS, not (ready.silent or ready.unowned))
        stored = CLIENT_VERSION_CODEC.read(await self._tables.coordinator.get(CLIENT_VERSION_CODEC.row_key))
        if stored is None or isinstance(stored, UnusableState):
            return
        decision = consider_upgrade(
            stored,
            ready,
            self._ready_since_s,
            leads=True,
            me=self._context.worker_id,
            now_s=self._context.clock.monotonic(),
            now_ms=self._context.clock.wall_ms(),
            key_attribute=self._tables.coordinator.key_attribute,
        )
        match decision:
            case NotReady(ready_since_s, reason):
                self._report(ready_since_s, reason)
                self._ready_since_s = ready_since_s
            case Upgrade(update, reason):
                if (await self._tables.coordinator.update(update)).applied:
                    faults.maybe("after-upgrade-made")
                    self._log.info("upgrade_made", reason=reason)
                self._on_upgraded()

    async def _readiness(self) -> UpgradeReadiness | None:
        state = await self._tables.leases.describe()
        await self._monitor.poll()
        if (reports := self._monitor.reports()) is None:
            return None
        return upgrade_readiness(
            self._monitor.leases,
            latest_of(*reports),
            index_active=state is not None and state.owner_index is IndexState.ACTIVE,
            wall_s=self._context.clock.wall_ms() / 1000,
            report_s=self._context.timings.report_s,
        )

    def _report(self, ready_since_s: float | None, reason: str) -> None:
        what = reason if ready_since_s is None else "ready"
        report = self._log.debug if what == self._reported else self._log.info
        report("upgrade_waits", reason=reason)
        self._reported = what


@dataclass(eq=False, kw_only=True)
class From2x:
    """How a worker gets leases while its fleet is as in KCL 2.x. `shard_sync_of`: from whether this worker leads."""

    context: WorkerContext
    settings: LeaseSettings
    tables: Tables
    renewer: LeaseRenewer
    monitor: FleetMonitor
    malformed: MalformedRowLog
    shard_sync_of: Callable[[Callable[[], bool]], ShardSync | MultiStreamShardSync]
    on_found: Callable[[HeldLease], None]
    on_upgraded: Callable[[], None]

    def __post_init__(self) -> None:
        context, settings = self.context, self.settings
        leader = self.leader = ShuffleLeader(context)
        self.taker = LeaseTaker(
            context,
            table=self.tables.leases,
            renewer=self.renewer,
            leader=leader,
            shard_sync=self.shard_sync_of(lambda: leader.leads),
            options=TakingOptions(
                failover_s=context.timings.failover_s,
                limits=self.monitor.limits,
                max_leases_to_steal=settings.max_leases_to_steal,
                priority=settings.priority_assignment,
            ),
            malformed=self.malformed,
            on_found=self.on_found,
        )
        self.upgrader = Upgrader(
            context, tables=self.tables, monitor=self.monitor, leader=leader, on_upgraded=self.on_upgraded
        )
