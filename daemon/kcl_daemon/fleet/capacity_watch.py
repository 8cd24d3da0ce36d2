from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from kcl_daemon.capacity.figures import (
    Bound,
    Capacity,
    CapacityTargets,
    FleetState,
    ShardLoad,
    ShardObservation,
    WorkerLoad,
    bound_of,
    capacity_from,
    capacity_text,
    load_from,
    load_text,
)
from kcl_daemon.context import Wakeup, WorkerContext
from kcl_daemon.errors import AwsError
from kcl_daemon.fleet.monitor import FleetMonitor
from kcl_daemon.leases.lease import LeaseKey, WorkerId
from kcl_daemon.leases.row import Row, RowPut
from kcl_daemon.leases.text_row import CAPACITY_KEY, text_of, text_write
from kcl_daemon.metrics import own
from kcl_daemon.ports import Table
from kcl_daemon.progress.flow import FlowRates
from kcl_daemon.progress.progress import PAUSED_BY_CHILD, ActiveLease, LeaseProgress, WaitReason
from kcl_daemon.progress.watchdog import FAILING_FROM, Watchdog, lag_s

_AT_TIP_S: Final = 2.0
_TROUBLES: Final = (Bound.FAILING, Bound.HANGING, Bound.REFUSED)
_HANGS: Final = frozenset({WaitReason.CHILD, WaitReason.STARTING})
_REFUSALS: Final = frozenset({WaitReason.KINESIS, WaitReason.STREAM, WaitReason.TRIMMED, WaitReason.DYNAMODB})

_IDLE_S: Final = 3_600.0
_SAME_AGAIN: Final = 2.0


async def read_capacity(table: Table) -> tuple[Row | None, Capacity | None]:
    """None without a row, or for one of another version. Raises AwsError."""
    row = await table.get(CAPACITY_KEY)
    return row, None if row is None else capacity_from(text_of(row))


class CapacityWatch:
    """`capacity` is the leader's own estimate, or what was read last.

    A leader begins with what is stored, so that its estimates are damped as those of the former one. Of two leaders one is refused.
    """

    def __init__(
        self,
        context: WorkerContext,
        *,
        table: Table,
        monitor: FleetMonitor,
        leads: Callable[[], bool],
        targets: CapacityTargets,
        unread: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        self._context = context
        self._table = table
        self._monitor = monitor
        self._leads = leads
        self._targets = targets
        self._unread = unread
        self._wakeup = Wakeup(context.clock)
        self.capacity: Capacity | None = None
        self._row: Row | None = None
        self._row_is_known = False
        self._fleet: tuple[frozenset[WorkerId], frozenset[LeaseKey]] | None = None
        self._made_s = self._stored_s = float("-inf")
        self._stored: Capacity | None = None

    def begin_term(self) -> None:
        self._row_is_known = False

    def assigned(self) -> None:
        self._wakeup.wake()

    async def run(self) -> None:
        while True:
            await self._wakeup.wait(_IDLE_S)
            try:
                if self._leads():
                    await self._lead()
            except AwsError as error:
                self._row_is_known = False
                self._context.log.debug("capacity_not_stored", error=str(error))

    async def read(self) -> None:
        """What the leader has stored. Raises AwsError."""
        self._row, found = await self._context.call(read_capacity(self._table))
        self._row_is_known = True
        self.capacity = found or self.capacity

    async def _lead(self) -> None:
        if not self._row_is_known:
            await self.read()
            self._fleet = None  # what was read is older, and may be another leader's
        state = self._state()
        fleet, now_s = (self._workers, frozenset(state.leases)), self._context.clock.monotonic()
        if fleet != self._fleet or now_s - self._made_s >= self._context.timings.report_s:
            self._fleet, self._made_s = fleet, now_s
            from kcl_daemon.capacity.estimate import estimate  # only a leader

            found = estimate(state, self._targets, self.capacity, by=self._context.worker_id)
            self.capacity = replace(found, unread=self._unread())
            self._context.meters.add(own.WORKERS_WANTED, self.capacity.wanted)
        if self.capacity is not None and self._is_to_store(self.capacity, now_s):
            await self._store(self.capacity)
            self._stored_s = now_s

    @property
    def _workers(self) -> frozenset[WorkerId]:
        return self._monitor.living_workers()

    def _state(self) -> FleetState:
        live, leases = self._workers, self._monitor.leases
        told = [(row.load, row.worker_id) for row in self._monitor.workers if row.worker_id in live]
        read = (load_from(text, worker) for text, worker in told if text is not None)
        loads = tuple(load for load in read if load is not None)
        return FleetState(
            now_ms=self._context.clock.wall_ms(),
            loads=loads,
            leases={
                lease.lease_key: None if lease.stream is None else str(lease.stream)
                for lease in leases
                if not lease.is_finished
            },
            live=len(live),
            silent=len(live) - len(loads),
        )

    def _is_to_store(self, capacity: Capacity, now_s: float) -> bool:
        is_same = self._stored is not None and replace(self._stored, at_ms=capacity.at_ms) == capacity
        period_s = self._context.timings.report_s * (_SAME_AGAIN if is_same else 1.0)
        return capacity is not self._stored and now_s - self._stored_s >= period_s

    async def _store(self, capacity: Capacity) -> None:
        text = capacity_text(capacity)
        write = text_write(CAPACITY_KEY, self._row, text, key_attribute=self._table.key_attribute)
        if isinstance(write, RowPut):
            written = await self._context.call(self._table.put(write.row, write.require))
        else:
            written = await self._context.call(self._table.update(write))
        self._row = written.row
        if written.applied:
            self._stored = capacity


class LoadReport:
    def __init__(self, context: WorkerContext, watchdog: Watchdog) -> None:
        self._context = context
        self._watchdog = watchdog
        self._records: dict[LeaseKey, int] = {}
        self._finished_s = context.clock.monotonic()

    def text(self, cpu: float | None) -> str:
        return load_text(self._load(cpu))

    def _load(self, cpu: float | None) -> WorkerLoad:
        clock, leases = self._context.clock, self._watchdog.active_leases.shards
        now_s = clock.monotonic()
        self._note_finished(leases, now_s)
        loads = [self._shard(each, cpu, now_s) for each in leases if not each.lease.is_finished]
        busy = [each for each in loads if not _is_idle(each)]
        return WorkerLoad(
            worker_id=self._context.worker_id,
            at_ms=clock.wall_ms(),
            cpu=cpu,
            shards=tuple(busy),
            left_out=len(loads) - len(busy),
            quiet_s=now_s - self._finished_s,
        )

    def _note_finished(self, leases: tuple[ActiveLease, ...], now_s: float) -> None:
        records = {each.key: _finished(each.progress) for each in leases}
        if any(count > self._records.get(key, 0) for key, count in records.items()):
            self._finished_s = now_s
        self._records = records

    def _shard(self, watched: ActiveLease, cpu: float | None, now_s: float) -> ShardLoad:
        rates = self._watchdog.rates(watched.key)
        behind_s = lag_s(watched.progress, self._watchdog.limits, now_s)
        return ShardLoad(
            key=watched.key,
            behind_s=behind_s,
            speed=rates.speed,
            in_bytes=rates.in_bytes,
            out_bytes=rates.out_bytes,
            busy=rates.busy,
            bound=bound_of(
                observation(watched.progress, rates, behind_s, cpu, self._watchdog.stalled_by(watched, now_s))
            ),
        )


def observation(
    progress: LeaseProgress,
    rates: FlowRates,
    behind_s: float | None,
    cpu: float | None,
    stalled_by: WaitReason | None = None,
) -> ShardObservation:
    slow = progress.lanes.get(progress.slow_lane) if progress.cause is WaitReason.LANE else None
    known = (progress,) if slow is None else (progress, slow.progress)
    causes = {each.cause for each in known}
    asked = any(each.cause is WaitReason.PAUSED and each.detail == PAUSED_BY_CHILD for each in known)
    return ShardObservation(
        behind_s=behind_s,
        busy=rates.busy,
        refused=rates.refused,
        memory=rates.memory,
        host_cpu=cpu,
        hot_lane=slow is not None,
        paused=WaitReason.PAUSED in causes and not asked,
        limited=WaitReason.LIMITED in causes,
        downstream=asked or WaitReason.LETTERS in causes,
        failing=any(each.failures >= FAILING_FROM for each in known),
        hanging=stalled_by in _HANGS,
        not_read=stalled_by in _REFUSALS,
    )


def _finished(progress: LeaseProgress) -> int:
    return progress.records + sum(lane.progress.records for lane in progress.lanes.values())


def _is_idle(shard: ShardLoad) -> bool:
    is_at_tip = shard.behind_s is not None and shard.behind_s <= _AT_TIP_S
    return is_at_tip and not (shard.in_bytes or shard.out_bytes or shard.bound in _TROUBLES)
