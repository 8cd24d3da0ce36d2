"""The leader's estimate of the fleet's capacity: kept in a row, read by the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from kcl_daemon.capacity.figures import Capacity, CapacityTargets, FleetState
from kcl_daemon.capacity.report import capacity_from, capacity_text, load_from
from kcl_daemon.context import Wakeup, WorkerContext
from kcl_daemon.errors import AwsError
from kcl_daemon.fleet.monitor import FleetMonitor
from kcl_daemon.leases.lease import LeaseKey, WorkerId
from kcl_daemon.leases.row import Row, RowPut
from kcl_daemon.leases.text_row import CAPACITY_KEY, text_of, text_write
from kcl_daemon.metrics import own
from kcl_daemon.ports import Table

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
    ) -> None:
        self._context = context
        self._table = table
        self._monitor = monitor
        self._leads = leads
        self._targets = targets
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

            self.capacity = estimate(state, self._targets, self.capacity, by=self._context.worker_id)
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
