"""Waiting for the next round of a loop, or for somebody to ask for it earlier."""

from __future__ import annotations

import anyio

from kcl_daemon.ports import Clock


class Nudge:
    """A loop waits on it between rounds; anybody may end the wait. A nudge while nobody waits is kept."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = anyio.Event()

    def nudge(self) -> None:
        """End the wait that is under way, or the next one."""
        self._event.set()

    async def wait(self, seconds: float) -> None:
        """Wait that long, or until nudged."""
        with self._clock.move_on_after(seconds):
            await self._event.wait()
        self._event = anyio.Event()


class Signal:
    """Something that many may wait for at once; unlike a nudge it is not kept for those who come later."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = anyio.Event()

    def fire(self) -> None:
        """Wake everybody who waits now."""
        self._event.set()
        self._event = anyio.Event()

    async def wait(self, seconds: float) -> None:
        """Wait that long, or until it fires."""
        event = self._event
        with self._clock.move_on_after(seconds):
            await event.wait()
