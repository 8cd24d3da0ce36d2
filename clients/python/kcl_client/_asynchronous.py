"""Imported only if needed: asyncio slows the start."""

from __future__ import annotations

import asyncio  # noqa: TID251 - the user's coroutines are asyncio's, and anyio would be a dependency of every child
import os
import stat
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final, ParamSpec, TypeVar

from kcl_client._processor import name_of
from kcl_client._session import READ_BYTES

P = ParamSpec("P")
T = TypeVar("T")

run_until_complete: Final = asyncio.run


async def pause() -> None:
    await asyncio.sleep(0)


class AsyncRuntime:
    def __init__(
        self,
        read: Callable[[], Awaitable[bytes]],
        write: Callable[[bytes], None],
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        self.turn = asyncio.Lock()
        self.read = read
        self.write = write
        self.sleep = sleep
        self._unfinished: set[object] = set()  # the loop holds its tasks only weakly

    async def call(self, method: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> object:
        result = method(*args, **kwargs)
        if not isinstance(result, Awaitable):
            raise TypeError(
                f"{name_of(method)} must be `async def`; for a plain method derive from RecordProcessor"
            )
        return await result

    def at_once(self, step: Callable[[], None]) -> None:
        if not self.turn.locked():
            step()

    async def finish(self, steps: Coroutine[object, object, T]) -> T:
        task = asyncio.ensure_future(steps)
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)
        return await asyncio.shield(task)


async def read_when_ready(source: int) -> bytes:
    """b"" at the end. Cancelling it loses no data."""
    # Always ready: epoll refuses to wait for one, kqueue would wait at its end for more.
    if stat.S_ISREG(os.fstat(source).st_mode):
        await pause()
        return os.read(source, READ_BYTES)
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    try:
        loop.add_reader(source, _wake, ready)
    except PermissionError:  # epoll, of /dev/null
        await pause()
    else:
        try:
            await ready
        finally:
            loop.remove_reader(source)
    return os.read(source, READ_BYTES)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
