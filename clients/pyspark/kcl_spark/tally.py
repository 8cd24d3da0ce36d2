"""How much of a shard came into the spool, how much of that is committed, and since when the rest waits. Pure.

Owns these figures and nothing of the records. Times are given.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from kcl_spark.positions import Position
from kcl_spark.segments import Segment


@dataclass(frozen=True, slots=True)
class ShardFigures:
    """A shard at one moment; what is counted is counted from the start of the engine.

    Args:
        rows: that were written to the spool; again where they were dropped there and delivered once more.
        size_bytes: of their files.
        committed: rows that all queries have committed.
        waiting: rows that are here and that some query has not committed yet.
        lag_s: since the oldest of these came, in seconds; 0 where there is none.
        spooled_bytes: what is in the spool now.
    """

    rows: int
    size_bytes: int
    committed: int
    waiting: int
    lag_s: float
    spooled_bytes: int


@dataclass(frozen=True, slots=True)
class _Portion:
    last: Position
    rows: int
    since_s: float


class Tally:
    """The figures of one shard. A portion is what goes to disk, and as a rule what is committed, at once."""

    def __init__(self) -> None:
        self._rows = 0
        self._size_bytes = 0
        self._committed = 0
        self._waiting: deque[_Portion] = deque()
        self._young_rows = 0
        self._young_since_s = 0.0

    def arrived(self, rows: int, now_s: float) -> None:
        """Rows are here, in memory."""
        if not self._young_rows:
            self._young_since_s = now_s
        self._young_rows += rows

    def written(self, segment: Segment) -> None:
        """All that was in memory is on disk now."""
        self._waiting.append(_Portion(segment.last, segment.rows, self._young_since_s))
        self._rows += segment.rows
        self._size_bytes += segment.size_bytes
        self._young_rows = 0

    def forgotten(self) -> None:
        """What was in memory is dropped; it will be delivered again."""
        self._young_rows = 0

    def kept(self, segments: Iterable[Segment], now_s: float) -> None:
        """The shard is taken on, once more or from an engine before; of what is on disk, this is still to be committed."""
        known = {each.last: each.since_s for each in self._waiting}
        self.forgotten()
        self._waiting.clear()
        for each in segments:
            if each.last not in known:
                self._rows += each.rows
                self._size_bytes += each.size_bytes
            self._waiting.append(_Portion(each.last, each.rows, known.get(each.last, now_s)))

    def done(self, last: Position) -> None:
        """Everything up to here is committed."""
        while self._waiting and self._waiting[0].last <= last:
            self._committed += self._waiting.popleft().rows

    def figures(self, now_s: float, spooled_bytes: int) -> ShardFigures:
        """As they are now."""
        oldest_s = self._waiting[0].since_s if self._waiting else self._young_since_s
        waiting = sum(each.rows for each in self._waiting) + self._young_rows
        return ShardFigures(
            rows=self._rows,
            size_bytes=self._size_bytes,
            committed=self._committed,
            waiting=waiting,
            lag_s=max(0.0, now_s - oldest_s) if waiting else 0.0,
            spooled_bytes=spooled_bytes,
        )
