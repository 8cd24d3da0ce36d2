"""A worker's context over the small adapters."""

from __future__ import annotations

from typing import Final

from kcl_daemon.config.balance import LeaseSettings
from kcl_daemon.fleet.context import WorkerContext, timings
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.ports import Clock, Log
from tests.unit.fakes import CalmChance, LoopClock, MemoryLog

_ME: Final = WorkerId("me")


def worker_context(
    worker_id: WorkerId = _ME, *, clock: Clock | None = None, log: Log | None = None
) -> WorkerContext:
    return WorkerContext(
        worker_id=worker_id,
        clock=clock or LoopClock(),
        randomness=CalmChance(),
        timings=timings(LeaseSettings()),
        log=log or MemoryLog(),
    )
