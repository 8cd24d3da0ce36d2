"""One shard: its place in the lineage and among the hashes, its records, and how much of it was read lately.

Does not know its stream; who may split or merge it is decided there.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from kcl_local.kinesis.options import Limits
from kcl_local.kinesis.records import RecordLog

_WINDOW_S: Final = 1.0


@dataclass(slots=True)
class ReadTraffic:
    """How much a shard gave within the last second."""

    _answers: deque[tuple[float, int]] = field(default_factory=deque[tuple[float, int]])
    _refuse_until_s: float = 0.0

    def allows(self, now_s: float, limits: Limits) -> bool:
        """Whether one more call may read now."""
        while self._answers and self._answers[0][0] <= now_s - _WINDOW_S:
            self._answers.popleft()
        return now_s >= self._refuse_until_s and len(self._answers) < limits.reads_per_s

    def count(self, now_s: float, size_bytes: int, limits: Limits) -> None:
        """Account for an answer of that size."""
        self._answers.append((now_s, size_bytes))
        recent_bytes = sum(size for _, size in self._answers)
        if recent_bytes > limits.bytes_per_s:
            self._refuse_until_s = now_s + recent_bytes / limits.bytes_per_s


@dataclass(slots=True, eq=False)
class Shard:
    """A shard, open or closed.

    Args:
        index: number of the shard in its stream, from 0.
        start_hash: first hash of its partition keys.
        end_hash: last one.
        opened_tick: where its sequence numbers start; above its parents' `closed_tick`.
        opened_s: when.
        parent_ids: none for an original shard, one after a split, two after a merge.
        closed_tick: where its sequence numbers end, None while it is open.
        closed_s: when.
        children: the shards that follow it.
        bells: called when there is something new to read; they must only take note, as the change may be half done.
    """

    index: int
    start_hash: int
    end_hash: int
    opened_tick: int
    opened_s: float
    parent_ids: tuple[str, ...] = ()
    closed_tick: int | None = None
    closed_s: float | None = None
    children: list[Shard] = field(default_factory=list["Shard"])
    records: RecordLog = field(default_factory=RecordLog)
    traffic: ReadTraffic = field(default_factory=ReadTraffic)
    bells: dict[int, Callable[[], None]] = field(default_factory=dict[int, "Callable[[], None]"])
    _continued: array[int] = field(default_factory=lambda: array("Q"))

    @property
    def shard_id(self) -> str:
        """Its name in the stream."""
        return shard_id_of(self.index)

    @property
    def is_open(self) -> bool:
        """Whether it still takes records."""
        return self.closed_tick is None

    def has_issued(self, tick: int) -> bool:
        """Whether a caller can have that number from here, as far as that is still known.

        That is: its first or last number, that of a record, or one to continue at.
        """
        if tick in {self.opened_tick, self.closed_tick}:
            return True
        index = bisect_left(self._continued, tick)
        if index < len(self._continued) and self._continued[index] == tick:
            return True
        return tick > self.opened_tick and self.records.may_hold(tick)

    def continue_at(self, tick: int) -> None:
        """Issue a number without a record; ticks come in rising order."""
        self._continued.append(tick)

    def wake(self) -> None:
        """Tell whoever waits for this shard."""
        for ring in tuple(self.bells.values()):
            ring()

    def hash_range(self) -> dict[str, object]:
        """`HashKeyRange` on the wire."""
        return {"StartingHashKey": str(self.start_hash), "EndingHashKey": str(self.end_hash)}


def shard_id_of(index: int) -> str:
    """The name of a stream's nth shard."""
    return f"shardId-{index:012d}"
