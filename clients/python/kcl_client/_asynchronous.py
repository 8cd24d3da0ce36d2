"""Runs an `AsyncRecordProcessor`. Imported only if needed: asyncio slows the start."""

from __future__ import annotations

import asyncio  # noqa: TID251 - the user's coroutines are asyncio's, and anyio would be a dependency of every child
import os
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final, TypeVar

from kcl_client._session import READ_BYTES

T = TypeVar("T")

run_until_complete: Final = asyncio.run


async def pause() -> None:
    await asyncio.sleep(0)


class AsyncRuntime:
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
        self._unfinished: set[object] = set()  # the loop holds its tasks only weakly

    async def read(self) -> bytes:
        return await self._read()

    async def sleep(self, seconds: float) -> None:
        await self._sleep(seconds)

    async def finish(self, steps: Coroutine[object, object, T]) -> T:
        """A cancelled caller returns at once; the steps still finish."""
        task = asyncio.ensure_future(steps)
        self._unfinished.add(task)
        task.add_done_callback(self._unfinished.discard)
        return await asyncio.shield(task)


class AsyncReader:
    def __init__(self, source: int) -> None:
        self._source = source

    async def read(self) -> bytes:
        """b"" at the end. Cancelling it loses no data."""
        await self._readable()
        return os.read(self._source, READ_BYTES)

    async def _readable(self) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        try:
            loop.add_reader(self._source, _wake, ready)
        except PermissionError:  # epoll: a regular file, which is always ready
            return await pause()
        try:
            await ready
        finally:
            loop.remove_reader(self._source)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
