"""Records that a child rejects while it processes them (no counterpart in KCL).

A rejected record is done once its letter is stored. Where a stop comes first, it comes again: this child may not checkpoint at
it or after it. Any other refusal is final, and the record stays the child's to process.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kcl_daemon.consumer.set_aside import SetAside, Unstored
from kcl_daemon.errors import DeadLetterTooLarge
from kcl_daemon.ports import Log
from kcl_daemon.records.batch_text import EncodedBatch, Find
from kcl_daemon.records.dead_letter import DeadLetter, LetterCause
from kcl_protocol.errors import CheckpointIllegalArgument, CheckpointInvalidState, CheckpointShutdown
from kcl_protocol.messages import Reject, RejectAnswer
from kcl_protocol.sequence import ExtendedSequenceNumber

NO_DESTINATION: Final = "NoDeadLetterDestination"
TOO_LARGE: Final = "DeadLetterTooLarge"
_REASON_CHARACTERS: Final = 8 * 1024

_Numbers = tuple[str, int]


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
        return self._set_aside.letter(record, LetterCause.REJECTED, request.reason[:_REASON_CHARACTERS])

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
