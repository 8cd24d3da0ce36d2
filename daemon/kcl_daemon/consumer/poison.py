"""Finds the record at which children fail, and sets it aside (no counterpart in KCL).

The bisect works on positions, because records come in other batches when read again. Only records that were
set aside are left out.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final

from kcl_daemon.config.children import PoisonRecordPolicy
from kcl_daemon.consumer.connection import Checkpointer, ChildConnection
from kcl_daemon.consumer.context import ConsumerContext, StopSignal
from kcl_daemon.consumer.lane import Lane
from kcl_daemon.consumer.set_aside import SetAside
from kcl_daemon.errors import AwsError, ChildError, ChildExited, LeaseLost
from kcl_daemon.ports import Log
from kcl_daemon.records.batch import Batch
from kcl_daemon.records.batch_text import EncodedBatch
from kcl_daemon.records.dead_letter import DeadLetter, LetterCause
from kcl_daemon.retrieval.source import DeliveryBatch
from kcl_protocol.sequence import ExtendedSequenceNumber as Position


@dataclass(frozen=True, slots=True)
class Delivery:
    """`count` may be too high, never too low. `after`: the last position done before. `alone`: one record by itself."""

    after: Position
    last: Position
    count: int
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Suspects:
    """`failures` of the one record alone, `attempts` of it in any company."""

    after: Position
    last: Position
    count: int
    failures: int = 0
    attempts: int = 0


class BisectResult(Enum):
    SUSPECTED = auto()
    NARROWED = auto()
    GUILTY = auto()
    TRIED_ENOUGH = auto()


@dataclass(frozen=True, slots=True)
class BisectStep:
    skip: int
    take: int


@dataclass(frozen=True, slots=True)
class BisectState:
    suspects: Suspects | None = None
    set_aside: tuple[Position, ...] = ()

    def is_clear(self, done: Position) -> bool:
        return self.suspects is None and all(each <= done for each in self.set_aside)

    def next(self, positions: Sequence[Position]) -> BisectStep:
        """Suspects are halved and never mixed with other records.

        Neighbours of a record that was set aside are delivered apart: they are often bad, too.
        """
        if skip := self._set_aside_first(positions):
            return BisectStep(skip, 0)
        end = self._before_next_set_aside(positions)
        suspects = self.suspects
        if suspects is None or positions[0] > suspects.last:
            return BisectStep(0, end)
        innocent = bisect_right(positions, suspects.after, hi=end)
        if innocent:
            return BisectStep(0, innocent)
        inside = bisect_right(positions, suspects.last, hi=end)
        return BisectStep(0, min(inside, (suspects.count + 1) // 2))

    def delivered(self, delivery: Delivery) -> BisectState:
        suspects = self.suspects
        if suspects is None or delivery.last <= suspects.after:
            return self
        if delivery.last >= suspects.last:
            return replace(self, suspects=None)
        left = max(1, suspects.count - delivery.count)
        return replace(
            self, suspects=Suspects(delivery.last, suspects.last, left, attempts=suspects.attempts)
        )

    def failed(
        self, delivery: Delivery, *, tries: int, attempts: int | None = None
    ) -> tuple[BisectState, BisectResult]:
        """One record must fail `tries` times in a row alone, or the records of a delivery `attempts` times among any.

        GUILTY and TRIED_ENOUGH only propose: the records are left out after `with_set_aside`, else delivered again.
        """
        before = self.suspects
        failures = 0
        if delivery.count == 1:
            if before is not None and before.count == 1 and before.last == delivery.last:
                failures = before.failures
            failures += delivery.alone
        known = before is not None and before.after <= delivery.after and delivery.last <= before.last
        tried = 1 + (before.attempts if before is not None and known else 0)
        suspects = Suspects(delivery.after, delivery.last, delivery.count, failures, tried)
        verdict = BisectResult.SUSPECTED
        if failures >= tries:
            verdict = BisectResult.GUILTY
        elif attempts is not None and tried >= attempts:
            verdict = BisectResult.TRIED_ENOUGH
        elif known and before is not None and delivery.count < before.count:
            verdict = BisectResult.NARROWED
        return replace(self, suspects=suspects), verdict

    def with_set_aside(self, *positions: Position) -> BisectState:
        return BisectState(None, tuple(sorted({*self.set_aside, *positions})))

    def checkpointed(self, position: Position) -> BisectState:
        kept = self.set_aside[bisect_right(self.set_aside, position) :]
        suspects = self.suspects
        if suspects is not None and suspects.last <= position:
            suspects = None
        if suspects is not None and suspects.after < position:
            suspects = replace(suspects, after=position)
        return BisectState(suspects, kept)

    def _set_aside_first(self, positions: Sequence[Position]) -> int:
        known = bisect_left(self.set_aside, positions[0])
        count = 0
        for position, aside in zip(positions, self.set_aside[known:], strict=False):
            if position != aside:
                break
            count += 1
        return count

    def _before_next_set_aside(self, positions: Sequence[Position]) -> int:
        known = bisect_left(self.set_aside, positions[0])
        if known == len(self.set_aside):
            return len(positions)
        return bisect_left(positions, self.set_aside[known])


# From an operator or the OOM killer; shells report 128 + number.
_EXTERNAL_SIGNALS: Final = frozenset({1, 2, 9, 15})
_SHELL_SIGNAL_BASE: Final = 128


@dataclass(frozen=True, slots=True)
class SearchProgress:
    """`progressed`: further than any child before. `narrowed`: there are fewer suspects."""

    progressed: bool = False
    narrowed: bool = False


class PoisonSearch:
    def __init__(
        self, *, parts: ConsumerContext, lane: Lane, stop_signal: StopSignal, log: Log, set_aside: SetAside
    ) -> None:
        self._parts = parts
        self._aside = set_aside
        self._lane = lane
        self._stop_signal = stop_signal
        self._log = log
        self._settings = parts.settings.failures
        self._state = BisectState()
        self._done = self._furthest = self._furthest_before = lane.checkpoint
        self._in_delivery: Delivery | None = None
        self._given: Batch | EncodedBatch | None = None
        """The records of `_in_delivery`, where they may be needed."""

    def begin(self) -> None:
        self._furthest_before = self._furthest = max(self._furthest, self._lane.checkpoint)
        self._in_delivery, self._single = None, None

    def begins_at(self, position: Position) -> None:
        """What was set aside after it is not delivered again, also where the lease is further."""
        self._done = position
        self._state = self._state.checkpointed(position)

    async def deliver(
        self,
        batch: DeliveryBatch,
        connection: ChildConnection,
        checkpointer: Checkpointer,
        may_go_on: Callable[[], Awaitable[bool]],
    ) -> bool:
        """In parts while records are suspected. The caller releases the batch.

        `may_go_on` is asked between the parts, and may wait; where it says no, the rest is left out: False.
        """
        assert batch.last is not None, "there is a record"
        # Forgotten when a child begins: it may do so before the lease's checkpoint.
        if self._state.is_clear(min(self._done, self._lane.checkpoint)):
            delivery = Delivery(self._done, batch.last, batch.count)
            self._given = (
                None if self._settings.attempts is None else batch.take_encoded(connection.encoder, keep=True)
            )
            await self._deliver_part(batch, delivery, connection, checkpointer)
            return True
        whole = batch.take()
        positions = [record.position for record in whole.records]
        begin = 0
        while begin < len(whole) and (not begin or await may_go_on()):
            step = self._state.next(positions[begin:])
            end = begin + step.skip + step.take
            if step.take:
                part = whole.part(begin, end)
                delivery = Delivery(self._done, positions[end - 1], step.take, alone=step.take == 1)
                is_kept = delivery.alone or self._settings.attempts is not None
                self._given = part if is_kept else None
                given = DeliveryBatch(part)
                await self._deliver_part(given, delivery, connection, checkpointer)
            else:
                self._done = positions[end - 1]
                checkpointer.passed(self._done)
            begin = end
        return begin == len(whole)

    async def _deliver_part(
        self,
        batch: DeliveryBatch,
        delivery: Delivery,
        connection: ChildConnection,
        checkpointer: Checkpointer,
    ) -> None:
        if connection.silent:
            raise await connection.exited("idle")

        def before_send() -> None:
            self._in_delivery = delivery
            checkpointer.delivering(delivery.last)

        progress, data_bytes, span_s = self._lane.progress, batch.data_bytes, batch.span_s
        progress.works("processRecords", arrived_s=batch.arrived_s)
        checkpointer.begin_batch()
        await connection.deliver(batch, before_send=before_send)
        stored = self._lane.checkpoint
        progress.done(delivery.last, delivery.count, data_bytes, span_s=span_s, stored=stored)
        self._in_delivery = self._given = None
        self._state = self._state.delivered(delivery)
        self._done = delivery.last
        self._furthest = max(self._furthest, self._done)

    async def judge(self, error: ChildError, *, refused: bool, stderr: tuple[str, ...]) -> SearchProgress:
        """May set a record aside. `refused`: a checkpoint failed, which may be why the child failed."""
        progressed = self._furthest > self._furthest_before
        delivery, self._in_delivery = self._in_delivery, None
        if delivery is None or refused or _is_external_signal(error):
            return SearchProgress(progressed)
        settings, given = self._settings, self._given
        self._given = None
        self._state, verdict = self._state.failed(
            delivery, tries=settings.poison_tries, attempts=settings.attempts
        )
        if given is not None and verdict in {BisectResult.GUILTY, BisectResult.TRIED_ENOUGH}:
            cause = LetterCause.FAILED if verdict is BisectResult.GUILTY else LetterCause.ATTEMPTS
            await self._set_aside(given, cause, delivery.after, error, stderr)
        self._log.info(
            "poison_record_search",
            records=delivery.count,
            after=str(delivery.after),
            last=str(delivery.last),
            verdict=verdict.name.lower(),
        )
        return SearchProgress(progressed, narrowed=verdict is BisectResult.NARROWED)

    async def _set_aside(
        self,
        given: Batch | EncodedBatch,
        cause: LetterCause,
        after: Position,
        error: ChildError,
        stderr: tuple[str, ...],
    ) -> None:
        payload = (given if isinstance(given, Batch) else given.decoded()).payload
        suspects = self._state.suspects
        assert suspects is not None, "there has just been a failure"
        failures = suspects.failures if cause is LetterCause.FAILED else suspects.attempts
        letters = [
            self._aside.letter(record, cause, str(error), failures=failures, stderr=stderr)
            for record in payload.decoded()
        ]
        skips = self._settings.poison is PoisonRecordPolicy.SKIP
        if not skips and any(await self._aside.store(letters)):
            return
        self._tell(letters, skips=skips)
        self._aside.counted(cause, len(letters), str(error))
        self._state = self._state.with_set_aside(*(each.position for each in payload.records))
        self._lane.progress.moved()
        await self._checkpoint(after, payload.last)

    def _tell(self, letters: Sequence[DeadLetter], *, skips: bool) -> None:
        first = letters[0]
        facts = {
            "sequence_number": first.record.sequence_number,
            "sub_sequence_number": first.record.sub_sequence_number,
            "records": len(letters),
            "cause": first.cause.value,
            "failures": first.failures,
            "error": first.error,
        }
        if skips:
            self._log.error(
                "record_skipped",
                **facts,
                advice="no child can process it, and poisonRecordPolicy=SKIP skips it; read it in the stream "
                "before its retention ends, and fix the processor",
            )
        else:
            self._log.error(
                "record_set_aside",
                **facts,
                destination=str(self._settings.dead_letters),
                advice="no child can process it; it is stored there with the last stderr lines of the child. "
                "Fix the processor, then process it from there",
            )

    async def _checkpoint(self, after: Position, position: Position) -> None:
        """Only if all records before it are checkpointed; it saves the next worker the search."""
        if self._lane.lost is not None or self._lane.checkpoint < after:
            return
        try:
            await self._lane.store(position)
        except (AwsError, LeaseLost) as error:
            # The child's next checkpoint covers it.
            self._log.debug("set_aside_not_checkpointed", error=str(error))


def _is_external_signal(error: ChildError) -> bool:
    """It says nothing about the records."""
    if not isinstance(error, ChildExited) or error.status is None:
        return False
    number = -error.status if error.status < 0 else error.status - _SHELL_SIGNAL_BASE
    return number in _EXTERNAL_SIGNALS
