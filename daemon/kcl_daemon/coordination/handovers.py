"""Leases that are on their way to this worker: watched closely, so that it starts as soon as they arrive.

Owns which rows are watched and how often. Knows nothing of what a row says.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import anyio

from kcl_daemon.coordination.nudge import Nudge
from kcl_daemon.coordination.timings import Timings
from kcl_daemon.errors import AwsError
from kcl_daemon.leases.lease import LeaseKey
from kcl_daemon.ports import Clock, Log

_LOOK_S: Final = 0.25
# What takes long may take longer still: a look costs a tenth of the time that has been waited.
_PATIENCE: Final = 0.1
# So many rows are read in one period; more take their turns.
_AT_ONCE: Final = 40


@dataclass(slots=True)
class _Expected:
    since_s: float
    looked_s: float

    def next_look_s(self, crowd: float) -> float:
        return self.looked_s + max(_LOOK_S, _PATIENCE * (self.looked_s - self.since_s)) * crowd


class Handovers:
    """Watches rows one by one.

    Args:
        arrived: looks at a row; whether nothing more is to be waited for.
    """

    def __init__(
        self, *, arrived: Callable[[LeaseKey], Awaitable[bool]], clock: Clock, timings: Timings, log: Log
    ) -> None:
        self._arrived = arrived
        self._clock = clock
        self._most_s = timings.handoff_s + timings.failover_s
        self._call_s = timings.call_s
        self._log = log
        self._nudge = Nudge(clock)
        self._expected: dict[LeaseKey, _Expected] = {}

    def expect(self, key: LeaseKey) -> None:
        """Watch a row until it has arrived, or for as long as a hand-off may take. Harmless where it is watched."""
        now_s = self._clock.monotonic()
        if key not in self._expected:
            self._expected[key] = _Expected(now_s, now_s)
            self._nudge.nudge()

    def expects(self, key: LeaseKey) -> bool:
        """Whether a row is watched."""
        return key in self._expected

    async def run(self) -> None:
        """For ever. Cancelled: nothing is watched any more."""
        try:
            while True:
                await self._nudge.wait(self._until_due())
                await self._look()
        finally:
            self._expected.clear()

    def _crowd(self) -> float:
        return max(1.0, len(self._expected) / _AT_ONCE)

    def _until_due(self) -> float:
        if not self._expected:
            return self._most_s
        first_s = min(each.next_look_s(self._crowd()) for each in self._expected.values())
        return max(0.0, first_s - self._clock.monotonic())

    async def _look(self) -> None:
        now_s, crowd = self._clock.monotonic(), self._crowd()
        due = [key for key, each in self._expected.items() if each.next_look_s(crowd) <= now_s]
        async with anyio.create_task_group() as looks:
            for key in due[:_AT_ONCE]:
                looks.start_soon(self._look_at, key, now_s)

    async def _look_at(self, key: LeaseKey, now_s: float) -> None:
        expected = self._expected[key]
        expected.looked_s = now_s
        arrived = now_s - expected.since_s > self._most_s
        try:
            with self._clock.move_on_after(self._call_s):
                arrived |= await self._arrived(key)
            if arrived:
                del self._expected[key]
        except AwsError as error:
            self._log.debug("handover_look_failed", lease_key=key, error=str(error))
