"""A child that lands its records: production's rules of a shard's writer and its manifests, over a store far away.

Owns what production's lander does around them (its thread of a shard), and what befalls the calls to the store. Knows
nothing of what must be in the log (`landing`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeVar
from zlib import crc32

import msgspec

from kcl_landing.log import Begin, Entry, Footer, segment_path
from kcl_landing.manifests import ShardLog
from kcl_landing.positions import START, Position, position
from kcl_landing.shard import Adopt, Call, Create, Find, Look, Note, NoteTip, ShardLanding
from kcl_landing.store import LogStore, NoObject, StoreTrouble
from kcl_landing.writer import Limits, LogAltered, ShardWriter, Tail, Taken
from kcl_protocol.codec import encode
from kcl_protocol.messages import (
    Action,
    CheckpointAnswer,
    CheckpointRequest,
    DaemonMessage,
    Initialize,
    LeaseLost,
    ProcessRecords,
    Record,
    ShardEnded,
    ShutdownRequested,
    Status,
)
from kcl_protocol.sequence import SHARD_END, ExtendedSequenceNumber
from tests.simulator.blocking import Blocking, HandedOver, Request
from tests.simulator.clock import EPOCH_S
from tests.simulator.faults.behaviour import Mischief
from tests.simulator.fleet.program import LEASE_GONE, READ, Exit, Print, Program, Read, Script, Step, Wait
from tests.simulator.fleet.stream import STREAM_NAME
from tests.simulator.loop import current_loop, now
from tests.simulator.rules.landing import APPLICATION, Fate, Landing, Segment, read_footer, stamped_ms
from tests.simulator.violation import report

_EXIT_LET_GO: Final = 75
_WAYS_S: Final = (0.0005, 0.01)
_SLOW_S: Final = (0.5, 20.0)
_BELATED_S: Final = (0.05, 60.0)
_FLUSH_S: Final = 8.0
_OPEN_PAUSE_S: Final = 0.5
_LOOK_S: Final = 0.1
_LONGEST_WAIT_S: Final = 3_600.0

T = TypeVar("T")
Steps = Generator[Step, DaemonMessage | None, T]


@dataclass(frozen=True)
class Rows:
    """Part of production's rules."""

    at: tuple[Position, ...]
    arrivals_ms: tuple[int | None, ...]
    sizes: tuple[int, ...]

    @property
    def rows(self) -> int:
        """How many."""
        return len(self.at)

    @property
    def size_bytes(self) -> int:
        """Of all of them."""
        return sum(self.sizes)

    @property
    def last(self) -> Position:
        """Of the last one."""
        return self.at[-1]

    def split(self, before: Sequence[int]) -> Sequence[Rows]:
        """Cut before each of these rows."""
        edges = [0, *before, self.rows]
        return [self._part(low, high) for low, high in pairwise(edges)]

    def behind(self, mark: Position) -> Rows | None:
        """What comes after a position."""
        first = sum(1 for each in self.at if each <= mark)
        return self._part(first, self.rows) if first < self.rows else None

    def _part(self, low: int, high: int) -> Rows:
        return Rows(self.at[low:high], self.arrivals_ms[low:high], self.sizes[low:high])


class ShortSighted(ShardLog):
    """With `looked_at` as in a stream of so many shards that it sees only some of the newest objects."""

    looked_at: int | None = None

    def _beyond(self, last: Entry | None, most: int | None) -> Iterator[Entry]:
        return super()._beyond(last, self.looked_at if most else most)


class LandingProgram(Program):
    """One child's script."""

    _shard: ShardLanding[Rows]
    _log: ShortSighted
    _begun: ExtendedSequenceNumber | None = None
    _is_open = False
    _asked: Position | None = None
    _is_stopped = False

    @property
    def _landing(self) -> Landing:
        assert self._children_plan.landing is not None
        return self._children_plan.landing

    def _next_message(self) -> Steps[DaemonMessage | None]:
        while True:
            yield from self._perform()
            due_s = self._shard.due_s() if self._is_open else None
            read = Read(_LONGEST_WAIT_S if due_s is None else max(due_s - now(), 0.001))
            message = yield read
            if isinstance(message, CheckpointAnswer):
                self._answered(message)
            if not read.is_late:
                return message
            yield from self._ask_while_idle()

    def _act(self, message: Action, mischief: Mischief | None) -> Script:
        if self._asked is not None:
            answer = yield READ
            if not isinstance(answer, CheckpointAnswer):
                raise Exit(1)
            self._hear(answer)
            self._answered(answer)
        match message:
            case Initialize():
                yield from self._begin(message)
            case ProcessRecords(records, behind_ms):
                yield from self._land(records, behind_ms, message.complete_ms)
            case ShardEnded(children):
                yield from self._end(children)
            case ShutdownRequested():
                self._is_stopped = True
                yield from self._flush(until_s=now() + _FLUSH_S)
                yield from self._checkpoint_durable()
            case LeaseLost():
                self._shard.forget()
                self._landing.let_go(self._shard.writer.writer)
            case _:
                pass

    def _begin(self, message: Initialize) -> Script:
        child, landing = self._identity, self._landing
        assert child.token is not None
        self._store = HandedOver()
        self._log = ShortSighted(
            self._store, landing.info, STREAM_NAME, child.shard_id, read_footer, marks=landing.plan.marks
        )
        self._log.looked_at = landing.plan.looked_at
        stored = position(message.sequence_number, message.sub_sequence_number)
        tail = yield from self._open(stored)
        landing.began(child.shard_id)
        try:
            writer = ShardWriter(tail, stored, token=child.token, writer=self._chance.token())
        except LogAltered as altered:
            report("log_altered", f"{child}: {altered}")
            raise Exit(1) from None
        plan = landing.plan
        limits = Limits(plan.window_ms, plan.max_bytes)
        is_scan = child.shard_id.rpartition(":")[2].startswith("snapshot-")
        self._shard = ShardLanding(writer, stored, limits, by_hour=plan.layout == "dated", is_scan=is_scan)
        self._is_open = True
        landing.writing[child.number] = self._shard
        if tail.number >= 0 and tail.last > START:
            self._begun = _extended(tail.last)
            self._deliveries.begins_at(child, self._begun)

    def _open(self, stored: Position) -> Steps[Tail]:
        while True:
            try:
                return (
                    yield from self._blocking(
                        lambda: self._log.open(is_new=stored == START, checkpoint=stored)
                    )
                )
            except StoreTrouble:
                yield Wait(_OPEN_PAUSE_S)

    def _land(self, records: Sequence[Record], behind_ms: int | None, complete_ms: int | None) -> Script:
        yield Wait(self._chance.uniform(*self._behaviour.process_s))
        shard = self._shard
        rows = self._rows(records)
        if rows is not None:
            shard.take(rows.behind(shard.writer.mark), rows.last, rows.rows, now())
            self._landing.holds(self._identity.shard_id, shard.waiting_bytes, rows.size_bytes)
        shard.at(behind_ms, complete_ms)
        while shard.waiting_bytes > self._landing.plan.memory_bytes:
            yield from self._flush(until_s=now())
            yield from self._wait_for_retry()
        yield from self._perform()
        yield from self._checkpoint_durable()

    def _rows(self, records: Sequence[Record]) -> Rows | None:
        if not records:
            return None
        return Rows(
            tuple(position(each.sequence_number, each.sub_sequence_number) for each in records),
            tuple(map(self._arrived_ms, records)),
            tuple(len(each.data) for each in records),
        )

    def _arrived_ms(self, record: Record) -> int | None:
        at_ms = record.approximate_arrival_timestamp
        return None if at_ms is None else stamped_ms(self._landing.plan, int(record.sequence_number), at_ms)

    def _end(self, children: Sequence[str] | None) -> Script:
        self._shard.end(children)
        yield from self._flush(until_s=None)
        self._deliveries.asked(self._identity, SHARD_END)
        yield from self._checkpoint(CheckpointRequest(), at_end=True)

    def _checkpoint_durable(self) -> Script:
        durable = self._shard.checkpoint()
        if durable is None:
            return
        yield from self._checkpoint(CheckpointRequest(str(durable[0]), durable[1]))
        self._shard.stored = durable

    def _ask_while_idle(self) -> Script:
        """What has become durable meanwhile; the answer comes as a message."""
        may_ask = self._is_open and self._asked is None and not self._is_stopped
        durable = self._shard.checkpoint() if may_ask else None
        if durable is not None:
            request = CheckpointRequest(str(durable[0]), durable[1])
            self._asked = durable
            self._deliveries.asked(self._identity, _extended(durable))
            self._conversation.send(request)
            yield Print(encode(request))

    def _answered(self, answer: CheckpointAnswer) -> None:
        asked, self._asked = self._asked, None
        assert asked is not None
        self._deliveries.answered(self._identity, _extended(asked), answer.error)
        if answer.error is None:
            self._shard.stored = max(self._shard.stored, asked)
        elif answer.error == LEASE_GONE:
            self._shard.forget()

    def _flush(self, *, until_s: float | None) -> Script:
        """Until all is durable, or the time is up."""
        while True:
            yield from self._perform(flush=True)
            if self._shard.is_landed or (until_s is not None and now() >= until_s):
                return
            yield from self._wait_for_retry()

    def _wait_for_retry(self) -> Script:
        due_s = self._shard.due_s()
        yield Wait(_LOOK_S if due_s is None else max(due_s - now(), 0.01))

    def _perform(self, *, flush: bool = False) -> Script:
        if not self._is_open:
            return
        while (call := self._shard.next_call(now(), flush=flush)) is not None:
            try:
                answer = yield from self._answer(call)
                self._shard.done(call, answer)
                if isinstance(call, Find):
                    self._met()
            except StoreTrouble:
                self._shard.trouble(now())
            except LogAltered as altered:
                report("log_altered", f"{self._identity}: {altered}")
                raise Exit(1) from None
            if self._shard.has_let_go:
                self._landing.let_go(self._shard.writer.writer)
                raise Exit(_EXIT_LET_GO)

    def _met(self) -> None:
        taken, landing = self._shard.taken, self._landing
        assert taken is not None
        landing.faults[f"log number taken: {taken.name}"] += 1
        if taken is Taken.NEWER:
            landing.let_go(self._shard.writer.writer)

    def _answer(self, call: Call[Rows]) -> Steps[Entry | Footer | None]:
        at_ms = round((EPOCH_S + now()) * 1000)
        match call:
            case Create():
                return (yield from self._create(call))
            case Find(number, first_ms, is_end):
                found = yield from self._blocking(lambda: self._log.footer(number, first_ms, is_end))
                if found is None:
                    raise StoreTrouble("failed", "it is not there")
                return found
            case Note(entry, behind_ms):
                yield from self._blocking(lambda: self._log.append(entry, behind_ms=behind_ms, at_ms=at_ms))
            case NoteTip(behind_ms):
                yield from self._blocking(lambda: self._log.at_tip(behind_ms=behind_ms, at_ms=at_ms))
            case Look(behind_ms):
                yield from self._blocking(lambda: self._log.mend(behind_ms=behind_ms, at_ms=at_ms))
            case Adopt(footer, behind_ms):
                yield from self._blocking(lambda: self._log.adopt(footer, behind_ms=behind_ms, at_ms=at_ms))
        return None

    def _create(self, call: Create[Rows]) -> Steps[Entry | None]:
        child, landing, writer = self._identity, self._landing, self._shard.writer
        landing.about_to_write(child.worker_id, child.shard_id, self._chance)
        yield Wait(self._chance.uniform(0.0, 0.01))
        other: Begin | None = None
        if call.after == START:
            begins = call.number, call.first_ms, call.children is not None
            other = yield from self._blocking(lambda: self._log.other_begin(*begins))
        if other is not None and other.is_end:
            return None
        call = call if other is None else call.empty(other.first_ms)
        footer = call.footer(
            application=APPLICATION,
            stream=STREAM_NAME,
            shard=child.shard_id,
            token=writer.token,
            writer=writer.writer,
        )
        parts = call.draft.parts if call.draft else []
        rows = tuple(where for part in parts for where in part.at)
        arrivals_ms = tuple(each for part in parts for each in part.arrivals_ms)
        content = msgspec.json.encode(Segment(footer, rows, now(), arrivals_ms))
        path = segment_path(
            landing.info,
            STREAM_NAME,
            child.shard_id,
            number=call.number,
            to=call.number,
            first_ms=call.first_ms,
            is_end=call.children is not None,
        )
        is_new = yield from self._at_store("create", path, lambda store: store.create(path, content))
        return footer.entry(len(content), crc32(content)) if is_new and other is None else None

    def _blocking(self, call: Callable[[], T]) -> Steps[T]:
        steps = Blocking(self._store, call).steps()
        answer: object = None
        try:
            while True:
                kind, path, request = steps.send(answer)
                try:
                    answer = yield from self._at_store(kind, path, request)
                except (StoreTrouble, NoObject) as error:
                    answer = error
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            steps.close()

    def _at_store(self, kind: str, path: str, request: Request) -> Steps[object]:
        """A call and its answer. It arrives also where this process is stopped or dead by then."""
        landing, answers = self._landing, list[object]()
        fate = landing.fate(self._chance)
        there_s, back_s = (
            self._chance.uniform(*(_SLOW_S if fate is Fate.SLOW else _WAYS_S)) for _ in range(2)
        )
        is_old = kind == "read" and landing.is_old(path, self._chance)

        def arrive() -> None:
            answers.append(
                _carry_out(landing, kind, (lambda store: landing.read_before(path)) if is_old else request)
            )

        if fate not in {Fate.REFUSED, Fate.LOST}:
            delay_s = self._chance.uniform(*_BELATED_S) if fate is Fate.BELATED else 0.0
            current_loop().after(there_s + delay_s, arrive)
        yield Wait(there_s + back_s)
        if fate is Fate.REFUSED:
            raise StoreTrouble("slow down", "refused")
        if fate in {Fate.LOST, Fate.UNANSWERED, Fate.BELATED}:
            raise StoreTrouble("unreachable", "no answer")
        while not answers:
            yield Wait(_LOOK_S)
        if isinstance(answers[0], Exception):
            raise answers[0]
        return answers[0]

    def _status(self, message: Action) -> Status:
        status = super()._status(message)
        if self._begun is None or not isinstance(message, Initialize):
            return status
        number, sub_number = self._begun.sequence_number, self._begun.sub_sequence_number
        return Status(
            status.response_for, status.frames, sequence_number=number, sub_sequence_number=sub_number
        )


def _extended(where: Position) -> ExtendedSequenceNumber:
    return ExtendedSequenceNumber(str(where[0]), where[1])


def _carry_out(landing: Landing, kind: str, request: Callable[[LogStore], object]) -> object:
    if kind in {"create", "replace"} and landing.is_full:
        return StoreTrouble("full", "no space")
    try:
        return request(landing)
    except NoObject as error:
        return error
