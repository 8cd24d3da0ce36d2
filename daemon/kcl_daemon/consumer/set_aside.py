"""Records that are not processed. While a letter cannot be stored the shard waits, and says for what (no counterpart in KCL).

A rejected record is done once its letter is stored. Where a stop comes first, it comes again: this child may not checkpoint at
it or after it. Any other refusal is final, and the record stays the child's to process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import anyio

from kcl_daemon import faults
from kcl_daemon.consumer.context import ConsumerContext, StopReason, StopSignal
from kcl_daemon.consumer.lane import Lane
from kcl_daemon.errors import AwsError, DeadLetterNotStored, DeadLetterTooLarge
from kcl_daemon.fleet.lease_renewer import lease_labels
from kcl_daemon.metrics.own import SET_ASIDE
from kcl_daemon.ports import Clock, DeadLetterBatches, Log
from kcl_daemon.records.batch_text import EncodedBatch, Find
from kcl_daemon.records.dead_letter import DeadLetter, LetterCause
from kcl_protocol.errors import CheckpointIllegalArgument, CheckpointInvalidState, CheckpointShutdown
from kcl_protocol.messages import Record, Reject, RejectAnswer
from kcl_protocol.sequence import ExtendedSequenceNumber

Unstored = AwsError | DeadLetterNotStored | DeadLetterTooLarge

_TRY_S: Final = 30.0
_LAST_TRY_S: Final = 5.0
_PAUSE_S: Final = 1.0
_PAUSE_MOST_S: Final = 60.0
_TRIES_BEFORE_ERROR: Final = 5
_TOLD_AGAIN_S: Final = 600.0
_AT_ONCE: Final = 16
_REASON_CHARACTERS: Final = 100
_REASONS: Final = 5
_SUMMARY_EVERY_S: Final = 60.0
_ADVICE: Final = (
    "the shard waits at this record until it can be stored, and goes on by itself: check permissions, network, free "
    "space and size limits of the destination"
)
_TOO_LARGE_ADVICE: Final = (
    "the shard waits at this record: set deadLetterOverflow = s3://BUCKET, or a destination that takes records of any "
    "size, as file:PATH or s3://BUCKET"
)
NO_DESTINATION: Final = "NoDeadLetterDestination"
TOO_LARGE: Final = "DeadLetterTooLarge"
_REASON_KEPT: Final = 8 * 1024

_Numbers = tuple[str, int]


class SetAside:
    def __init__(self, *, parts: ConsumerContext, lane: Lane, stop_signal: StopSignal, log: Log) -> None:
        self._parts = parts
        self._lane = lane
        self._stop_signal = stop_signal
        self._log = log
        self._clock = parts.context.clock
        self._labels = lease_labels(lane.lease)
        self.destination = parts.settings.failures.dead_letters
        self.may_need_batch = parts.settings.failures.attempts is not None
        self._told_s = -_TOLD_AGAIN_S
        self._reasons: Counter[str] = Counter()
        self._summed_s = self._expired_told_s = -_SUMMARY_EVERY_S
        self._expired = 0

    def letter(
        self,
        record: Record,
        cause: LetterCause,
        error: str,
        *,
        failures: int = 0,
        stderr: tuple[str, ...] = (),
    ) -> DeadLetter:
        parts, lease = self._parts, self._lane.lease
        stream = parts.streams.of(lease).ref
        return DeadLetter(
            record=record,
            application_name=parts.settings.application_name,
            stream_name=stream.name,
            stream_arn=stream.arn,
            shard_id=lease.shard_id,
            worker_id=parts.settings.worker_id,
            set_aside_ms=self._clock.wall_ms(),
            failures=failures,
            error=error,
            stderr=stderr,
            cause=cause,
        )

    async def store(
        self,
        letters: Sequence[DeadLetter],
        *,
        refuses_large: bool = False,
        given_up: Callable[[], bool] = lambda: False,
    ) -> list[Unstored | None]:
        """Tries until all are stored; None for each that is.

        Else its error: after a stop request or once `given_up`, and with `refuses_large` DeadLetterTooLarge.
        """
        found: list[Unstored | None] = [DeadLetterNotStored("the lease is lost")] * len(letters)
        left, progress = list(range(len(letters))), self._lane.progress
        attempt, is_last = 0, False
        progress.storing(str(self.destination))
        try:
            while left and not is_last and self._lane.lost is None and not given_up():
                if attempt and self._stop_signal.reason is StopReason.NONE:
                    await self._pause(letters[left[0]], found[left[0]], attempt)
                attempt, is_last = attempt + 1, self._stop_signal.reason is not StopReason.NONE
                tried = await self._tried([letters[each] for each in left], given_up, is_last=is_last)
                for place, error in zip(left, tried, strict=True):
                    found[place] = error
                left = [each for each in left if not _is_settled(found[each], refuses_large)]
        finally:
            progress.stored()
        return found

    async def _pause(self, letter: DeadLetter, error: Unstored | None, failures: int) -> None:
        self._tell(letter, str(error), failures, is_final=isinstance(error, DeadLetterTooLarge))
        self._lane.progress.storing(f"{self.destination}: {error}")
        pause_s = min(_PAUSE_S * 2 ** min(failures - 1, 10), _PAUSE_MOST_S)
        await self._stop_signal.interruptible(lambda: self._clock.sleep(pause_s))

    def _tell(self, letter: DeadLetter, error: str, failures: int, *, is_final: bool) -> None:
        if failures <= _TRIES_BEFORE_ERROR:
            self._log.warning("dead_letter_failed", error=error, attempt=failures)
        now_s = self._clock.monotonic()
        if (is_final or failures >= _TRIES_BEFORE_ERROR) and now_s - self._told_s >= _TOLD_AGAIN_S:
            self._told_s = now_s
            self._log.error(
                "dead_letter_not_stored",
                error=error,
                destination=str(self.destination),
                sequence_number=letter.record.sequence_number,
                advice=_TOO_LARGE_ADVICE if is_final else _ADVICE,
            )

    async def _tried(
        self, letters: Sequence[DeadLetter], given_up: Callable[[], bool], *, is_last: bool
    ) -> list[Unstored | None]:
        if is_last and self._lane.lost is None:
            return await self._try(letters, _LAST_TRY_S)
        while self._stop_signal.reason is StopReason.NONE and not given_up():
            # Also interrupted where the child says something or ends.
            found = await self._stop_signal.interruptible(lambda: self._try(letters, _TRY_S))
            if found is not None:
                return found
        return [DeadLetterNotStored("the daemon stops, or the child has ended")] * len(letters)

    async def _try(self, letters: Sequence[DeadLetter], limit_s: float) -> list[Unstored | None]:
        place = self._parts.dead_letters
        assert place is not None, "what is stored has a destination"
        found: list[Unstored | None] = [None] * len(letters)
        limiter = anyio.CapacityLimiter(_AT_ONCE)

        async def one(number: int, letter: DeadLetter) -> None:
            async with limiter:
                found[number] = await self._within(self._clock, place.store(letter), limit_s)

        if isinstance(place, DeadLetterBatches):
            return [await self._within(self._clock, place.store_all(letters), limit_s)] * len(letters)
        if len(letters) == 1:
            return [await self._within(self._clock, place.store(letters[0]), limit_s)]
        async with anyio.create_task_group() as tasks:
            for number, letter in enumerate(letters):
                tasks.start_soon(one, number, letter)
        return found

    @staticmethod
    async def _within(clock: Clock, storing: Awaitable[None], limit_s: float) -> Unstored | None:
        with clock.move_on_after(limit_s):
            try:
                await storing
                faults.maybe("after-letter-stored")
            except (AwsError, DeadLetterNotStored, DeadLetterTooLarge) as error:
                return error
            return None
        return DeadLetterNotStored(f"no answer within {limit_s:g} s")

    def counted(self, cause: LetterCause, count: int, reason: str) -> None:
        self._parts.context.meters.add(SET_ASIDE, count, **self._labels, cause=cause.value)
        self._lane.progress.set_aside.add(cause.value, count, reason)

    def rejected(self, reasons: Iterable[str]) -> None:
        self._reasons.update(reason[:_REASON_CHARACTERS] for reason in reasons)
        if self._clock.monotonic() - self._summed_s >= _SUMMARY_EVERY_S:
            self.summarize()

    def expired(self, count: int, first_arrived_ms: int | None) -> None:
        self._expired += count
        if self._clock.monotonic() - self._expired_told_s >= _SUMMARY_EVERY_S:
            self._tell_expired(first_arrived_ms)

    def _tell_expired(self, arrived_ms: int | None = None) -> None:
        self._expired_told_s = self._clock.monotonic()
        self._log.warning(
            "records_expired",
            records=self._expired,
            arrived_ms=arrived_ms,
            destination=None if self.destination is None else str(self.destination),
            advice="they were older than maxRecordAgeMillis and were not delivered: the shard is further behind than "
            "that; add workers, or make the processor faster",
        )
        self._expired = 0

    def summarize(self) -> None:
        if self._expired:
            self._tell_expired()
        if self._reasons:
            self._summed_s = self._clock.monotonic()
            self._log.info(
                "records_rejected",
                records=self._reasons.total(),
                reasons=dict(self._reasons.most_common(_REASONS)),
                destination=str(self.destination),
            )
            self._reasons.clear()


def _is_settled(error: Unstored | None, refuses_large: bool) -> bool:
    return error is None or (refuses_large and isinstance(error, DeadLetterTooLarge))


@dataclass(frozen=True, slots=True)
class _Refusal:
    """`error` is a wire name."""

    error: str
    message: str


_NOT_CONFIGURED: Final = _Refusal(
    NO_DESTINATION,
    "a rejected record is stored as a dead letter, and there is no place for it: set deadLetterDestination in the "
    "properties of the daemon",
)
_NOT_NOW: Final = _Refusal(
    CheckpointInvalidState.wire_name,
    "records can be rejected only while they are processed, in processRecords",
)
_NOT_THERE: Final = _Refusal(
    CheckpointIllegalArgument.wire_name,
    "no record of the current batch has this sequenceNumber and subSequenceNumber",
)


class Rejects:
    """Of one child. `set_aside` None: nothing can be rejected.

    The text of a batch is kept from `begin` to `end` if `keeps_batch`, also for `maxRecordAttempts`.
    """

    def __init__(self, set_aside: SetAside | None, log: Log | None = None) -> None:
        has_place = set_aside is not None and set_aside.destination is not None
        self._set_aside = set_aside if has_place else None
        self.keeps_batch = has_place or (set_aside is not None and set_aside.may_need_batch)
        self._log = log
        self._find: Find | None = None
        self._stored: set[_Numbers] = set()
        self._unstored: set[ExtendedSequenceNumber] = set()

    @property
    def held_back(self) -> ExtendedSequenceNumber | None:
        """The first record that is neither done nor a letter."""
        return min(self._unstored, default=None)

    def begin(self, batch: EncodedBatch) -> None:
        self._find = batch.framing.finder(batch.data)

    def end(self) -> None:
        self._find = None
        self._stored.clear()

    async def answer(
        self, requests: Sequence[Reject], given_up: Callable[[], bool], *, possible: bool = True
    ) -> list[RejectAnswer]:
        """Once it is stored or refused. `possible`: the child processes records."""
        refused, letters = dict[_Numbers, _Refusal](), dict[_Numbers, DeadLetter]()
        for request in requests:
            numbers = _numbers(request)
            if numbers not in self._stored and numbers not in letters:
                found = self._letter(request, numbers) if possible else _NOT_NOW
                if isinstance(found, _Refusal):
                    refused[numbers] = found
                else:
                    letters[numbers] = found
        if letters:
            refused.update(await self._store(letters, given_up))
        if refused and self._log is not None:
            first = next(iter(refused.values()))
            self._log.warning("reject_refused", records=len(refused), error=first.error, reason=first.message)
        return [_answer(each, refused.get(_numbers(each))) for each in requests]

    def _letter(self, request: Reject, numbers: _Numbers) -> DeadLetter | _Refusal:
        if self._set_aside is None:
            return _NOT_CONFIGURED
        record = None if self._find is None else self._find(*numbers)
        if record is None:
            return _NOT_THERE
        return self._set_aside.letter(record, LetterCause.REJECTED, request.reason[:_REASON_KEPT])

    async def _store(
        self, letters: dict[_Numbers, DeadLetter], given_up: Callable[[], bool]
    ) -> dict[_Numbers, _Refusal]:
        assert self._set_aside is not None, "there are letters only with a destination"
        errors = await self._set_aside.store(list(letters.values()), refuses_large=True, given_up=given_up)
        refused = dict[_Numbers, _Refusal]()
        for numbers, error in zip(letters, errors, strict=True):
            if error is None:
                self._stored.add(numbers)
                self._unstored.discard(ExtendedSequenceNumber(*numbers))
                continue
            refused[numbers] = _refusal(error)
            if not isinstance(error, DeadLetterTooLarge):
                self._unstored.add(ExtendedSequenceNumber(*numbers))
        reasons = [letter.error for numbers, letter in letters.items() if numbers not in refused]
        if reasons:
            self._set_aside.counted(LetterCause.REJECTED, len(reasons), reasons[-1])
            self._set_aside.rejected(reasons)
        return refused


class RejectsByHand(Rejects):
    """For tools that keep the records they give."""

    def __init__(self, reject: Callable[[Reject], Awaitable[RejectAnswer]]) -> None:
        super().__init__(None)
        self._reject = reject

    async def answer(
        self,
        requests: Sequence[Reject],
        given_up: Callable[[], bool],  # noqa: ARG002 - as above
        *,
        possible: bool = True,
    ) -> list[RejectAnswer]:
        return [await self._reject(each) if possible else _answer(each, _NOT_NOW) for each in requests]


def _numbers(request: Reject) -> _Numbers:
    return request.sequence_number or "", request.sub_sequence_number or 0


def _refusal(error: Unstored) -> _Refusal:
    if isinstance(error, DeadLetterTooLarge):
        return _Refusal(TOO_LARGE, str(error))
    return _Refusal(
        CheckpointShutdown.wire_name,
        f"the letter could not be stored before a stop ({error}); the record comes again to the next child, and this "
        "one cannot checkpoint at it or after it",
    )


def _answer(request: Reject, refusal: _Refusal | None) -> RejectAnswer:
    error, message = (None, None) if refusal is None else (refusal.error, refusal.message)
    return RejectAnswer(request.sequence_number, request.sub_sequence_number, error, message)
