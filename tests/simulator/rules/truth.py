"""What really is in the stream: every record that was written, every shard and its parents.

Owns the facts that the fleet's work is compared with. Knows nothing of workers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from typing import TypeAlias

from kcl_protocol.messages import Record
from kcl_protocol.sequence import ExtendedSequenceNumber

Position: TypeAlias = tuple[int, int]
"""Sequence number and sub-sequence number: the place in an aggregate, 0 for a plain record."""


def position_of(what: Record | ExtendedSequenceNumber) -> Position:
    """Of a record, or of a checkpoint that is no sentinel."""
    return int(what.sequence_number), what.sub_sequence_number


@dataclass(slots=True)
class ShardTruth:
    """One shard.

    Args:
        shard_id: its name.
        parents: shards that must be finished before it.
        positions: of its records, in order; an aggregate is its user records.
        written_at_s: virtual time of each.
        data: payload of each, base64 text.
        keys: partition key of each; None: it has none.
        index: place of each position.
        is_closed: no more records come.
        deliveries: how often each record was given to a child.
        first_missing: place of the first record that was never given to a child.
        left_out: places of records that are not for the children.
        strays: of those, the places of records of other shards that only a doubt may bring to the children.
        done_before: place of the first record that a fleet of the past had not processed; those before never come again.
        trimmed: how many records the stream does not keep any more.
        lost: places of those that were not given to a child before.
        excused: places of those that nobody need be given, as reading began after them.
        passed: places of those that were given, but neither stored nor landed before reading began anew after them.
        latest_s: since when it is read from LATEST on; who reads is not owed what came before.
        closed_s: virtual time of that; 0: not noted.
        after: shards that must be finished before it, besides; their leases may go before it has begun.
        is_past: it was closed before reading began, so that nobody need read it.
        is_stopped: nobody reads on after what was lost in it, or in one before it.
        gone_s: virtual time at which its stream was deleted; nothing is asked of anybody any more.
        dates_whole: the dates of its records have no part of a second, as those of changes of a table.
    """

    shard_id: str
    parents: tuple[str, ...] = ()
    positions: list[Position] = field(default_factory=list[Position])
    written_at_s: list[float] = field(default_factory=list[float])
    data: list[str] = field(default_factory=list[str])
    keys: list[str | None] = field(default_factory=list[str | None])
    index: dict[Position, int] = field(default_factory=dict[Position, int])
    is_closed: bool = False
    deliveries: list[int] = field(default_factory=list[int])
    first_missing: int = 0
    left_out: set[int] = field(default_factory=set[int])
    strays: set[int] = field(default_factory=set[int])
    gone_s: float | None = None
    done_before: int = 0
    trimmed: int = 0
    latest_s: float = -inf
    excused: set[int] = field(default_factory=set[int])
    passed: set[int] = field(default_factory=set[int])
    lost: set[int] = field(default_factory=set[int])
    closed_s: float = 0.0
    after: tuple[str, ...] = ()
    is_past: bool = False
    is_stopped: bool = False
    dates_whole: bool = False

    @property
    def before(self) -> tuple[str, ...]:
        """All shards that must be finished before it."""
        return self.parents + self.after

    @property
    def is_scan(self) -> bool:
        """Whether it is a part of a scan, whose records are known only when they are given."""
        return False

    def rank(self, position: Position) -> int:
        """Where a record stands in it."""
        return self.index[position]

    @property
    def owed(self) -> set[int]:
        """Where those stand that must come out at its end."""
        return set(range(len(self.positions))) - self.unowed

    @property
    def all_delivered(self) -> bool:
        """Whether each of its records that is for the children was given to one."""
        return self.first_missing == len(self.positions)

    @property
    def missing(self) -> tuple[Position | str, float]:
        """What comes first of all that was never given to a child, and when it was written."""
        return self.positions[self.first_missing], self.written_at_s[self.first_missing]

    def lane_key(self, place: int) -> str:
        """By which a record gets to its lane: its key, or its number where it has none."""
        key = self.keys[place]
        return str(self.positions[place][0]) if key is None else key

    def place_after(self, position: Position) -> int:
        """Place of the first record after a position."""
        place = self.index.get(position)
        return bisect_right(self.positions, position) if place is None else place + 1

    def excuse_before(self, place: int) -> None:
        """Nobody need be given the records before this place: reading began at the latest one."""
        if not any(self.deliveries):
            self.excused.update(range(self.first_missing, place))
            self._go_on()

    @property
    def unowed(self) -> set[int]:
        """Places of those that nobody need be given."""
        return self.left_out | self.lost | self.excused | set(range(self.done_before))

    def excuse_all(self) -> None:
        """Nobody need be given what is there and was not given to anybody: reading begins after it."""
        self.excused.update(place for place, count in enumerate(self.deliveries) if not count)
        self._go_on()

    def was_done(self, places: int) -> None:
        """A fleet of the past has processed so many records, and stored that."""
        self.done_before = places
        for place in range(places):
            self.delivered(place)

    def delivered(self, place: int) -> None:
        """Count one delivery."""
        self.deliveries[place] += 1
        self.excused.discard(place)
        self.passed.discard(place)
        self._go_on()

    def lose_before(self, at_s: float) -> bool:
        """What was written before that time is not kept any more; whether anything of it is lost now."""
        place, before = self.trimmed, len(self.lost)
        while place < len(self.positions) and self.written_at_s[place] < at_s:
            if not self.deliveries[place]:
                self.lost.add(place)
            place += 1
        self.trimmed = place
        self._go_on()
        return len(self.lost) > before

    def leave_out(self, place: int) -> None:
        """A record that was just written is not for the children."""
        self.left_out.add(place)
        self._go_on()

    def _go_on(self) -> None:
        while self.first_missing < len(self.positions) and (
            self.deliveries[self.first_missing]
            or self.first_missing in self.left_out
            or self.first_missing in self.lost
            or self.first_missing in self.excused
        ):
            self.first_missing += 1


class Truth:
    """The stream, or all streams: then shards are called by their lease keys."""

    def __init__(
        self, keeps: Callable[[str | None, str], bool] | None = None, unreadable_s: float = 0.0
    ) -> None:
        self._keeps = keeps
        self.unreadable_s = unreadable_s
        self.shards: dict[str, ShardTruth] = {}
        self.records = 0

    def is_kept(self, key: str | None, data: str = "") -> bool:
        """Whether a record is for the children."""
        return self._keeps is None or self._keeps(key, data)

    def shard_created(self, shard_id: str, parents: tuple[str, ...]) -> None:
        """A shard is there now."""
        shard = self.shards.setdefault(shard_id, ShardTruth(shard_id, parents))
        shard.is_stopped = any(parent in self.shards and self.shards[parent].is_stopped for parent in parents)

    def having(self, stream: str, shard_id: str, position: Position) -> ShardTruth | None:
        """The shard of this stream in which this record was written."""
        return next(
            (
                shard
                for key, shard in self.shards.items()
                if position in shard.index and (key == shard_id or key.split(":")[1::2] == [stream, shard_id])
            ),
            None,
        )

    def shard_closed(self, shard_id: str, at_s: float = 0.0) -> None:
        """Nothing more can be written to it."""
        self.shards[shard_id].is_closed, self.shards[shard_id].closed_s = True, at_s

    def stream_deleted(self, prefix: str, at_s: float) -> None:
        """The stream whose keys begin like this is gone."""
        for shard in self.shards.values():
            if shard.shard_id.startswith(prefix):
                shard.gone_s = at_s

    def stop(self, shard: ShardTruth) -> None:
        """Nobody reads on in it, so that nobody reads what follows."""
        shard.is_stopped = True
        for other in self.shards.values():
            if shard.shard_id in other.parents and not other.is_stopped:
                self.stop(other)

    def gone_for_s(self, shard_id: str, at_s: float) -> float | None:
        """How long the stream of a shard has been gone; None: it is there."""
        shard = self.shards.get(shard_id)
        return None if shard is None or shard.gone_s is None else at_s - shard.gone_s

    @property
    def wanted(self) -> list[ShardTruth]:
        """The shards that somebody must read."""
        return [
            shard
            for shard in self.shards.values()
            if shard.gone_s is None and not (shard.is_past or shard.is_stopped)
        ]

    def record_written(
        self,
        shard_id: str,
        number: int,
        at_s: float,
        data: str,
        key: str | None = "",
        *,
        sub_number: int = 0,
        is_stray: bool = False,
    ) -> None:
        """A record was accepted by the stream, or a user record in an aggregate."""
        shard, position = self.shards[shard_id], (number, sub_number)
        assert not shard.positions or position > shard.positions[-1], (
            f"{shard_id}: {position} after {shard.positions[-1]}"
        )
        place = shard.index[position] = len(shard.positions)
        shard.positions.append(position)
        shard.written_at_s.append(at_s)
        shard.data.append(data)
        shard.keys.append(key)
        shard.deliveries.append(0)
        if not self.is_kept(key, data):
            shard.leave_out(place)
        elif is_stray:
            shard.strays.add(place)
            shard.leave_out(place)
        self.records += 1

    @property
    def undelivered(self) -> int:
        """How many records nobody was given yet."""
        return sum(
            not count and place not in shard.left_out
            for shard in self.wanted
            for place, count in enumerate(shard.deliveries)
            if place >= shard.first_missing and place not in shard.lost and place not in shard.excused
        )

    @property
    def all_delivered(self) -> bool:
        """Whether every record was given to some child."""
        return all(shard.all_delivered for shard in self.wanted)

    @property
    def repeats(self) -> int:
        """How many deliveries were not the first of their record."""
        return sum(count - 1 for shard in self.shards.values() for count in shard.deliveries if count > 1)
