"""What nearly every loop of a worker needs: its context, calls with a timeout, many calls at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import anyio

from kcl_daemon.errors import AwsError, Unavailable
from kcl_daemon.fleet.timings import Timings
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.ports import NO_METERS, Clock, Log, Meters, Randomness

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerContext:
    """Built once in `app.py`."""

    worker_id: WorkerId
    clock: Clock
    randomness: Randomness
    timings: Timings
    log: Log
    meters: Meters = NO_METERS

    async def call(self, answer: Awaitable[_T], operation: str = "", *, timeout_s: float | None = None) -> _T:
        """Raises Unavailable if there is no answer within `timeout_s`, by default `timings.call_s`."""
        limit_s = self.timings.call_s if timeout_s is None else timeout_s
        with self.clock.move_on_after(limit_s):
            return await answer
        raise Unavailable(f"no answer within {limit_s:g} s", operation=operation)


async def for_each(
    items: Iterable[_T], job: Callable[[_T], Awaitable[object]], *, at_once: int
) -> list[AwsError]:
    """Do the job for every item, `at_once` at a time. One that fails stops no other; returns the errors."""
    limiter, errors = anyio.CapacityLimiter(at_once), list[AwsError]()

    async def attempt(item: _T) -> None:
        async with limiter:
            try:
                await job(item)
            except AwsError as error:
                errors.append(error)

    async with anyio.create_task_group() as jobs:
        for item in items:
            jobs.start_soon(attempt, item)
    return errors


def raise_first(errors: Sequence[AwsError]) -> None:
    if errors:
        raise errors[0]
