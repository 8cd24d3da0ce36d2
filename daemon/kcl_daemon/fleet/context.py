"""What nearly every loop of a worker needs."""

from __future__ import annotations

from dataclasses import dataclass

from kcl_daemon.fleet.timings import Timings
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.ports import NO_METERS, Clock, Log, Meters, Randomness


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """Built once in `app.py`."""

    worker_id: WorkerId
    clock: Clock
    randomness: Randomness
    timings: Timings
    log: Log
    meters: Meters = NO_METERS
