"""The records of one shard, in columns, found by bisection. Knows no shard, no iterator and no limit of the service."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """One record.

    Args:
        tick: its place in the order of the whole model.
        arrival_s: epoch seconds, whole milliseconds.
        partition_key: as it was put.
        data: base64 text as it was put.
        size_bytes: of the decoded data and the partition key.
    """

    tick: int
    arrival_s: float
    partition_key: str
    data: str
    size_bytes: int


class RecordLog:
    """Records in the order in which they came. Indices count what is still kept and hold until the next trim."""

    __slots__ = ("_arrivals", "_data", "_ends", "_keys", "_ticks", "_trimmed_bytes", "_trimmed_tick")

    def __init__(self) -> None:
        self._ticks = array("Q")
        self._arrivals = array("d")
        self._keys: list[str] = []
        self._data: list[str] = []
        self._ends = array("Q")  # bytes up to and including this record since the log began
        self._trimmed_bytes = 0
        self._trimmed_tick = 0

    def __len__(self) -> int:
        return len(self._ticks)

    def append(self, record: StoredRecord) -> None:
        """Add a record; its tick is above and its arrival not before those of the last one."""
        self._ticks.append(record.tick)
        self._arrivals.append(record.arrival_s)
        self._keys.append(record.partition_key)
        self._data.append(record.data)
        self._ends.append(self._bytes_before(len(self._ends)) + record.size_bytes)

    def trim(self, before_s: float) -> None:
        """Forget the records that arrived before that time."""
        count = bisect_left(self._arrivals, before_s)
        if not count:
            return
        self._trimmed_bytes = self._ends[count - 1]
        self._trimmed_tick = self._ticks[count - 1]
        for column in (self._ticks, self._arrivals, self._keys, self._data, self._ends):
            del column[:count]

    def may_hold(self, tick: int) -> bool:
        """Whether a kept record has this tick or a forgotten one may have had it."""
        index = bisect_left(self._ticks, tick)
        return tick <= self._trimmed_tick or (index < len(self) and self._ticks[index] == tick)

    def first_after(self, tick: int) -> int:
        """Index of the first record above that tick; the length where there is none."""
        return bisect_right(self._ticks, tick)

    def last_tick_before(self, timestamp_s: float) -> int:
        """Tick of the last record that arrived before that time, 0 where none is kept."""
        index = bisect_left(self._arrivals, timestamp_s)
        return self._ticks[index - 1] if index else 0

    def end_of_page(self, start: int, count_max: int, bytes_max: int) -> int:
        """Index behind the last record that fits beside those from `start` on; at least one record is taken."""
        by_bytes = bisect_right(self._ends, self._bytes_before(start) + bytes_max, lo=start)
        return min(max(by_bytes, start + 1), start + count_max, len(self))

    def size_bytes(self, start: int, end: int) -> int:
        """Bytes of the records from `start` to before `end`."""
        return self._bytes_before(end) - self._bytes_before(start)

    def arrival_s(self, index: int) -> float:
        """When that record came."""
        return self._arrivals[index]

    def tick(self, index: int) -> int:
        """The tick of that record."""
        return self._ticks[index]

    def columns(self, start: int, end: int) -> Iterator[tuple[int, float, str, str]]:
        """Tick, arrival, partition key and data of the records from `start` to before `end`."""
        span = slice(start, end)
        return zip(self._ticks[span], self._arrivals[span], self._keys[span], self._data[span], strict=True)

    def _bytes_before(self, index: int) -> int:
        return self._ends[index - 1] if index else self._trimmed_bytes
