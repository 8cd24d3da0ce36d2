"""Takes leases as KCL 2.x does, and keeps the lease table complete while this worker leads (KCL: LeaseCoordinator 2.x).

Runs only while each worker helps itself; then it does the work of discovery, leader and assigner as well. Owns what
was seen of the counters; `assignment.taking` decides.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

import anyio
from anyio.abc import TaskGroup

from kcl_daemon.assignment.taking import Sightings, Take, TakingOptions, TakingPlan, confirmed, plan_taking
from kcl_daemon.coordination.completion import Completion
from kcl_daemon.coordination.keeper import HeldLease, LeaseKeeper
from kcl_daemon.coordination.malformed import MalformedRows
from kcl_daemon.coordination.many_syncer import ManySyncer
from kcl_daemon.coordination.nudge import Nudge
from kcl_daemon.coordination.shuffle import ShuffleLeader
from kcl_daemon.coordination.syncer import Syncer
from kcl_daemon.coordination.timings import Timings
from kcl_daemon.errors import AwsError, Throttled, Unavailable
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.row import MalformedRowError, is_lease_row, lease_from_row
from kcl_daemon.leases.table import Row
from kcl_daemon.metrics import kcl
from kcl_daemon.ports import Clock, Log, Randomness, Table
from kcl_daemon.ports_metrics import NO_METERS, Meters

_Item = TypeVar("_Item")

_AT_ONCE: Final = 10
_THROTTLED_TRIES: Final = 3  # KCL: DynamoDBLeaseTaker
_PAUSE_FIRST_S: Final = 1.0


class Taker:
    """One worker's part in a fleet without a leader that assigns.

    A finished lease counts there as any other (KCL), so it is kept and renewed like them, only without a consumer:
    left alone it would look abandoned, and the fleet would take it from nobody again and again.
    """

    def __init__(
        self,
        *,
        table: Table,
        worker_id: WorkerId,
        keeper: LeaseKeeper,
        leader: ShuffleLeader,
        syncer: Syncer | ManySyncer,
        options: TakingOptions,
        clock: Clock,
        randomness: Randomness,
        timings: Timings,
        log: Log,
        malformed: MalformedRows,
        on_found: Callable[[HeldLease], None],
        meters: Meters = NO_METERS,
    ) -> None:
        self._meters = meters
        self._table = table
        self._me = worker_id
        self._keeper = keeper
        self._leader = leader
        self._options = options
        self._clock = clock
        self._randomness = randomness
        self._timings = timings
        self._log = log
        self._malformed = malformed
        self._on_found = on_found
        self._nudge = Nudge(clock)
        self._completion = Completion(
            syncer, patience_s=timings.look_s, clock=clock, log=log, on_late=self._nudge.nudge
        )
        self._seen = Sightings()
        self._writing = anyio.Lock()
        self._settled = False

    def nudge(self) -> None:
        """Run now: there are leases that nobody has."""
        self._nudge.nudge()

    async def run(self) -> None:
        """Run in each period, counted from the end of the last run, or when nudged; for ever."""
        async with anyio.create_task_group() as beside:
            failures = 0
            while True:
                try:
                    with self._meters.operation(kcl.TAKING):
                        await self._take_part(beside)
                    failures = 0
                except AwsError as error:
                    failures += 1
                    self._log.warning("lease_taking_failed", error=str(error), failures=failures)
                pause_s = (
                    _PAUSE_FIRST_S * 2.0 ** min(failures - 1, 10) if failures else self._options.period_s
                )
                await self._nudge.wait(min(pause_s, self._options.period_s))

    async def settle(self) -> None:
        """Take nothing any more; returns when no write is under way that could make a lease ours, or after a while."""
        self._settled = True
        with self._clock.move_on_after(2 * self._timings.call_s):
            async with self._writing:
                pass

    async def _take_part(self, beside: TaskGroup) -> None:
        leases = await self._look()
        if self._leader.look(leases):
            self._completion.begin()
        if not self._leader.leads:
            self._completion.stop()
        # That failing, or taking its time, is no reason to take nothing.
        elif await self._completion.ensure(leases, beside):
            leases = await self._look()
        async with self._writing:
            if self._settled:
                return
            await self._each(self._resume, [lease for lease in leases if self._is_left_to_us(lease)])
            plan = plan_taking(self._me, leases, self._seen, self._options, self._pick)
            self._tell(plan, len(leases))
            await self._carry_out(plan)

    def _tell(self, plan: TakingPlan, leases: int) -> None:
        add = self._meters.add
        add(kcl.TAKING_LEASES, leases)
        add(kcl.TAKING_WORKERS, plan.workers)
        add(kcl.TAKING_EXPIRED, plan.free)
        add(kcl.TAKING_VERY_OLD, plan.very_old)
        add(kcl.TAKING_SPILL, plan.spill_over)
        add(kcl.TAKING_NEEDED, max(0, plan.target - plan.mine))
        add(kcl.TAKING_WANTED, len(plan.takes))

    async def _look(self) -> list[Lease]:
        began_s = self._clock.monotonic()
        with self._meters.operation(kcl.TAKING_LIST):
            rows = await self._table.scan()
        leases = [lease for row in rows if is_lease_row(row) and (lease := self._parsed(row)) is not None]
        self._seen = self._seen.look(leases, began_s=began_s, ended_s=self._clock.monotonic())
        return leases

    def _pick(self, below: int) -> int:
        return min(int(self._randomness.uniform(0, below)), below - 1)

    def _is_left_to_us(self, lease: Lease) -> bool:
        """Whether a row says that it is ours and we do not hold it.

        An earlier process of ours had it, somebody handed it to us, or the answer to a write of ours got lost.
        """
        ours = lease.lease_owner == self._me and lease.checkpoint_owner is None
        return ours and not self._keeper.holds(lease.lease_key)

    async def _resume(self, lease: Lease) -> None:
        held = await self._keeper.claim(lease)
        if held is not None:
            self._found(held, "its row names this worker")

    async def _carry_out(self, plan: TakingPlan) -> None:
        takes = [take for take in plan.takes if not self._keeper.holds(take.lease.lease_key)]
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

        async def carry_out(take: Take) -> None:
            """One take, its lease read again first where the plan is old."""
            fresh: Take | None = take
            if plan.read_again and take.stolen_from is not None:
                now = await self._get(take.lease.lease_key)
                fresh = None if now is None else confirmed(take, now, self._me)
            if fresh is not None:
                with self._meters.operation(kcl.TAKING_ONE):
                    await self._take(fresh)

        await self._each(carry_out, takes)

    async def _take(self, take: Take) -> None:
        began_s = self._clock.monotonic()
        try:
            taken = await self._written(take)
        except Unavailable:
            # It may have taken effect all the same.
            now = await self._get(take.lease.lease_key)
            taken = now if now is not None and self._is_our_take(take, now) else None
        self._meters.add(kcl.TAKING_TAKEN if taken is not None else kcl.TAKING_MISSED)
        if taken is None:
            self._log.info("lease_taking_overtaken", reason=take.reason)
        elif not self._keeper.holds(taken.lease_key):
            self._found(self._keeper.adopt(taken, moved_s=began_s), take.reason)

    def _is_our_take(self, take: Take, now: Lease) -> bool:
        moved = now.lease_counter == take.lease.lease_counter + 1
        return moved and now.lease_owner == self._me and now.checkpoint_owner is None

    async def _written(self, take: Take) -> Lease | None:
        """The lease after it was taken, None where somebody else was quicker."""
        for attempt in range(1, _THROTTLED_TRIES + 1):
            try:
                with self._clock.move_on_after(self._timings.call_s):
                    written = await self._table.update(take.update)
                    return self._parsed(written.row) if written.applied and written.row is not None else None
            except Throttled:
                if attempt == _THROTTLED_TRIES:
                    raise
            else:
                break
        raise Unavailable(f"no answer within {self._timings.call_s:g} s", operation="UpdateItem")

    async def _get(self, key: LeaseKey) -> Lease | None:
        with self._clock.move_on_after(self._timings.call_s):
            row = await self._table.get(key)
            return None if row is None else self._parsed(row)
        raise Unavailable(f"no answer within {self._timings.call_s:g} s", operation="GetItem")

    def _parsed(self, row: Row) -> Lease | None:
        try:
            return lease_from_row(row)
        except MalformedRowError as malformed:
            self._malformed.tell(malformed)
            return None

    def _found(self, held: HeldLease, reason: str) -> None:
        self._log.info(
            "lease_taken", lease_key=held.key, checkpoint=str(held.lease.checkpoint), reason=reason
        )
        if not held.lease.is_finished:
            self._on_found(held)

    async def _each(self, job: Callable[[_Item], Awaitable[None]], items: Iterable[_Item]) -> None:
        """A job for all items, a few at a time; the first error is raised when all were tried."""
        limiter, failures = anyio.CapacityLimiter(_AT_ONCE), list[AwsError]()

        async def attempt(item: _Item) -> None:
            """One item."""
            async with limiter:
                try:
                    await job(item)
                except AwsError as error:
                    failures.append(error)

        async with anyio.create_task_group() as jobs:
            for item in items:
                jobs.start_soon(attempt, item)
        if failures:
            raise failures[0]
