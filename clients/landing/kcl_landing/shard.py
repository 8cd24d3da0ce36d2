"""The rules of one shard's writer: what is buffered, when a segment is due, what an answer of the store means.

Pure. Who drives it performs the calls:

    while (call := landing.next_call(now_s)) is not None:
        try: landing.done(call, <what the store said>)
        except StoreTrouble: landing.trouble(now_s)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Generic, Protocol, Self, TypeAlias, TypeVar

from kcl_landing.log import Entry, Footer, Mark, said
from kcl_landing.positions import START, Position
from kcl_landing.writer import Limits, LogAltered, ShardWriter, Taken, cuts, known_arrivals

_FIRST_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 30.0
_FIRST_LOOK_S: Final = 60.0
_LONGEST_LOOK_S: Final = 480.0
"""A late write comes when its host wakes. 1,000 quiet shards cost two requests a second."""
_NEVER_MS: Final = 2**63
_DISORDER_MS: Final = 1_000


class Part(Protocol):
    """At least one record."""

    @property
    def rows(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def last(self) -> Position: ...
    @property
    def arrivals_ms(self) -> Sequence[int | None]: ...
    def split(self, before: Sequence[int]) -> Sequence[Self]: ...

    def behind(self, mark: Position) -> Self | None: ...


P = TypeVar("P", bound=Part)


@dataclass(eq=False, slots=True)
class Draft(Generic[P]):
    """`since_s`: when its first record came."""

    since_s: float
    parts: list[P] = field(default_factory=list[P])
    size_bytes: int = 0
    rows: int = 0
    first_ms: int = 0
    last_ms: int = 0
    opened_ms: int | None = None
    earliest_ms: int = _NEVER_MS
    is_closed: bool = False

    @property
    def last(self) -> Position:
        return self.parts[-1].last

    def add(self, part: P) -> None:
        arrivals = part.arrivals_ms
        if not self.parts:
            self.first_ms = arrivals[0] or 0
        if known := known_arrivals(arrivals):
            self.opened_ms = known[0] if self.opened_ms is None else self.opened_ms
            self.last_ms = max(self.last_ms, max(known))  # noqa: PLW3301 - thousands of arguments
            self.earliest_ms = min(self.earliest_ms, min(known))  # noqa: PLW3301
        self.parts.append(part)
        self.size_bytes += part.size_bytes
        self.rows += part.rows


@dataclass(frozen=True, slots=True)
class Create(Generic[P]):
    """Without a draft the end of the shard.

    The answer: its entry, or None if the number is taken.
    """

    number: int
    after: Position
    last: Position
    rows: int
    first_ms: int
    last_ms: int
    draft: Draft[P] | None
    children: tuple[str, ...] | None = None

    def footer(self, *, application: str, stream: str, shard: str, token: int, writer: str) -> Footer:
        return Footer(
            application,
            stream,
            shard,
            number=self.number,
            to=self.number,
            after=said(self.after),
            last=said(self.last),
            rows=self.rows,
            first_ms=self.first_ms,
            last_ms=self.last_ms,
            token=token,
            writer=writer,
            children=self.children,
        )

    def empty(self, first_ms: int) -> Create[P]:
        """Without records, under the name by which another writer finds it."""
        return replace(
            self, last=self.after, rows=0, first_ms=first_ms, last_ms=first_ms, draft=None, children=None
        )


@dataclass(frozen=True, slots=True)
class Find:
    """The footer of our number. If it is not there, that is trouble."""

    number: int
    first_ms: int
    is_end: bool


@dataclass(frozen=True, slots=True)
class Note:
    entry: Entry
    behind_ms: int | None


@dataclass(frozen=True, slots=True)
class NoteTip:
    behind_ms: int


@dataclass(frozen=True, slots=True)
class Adopt:
    footer: Footer
    behind_ms: int | None


@dataclass(frozen=True, slots=True)
class Look:
    behind_ms: int | None


Call: TypeAlias = Create[P] | Find | Note | NoteTip | Adopt | Look
"""The last four write the manifest; their answer is None."""


def retry_pause_s(failures: int) -> float:
    return float(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (failures - 1)))


class ShardLanding(Generic[P]):
    """Another thread may read `mark`.

    `failures`: since the store last worked. `redelivered`: records that the log has.
    """

    def __init__(
        self, writer: ShardWriter, stored: Position, limits: Limits, *, by_hour: bool, is_scan: bool = False
    ) -> None:
        self.writer = writer
        self.stored = stored
        self.delivered: Position = START
        self.taken: Taken | None = None
        self.has_let_go = False
        self.failures = 0
        self.redelivered = 0
        self.mark: Mark | None = None
        self.drafts: deque[Draft[P]] = deque()
        self._limits = limits
        self._by_hour, self._is_scan = by_hour, is_scan
        self._children: tuple[str, ...] | None = None
        self._is_taken = False
        self._found_footer: Footer | None = None
        self._unnoted: deque[Entry] = deque()
        self._retry_s = 0.0
        self._look_pause_s = _FIRST_LOOK_S
        self._look_s: float | None = None
        self._behind_ms: int | None = None
        self._noted_behind_ms: int | None = None
        self._reached_ms: int | None = None
        self._begun_ms: int | None = None

    @property
    def waiting_bytes(self) -> int:
        return sum(each.size_bytes for each in self.drafts)

    @property
    def is_landed(self) -> bool:
        """Also the end, and in the manifest."""
        is_ended = self._children is None or self.writer.tail.is_ended
        return is_ended and not (self.drafts or self._unnoted or self._found_footer)

    def take(self, part: P | None, last: Position, rows: int, now_s: float) -> None:
        """`rows` records up to `last` were delivered; `part` is what is new."""
        self.delivered = max(self.delivered, last)
        self.redelivered += rows - (part.rows if part is not None else 0)
        if part is None or self.has_let_go or self._is_over():
            return
        opened_ms = self.drafts[-1].opened_ms if self._is_open else None
        begins = cuts(part.arrivals_ms, opened_ms, self._limits, by_hour=self._by_hour)
        for index, piece in enumerate(part.split([each for each in begins if each])):
            self._add(piece, now_s, is_cut=index > 0 or begins[:1] == [0])
        self.writer.take(last)
        if known := known_arrivals(part.arrivals_ms):
            self._begun_ms = min(known) if self._begun_ms is None else self._begun_ms
            newest_ms = max(known) - _DISORDER_MS
            if newest_ms >= self._begun_ms:
                self._reached_ms = max(newest_ms, self._reached_ms or 0)

    def at(self, behind_ms: int | None, complete_ms: int | None = None) -> None:
        """After `take`. `complete_ms`: all that arrived before has been delivered."""
        self._behind_ms = behind_ms
        if complete_ms is not None:
            self._reached_ms = max(complete_ms, self._reached_ms or 0)
        self._state()

    def end(self, children: Sequence[str] | None) -> None:
        self._children = tuple(children or ())

    def forget(self) -> None:
        self.drafts.clear()
        self.has_let_go = True
        self.mark = None

    def next_call(self, now_s: float, *, flush: bool = False) -> Call[P] | None:
        """`flush`: segments are due now. None: nothing before `due_s`."""
        if self.has_let_go or (self.failures and now_s < self._retry_s):
            return None
        if self._unnoted:
            return Note(self._unnoted[0], self._behind_ms)
        if self._found_footer is not None:
            return Adopt(self._found_footer, self._behind_ms)
        create = self._create(now_s, flush=flush or self._children is not None)
        if create is None:
            return NoteTip(0) if self._must_note_tip else self._look(now_s)
        if self._is_taken:
            return Find(create.number, create.first_ms, create.children is not None)
        return create

    def due_s(self) -> float | None:
        """Unless more comes. None: never."""
        is_pending = self._unnoted or self._found_footer or self._must_note_tip
        if self.has_let_go or not (is_pending or self.drafts):
            return None
        begins_s = 0.0 if is_pending or self._children is not None else self._draft_due_s(self.drafts[0])
        return max(begins_s, self._retry_s) if self.failures else begins_s

    def done(self, call: Call[P], answer: Entry | Footer | None) -> None:
        """Raises LogAltered."""
        self.failures = 0
        most_s = 2 * self._look_pause_s if isinstance(call, Look) else _FIRST_LOOK_S
        self._look_pause_s, self._look_s = min(most_s, _LONGEST_LOOK_S), None
        match call:
            case Create():
                self._created(call, answer)
            case Find():
                self._found(answer)
            case Note():
                self._unnoted.popleft()
            case Adopt():
                self._found_footer = None
            case NoteTip() | Look():
                pass
        if not isinstance(call, Create | Find):
            self._noted_behind_ms = call.behind_ms
        self._state()

    def trouble(self, now_s: float) -> None:
        self.failures += 1
        self._is_taken = False
        self._retry_s = now_s + retry_pause_s(self.failures)

    def checkpoint(self) -> Position | None:
        """None: nothing new."""
        durable = min(self.delivered, self.writer.tail.last)
        return durable if durable > self.stored and not self.has_let_go else None

    def _state(self) -> None:
        if self._reached_ms is None or self._unnoted or self._found_footer or self.has_let_go:
            return
        complete_ms = min(
            self._reached_ms, min((each.earliest_ms for each in self.drafts), default=_NEVER_MS)
        )
        if self.mark is not None:
            complete_ms = max(complete_ms, self.mark.complete_ms)
        self.mark = Mark(self.writer.tail.number, complete_ms, self.writer.token)

    def _look(self, now_s: float) -> Look | None:
        """No timer wakes the writer: answers at the tip do."""
        if self.drafts or self.writer.tail.number < 0 or self.writer.tail.is_ended:
            return None
        if self._look_s is None:
            self._look_s = now_s + self._look_pause_s
        return Look(self._behind_ms) if now_s >= self._look_s else None

    @property
    def _must_note_tip(self) -> bool:
        is_new = self._behind_ms == 0 and self._noted_behind_ms != 0
        return is_new and not self.drafts and not self.writer.tail.is_ended

    @property
    def _is_open(self) -> bool:
        return bool(self.drafts) and not self.drafts[-1].is_closed

    def _add(self, piece: P, now_s: float, *, is_cut: bool) -> None:
        too_much = self._is_open and self.drafts[-1].size_bytes + piece.size_bytes > self._limits.max_bytes
        if self._is_open and (is_cut or too_much):
            self.drafts[-1].is_closed = True
        if not self._is_open:
            self.drafts.append(Draft(now_s))
        draft = self.drafts[-1]
        draft.add(piece)
        draft.is_closed = draft.size_bytes >= self._limits.max_bytes

    def _draft_due_s(self, draft: Draft[P]) -> float:
        return draft.since_s + (0.0 if draft.is_closed else self._limits.window_ms / 1000)

    def _create(self, now_s: float, *, flush: bool) -> Create[P] | None:
        tail = self.writer.tail
        if self.drafts:
            draft = self.drafts[0]
            if not flush and now_s < self._draft_due_s(draft):
                return None
            until = draft.last, draft.rows, draft.first_ms, draft.last_ms
            return Create(self.writer.next_number, tail.last, *until, draft)
        if self._children is None or tail.is_ended:
            return None
        until = tail.last, 0, tail.last_ms, tail.last_ms
        return Create(self.writer.next_number, tail.last, *until, None, self._children)

    def _created(self, call: Create[P], entry: Entry | Footer | None) -> None:
        if not isinstance(entry, Entry):
            self._is_taken = True
            return
        self.writer.created(call.last, call.last_ms, is_end=call.children is not None)
        if call.draft is not None:
            self.drafts.popleft()
        self._unnoted.append(entry)

    def _found(self, found: Entry | Footer | None) -> None:
        assert isinstance(found, Footer)
        self._is_taken = False
        self.taken = self.writer.taken(found)
        if self.taken is Taken.NEWER or (self.taken is Taken.EARLIER and self._is_scan):
            self.forget()
            return
        self._drop_written()
        self._found_footer = found
        if self.drafts and self._is_over():
            self.drafts.clear()

    def _is_over(self) -> bool:
        """LogAltered, but not for a scan: what another one finds is landed with the stream."""
        tail = self.writer.tail
        if tail.is_ended and not self._is_scan:
            raise LogAltered(f"segment {tail.number} is the end of the shard, but more records came")
        return tail.is_ended

    def _drop_written(self) -> None:
        mark = self.writer.tail.last
        while self.drafts and self.drafts[0].last <= mark:
            self.redelivered += self.drafts.popleft().rows
        if not self.drafts:
            return
        old = self.drafts[0]
        new = Draft[P](old.since_s)
        for part in old.parts:
            if (rest := part.behind(mark)) is not None:
                new.add(rest)
        new.is_closed = old.is_closed
        self.redelivered += old.rows - new.rows
        self.drafts[0] = new
