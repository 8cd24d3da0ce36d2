"""What the lanes of a shard have, and how far the shard is done (no counterpart in KCL).

A lane is one of several children. A record is added, taken by the child, answered (processed) and checkpointed. The mark
is what may be stored: the highest position below which each lane has checkpointed all its records. Answered records may
lose their data (`shed`); then only their range is known, and if the child fails, the shard is read again from there
(`rewind`, `reread_from`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final
from zlib import crc32

from kcl_daemon.records.batch import Batch, ReadFacts
from kcl_daemon.records.forms import ShardOrder
from kcl_daemon.records.payload import RECORD_OVERHEAD_BYTES, AnyRecord, Payload, detach, key_text
from kcl_protocol.sequence import LATEST, SHARD_END, ExtendedSequenceNumber

Position = ExtendedSequenceNumber

_RANGE_RECORDS: Final = 100
_MAX_RANGES: Final = 256


class NotOfThisLane(ValueError):
    """A lane asks for a checkpoint at a record of another lane."""


@dataclass(slots=True)
class _Entry:
    """`before`: the position of the record before it in the shard, of any lane."""

    position: Position
    before: Position
    record: AnyRecord
    size_bytes: int
    facts: ReadFacts


@dataclass(slots=True)
class _Range:
    before: Position
    last: Position
    count: int


@dataclass(slots=True)
class _Lane:
    """Of one child.

    Args:
    last: the last record that was ever meant for it.
    taken: the first so many of `entries`; `answered` likewise.
    reread: where reading began anew for it; None: it has all its records.
    reread_to: the last record that it has got again.
    """

    checkpoint: Position
    last: Position
    entries: deque[_Entry] = field(default_factory=deque[_Entry])
    ranges: deque[_Range] = field(default_factory=deque[_Range])
    taken: int = 0
    answered: int = 0
    reread: Position | None = None
    reread_to: Position | None = None
    size_bytes: int = 0

    @property
    def before(self) -> Position | None:
        """The last position that it does not hold back."""
        if self.reread is not None:
            return self.reread
        if self.ranges:
            return self.ranges[0].before
        return self.entries[0].before if self.entries else None


def key_hash(record: AnyRecord) -> int:
    """The same in all versions of this program. Without a key, that of the number."""
    key = key_text(record)
    return crc32((record.sequence_number if key is None else key).encode("utf-8", "surrogatepass"))


class LaneWindow:
    """`start` is the stored checkpoint. Sizes in bytes include what a record costs besides its data.

    `done`: how far each lane had come beyond it, if the lanes were as many, by key; not from LATEST.
    """

    def __init__(
        self, lanes: int, start: Position, order: ShardOrder = ShardOrder.KEY, done: Sequence[Position] = ()
    ) -> None:
        is_known = len(done) == lanes and order is ShardOrder.KEY and start != LATEST
        starts = [max(start, each) for each in done] if is_known else [start] * lanes
        self._lanes = tuple(_Lane(each, each) for each in starts)
        self._order = order
        self._start = start
        self._must_reread = self._rereads = False
        self.high = start
        self._first: Position | None = None
        self._previous = start
        self.size_bytes = 0
        self.answered_bytes = 0

    @property
    def mark(self) -> Position:
        held_back = [before for lane in self._lanes if (before := lane.before) is not None]
        return min(held_back, default=self.high)

    @property
    def held_back(self) -> tuple[Position, int] | None:
        """The mark and the lane that holds it back; None: all is done."""
        found = ((before, number) for number, lane in enumerate(self._lanes) if (before := lane.before))
        return min(found, default=None)

    @property
    def holds_mark(self) -> int | None:
        held_back = self.held_back
        return None if held_back is None else held_back[1]

    @property
    def slowest(self) -> int | None:
        """The lane with the oldest unanswered record; else the one that holds the mark back."""
        undone = [
            (lane.entries[lane.answered].position, number)
            for number, lane in enumerate(self._lanes)
            if lane.answered < len(lane.entries)
        ]
        return min(undone)[1] if undone else self.holds_mark

    def is_behind(self, lane: int) -> bool:
        return self._lanes[lane].answered < len(self._lanes[lane].entries) or self.is_rereading(lane)

    @property
    def lane_count(self) -> int:
        return len(self._lanes)

    def not_done(self, lane: int) -> tuple[int, int]:
        """Records, and the bytes kept of them."""
        mine = self._lanes[lane]
        return len(mine.entries) + sum(each.count for each in mine.ranges), mine.size_bytes

    @property
    def waiting(self) -> tuple[int, int]:
        """Unanswered records, and about the bytes of their data."""
        records = sum(len(lane.entries) - lane.answered for lane in self._lanes)
        text_bytes = self.size_bytes - self.answered_bytes - records * RECORD_OVERHEAD_BYTES
        return records, max(0, 3 * text_bytes // 4)

    def checkpoint_of(self, lane: int) -> Position:
        return self._lanes[lane].checkpoint

    def done(self, *, remembers: bool = True) -> tuple[Position, ...]:
        """As `Lease.lanes`."""
        if self.mark == LATEST:
            return () if self._first is None else (self._first,)
        lanes = self._lanes if remembers else ()
        return tuple(lane.checkpoint if lane.before is not None else self.high for lane in lanes)

    def is_rereading(self, lane: int) -> bool:
        return self._lanes[lane].reread is not None

    @property
    def all_taken(self) -> bool:
        return not any(lane.reread is not None or len(lane.entries) > lane.taken for lane in self._lanes)

    @property
    def oldest_s(self) -> float | None:
        """Monotonic arrival of the oldest unanswered record."""
        first = (lane.entries[lane.answered] for lane in self._lanes if len(lane.entries) > lane.answered)
        return min(
            (each.facts.arrival_s(each.record.approximate_arrival_timestamp) for each in first), default=None
        )

    def first_key_hash(self, lane: int) -> int | None:
        """None if the record is not here."""
        mine = self._lanes[lane]
        return key_hash(mine.entries[mine.answered].record) if mine.answered < len(mine.entries) else None

    def add(self, batch: Batch) -> set[int]:
        """All of one answer; returns the lanes that got some. From `rewind` to `reread_from` none is taken."""
        given: set[int] = set()
        for record in () if self._must_reread else batch.records:
            position = record.position
            is_new = self.high < position
            number = self._lane_of(record) if is_new else self._lane_again(record, position)
            if number is not None and self._lanes[number].checkpoint < position:
                self._give(number, position, record, batch.facts)
                given.add(number)
            self._previous = position
            if is_new:
                self.high, self._first = position, self._first or position
            if self._rereads and position == self.high:
                self._end_rereading()
        return given

    def _lane_of(self, record: AnyRecord) -> int:
        if self._order is ShardOrder.KEY:
            return key_hash(record) % len(self._lanes)
        return min(
            range(len(self._lanes)),
            key=lambda number: (len(self._lanes[number].entries) - self._lanes[number].answered, number),
        )

    def _lane_again(self, record: AnyRecord, position: Position) -> int | None:
        """Which lane lost this record with its child. Without order by key it is not known who had it."""
        numbers: Iterable[int] = range(len(self._lanes))
        if self._order is ShardOrder.KEY:
            numbers = (key_hash(record) % len(self._lanes),)
        for number in numbers:
            lane = self._lanes[number]
            if lane.reread_to is not None and lane.reread_to < position <= lane.last:
                return number
        return None

    def _give(self, number: int, position: Position, record: AnyRecord, facts: ReadFacts) -> None:
        lane = self._lanes[number]
        detach(record)
        size_bytes = len(record.data) + len(record.partition_key) + RECORD_OVERHEAD_BYTES
        lane.entries.append(_Entry(position, self._previous, record, size_bytes, facts))
        self.size_bytes += size_bytes
        lane.size_bytes += size_bytes
        if lane.reread_to is None:
            lane.last = position
            return
        lane.reread_to = position
        if position >= lane.last:
            lane.last = position
            lane.reread = lane.reread_to = None

    def _end_rereading(self) -> None:
        """What did not come again is gone from the stream."""
        self._rereads = False
        for lane in self._lanes:
            lane.reread = lane.reread_to = None

    def passed(self, position: Position) -> None:
        if self._must_reread:
            return
        self._previous, self.high = position, max(self.high, position)
        if self._rereads and position == self.high:
            self._end_rereading()

    def shard_ended(self) -> None:
        if not self._must_reread:
            self._end_rereading()

    def take(self, lane: int, most_bytes: int, most_records: int) -> Batch | None:
        """As young as one of their answers says."""
        mine, taken, size_bytes = self._lanes[lane], list[_Entry](), 0
        for entry in islice(mine.entries, mine.taken, mine.taken + most_records):
            if taken and size_bytes + entry.size_bytes > most_bytes:
                break
            taken.append(entry)
            size_bytes += entry.size_bytes
        mine.taken += len(taken)
        if not taken:
            return None
        facts = ReadFacts.joined([entry.facts for entry in taken])
        return Batch(Payload([entry.record for entry in taken], 0), facts)

    def untaken(self, lane: int) -> Iterator[AnyRecord]:
        mine = self._lanes[lane]
        return (entry.record for entry in islice(mine.entries, mine.taken, None))

    def answered(self, lane: int) -> None:
        mine = self._lanes[lane]
        for entry in islice(mine.entries, mine.answered, mine.taken):
            self.answered_bytes += entry.size_bytes
        mine.answered = mine.taken

    def checkpoint(self, lane: int, position: Position) -> None:
        """Also of a record that was set aside. Raises NotOfThisLane."""
        mine = self._lanes[lane]
        if position <= mine.checkpoint:
            return
        if position != SHARD_END and not self._is_of(mine, position):
            raise NotOfThisLane(f"{position} is a record of another lane")
        while mine.ranges and not position < mine.ranges[0].last:
            mine.ranges.popleft()
        while mine.entries and not position < mine.entries[0].position:
            self._drop_first(mine)
        mine.checkpoint = position
        if mine.reread_to is not None and position != SHARD_END:
            mine.reread_to = max(mine.reread_to, position)

    @staticmethod
    def _is_of(lane: _Lane, position: Position) -> bool:
        if lane.ranges and position <= lane.ranges[-1].last:
            return True
        if lane.reread is not None and position <= lane.last:
            return True
        return any(entry.position == position for entry in lane.entries)

    def _drop_first(self, lane: _Lane) -> _Entry:
        entry = lane.entries.popleft()
        self.size_bytes -= entry.size_bytes
        lane.size_bytes -= entry.size_bytes
        if lane.answered:
            self.answered_bytes -= entry.size_bytes
        lane.taken, lane.answered = max(0, lane.taken - 1), max(0, lane.answered - 1)
        return entry

    def rewind(self, lane: int) -> bool:
        """What its child has not checkpointed comes again. True: some of it has to be read again, from `reread_from`."""
        mine = self._lanes[lane]
        if not mine.ranges and mine.reread is None:
            for entry in islice(mine.entries, mine.answered):
                self.answered_bytes -= entry.size_bytes
            mine.taken = mine.answered = 0
            return False
        self._must_reread = self._rereads = True
        mine.reread = mine.before
        mine.reread_to = max(mine.checkpoint, self._start)
        mine.ranges.clear()
        while mine.entries:
            self._drop_first(mine)
        return True

    def reread_from(self) -> Position | None:
        """None: nothing is read again."""
        starts = [lane.reread for lane in self._lanes if lane.reread is not None]
        self._must_reread = False
        self._previous = min(starts, default=self.high)
        return min(starts, default=None)

    def shed(self, most_bytes: int) -> None:
        """Forget the data of answered records, the oldest of each lane first."""
        while self.answered_bytes > most_bytes:
            for lane in self._lanes:
                if lane.answered:
                    self._shed_first(lane)

    def _shed_first(self, lane: _Lane) -> None:
        entry = self._drop_first(lane)
        last = lane.ranges[-1] if lane.ranges else None
        if last is not None and last.count < _RANGE_RECORDS:
            last.last, last.count = entry.position, last.count + 1
            return
        lane.ranges.append(_Range(entry.before, entry.position, 1))
        if len(lane.ranges) > _MAX_RANGES:
            pairs = iter(lane.ranges)
            lane.ranges = deque(_joined(first, next(pairs, None)) for first in pairs)


def _joined(first: _Range, second: _Range | None) -> _Range:
    return first if second is None else _Range(first.before, second.last, first.count + second.count)
