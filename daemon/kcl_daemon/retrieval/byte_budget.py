"""Limits the bytes of records that the worker holds, over all its shards.

A shard whose child waits goes first. Reading ahead may use only half of the budget, so busy children cannot
keep other shards from reading.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import anyio

from kcl_daemon.errors import Invariant
from kcl_daemon.ports import Clock
from kcl_daemon.progress.invariants import Invariants

MAX_BYTES: Final = 48 * 2**20
# A child that stops reading keeps its bytes reserved.
_PATIENCE_S: Final = 5.0


class Reservation:
    """The owner calls `release`, at the end of the consumer that `invariants` are of at the latest."""

    __slots__ = ("_budget", "_invariants", "released", "size_bytes")

    def __init__(self, budget: ByteBudget, size_bytes: int, invariants: Invariants) -> None:
        self._budget = budget
        self._invariants = invariants
        self.size_bytes = size_bytes
        self.released = False
        invariants.memory.add(self)

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits for room."""
        return self._budget.has_waiting

    def resize(self, size_bytes: int) -> None:
        """Never waits, even above the limit."""
        if not self.released:
            difference, self.size_bytes = size_bytes - self.size_bytes, size_bytes
            self._budget.change(difference)
            self._check(size_bytes)

    def release(self) -> None:
        """A second call does nothing."""
        if not self.released:
            self.released = True
            self._budget.forget(self)
            self._invariants.memory.discard(self)
            self._budget.change(-self.size_bytes)
            self._check(self.size_bytes)

    def _check(self, size_bytes: int) -> None:
        """Raises nothing: who gives memory back must not fail."""
        if self._budget.reserved_bytes < 0 or size_bytes < 0:
            reserved_bytes = self._budget.reserved_bytes
            seen = f"{reserved_bytes} bytes reserved by all, {size_bytes} by one"
            self._invariants.violated(Invariant.MEMORY, "nothing below 0", seen)
            self._budget.change(max(0, -reserved_bytes))


class _Waiter:
    __slots__ = ("event", "granted", "holding_bytes", "is_child_waiting", "size_bytes")

    def __init__(self, size_bytes: int, is_child_waiting: Callable[[], bool], holding_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.is_child_waiting = is_child_waiting
        self.holding_bytes = holding_bytes
        self.event = anyio.Event()
        self.granted = False


class ByteBudget:
    """An answer larger than `max_bytes` is admitted alone."""

    def __init__(self, clock: Clock, max_bytes: int = MAX_BYTES) -> None:
        self._clock = clock
        self._max_bytes = max_bytes
        self._reserved_bytes = 0
        self._waiting: deque[_Waiter] = deque()
        self._can_shrink: dict[Reservation, Callable[[], None]] = {}

    @property
    def reserved_bytes(self) -> int:
        return self._reserved_bytes

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    async def acquire(
        self,
        size_bytes: int,
        *,
        is_child_waiting: Callable[[], bool],
        holding: Reservation | None = None,
        invariants: Invariants | None = None,
    ) -> Reservation:
        """Wait until the budget has room. A cancelled call reserves nothing.

        Shards whose child waits go first, else first come, first served. If the child waits, the first shard in the queue is
        admitted after some seconds even above the limit. `holding` is kept meanwhile: where all that is reserved is held by
        shards that wait here, one of them is admitted.
        """
        if not self._waiting and self._fits(size_bytes, is_child_waiting=is_child_waiting()):
            return self.take(size_bytes, invariants=invariants)
        for shrink in self._can_shrink.values():
            shrink()
        waiter = _Waiter(size_bytes, is_child_waiting, 0 if holding is None else holding.size_bytes)
        self._waiting.append(waiter)
        self.wake()
        try:
            while not waiter.granted:
                with self._clock.move_on_after(_PATIENCE_S):
                    await waiter.event.wait()
                if not waiter.granted and waiter.is_child_waiting() and self._queue()[0] is waiter:
                    self._grant(waiter)
        except BaseException:
            if waiter.granted:
                self.change(-waiter.size_bytes)
            else:
                self._waiting.remove(waiter)
                self.wake()
            raise
        return Reservation(self, size_bytes, invariants or Invariants())

    def take(
        self,
        size_bytes: int,
        shrink: Callable[[], None] | None = None,
        *,
        invariants: Invariants | None = None,
    ) -> Reservation:
        """Even above the limit. `shrink` is called, and may `resize` it, whenever somebody has to wait."""
        self._reserved_bytes += size_bytes
        reservation = Reservation(self, size_bytes, invariants or Invariants())
        if shrink is not None:
            self._can_shrink[reservation] = shrink
        return reservation

    def forget(self, reservation: Reservation) -> None:
        self._can_shrink.pop(reservation, None)

    def change(self, difference_bytes: int) -> None:
        self._reserved_bytes += difference_bytes
        if difference_bytes < 0:
            self.wake()

    def wake(self) -> None:
        for waiter in self._queue():
            if not self._fits(waiter.size_bytes, is_child_waiting=waiter.is_child_waiting()) and not (
                waiter.holding_bytes and self._all_wait()
            ):
                return
            self._grant(waiter)

    def _queue(self) -> list[_Waiter]:
        """Of those whose child waits, who holds room goes first: it gives that back by going on."""
        return sorted(self._waiting, key=lambda each: (not each.is_child_waiting(), not each.holding_bytes))

    def _fits(self, size_bytes: int, *, is_child_waiting: bool) -> bool:
        max_bytes = self._max_bytes if is_child_waiting else self._max_bytes // 2
        return self._reserved_bytes == 0 or self._reserved_bytes + size_bytes <= max_bytes

    def _all_wait(self) -> bool:
        """Nothing comes back unless one of the waiting is admitted."""
        return self._reserved_bytes == sum(waiter.holding_bytes for waiter in self._waiting)

    def _grant(self, waiter: _Waiter) -> None:
        self._waiting.remove(waiter)
        self._reserved_bytes += waiter.size_bytes
        waiter.granted = True
        waiter.event.set()
