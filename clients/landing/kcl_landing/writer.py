"""A number that is taken, and where segments are cut. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from kcl_landing.log import Footer, place
from kcl_landing.positions import START, Position


@dataclass(frozen=True, slots=True)
class Limits:
    window_ms: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Tail:
    """`number` -1: there is no segment."""

    number: int = -1
    last: Position = START
    last_ms: int = 0
    is_ended: bool = False


class LogAltered(Exception): ...


class Taken(Enum):
    OURS = auto()
    """Of this run; the answer was lost."""
    EARLIER = auto()
    """Of a former owner: continue behind it."""
    NEWER = auto()
    """Let go."""


class ShardWriter:
    """`mark`: the last record taken.

    LogAltered: the stored checkpoint is beyond the end of a log that is not empty.
    """

    def __init__(self, tail: Tail, checkpoint: Position, *, token: int, writer: str) -> None:
        if tail.number >= 0 and checkpoint > tail.last:
            raise LogAltered(
                f"the log ends with segment {tail.number} at {tail.last}, before the stored checkpoint {checkpoint}"
            )
        self.tail = tail if tail.number >= 0 else replace(tail, last=checkpoint)
        self.mark = self.tail.last
        self.token = token
        self.writer = writer

    @property
    def next_number(self) -> int:
        return self.tail.number + 1

    def take(self, last: Position) -> None:
        self.mark = max(self.mark, last)

    def created(self, last: Position, last_ms: int, *, is_end: bool = False) -> None:
        self.tail = Tail(self.next_number, last, max(last_ms, self.tail.last_ms), is_end)

    def taken(self, found: Footer) -> Taken:
        """Afterwards the buffer must drop records up to `tail.last`."""
        if found.number != self.next_number or place(found.after) != self.tail.last:
            if found.token > self.token:
                return Taken.NEWER
            raise LogAltered(
                f"segment {found.number} begins after {found.after}; it must be {self.next_number}, after {self.tail.last}"
            )
        last = place(found.last)
        self.tail = Tail(found.to, last, max(found.last_ms, self.tail.last_ms), found.children is not None)
        self.mark = max(self.mark, last)
        if found.writer == self.writer:
            return Taken.OURS
        return Taken.NEWER if found.token > self.token else Taken.EARLIER


def known_arrivals(arrivals_ms: Sequence[int | None]) -> Sequence[int]:
    if isinstance(arrivals_ms, array):
        return arrivals_ms
    return [each for each in arrivals_ms if each is not None]


def cuts(
    arrivals_ms: Sequence[int | None], opened_ms: int | None, limits: Limits, *, by_hour: bool
) -> list[int]:
    """Before which records a segment begins.

    `opened_ms`: the first arrival in the open one. `by_hour`: all are of one hour.
    """
    known = known_arrivals(arrivals_ms)
    first = opened_ms
    if known and max(known) - (known[0] if first is None else first) <= limits.window_ms:
        span = {min(known), max(known), known[0] if first is None else first}
        if not by_hour or len({each // 3_600_000 for each in span}) == 1:
            return []
    found: list[int] = []
    for index, arrived in enumerate(arrivals_ms):
        if arrived is None:
            continue
        if first is None:
            first = arrived
        elif arrived - first > limits.window_ms or (by_hour and arrived // 3_600_000 != first // 3_600_000):
            found.append(index)
            first = arrived
    return found
