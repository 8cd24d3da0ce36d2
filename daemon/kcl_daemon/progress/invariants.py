"""What always holds of one consumer while it runs, and what it did last (docs/reliability.md)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from kcl_daemon.errors import Invariant, InvariantViolated
from kcl_protocol.messages import Action, ProcessRecords, ShardEnded, Shutdown
from kcl_protocol.sequence import ExtendedSequenceNumber as Position

EVENTS_MOST: Final = 200
_BATCHES_MOST: Final = 1000
_FACTS: Final[Mapping[str, tuple[str, ...]]] = {
    "answer": ("to", "position", "error"),
    "batch_taken": ("last", "records"),
    "begin": ("after",),
    "checkpoint": ("position", "stored"),
    "lease": ("counter", "checkpoint"),
    "lost": ("reason",),
    "passed": ("position",),
    "processRecords": ("first", "last", "records"),
    "request": ("asks", "position"),
    "sent": ("action",),
    "status": ("of",),
    "wait": ("for", "detail"),
}


class HeldMemory(Protocol):
    size_bytes: int

    def release(self) -> None: ...


class Invariants:
    """Of one consumer, or of one lane of its `shard`, which has the events.

    A check raises `InvariantViolated`; `on_violation` is called for the consumer's first.
    """

    __slots__ = (
        "_answered",
        "_given",
        "_monotonic",
        "_shard",
        "ended",
        "events",
        "lane",
        "lanes",
        "memory",
        "on_violation",
        "reached",
        "unstored",
        "violation",
    )

    def __init__(
        self,
        monotonic: Callable[[], float] = lambda: 0.0,
        *,
        lane: int | None = None,
        shard: Invariants | None = None,
    ) -> None:
        self._monotonic = monotonic
        self.lane = lane
        self.lanes: list[Invariants] = []
        self._shard = shard or self
        if shard is not None:
            shard.lanes.append(self)
        self.events: deque[tuple[float, int | None, str, tuple[object, ...]]] = (
            deque(maxlen=EVENTS_MOST) if shard is None else shard.events
        )
        self.on_violation: Callable[[], None] = lambda: None
        self.violation: InvariantViolated | None = None
        self.memory: set[HeldMemory] = set()
        """What the consumer has reserved of the worker's limit."""
        self.reached: Position | None = None
        """The last record that was given or passed over; None: no child has begun."""
        self._given = self._answered = 0
        self.ended = False
        self.unstored: deque[Position] = deque()
        """Of a lane: ends of batches that it has not checkpointed."""

    def note(self, event: str, *facts: object) -> None:
        self.events.append((self._monotonic(), self.lane, event, facts))

    def violated(self, invariant: Invariant, expected: object, seen: object) -> InvariantViolated:
        error, shard = InvariantViolated(invariant, str(expected), str(seen)), self._shard
        if shard.violation is None:
            shard.violation = error
            shard.on_violation()
        return error

    def begins(self, after: Position) -> None:
        """A child is initialized, or says where it begins; with lanes: its children may begin."""
        self.reached = after
        self._given, self._answered, self.ended = 0, 0, False
        self.unstored.clear()
        self.note("begin", after)

    def gives(self, first: Position | None, last: Position | None, count: int) -> None:
        """Before a batch is written into the child's stdin; no positions: it is empty."""
        if self._given != self._answered:
            raise self.violated(
                Invariant.ANSWERED_ONCE, f"{self._given} batches answered", f"{self._answered} answers"
            )
        if first is not None and last is not None:
            reached = self.reached
            if last < first or (reached is not None and not reached < first):
                raise self.violated(
                    Invariant.POSITIONS_GROW, f"records after {reached}", f"{first} to {last}"
                )
            self.reached = last
            if self._shard is not self:
                self._shard.reaches(last)
                if len(self.unstored) < _BATCHES_MOST:
                    self.unstored.append(last)
        self._given += 1
        self.note("processRecords", first, last, count)

    def sent(self, action: Action) -> None:
        if isinstance(action, ProcessRecords):
            self.gives(None, None, len(action.records))
            return
        self.ended |= isinstance(action, ShardEnded) or (
            isinstance(action, Shutdown) and action.reason == "TERMINATE"
        )
        self.note("sent", action.action)

    def answers(self, action: str | None) -> None:
        self.note("status", action)
        if action == ProcessRecords.action:
            self._answered += 1
            if self._answered > self._given:
                raise self.violated(
                    Invariant.ANSWERED_ONCE, f"{self._given} answers", f"{self._answered} answers"
                )

    def passed(self, position: Position) -> None:
        """No other record up to there is for the child."""
        self.reaches(position)
        self._shard.reaches(position)
        self.note("passed", position)

    def reaches(self, position: Position) -> None:
        if self.reached is not None and self.reached < position:
            self.reached = position

    def stores(self, position: Position, stored: Position) -> None:
        """Before a checkpoint is written; `stored` is the last one."""
        if self._shard.violation is not None:
            raise self._shard.violation
        if position < stored:
            raise self.violated(Invariant.CHECKPOINT_WINDOW, f"at or after {stored}", position)
        if position.is_shard_end and self.reached is not None and not self._has_ended:
            raise self.violated(Invariant.CHECKPOINT_WINDOW, "shardEnded before SHARD_END", position)
        if not position.is_shard_end and self.reached is not None and self.reached < position:
            raise self.violated(Invariant.CHECKPOINT_WINDOW, f"at or before {self.reached}", position)
        for lane in self.lanes:
            if lane.unstored and not position < lane.unstored[0]:
                undone = f"before {lane.unstored[0]}, which lane {lane.lane} has not checkpointed"
                raise self.violated(Invariant.CHECKPOINT_WINDOW, undone, position)
        while self.unstored and not position < self.unstored[0]:
            self.unstored.popleft()
        self.note("checkpoint", position, stored)

    @property
    def _has_ended(self) -> bool:
        begun = [lane.ended for lane in self.lanes if lane.reached is not None]
        return all(begun) if begun else self.ended

    def moved(self, before: int, counter: int, checkpoint: Position) -> None:
        self.note("lease", counter, checkpoint)
        if counter < before:
            raise self.violated(Invariant.LEASE_COUNTER, f"{before} or more", counter)

    def ends(self) -> None:
        """What the consumer still holds is given back."""
        if self.memory:
            held_bytes = sum(each.size_bytes for each in self.memory)
            seen = f"{held_bytes} bytes in {len(self.memory)} parts"
            self.give_back()
            raise self.violated(Invariant.MEMORY, "nothing held", seen)

    def give_back(self) -> None:
        for each in tuple(self.memory):
            each.release()

    def evidence(self, **about: object) -> list[dict[str, object]]:
        """The violation, then the last events, oldest first, with their times in seconds before it."""
        now_s, violation = self._monotonic(), self.violation
        assert violation is not None, "something was violated"
        first = {
            "invariant": violation.invariant.value,
            "expected": violation.expected,
            "seen": violation.seen,
        }
        return [first | about, *(_told(now_s, *event) for event in self.events)]


def _told(
    now_s: float, at_s: float, lane: int | None, event: str, facts: tuple[object, ...]
) -> dict[str, object]:
    named = {name: fact if isinstance(fact, int) else str(fact) for name, fact in zip(_FACTS[event], facts, strict=True) if fact is not None}  # fmt: skip
    where = {} if lane is None else {"lane": lane}
    return {"s": round(at_s - now_s, 6), **where, "event": event, **named}


class LiveChildren:
    """Of one worker: who runs each child that was initialized."""

    def __init__(self) -> None:
        self._live: dict[tuple[str, int], object] = {}

    def begins(self, lease_key: str, lane: int, run: object, invariants: Invariants) -> None:
        if self._live.setdefault((lease_key, lane), run) is not run:
            raise invariants.violated(Invariant.ONE_CHILD, "no other child", f"another of lane {lane} lives")

    def ended(self, lease_key: str, lane: int, run: object) -> None:
        if self._live.get((lease_key, lane)) is run:
            del self._live[lease_key, lane]
