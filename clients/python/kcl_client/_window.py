"""Which records of a shard may be worked on now, and up to where all are done. No I/O, no clock."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Generic, TypeVar

P = TypeVar("P")
T = TypeVar("T")


@dataclass(slots=True, eq=False)
class Entry(Generic[P, T]):
    """`item` is None once it is done, so that nothing keeps its payload."""

    index: int
    key: str | None
    position: P
    item: T | None
    size_bytes: int
    successor: Entry[P, T] | None = field(default=None, repr=False)


class Window(Generic[P, T]):
    """The records from the first unfinished one to the last delivered one, in the order of the shard.

    At most `concurrency` run at once; with `by_key`, of each key only the first that is not done. All up to `mark` is
    done.
    """

    def __init__(self, *, concurrency: int, by_key: bool) -> None:
        self.mark: P | None = None
        self.running = 0
        self.waiting_bytes = 0
        self._concurrency = concurrency
        self._by_key = by_key
        self._entries: deque[Entry[P, T]] = deque()
        self._last_of_key: dict[str, Entry[P, T]] = {}
        self._ready: list[tuple[int, Entry[P, T]]] = []
        self._added = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, key: str | None, position: P, item: T, size_bytes: int) -> None:
        """Positions come in the order of the shard. Without a key nothing waits for another record."""
        entry = Entry(self._added, key, position, item, size_bytes)
        self._added += 1
        self._entries.append(entry)
        self.waiting_bytes += size_bytes
        if self._by_key and key is not None:
            before = self._last_of_key.get(key)
            self._last_of_key[key] = entry
            if before is not None:
                before.successor = entry
                return
        heappush(self._ready, (entry.index, entry))

    def start(self) -> Entry[P, T] | None:
        """The oldest record that may begin; None if there is none or enough are under way."""
        if not self._ready or self.running >= self._concurrency:
            return None
        self.running += 1
        return heappop(self._ready)[1]

    def done(self, entry: Entry[P, T]) -> None:
        """Call it once for an entry that `start` gave."""
        self.running -= 1
        self.waiting_bytes -= entry.size_bytes
        entry.item = None
        successor, entry.successor = entry.successor, None
        if successor is not None:
            heappush(self._ready, (successor.index, successor))
        elif self._by_key and entry.key is not None:
            del self._last_of_key[entry.key]
        entries = self._entries
        while entries and entries[0].item is None:
            self.mark = entries.popleft().position
