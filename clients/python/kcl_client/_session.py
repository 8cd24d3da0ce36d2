"""One shard's session: when methods are called, actions are done and checkpoints are possible."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from typing import ClassVar, Final, Generic, Literal, ParamSpec, Protocol, TypeVar, assert_never

from kcl_client._processor import (
    CHECKPOINT_ATTEMPTS,
    FIRST_BACKOFF_S,
    Batch,
    ItemFailures,
    Record,
    Redelivery,
    RejectRecord,
    ShardStart,
    Store,
    batch_of,
    failed_records,
    rejection_of,
    request_for,
)
from kcl_protocol.codec import decode_daemon_line
from kcl_protocol.conversation import ChildSide
from kcl_protocol.errors import (
    CheckpointError,
    CheckpointInvalidState,
    CheckpointShutdown,
    RejectError,
    RemoteProtocolError,
    checkpoint_error,
    reject_error,
)
from kcl_protocol.frames import framed_records
from kcl_protocol.messages import (
    FRAMES_VERSION,
    Action,
    CheckpointAnswer,
    CheckpointRequest,
    ChildMessage,
    DaemonMessage,
    Initialize,
    LeaseLost,
    ProcessRecords,
    Reject,
    RejectAnswer,
    ShardEnded,
    Shutdown,
    ShutdownRequested,
    Status,
)
from kcl_protocol.sequence import ExtendedSequenceNumber, Sentinel

READ_BYTES: Final = 256 * 1024

P = ParamSpec("P")
T = TypeVar("T")
C = TypeVar("C")
C_contra = TypeVar("C_contra", contravariant=True)

_WHOLE_SHARD: Final = (None, Sentinel.SHARD_END.value)
_SHARD_ENDED_BEFORE_KCL_2: Final = "TERMINATE"


def is_end_of_shard(action: Action) -> bool:
    if isinstance(action, Shutdown):
        return action.reason == _SHARD_ENDED_BEFORE_KCL_2
    return isinstance(action, ShardEnded)


class Processor(Protocol[C_contra]):
    checkpoint_at_shard_end: ClassVar[bool]
    item_failures: ItemFailures

    def initialize(self, start: ShardStart, /) -> object: ...

    def process_records(self, batch: Batch, checkpointer: C_contra, /) -> object: ...

    def lease_lost(self) -> object: ...

    def shard_ended(self, checkpointer: C_contra, /) -> object: ...

    def shutdown_requested(self, checkpointer: C_contra, /) -> object: ...


class Runtime(Protocol):
    @property
    def turn(self) -> AbstractAsyncContextManager[object]:
        """Allows one checkpoint at a time, and no status while one is pending."""
        ...

    async def call(self, method: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> object:
        """TypeError if the method is of the wrong kind: in a plain processor an `async def` would never run."""
        ...

    def read(self) -> Awaitable[bytes]:
        """b"" at the end; ConnectionError if the connection broke."""
        ...

    def write(self, data: bytes, /) -> None:
        """All bytes; ConnectionError once the daemon is gone."""
        ...

    def sleep(self, seconds: float, /) -> Awaitable[object]: ...

    def at_once(self, step: Callable[[], None], /) -> None:
        """If nobody has the turn."""
        ...

    async def finish(self, steps: Coroutine[object, object, T]) -> T:
        """To their end even if the caller is cancelled, or the protocol would break."""
        ...


class ProcessorFailed(Exception):
    """`__cause__`: what a method of the processor raised; `action`: its wire name."""

    def __init__(self, action: str) -> None:
        super().__init__(action)
        self.action = action


class DaemonGone(Exception): ...


Order = Literal["key", "none"]


@dataclass(frozen=True, slots=True)
class Concurrency:
    """`run` explains it. With `finish_batches` a batch is answered only when it is done."""

    most: int = 1
    order: Order = "key"
    checkpoint_every_s: float = 10.0
    max_outstanding: int = 10_000
    max_outstanding_bytes: int = 64 * 1024 * 1024
    finish_batches: bool = False

    def __post_init__(self) -> None:
        if min(self.most, self.max_outstanding, self.max_outstanding_bytes) < 1:
            raise ValueError(f"concurrency and the limits of outstanding records must be at least 1: {self}")
        if not self.checkpoint_every_s > 0:
            raise ValueError(f"checkpoint_every_s must be above 0: {self.checkpoint_every_s}")
        if self.order not in {"key", "none"}:
            raise ValueError(f'order must be "key" or "none": {self.order!r}')


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """`takes_rejects`: the daemon takes rejects and pauses."""

    max_line_bytes: int = sys.maxsize
    takes_frames: bool = False
    takes_rejects: bool = False


class Session(Generic[C]):
    def __init__(
        self,
        processor: Processor[C],
        checkpointer: Callable[[Store], C],
        runtime: Runtime,
        options: SessionOptions,
    ) -> None:
        self._processor = processor
        self._checkpointer = checkpointer(self.store)
        self._runtime = runtime
        self._takes_rejects = options.takes_rejects
        self._rejected: deque[Reject] = deque()
        self._unanswered = 0
        self._refused: RejectError | None = None
        self._pause_s = 0.0
        self._redelivery = Redelivery(processor.item_failures)
        self._frames = FRAMES_VERSION if options.takes_frames else None
        self._side = ChildSide(
            decode_daemon_line,
            max_line_bytes=options.max_line_bytes,
            decode_frame=framed_records if options.takes_frames else None,
        )
        self._whole_shard_stored = False
        self._daemon_gone = False
        self._lease_gone = False
        self._broken: RemoteProtocolError | None = None
        self._begins_at: CheckpointRequest | None = None

    async def serve(self) -> None:
        """Perform the daemon's actions until it closes the connection, even during one.

        Raises:
            ProcessorFailed: the action is not reported as done.
            ProtocolError: the daemon sent something malformed or not allowed.
            SystemExit: the processor called `sys.exit`.
        """
        try:
            while not self._daemon_gone:
                # No variable: an idle child must not keep its last batch in memory.
                await self._perform(await self._next_action())
        except DaemonGone:
            return

    async def store(self, request: CheckpointRequest | None, attempts: int) -> None:
        """All rejected records are dead letters first. CheckpointError: the last refusal; RejectError: the first."""
        if attempts < 1:
            raise ValueError(f"attempts must be at least 1: {attempts}")
        backoff_s = FIRST_BACKOFF_S
        try:
            for _ in range(attempts - 1):
                try:
                    return await self._runtime.finish(self._ask(request))
                except CheckpointError as error:
                    if not error.retryable:
                        raise
                await self._runtime.sleep(backoff_s)
                backoff_s *= 2
            return await self._runtime.finish(self._ask(request))
        except RejectError:
            self._told()
            raise

    def _told(self) -> None:
        """The processor knows of the refusal: it is not raised again."""
        self._refused = None

    def reject(self, record: Record, reason: object) -> None:
        if not self._takes_rejects:
            raise RejectError("this daemon takes no rejects: KCL_REJECTS is not in the environment")
        if self._side.awaiting != ProcessRecords.action:
            raise RejectError("a record can be rejected only while process_records runs with its batch")
        self._rejected.append(rejection_of(record, reason))
        self._runtime.at_once(self._send_rejects)

    def pause(self, seconds: float) -> None:
        self._pause_s = seconds

    async def _next_action(self) -> Action:
        message = await self._receive()
        assert not isinstance(message, CheckpointAnswer | RejectAnswer), (
            "the conversation lets none pass that nobody asked for"
        )
        return message

    async def _receive(self) -> DaemonMessage:
        while (message := self._side.next_message()) is None:
            try:
                data = await self._read()
            except ConnectionError as error:  # only where stdin is a socket
                raise DaemonGone from error
            if not data:
                raise DaemonGone
            self._side.receive_data(data)
        return message

    async def _read(self) -> bytes:
        return await self._runtime.read()

    def _send(self, message: ChildMessage) -> None:
        try:
            self._runtime.write(self._side.send_data(message))
        except ConnectionError as error:
            raise DaemonGone from error

    async def _perform(self, action: Action) -> None:
        self._whole_shard_stored, self._pause_s = False, 0.0
        steps = self._steps(action)
        try:
            await steps
        except (SystemExit, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            if self._broken is None and not self._is_lost_lease(error):
                raise ProcessorFailed(action.action) from error
        async with self._runtime.turn:
            try:
                with suppress(CheckpointError):  # the lease is lost, or `_broken` says more
                    await self._settle()
            except RejectError as error:
                raise ProcessorFailed(action.action) from error
            if self._broken is not None:
                raise self._broken
            if not self._daemon_gone:
                self._send(self._status(action))

    def _status(self, action: Action) -> Status:
        pause_ms, at = round(self._pause_s * 1000) or None, self._begins_at
        if not isinstance(action, Initialize):
            return Status(action.action, pause_ms=pause_ms)
        number, sub_number = (None, None) if at is None else (at.sequence_number, at.sub_sequence_number)
        return Status(action.action, self._frames, pause_ms, number, sub_number)

    async def _initialize(self, start: ShardStart) -> None:
        position = await self._runtime.call(self._processor.initialize, start)
        if position is None:
            return
        if not isinstance(position, Record | ExtendedSequenceNumber):
            raise TypeError(f"initialize returns the position that is done, or None, not {position!r:.80}")
        self._begins_at = request_for(position)

    def _steps(self, action: Action) -> Coroutine[object, object, object]:
        call, processor = self._runtime.call, self._processor
        match action:
            case Initialize():
                return self._initialize(_start(action))
            case ProcessRecords():
                return self._deliver(action)
            case ShutdownRequested():
                return call(processor.shutdown_requested, self._checkpointer)
            case ShardEnded() | Shutdown() if is_end_of_shard(action):
                return self._end_shard()
            case LeaseLost() | ShardEnded() | Shutdown():
                return call(processor.lease_lost)
            case _:
                assert_never(action)

    async def _deliver(self, action: ProcessRecords) -> None:
        again = await self._hand_over(batch_of(action, self))
        while again:
            again = await self._hand_over(again)
        if self._pause_s and not self._takes_rejects:
            await self._runtime.sleep(self._pause_s)
            self._pause_s = 0.0

    async def _hand_over(self, batch: Batch) -> Batch | None:
        try:
            result = await self._runtime.call(self._processor.process_records, batch, self._checkpointer)
        except RejectRecord as error:
            error.add_note("kcl_client: in process_records call batch.reject(record, reason) instead")
            raise
        failed = failed_records(result, batch)
        if failed is None or not batch:
            return None
        left = self._redelivery.after(failed, batch)
        if left.before is not None:
            await self.store(request_for(left.before), CHECKPOINT_ATTEMPTS)
        left.reject(batch)
        if not left.again:
            await self.store(CheckpointRequest(), CHECKPOINT_ATTEMPTS)
        elif left.rejected:
            await self.store(request_for(left.done), CHECKPOINT_ATTEMPTS)
        if left.pause_s:
            await self._runtime.sleep(left.pause_s)
        return left.again

    async def _end_shard(self) -> None:
        processor = self._processor
        await self._runtime.call(processor.shard_ended, self._checkpointer)
        # KCL does not always turn the last position into SHARD_END, but always a request without position.
        if processor.checkpoint_at_shard_end and not self._whole_shard_stored and not self._daemon_gone:
            await self.store(CheckpointRequest(), CHECKPOINT_ATTEMPTS)

    async def _ask(self, request: CheckpointRequest | None) -> None:
        async with self._runtime.turn:
            await self._settle()
            self._refuse_where_impossible()
            if request is None:
                return
            answer = await self._exchange(request)
            if answer.error is None:
                self._whole_shard_stored = request.sequence_number in _WHOLE_SHARD
                return
            error = checkpoint_error(answer.error)
            self._lease_gone = isinstance(error, CheckpointShutdown)
            raise error

    def _send_rejects(self) -> None:
        """In a turn. A lost lease needs none: the records come again."""
        while self._rejected:
            request = self._rejected.popleft()
            if self._lease_gone or self._daemon_gone or self._broken is not None:
                continue
            try:
                self._send(request)
                self._unanswered += 1
            except DaemonGone:
                self._daemon_gone = True

    async def _settle(self) -> None:
        """In a turn: have all rejected records stored.

        Raises:
            RejectError: the first refusal that the processor does not know of: who asked before may have been cancelled.
            CheckpointShutdown: some could not be stored.
        """
        lost: CheckpointShutdown | None = None
        self._send_rejects()
        while self._unanswered:
            answer = await self._exchange(None)
            self._unanswered -= 1
            if isinstance(answer, RejectAnswer) and answer.error is not None:
                said = f"record {answer.sequence_number}: {answer.message or answer.error}"
                match reject_error(answer.error, said):
                    case CheckpointShutdown() as lost:
                        self._lease_gone = True
                    case RejectError() as error:
                        self._refused = self._refused or error
            self._send_rejects()
        if (refusal := self._refused or lost) is not None:
            raise refusal

    async def _exchange(self, request: CheckpointRequest | None) -> CheckpointAnswer | RejectAnswer:
        try:
            if request is not None:
                self._send(request)
            return await self._receive_answer()
        except DaemonGone as error:
            self._daemon_gone, self._unanswered = True, 0
            raise CheckpointShutdown("the daemon has gone; whether this was stored is not known") from error
        except RemoteProtocolError as error:
            # ends the session even if the processor swallows the error below
            self._broken, self._unanswered = error, 0
            raise CheckpointInvalidState(f"the daemon's answer is not understood: {error}") from error

    async def _receive_answer(self) -> CheckpointAnswer | RejectAnswer:
        answer = await self._receive()
        assert isinstance(answer, CheckpointAnswer | RejectAnswer), (
            "the conversation lets nothing else pass here"
        )
        return answer

    def _may_ask(self) -> bool:
        return self._side.may_checkpoint

    def _refuse_where_impossible(self) -> None:
        if self._daemon_gone:
            raise CheckpointShutdown("the daemon has gone; nothing can be stored any more")
        if self._lease_gone:
            raise CheckpointShutdown("the lease was lost; another worker has the shard")
        if self._broken is not None or not self._may_ask():
            raise CheckpointInvalidState(
                "a checkpoint is possible only while process_records, shard_ended or shutdown_requested runs"
            )

    def _is_lost_lease(self, error: BaseException) -> bool:
        """No failure, as leaseLost follows. No record can be skipped: every later checkpoint is refused."""
        if not self._lease_gone and not self._daemon_gone:
            return False
        if isinstance(error, BaseExceptionGroup):
            return error.split(CheckpointShutdown)[1] is None
        return isinstance(error, CheckpointShutdown)


def _start(action: Initialize) -> ShardStart:
    text = action.sequence_number
    if text is None:
        return ShardStart(action.shard_id, None, action.extra)
    try:
        position = ExtendedSequenceNumber(text, action.sub_sequence_number or 0)
    except ValueError as error:
        raise RemoteProtocolError(f"initialize: not a position: {error}") from error
    return ShardStart(action.shard_id, position, action.extra)
