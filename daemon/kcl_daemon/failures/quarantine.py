"""PURE: which record makes a child fail (no counterpart in KCL).

Owns what is delivered after a failure, slice by slice, and when one record is called the cause of it. Works on positions
alone, because what is read again comes in other batches. Nothing is ever left out but records that were set aside, and
order is kept. Must not know children, time or where records go.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from kcl_protocol.sequence import ExtendedSequenceNumber as Position


@dataclass(frozen=True, slots=True)
class Delivery:
    """Records that a child was given at once.

    Args:
        after: the last position that it was done with before, or the checkpoint.
        last: position of the last of them.
        count: how many; may be too high, never too low.
        alone: one record, given by itself on purpose.
    """

    after: Position
    last: Position
    count: int
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Suspects:
    """Records behind `after`, up to and including `last`, one of which has made a child fail.

    Args:
        after: a position before them.
        last: of the last of them.
        count: how many; may be too high, never too low.
        failures: of one record: how many times in a row a child has failed that was given it alone.
    """

    after: Position
    last: Position
    count: int
    failures: int = 0

    def hold(self, delivery: Delivery) -> bool:
        """Whether all records of a delivery are among them."""
        return self.after <= delivery.after and delivery.last <= self.last


class Verdict(Enum):
    """What a failure has shown."""

    SUSPECTED = auto()
    """The records that failed may hold the cause; nothing more is known."""
    NARROWED = auto()
    """It is among fewer records than before."""
    GUILTY = auto()
    """The one record has failed often enough to be set aside."""


@dataclass(frozen=True, slots=True)
class Next:
    """What to do with the next records of a batch.

    Args:
        skip: so many were set aside before and are passed over; nothing is delivered then.
        take: else so many are delivered at once.
    """

    skip: int
    take: int


@dataclass(frozen=True, slots=True)
class Quarantine:
    """What is known about the records of one shard. Each step gives a new one.

    Args:
        suspects: among whom the cause of the last failure is; None: nobody is suspected.
        set_aside: positions that were dealt with otherwise and are not delivered any more, in order.
    """

    suspects: Suspects | None = None
    set_aside: tuple[Position, ...] = ()

    @property
    def is_clear(self) -> bool:
        """Whether batches can be delivered as they come."""
        return self.suspects is None and not self.set_aside

    def next(self, positions: Sequence[Position]) -> Next:
        """What to do with the first of these.

        Suspects are halved, nobody else is mixed with them, and records on both sides of one that was set aside are
        delivered apart: it has neighbours of its kind more often than chance would have it.

        Args:
            positions: of the rest of a batch, in order; one at least.
        """
        skip = self._set_aside_first(positions)
        if skip:
            return Next(skip, 0)
        end = self._up_to_next_set_aside(positions)
        suspects = self.suspects
        if suspects is None or positions[0] > suspects.last:
            return Next(0, end)
        innocent = bisect_right(positions, suspects.after, hi=end)
        if innocent:
            return Next(0, innocent)
        inside = bisect_right(positions, suspects.last, hi=end)
        return Next(0, min(inside, (suspects.count + 1) // 2))

    def delivered(self, delivery: Delivery) -> Quarantine:
        """After a child was done with a delivery: nobody in it is suspected any more."""
        suspects = self.suspects
        if suspects is None or delivery.last <= suspects.after:
            return self
        if delivery.last >= suspects.last:
            return replace(self, suspects=None)
        left = max(1, suspects.count - delivery.count)
        return replace(self, suspects=Suspects(delivery.last, suspects.last, left))

    def failed(self, delivery: Delivery, *, tries: int) -> tuple[Quarantine, Verdict]:
        """After a child failed at a delivery, for a reason that may lie in the records.

        GUILTY changes nothing yet: the record is left out only after `put_aside`, and is delivered again without it.

        Args:
            delivery: what it was given.
            tries: how many times in a row one record must fail alone, at least 1.
        """
        before = self.suspects
        failures = 0
        if delivery.count == 1:
            same = before is not None and before.count == 1 and before.last == delivery.last
            failures = before.failures if same and before is not None else 0
            failures += delivery.alone
        suspects = Suspects(delivery.after, delivery.last, delivery.count, failures)
        verdict = Verdict.SUSPECTED
        if failures >= tries:
            verdict = Verdict.GUILTY
        elif before is not None and before.hold(delivery) and delivery.count < before.count:
            verdict = Verdict.NARROWED
        return replace(self, suspects=suspects), verdict

    def put_aside(self, position: Position) -> Quarantine:
        """After a record was dealt with otherwise."""
        kept = list(self.set_aside)
        if position not in kept:
            insort(kept, position)
        return Quarantine(None, tuple(kept))

    def checkpointed(self, position: Position) -> Quarantine:
        """After a checkpoint: what it covers will not be read again."""
        kept = self.set_aside[bisect_right(self.set_aside, position) :]
        suspects = self.suspects
        if suspects is not None and suspects.last <= position:
            suspects = None
        if suspects is not None and suspects.after < position:
            suspects = replace(suspects, after=position)
        return Quarantine(suspects, kept)

    def _set_aside_first(self, positions: Sequence[Position]) -> int:
        """How many at the beginning were set aside."""
        known = bisect_left(self.set_aside, positions[0])
        count = 0
        for position, aside in zip(positions, self.set_aside[known:], strict=False):
            if position != aside:
                break
            count += 1
        return count

    def _up_to_next_set_aside(self, positions: Sequence[Position]) -> int:
        known = bisect_left(self.set_aside, positions[0])
        if known == len(self.set_aside):
            return len(positions)
        return bisect_left(positions, self.set_aside[known])
