"""Tests a record processor without a daemon: `drive` gives it records and reports what it did."""

from __future__ import annotations

import sys
from binascii import b2a_base64
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from kcl_client._processor import (
    AsyncRecordProcessor,
    Checkpointer,
    PlainRuntime,
    RecordProcessor,
    check_processor,
    complete,
)
from kcl_client._run import EXIT_USER_ERROR
from kcl_client._session import Concurrency, Order, ProcessorFailed, Session, SessionOptions
from kcl_protocol.codec import Stray
from kcl_protocol.conversation import DaemonSide
from kcl_protocol.errors import (
    CheckpointError,
    CheckpointIllegalArgument,
    NoDeadLetterDestination,
    RecordNotInBatch,
    RejectError,
)
from kcl_protocol.messages import (
    Action,
    CheckpointAnswer,
    CheckpointRequest,
    ChildMessage,
    DaemonMessage,
    Initialize,
    LeaseLost,
    Message,
    ProcessRecords,
    Record,
    RecordSchema,
    Reject,
    RejectAnswer,
    Scalar,
    ShardEnded,
    ShutdownRequested,
    Status,
)
from kcl_protocol.sequence import SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber

__all__ = [
    "CheckpointOutcome",
    "Ending",
    "Payload",
    "RejectOutcome",
    "Report",
    "drive",
    "make_record",
    "processor_of",
]

Payload = bytes | str | Record
CheckpointOutcome = type[CheckpointError] | str | None
RejectOutcome = type[RejectError] | str | None

_OPTIONS: Final = SessionOptions(takes_rejects=True)
_FIRST_SEQUENCE_NUMBER: Final = 49_640_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000_000_001


class MemoryDaemon:
    """`errors` and `rejects` are wire names for the first checkpoints and rejects; None stores."""

    def __init__(
        self,
        actions: Iterable[Action],
        errors: Iterable[str | None],
        rejects: Iterable[str | None],
        start: ExtendedSequenceNumber,
        *,
        dead_letters: bool,
    ) -> None:
        self.messages: list[Message] = []
        self.checkpoints: list[ExtendedSequenceNumber] = []
        self.refusals: list[str] = []
        self._actions = deque(actions)
        self._errors = deque(errors)
        self._reject_errors = deque(rejects)
        self._dead_letters = dead_letters
        self._batch: set[ExtendedSequenceNumber] = set()
        self._stored = self._delivered = start
        self._answers: deque[CheckpointAnswer | RejectAnswer] = deque()
        self._side = DaemonSide(max_line_bytes=sys.maxsize)

    def read(self) -> bytes:
        if self._answers:
            return self._say(self._answers.popleft())
        if not self._actions:
            return b""
        action = self._actions.popleft()
        if isinstance(action, ProcessRecords) and action.records:
            positions = [_position(each) for each in action.records]
            self._batch, self._delivered = set(positions), positions[-1]
        elif isinstance(action, ShardEnded):
            self._delivered = SHARD_END
        return self._say(action)

    def write(self, data: bytes) -> None:
        for message in self._side.receive_data(data):
            if isinstance(message, Stray) and message.blank:
                continue
            assert isinstance(message, ChildMessage), f"not a child's message: {message}"
            self._side.receive(message)
            self.messages.append(message)
            if isinstance(message, Status) and message.sequence_number is not None:
                self._begin_after(
                    ExtendedSequenceNumber(message.sequence_number, message.sub_sequence_number or 0)
                )
            if isinstance(message, CheckpointRequest):
                self._answers.append(self._judge(message))
            elif isinstance(message, Reject):
                self._answers.append(self._judge_reject(message))

    def _begin_after(self, position: ExtendedSequenceNumber) -> None:
        self._stored = self._delivered = position
        for index, action in enumerate(self._actions):
            if isinstance(action, ProcessRecords):
                left = [each for each in action.records if _position(each) > position]
                self._actions[index] = replace(action, records=left)

    def _say(self, message: DaemonMessage) -> bytes:
        self.messages.append(message)
        return self._side.send_data(message)

    def _judge(self, request: CheckpointRequest) -> CheckpointAnswer:
        error = self._errors.popleft() if self._errors else None
        if error is None:
            error = self._store(request)
        if error is not None:
            self.refusals.append(error)
        return CheckpointAnswer(request.sequence_number, request.sub_sequence_number, error)

    def _judge_reject(self, request: Reject) -> RejectAnswer:
        error = self._reject_errors.popleft() if self._reject_errors else None
        if error is None and not self._dead_letters:
            error = NoDeadLetterDestination.wire_name
        if error is None and _position(request) not in self._batch:
            error = RecordNotInBatch.wire_name
        return RejectAnswer(request.sequence_number, request.sub_sequence_number, error)

    def _store(self, request: CheckpointRequest) -> str | None:
        number = request.sequence_number
        position = (
            self._delivered
            if number is None
            else ExtendedSequenceNumber(number, request.sub_sequence_number or 0)
        )
        if not self._stored <= position <= self._delivered:
            return CheckpointIllegalArgument.wire_name
        self._stored = position
        self.checkpoints.append(position)
        return None


def _position(message: Record | Reject) -> ExtendedSequenceNumber:
    return ExtendedSequenceNumber(str(message.sequence_number), message.sub_sequence_number or 0)


class Ending(Enum):
    """What comes after the last record, before the daemon closes the connection."""

    SHARD_ENDED = "shard ended"
    LEASE_LOST = "lease lost"
    SHUTDOWN = "shutdown"
    CLOSED = "closed"

    @property
    def messages(self) -> tuple[Action, ...]:
        match self:
            case Ending.SHARD_ENDED:
                return (ShardEnded(),)
            case Ending.LEASE_LOST:
                return (LeaseLost(),)
            case Ending.SHUTDOWN:
                return (ShutdownRequested(), LeaseLost())
            case Ending.CLOSED:
                return ()


@dataclass(frozen=True, slots=True)
class Report:
    """What a driven processor did; all in order.

    Args:
        messages: of both sides.
        checkpoints: the positions stored; the end of the shard as SHARD_END.
        refusals: wire names of the errors that checkpoints were answered with.
        backoffs_s: seconds between tries of a checkpoint; not actually waited.
        exception: what left a method of the processor and ended the run.
        exit_code: of the process.
    """

    messages: tuple[Message, ...]
    checkpoints: tuple[ExtendedSequenceNumber, ...]
    refusals: tuple[str, ...]
    backoffs_s: tuple[float, ...]
    exception: BaseException | None
    exit_code: int

    @property
    def last_checkpoint(self) -> ExtendedSequenceNumber | None:
        """Where the next process of this shard would start."""
        return self.checkpoints[-1] if self.checkpoints else None

    @property
    def rejected(self) -> tuple[tuple[ExtendedSequenceNumber, str], ...]:
        """Position and reason of each record that became a dead letter."""
        asked = [message for message in self.messages if isinstance(message, Reject)]
        answers = [message for message in self.messages if isinstance(message, RejectAnswer)]
        return tuple(
            (_position(each), each.reason)
            for each, answer in zip(asked, answers, strict=False)
            if answer.error is None
        )

    @property
    def pauses_s(self) -> tuple[float, ...]:
        """What `Batch.pause` asked for; not actually waited."""
        pauses_ms = (message.pause_ms for message in self.messages if isinstance(message, Status))
        return tuple(pause_ms / 1000 for pause_ms in pauses_ms if pause_ms is not None)


def make_record(
    data: bytes | str,
    *,
    sequence_number: str = str(_FIRST_SEQUENCE_NUMBER),
    sub_sequence_number: int = 0,
    partition_key: str | None = "key",
    arrival_ms: int | None = None,
    schema: RecordSchema | None = None,
) -> Record:
    """A record for `drive` when more than the payload matters; text becomes UTF-8."""
    payload = data.encode() if isinstance(data, str) else data
    return Record(
        data=b2a_base64(payload, newline=False).decode("ascii"),
        partition_key=partition_key,
        sequence_number=sequence_number,
        approximate_arrival_timestamp=arrival_ms,
        sub_sequence_number=sub_sequence_number,
        schema=schema,
    )


def processor_of(function: Callable[..., object]) -> RecordProcessor | AsyncRecordProcessor:
    """What `kcl-daemon run STREAM MODULE:FUNCTION` makes of a function: `drive(processor_of(handle), records)`.

    CannotRun: it cannot be called with a record; says why, with file and line.
    """
    from kcl_client import _function_processors

    return _function_processors.processor_of(function)


def drive(
    processor: RecordProcessor | AsyncRecordProcessor,
    records: Iterable[Payload],
    *,
    shard_id: str = "shardId-000000000000",
    start: ExtendedSequenceNumber = TRIM_HORIZON,
    batch_size: int = 100,
    ending: Ending = Ending.SHARD_ENDED,
    checkpoint_errors: Sequence[CheckpointOutcome] = (),
    reject_errors: Sequence[RejectOutcome] = (),
    dead_letters: bool = False,
    concurrency: int | None = None,
    order: Order = "key",
    fencing_token: int | None = None,
) -> Report:
    """Run a processor over records, from `initialize` to the end of the connection.

    Args:
        processor: an instance of your class.
        records: payloads, which get rising sequence numbers, or records of `make_record`, used unchanged.
        shard_id: passed to `initialize`.
        start: the last checkpoint, passed to `initialize`.
        batch_size: records in each `process_records`.
        ending: what happens after the last batch.
        checkpoint_errors: answers to the first checkpoints: an error or its wire name; None stores, as for later ones.
        reject_errors: the same for rejects.
        dead_letters: the daemon has a `deadLetterDestination`, or refuses all rejects. With it and `concurrency`
            each batch is finished before the next one comes.
        concurrency: as for `run`.
        order: as for `run`.
        fencing_token: passed to `initialize`. If that returns a position, the records up to it are left out.

    Raises:
        TypeError, ValueError: as `run`; `batch_size` is not positive.
    """
    check_processor(processor, concurrency)
    options = Concurrency(1 if concurrency is None else concurrency, order, finish_batches=dead_letters)
    extra: dict[str, Scalar] = {} if fencing_token is None else {"fencingToken": fencing_token}
    begin = Initialize(shard_id, str(start.sequence_number), start.sub_sequence_number, extra=extra)
    daemon = MemoryDaemon(
        _actions(begin, list(records), batch_size, ending),
        map(_wire_name, checkpoint_errors),
        map(_wire_name, reject_errors),
        start,
        dead_letters=dead_letters,
    )
    backoffs_s: list[float] = []
    if isinstance(processor, AsyncRecordProcessor):
        exit_code, exception = _run_async(processor, daemon, options, backoffs_s)
    else:
        runtime = PlainRuntime(daemon.read, daemon.write, backoffs_s.append)
        session = Session(processor, Checkpointer, runtime, _OPTIONS)
        exit_code, exception = complete(_outcome(session.serve()))
    return Report(
        messages=tuple(daemon.messages),
        checkpoints=tuple(daemon.checkpoints),
        refusals=tuple(daemon.refusals),
        backoffs_s=tuple(backoffs_s),
        exception=exception,
        exit_code=exit_code,
    )


def _run_async(
    processor: AsyncRecordProcessor, daemon: MemoryDaemon, options: Concurrency, backoffs_s: list[float]
) -> tuple[int, BaseException | None]:
    from kcl_client import _asynchronous, _concurrent

    async def read() -> bytes:
        await _asynchronous.pause()
        return daemon.read()

    async def note(seconds: float) -> None:
        backoffs_s.append(seconds)
        await _asynchronous.pause()

    async def main() -> tuple[int, BaseException | None]:
        runtime = _asynchronous.AsyncRuntime(read, daemon.write, note)
        return await _outcome(_concurrent.session_of(processor, runtime, options, _OPTIONS).serve())

    return _asynchronous.run_until_complete(main())


async def _outcome(session: Coroutine[object, object, None]) -> tuple[int, BaseException | None]:
    try:
        await session
    except ProcessorFailed as failure:
        return EXIT_USER_ERROR, failure.__cause__
    except SystemExit as wish:
        code = 1 if isinstance(wish.code, str) else wish.code or 0
        return code, wish
    return 0, None


def _actions(begin: Initialize, records: Sequence[Payload], batch_size: int, ending: Ending) -> list[Action]:
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1: {batch_size}")
    wire = [
        record
        if isinstance(record, Record)
        else make_record(record, sequence_number=str(_FIRST_SEQUENCE_NUMBER + index))
        for index, record in enumerate(records)
    ]
    return [
        begin,
        *(ProcessRecords(wire[first : first + batch_size], 0) for first in range(0, len(wire), batch_size)),
        *ending.messages,
    ]


def _wire_name(outcome: CheckpointOutcome | RejectOutcome) -> str | None:
    return outcome if outcome is None or isinstance(outcome, str) else outcome.wire_name
