"""A keeper that holds one lease, over a table whose calls go wrong on demand."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from kcl_daemon.fleet.lease_renewer import HeldLease
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.row import lease_from_row
from kcl_protocol.sequence import TRIM_HORIZON, ExtendedSequenceNumber
from tests.simulator.loop import run_virtual
from tests.unit.fakes import MemoryLog
from tests.unit.fleet.contexts import lease_renewer, worker_context
from tests.unit.troubled import TroubledTable

T = TypeVar("T")
ME, OTHER = WorkerId("me"), WorkerId("other")
KEY = LeaseKey("shardId-1")


def at(number: int) -> ExtendedSequenceNumber:
    return ExtendedSequenceNumber(str(number))


class Stage:
    """A keeper that holds one lease, over a table in which it is stored."""

    def __init__(self) -> None:
        self.table = TroubledTable()
        self.log = MemoryLog()
        self.renewer = lease_renewer(worker_context(ME, log=self.log), self.table)
        self.changes = 0

    async def begin(self) -> HeldLease:
        await self.table.ensure()
        await self.table.put(*lease_row.creation(Lease(KEY, 7, TRIM_HORIZON, lease_owner=ME)))
        held = self.renewer.adopt(await self.stored(), moved_s=anyio.current_time())
        held.on_change = self._changed
        self.table.calls.clear()
        return held

    def _changed(self) -> None:
        self.changes += 1

    async def stored(self) -> Lease:
        row = await TroubledTable.get(self.table, KEY)
        assert row is not None
        return lease_from_row(row)

    async def taken_by(self, worker: WorkerId) -> None:
        """The leader gives the lease to another."""
        await self.table.update(lease_row.assignment(await self.stored(), worker))

    async def handed_to(self, worker: WorkerId, *, standby: bool = False) -> None:
        """The leader asks for a hand-off."""
        await self.table.update(lease_row.handoff(await self.stored(), worker, standby=standby))


def play(scene: Callable[[Stage, HeldLease], Awaitable[T]], *, running: bool = False) -> T:
    """Play a scene, with the renewal loop beside it or without."""

    async def main() -> T:
        stage = Stage()
        held = await stage.begin()
        results: list[T] = []
        async with anyio.create_task_group() as background:
            if running:
                background.start_soon(stage.renewer.run)
            results.append(await scene(stage, held))
            background.cancel_scope.cancel()
        return results[0]

    return run_virtual(main)
