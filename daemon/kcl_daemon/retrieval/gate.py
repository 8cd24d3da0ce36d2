"""How many bytes of records the whole worker may have in hand, over all its shards.

Owns the bound and the order in which shards are let in. Must not know where the bytes come from. A shard whose child
waits goes before one that reads ahead, and reading ahead may take half of the room only: else the answers that wait for
busy children would keep everybody else from reading.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import anyio

from kcl_daemon.ports import Clock

MOST_BYTES: Final = 48 * 2**20
# A child that does not read its line keeps its bytes in hand. Those who wait are not made to wait for it.
_PATIENCE_S: Final = 5.0


class Hold:
    """Bytes that one shard has in hand. Not released by itself."""

    __slots__ = ("_gate", "_size_bytes", "released")

    def __init__(self, gate: BodyGate, size_bytes: int) -> None:
        self._gate = gate
        self._size_bytes = size_bytes
        self.released = False

    def resize(self, size_bytes: int) -> None:
        """They turned out to be so many; never waits, though it may lead above the bound."""
        if not self.released:
            difference, self._size_bytes = size_bytes - self._size_bytes, size_bytes
            self._gate.change(difference)

    def release(self) -> None:
        """They are gone. Again: no effect."""
        if not self.released:
            self.released = True
            self._gate.change(-self._size_bytes)


class _Waiter:
    """A shard that waits to be let in."""

    __slots__ = ("admitted", "event", "is_awaited", "size_bytes")

    def __init__(self, size_bytes: int, is_awaited: Callable[[], bool]) -> None:
        self.size_bytes = size_bytes
        self.is_awaited = is_awaited
        self.event = anyio.Event()
        self.admitted = False


class BodyGate:
    """Lets shards read while there is room.

    Args:
        clock: for the patience.
        most_bytes: the bound; a single answer that is larger is let in alone.
    """

    def __init__(self, clock: Clock, most_bytes: int = MOST_BYTES) -> None:
        self._clock = clock
        self._most_bytes = most_bytes
        self._held_bytes = 0
        self._waiting: deque[_Waiter] = deque()

    @property
    def held_bytes(self) -> int:
        """What is in hand now."""
        return self._held_bytes

    async def admit(self, size_bytes: int, *, is_awaited: Callable[[], bool]) -> Hold:
        """Wait until so many bytes may be read.

        First come, first served among those whose child waits, and among the others. Who is awaited waits no longer
        than some seconds for each answer that is let in above the bound. Cancelled, nothing is held.

        Args:
            size_bytes: about what the answer will take; `Hold.resize` puts it right.
            is_awaited: whether the child waits for it now; may change while waiting, see `stir`.
        """
        if not self._waiting and self._fits(size_bytes, is_awaited=is_awaited()):
            return self.take(size_bytes)
        waiter = _Waiter(size_bytes, is_awaited)
        self._waiting.append(waiter)
        self.stir()  # one whose child waits may go before those that read ahead
        try:
            while not waiter.admitted:
                with self._clock.move_on_after(_PATIENCE_S):
                    await waiter.event.wait()
                if not waiter.admitted and self._is_first(waiter):
                    self._admit(waiter)
        except BaseException:
            if waiter.admitted:
                self.change(-waiter.size_bytes)
            else:
                self._waiting.remove(waiter)
                self.stir()
            raise
        return Hold(self, size_bytes)

    def take(self, size_bytes: int) -> Hold:
        """Hold what is in hand already, without waiting, though it may lead above the bound."""
        self._held_bytes += size_bytes
        return Hold(self, size_bytes)

    def change(self, difference_bytes: int) -> None:
        """What is in hand has grown or shrunk."""
        self._held_bytes += difference_bytes
        if difference_bytes < 0:
            self.stir()

    def stir(self) -> None:
        """Let in whoever may go in now; to be called when somebody has become awaited."""
        for awaited in (True, False):
            for waiter in [each for each in self._waiting if each.is_awaited() is awaited]:
                if not self._fits(waiter.size_bytes, is_awaited=awaited):
                    return
                self._admit(waiter)

    def _fits(self, size_bytes: int, *, is_awaited: bool) -> bool:
        most_bytes = self._most_bytes if is_awaited else self._most_bytes // 2
        return self._held_bytes == 0 or self._held_bytes + size_bytes <= most_bytes

    def _is_first(self, waiter: _Waiter) -> bool:
        """Whether it is the next of those that are awaited."""
        return waiter.is_awaited() and next(each for each in self._waiting if each.is_awaited()) is waiter

    def _admit(self, waiter: _Waiter) -> None:
        self._waiting.remove(waiter)
        self._held_bytes += waiter.size_bytes
        waiter.admitted = True
        waiter.event.set()
