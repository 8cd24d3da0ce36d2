"""What may call a consumer away from its work, and how it waits without missing the call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import TypeVar

import anyio

T = TypeVar("T")


class Call(IntEnum):
    """Why a consumer should stop; a higher one outranks a lower (KCL: ShutdownReason)."""

    NONE = 0
    STOP = 1
    """The worker stops, or the lease is to be handed over: finish, checkpoint, pass it on."""
    LEASE_LOST = 2
    """The lease is gone: no checkpoint is possible any more."""


class Interrupts:
    """The calls for one consumer. Everything happens on the loop, so that setting and looking cannot race."""

    def __init__(self) -> None:
        self._call = Call.NONE
        self._waiting: anyio.CancelScope | None = None
        self._called = anyio.Event()
        self._stirred = False

    @property
    def call(self) -> Call:
        """The highest call so far."""
        return self._call

    def raise_to(self, call: Call) -> None:
        """Make a call; a lower one than before changes nothing."""
        if call > self._call:
            self._call = call
            self._called.set()
            self.stir()

    def stir(self) -> None:
        """End the wait under way, or the next one, without a call: something is worth a look."""
        self._stirred = True
        if self._waiting is not None:
            self._waiting.cancel()

    async def until_called(self) -> Call:
        """Wait for the first call."""
        await self._called.wait()
        return self._call

    async def interruptible(self, wait: Callable[[], Awaitable[T]]) -> T | None:
        """Wait for something that can be cancelled without loss; None where a call or a stir came first.

        A stir is used up by this; a call is not: once there is one, nothing is waited for any more.
        """
        if self._call is not Call.NONE or self._stirred:
            self._stirred = False
            return None
        result: T | None = None
        with anyio.CancelScope() as scope:
            self._waiting = scope
            try:
                result = await wait()
            finally:
                self._waiting = None
        if result is None:
            self._stirred = False
        return result
