"""The bridge that lets the plain form share the async form's rules: coroutines that never wait, run to their end.

Owns that one trick. `session` is written once, with `await`; over a `PlainRuntime` every await blocks the thread in place
of suspending, so its coroutines can be driven without an event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from threading import Lock
from typing import TypeVar

T = TypeVar("T")


def complete(steps: Coroutine[object, object, T]) -> T:
    """Run a coroutine that never suspends; its result or its exception is the caller's."""
    try:
        steps.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    steps.close()
    raise AssertionError("a coroutine of the plain form must not suspend")


class PlainTurn:
    """A thread lock in the shape of an async context manager."""

    def __init__(self) -> None:
        self._lock = Lock()

    async def __aenter__(self) -> None:
        self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()


class PlainRuntime:
    """A `session.Runtime` whose every await blocks the calling thread.

    Args:
        read: the daemon's next bytes, b"" once it has closed.
        write: sends bytes, all of them; ConnectionError once the daemon is gone.
        sleep: waits that many seconds.
    """

    def __init__(
        self, read: Callable[[], bytes], write: Callable[[bytes], None], sleep: Callable[[float], None]
    ) -> None:
        self.turn = PlainTurn()
        self.write = write
        self._read = read
        self._sleep = sleep

    async def read(self) -> bytes:
        """The daemon's next bytes."""
        return self._read()

    async def sleep(self, seconds: float) -> None:
        """Block for that long."""
        self._sleep(seconds)

    async def finish(self, steps: Coroutine[object, object, T]) -> T:
        """Run the steps; nothing can cancel them here."""
        return await steps
