"""Loops that run only part of the time.

Owns whether a loop runs now. Knows nothing of what it does, or why it should or should not run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio


class Gate:
    """Runs a loop while it is open, each time from the loop's beginning. It starts closed."""

    def __init__(self, loop: Callable[[], Awaitable[None]]) -> None:
        self._loop = loop
        self._opened = anyio.Event()
        self._scope: anyio.CancelScope | None = None

    @property
    def is_open(self) -> bool:
        """Whether the loop runs, or will as soon as `run` does."""
        return self._opened.is_set()

    def turn(self, on: bool) -> None:
        """Open or close it; a loop that runs is cancelled where it waits. No effect where it is so already."""
        if on:
            self._opened.set()
        elif self._opened.is_set():
            self._opened = anyio.Event()
            if self._scope is not None:
                self._scope.cancel()

    async def run(self) -> None:
        """For ever, also where the loop returns: it is not run again before the gate was closed and opened."""
        while True:
            await self._opened.wait()
            with anyio.CancelScope() as self._scope:
                await self._loop()
                await anyio.sleep_forever()
            self._scope = None
