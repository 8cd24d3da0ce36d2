"""A table whose calls go wrong on demand: refused, unanswered before or after they took effect, or hanging."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from typing import TypeVar

import anyio

from kcl_daemon.errors import Throttled, Unavailable
from kcl_daemon.leases.row import Conditions, Row, RowUpdate, WriteResult
from tests.simulator.memory.table import MemoryTable

T = TypeVar("T")


class Trouble(Enum):
    """What happens to one call."""

    NONE = auto()
    THROTTLED = auto()
    FAILED_BEFORE = auto()
    FAILED_AFTER = auto()
    HANGS_BEFORE = auto()
    HANGS_AFTER = auto()
    LATE = auto()
    """Unanswered, and takes effect only when `land` is called."""


class TroubledTable(MemoryTable):
    """The in-memory table with a script of troubles for the next writes, and another for the next reads of a row."""

    def __init__(self, name: str = "leases", key_attribute: str = "leaseKey") -> None:
        super().__init__(name, key_attribute, has_owner_index=True)
        self.writes: deque[Trouble] = deque()
        self.reads: deque[Trouble] = deque()
        self.calls: list[str] = []
        self._late: list[Callable[[], Awaitable[object]]] = []

    async def get(self, key: str) -> Row | None:
        return await self._go("get", self.reads, lambda: MemoryTable.get(self, key))

    async def scan(self) -> list[Row]:
        return await self._go("scan", self.reads, lambda: MemoryTable.scan(self))

    async def put(self, row: Row, require: Conditions = ()) -> WriteResult:
        return await self._go("put", self.writes, lambda: MemoryTable.put(self, row, require))

    async def update(self, update: RowUpdate) -> WriteResult:
        return await self._go("update", self.writes, lambda: MemoryTable.update(self, update))

    async def delete(self, key: str, require: Conditions = ()) -> WriteResult:
        return await self._go("delete", self.writes, lambda: MemoryTable.delete(self, key, require))

    async def land(self) -> None:
        """Let the late writes take effect, if their conditions still hold."""
        late, self._late = self._late, []
        for write in late:
            await write()

    async def _go(self, name: str, script: deque[Trouble], call: Callable[[], Awaitable[T]]) -> T:
        self.calls.append(name)
        trouble = script.popleft() if script else Trouble.NONE
        match trouble:
            case Trouble.NONE:
                return await call()
            case Trouble.THROTTLED:
                raise Throttled("too fast", operation=name)
            case Trouble.FAILED_BEFORE:
                raise Unavailable("connection reset", operation=name)
            case Trouble.HANGS_BEFORE:
                await anyio.sleep_forever()
            case Trouble.LATE:
                self._late.append(call)
                raise Unavailable("connection reset", operation=name)
            case Trouble.FAILED_AFTER | Trouble.HANGS_AFTER:
                await call()
                if trouble is Trouble.HANGS_AFTER:
                    await anyio.sleep_forever()
                raise Unavailable("connection reset", operation=name)
        raise AssertionError("unreachable")
