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

MAX_BYTES: Final = 48 * 2**20
# A child that does not read its line keeps its bytes in hand. Those who wait are not made to wait for it.
_PATIENCE_S: Final = 5.0


class Reservation:
    """Bytes that one shard has in hand. Not released by itself."""

    __slots__ = ("_budget", "_size_bytes", "released")

    def __init__(self, budget: ByteBudget, size_bytes: int) -> None:
        self._budget = budget
        self._size_bytes = size_bytes
        self.released = False

    def resize(self, size_bytes: int) -> None:
        """They turned out to be so many; never waits, though it may lead above the bound."""
        if not self.released:
            difference, self._size_bytes = size_bytes - self._size_bytes, size_bytes
            self._budget.change(difference)

    def release(self) -> None:
        """They are gone. Again: no effect."""
        if not self.released:
            self.released = True
            self._budget.change(-self._size_bytes)


class _Waiter:
    """A shard that waits to be let in."""

    __slots__ = ("event", "granted", "is_child_waiting", "size_bytes")

    def __init__(self, size_bytes: int, is_child_waiting: Callable[[], bool]) -> None:
        self.size_bytes = size_bytes
        self.is_child_waiting = is_child_waiting
        self.event = anyio.Event()
        self.granted = False


class ByteBudget:
    """Lets shards read while there is room.

    Args:
        clock: for the patience.
        max_bytes: the bound; a single answer that is larger is let in alone.
    """

    def __init__(self, clock: Clock, max_bytes: int = MAX_BYTES) -> None:
        self._clock = clock
        self._max_bytes = max_bytes
        self._reserved_bytes = 0
        self._waiting: deque[_Waiter] = deque()

    @property
    def reserved_bytes(self) -> int:
        """What is in hand now."""
        return self._reserved_bytes

    async def acquire(self, size_bytes: int, *, is_child_waiting: Callable[[], bool]) -> Reservation:
        """Wait until so many bytes may be read.

        First come, first served among those whose child waits, and among the others. Who is awaited waits no longer
        than some seconds for each answer that is let in above the bound. Cancelled, nothing is held.

        Args:
            size_bytes: about what the answer will take; `Hold.resize` puts it right.
            is_child_waiting: whether the child waits for it now; may change while waiting, see `wake`.
        """
        if not self._waiting and self._fits(size_bytes, is_child_waiting=is_child_waiting()):
            return self.take(size_bytes)
        waiter = _Waiter(size_bytes, is_child_waiting)
        self._waiting.append(waiter)
        self.wake()  # one whose child waits may go before those that read ahead
        try:
            while not waiter.granted:
                with self._clock.move_on_after(_PATIENCE_S):
                    await waiter.event.wait()
                if not waiter.granted and self._is_first(waiter):
                    self._grant(waiter)
        except BaseException:
            if waiter.granted:
                self.change(-waiter.size_bytes)
            else:
                self._waiting.remove(waiter)
                self.wake()
            raise
        return Reservation(self, size_bytes)

    def take(self, size_bytes: int) -> Reservation:
        """Hold what is in hand already, without waiting, though it may lead above the bound."""
        self._reserved_bytes += size_bytes
        return Reservation(self, size_bytes)

    def change(self, difference_bytes: int) -> None:
        """What is in hand has grown or shrunk."""
        self._reserved_bytes += difference_bytes
        if difference_bytes < 0:
            self.wake()

    def wake(self) -> None:
        """Let in whoever may go in now; to be called when somebody has become awaited."""
        for awaited in (True, False):
            for waiter in [each for each in self._waiting if each.is_child_waiting() is awaited]:
                if not self._fits(waiter.size_bytes, is_child_waiting=awaited):
                    return
                self._grant(waiter)

    def _fits(self, size_bytes: int, *, is_child_waiting: bool) -> bool:
        max_bytes = self._max_bytes if is_child_waiting else self._max_bytes // 2
        return self._reserved_bytes == 0 or self._reserved_bytes + size_bytes <= max_bytes

    def _is_first(self, waiter: _Waiter) -> bool:
        """Whether it is the next of those that are awaited."""
        return (
            waiter.is_child_waiting()
            and next(each for each in self._waiting if each.is_child_waiting()) is waiter
        )

    def _grant(self, waiter: _Waiter) -> None:
        self._waiting.remove(waiter)
        self._reserved_bytes += waiter.size_bytes
        waiter.granted = True
        waiter.event.set()
