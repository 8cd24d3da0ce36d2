"""The runtime of `AsyncRecordProcessor`: the session's coroutines on one asyncio event loop.

Owns the loop, from start to the cancelling of what the user's code left running. Imported only where a processor is
asynchronous, because asyncio costs more start-up time than all the rest. Knows nothing of messages.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - the user's coroutines are asyncio's, and anyio would be a dependency of every child
import os
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final, TypeVar

from kcl_client._run import READ_BYTES

T = TypeVar("T")

run_until_complete: Final = asyncio.run


async def pause() -> None:
    """Let other tasks run once."""
    await asyncio.sleep(0)


class AsyncRuntime:
    """A `session.Runtime` on the running event loop.

    Args:
        read: the daemon's next bytes, b"" once it has closed.
        write: sends bytes, all of them; ConnectionError once the daemon is gone.
        sleep: waits that many seconds.
    """

    def __init__(
        self,
        read: Callable[[], Awaitable[bytes]],
        write: Callable[[bytes], None],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.turn = asyncio.Lock()
        self.write = write
        self._read = read
        self._sleep = sleep
        self._unfinished: set[object] = set()  # the loop itself holds its tasks weakly

    async def read(self) -> bytes:
        """The daemon's next bytes."""
        return await self._read()

    async def sleep(self, seconds: float) -> None:
        """Let other tasks run for that long."""
        await self._sleep(seconds)

    async def finish(self, steps: Coroutine[object, object, T]) -> T:
        """Run the steps to their end; a cancelled caller leaves at once, and they go on without it."""
        task = asyncio.ensure_future(steps)
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)
        return await asyncio.shield(task)


class AsyncReader:
    """Reads a descriptor without blocking the loop; reads nothing that was not asked for.

    Args:
        source: the descriptor: a pipe, a socket, a terminal or a file.
    """

    def __init__(self, source: int) -> None:
        self._source = source

    async def read(self) -> bytes:
        """The next bytes, b"" at the end. Cancelling it loses nothing."""
        await self._readable()
        return os.read(self._source, READ_BYTES)

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        try:
            loop.add_reader(self._source, _wake, ready)
        except PermissionError:  # of epoll: a regular file, which is always ready
            return await pause()
        try:
            await ready
        finally:
            loop.remove_reader(self._source)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
