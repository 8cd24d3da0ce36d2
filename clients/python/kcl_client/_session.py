"""One shard's session: when methods are called, actions are done and checkpoints are possible.

Plain processors drive the same coroutines over a `PlainRuntime`, which blocks. A method of the wrong kind is
refused: an `async def` in a plain processor would not run, and its records would be lost.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, ParamSpec, Protocol, TypeVar, assert_never

from kcl_client._processor import (
    CHECKPOINT_ATTEMPTS,
    FIRST_BACKOFF_S,
    AsyncCheckpointer,
    AsyncRecordProcessor,
    Batch,
    Checkpointer,
    Record,
    RecordProcessor,
    Scalar,
    ShardStart,
)
from kcl_protocol.codec import decode_daemon_line, encode
from kcl_protocol.conversation import Conversation, Role
from kcl_protocol.errors import (
    CheckpointError,
    CheckpointInvalidState,
    CheckpointShutdown,
    RemoteProtocolError,
    checkpoint_error,
)
from kcl_protocol.framing import LineFramer, OversizedLine
from kcl_protocol.messages import (
    Action,
    CheckpointAnswer,
    CheckpointRequest,
    ChildMessage,
    DaemonMessage,
    Initialize,
    LeaseLost,
    ProcessRecords,
    ShardEnded,
    Shutdown,
    ShutdownRequested,
    Status,
)
from kcl_protocol.sequence import ExtendedSequenceNumber, Sentinel

READ_BYTES: Final = 256 * 1024


P = ParamSpec("P")


class Callbacks(Protocol):
    @property
    def checkpoint_at_shard_end(self) -> bool: ...

    async def initialize(self, start: ShardStart) -> None: ...

    async def process_records(self, batch: Batch) -> None: ...

    async def lease_lost(self) -> None: ...

    async def shard_ended(self) -> None: ...

    async def shutdown_requested(self) -> None: ...


class PlainCallbacks:
    def __init__(self, processor: RecordProcessor, checkpointer: Checkpointer) -> None:
        self._processor = processor
        self._checkpointer = checkpointer

    @property
    def checkpoint_at_shard_end(self) -> bool:
        return self._processor.checkpoint_at_shard_end

    async def initialize(self, start: ShardStart) -> None:
        _call(self._processor.initialize, start)

    async def process_records(self, batch: Batch) -> None:
        _call(self._processor.process_records, batch, self._checkpointer)

    async def lease_lost(self) -> None:
        _call(self._processor.lease_lost)

    async def shard_ended(self) -> None:
        _call(self._processor.shard_ended, self._checkpointer)

    async def shutdown_requested(self) -> None:
        _call(self._processor.shutdown_requested, self._checkpointer)


class AsyncCallbacks:
    def __init__(self, processor: AsyncRecordProcessor, checkpointer: AsyncCheckpointer) -> None:
        self._processor = processor
        self._checkpointer = checkpointer

    @property
    def checkpoint_at_shard_end(self) -> bool:
        return self._processor.checkpoint_at_shard_end

    async def initialize(self, start: ShardStart) -> None:
        await _await(self._processor.initialize, start)

    async def process_records(self, batch: Batch) -> None:
        await _await(self._processor.process_records, batch, self._checkpointer)

    async def lease_lost(self) -> None:
        await _await(self._processor.lease_lost)

    async def shard_ended(self) -> None:
        await _await(self._processor.shard_ended, self._checkpointer)

    async def shutdown_requested(self) -> None:
        await _await(self._processor.shutdown_requested, self._checkpointer)


def _call(method: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    result = method(*args, **kwargs)
    if isinstance(result, Awaitable):
        close = getattr(result, "close", None)
        if callable(close):
            close()  # otherwise Python would add its own warning to the error
        raise TypeError(f"{_name(method)} must not be `async def`; for that derive from AsyncRecordProcessor")


async def _await(method: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    result = method(*args, **kwargs)
    if isinstance(result, Awaitable):
        await result
        return
    raise TypeError(f"{_name(method)} must be `async def`; for a plain method derive from RecordProcessor")


def _name(method: object) -> str:
    return str(getattr(method, "__qualname__", method))


_KNOWN_FIELDS: Final = frozenset({"action", "shardId", "sequenceNumber", "subSequenceNumber"})


class DaemonGone(Exception): ...


class DaemonConnection:
    def __init__(
        self, read: Callable[[], Awaitable[bytes]], write: Callable[[bytes], None], max_line_bytes: int
    ) -> None:
        self._read = read
        self._write = write
        self._max_line_bytes = max_line_bytes
        self._framer = LineFramer(max_line_bytes)
        self._conversation = Conversation(Role.CHILD)
        self._lines: deque[bytes | OversizedLine] = deque()
        self.extra_fields: Mapping[str, Scalar] = {}

    @property
    def may_checkpoint(self) -> bool:
        return self._conversation.may_checkpoint

    async def receive(self) -> DaemonMessage:
        """The next message; RemoteProtocolError if it is malformed or not allowed now."""
        line = await self._next_line()
        message = decode_daemon_line(line)
        self._conversation.receive(message)
        if isinstance(message, Initialize):
            self.extra_fields = _extra_fields(line)
        return message

    def send(self, message: ChildMessage) -> None:
        self._conversation.send(message)
        # The leading newline ends whatever was written to the pipe before.
        frame = b"\n" + encode(message)
        try:
            self._write(frame)
        except ConnectionError as error:
            raise DaemonGone from error

    async def _next_line(self) -> bytes:
        while not self._lines:
            try:
                data = await self._read()
            except ConnectionError as error:  # only where stdin is a socket
                raise DaemonGone from error
            if not data:
                raise DaemonGone
            self._lines.extend(line for line in self._framer.feed(data) if not _is_blank(line))
        line = self._lines.popleft()
        if isinstance(line, OversizedLine):
            raise RemoteProtocolError(
                f"the daemon's line of {line.length_bytes} bytes is over max_line_bytes={self._max_line_bytes}"
            )
        return line


def _is_blank(line: bytes | OversizedLine) -> bool:
    return isinstance(line, bytes) and (not line or line.isspace())


def _extra_fields(line: bytes) -> Mapping[str, Scalar]:
    fields: dict[str, object] = json.loads(line)
    return {
        name: value
        for name, value in fields.items()
        if name not in _KNOWN_FIELDS and (value is None or isinstance(value, str | int | float))
    }


T = TypeVar("T")

_WHOLE_SHARD: Final = (None, Sentinel.SHARD_END.value)
_SHARD_ENDED_BEFORE_KCL_2: Final = "TERMINATE"


class Runtime(Protocol):
    @property
    def turn(self) -> AbstractAsyncContextManager[object]:
        """Allows one checkpoint at a time, and no status while one is pending."""
        ...

    async def read(self) -> bytes:
        """b"" at the end; ConnectionError if the connection broke."""
        ...

    def write(self, data: bytes, /) -> None:
        """Sends all bytes; ConnectionError once the daemon is gone."""
        ...

    async def sleep(self, seconds: float) -> None: ...

    async def finish(self, steps: Coroutine[object, object, T]) -> T:
        """Run the steps to their end even if the caller is cancelled, or the protocol would break."""
        ...


class ProcessorFailed(Exception):
    """Raised when a method of the processor raised (`__cause__`); `action` is its wire name."""

    def __init__(self, action: str) -> None:
        super().__init__(action)
        self.action = action


class Session:
    def __init__(self, runtime: Runtime, *, max_line_bytes: int) -> None:
        self._runtime = runtime
        self._connection = DaemonConnection(runtime.read, runtime.write, max_line_bytes)
        self._whole_shard_stored = False
        self._daemon_gone = False
        self._lease_gone = False
        self._broken: RemoteProtocolError | None = None

    async def serve(self, callbacks: Callbacks) -> None:
        """Perform the daemon's actions until it closes the connection; returns then, even during an action.

        Raises:
            ProcessorFailed: the action is not reported as done.
            ProtocolError: the daemon sent something malformed or not allowed.
            SystemExit: the processor called `sys.exit`.
        """
        try:
            while not self._daemon_gone:
                # No variable: an idle child must not keep its last batch in memory.
                await self._perform(await self._next_action(), callbacks)
        except DaemonGone:
            return

    async def store(self, request: CheckpointRequest, attempts: int) -> None:
        """Ask for a checkpoint until it is stored, refused for good, or the attempts are used up.

        Raises:
            CheckpointError: the last refusal.
        """
        if attempts < 1:
            raise ValueError(f"attempts must be at least 1: {attempts}")
        backoff_s = FIRST_BACKOFF_S
        for _ in range(attempts - 1):
            try:
                return await self._runtime.finish(self._ask(request))
            except CheckpointError as error:
                if not error.retryable:
                    raise
            await self._runtime.sleep(backoff_s)
            backoff_s *= 2
        return await self._runtime.finish(self._ask(request))

    async def _next_action(self) -> Action:
        message = await self._connection.receive()
        assert not isinstance(message, CheckpointAnswer), (
            "the conversation lets none pass that nobody asked for"
        )
        return message

    async def _perform(self, action: Action, callbacks: Callbacks) -> None:
        self._whole_shard_stored = False
        steps = self._steps(action, callbacks)
        try:
            await steps
        except (SystemExit, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            if self._broken is None and not self._is_lost_lease(error):
                raise ProcessorFailed(action.action) from error
        async with self._runtime.turn:
            if self._broken is not None:
                raise self._broken
            if not self._daemon_gone:
                self._connection.send(Status(action.action))

    def _steps(self, action: Action, callbacks: Callbacks) -> Coroutine[object, object, None]:
        match action:
            case Initialize():
                return callbacks.initialize(_start(action, self._connection.extra_fields))
            case ProcessRecords():
                records = tuple(map(Record, action.records))
                return callbacks.process_records(Batch(records, action.millis_behind_latest))
            case ShutdownRequested():
                return callbacks.shutdown_requested()
            case ShardEnded():
                return self._end_shard(callbacks)
            case Shutdown(reason=reason) if reason == _SHARD_ENDED_BEFORE_KCL_2:
                return self._end_shard(callbacks)
            case LeaseLost() | Shutdown():
                return callbacks.lease_lost()
            case _:
                assert_never(action)

    async def _end_shard(self, callbacks: Callbacks) -> None:
        await callbacks.shard_ended()
        # KCL does not always turn the last position into SHARD_END, but always a request without one.
        if callbacks.checkpoint_at_shard_end and not self._whole_shard_stored and not self._daemon_gone:
            await self.store(CheckpointRequest(), CHECKPOINT_ATTEMPTS)

    async def _ask(self, request: CheckpointRequest) -> None:
        async with self._runtime.turn:
            answer = await self._exchange(request)
            if answer.error is None:
                self._whole_shard_stored = request.sequence_number in _WHOLE_SHARD
                return
            error = checkpoint_error(answer.error)
            self._lease_gone = isinstance(error, CheckpointShutdown)
            raise error

    async def _exchange(self, request: CheckpointRequest) -> CheckpointAnswer:
        self._refuse_where_impossible()
        try:
            self._connection.send(request)
            answer = await self._connection.receive()
        except DaemonGone as error:
            self._daemon_gone = True
            raise CheckpointShutdown("the daemon has gone; whether this was stored is not known") from error
        except RemoteProtocolError as error:
            self._broken = error  # ends the session even if the processor swallows the error below
            raise CheckpointInvalidState(f"the daemon's answer is not understood: {error}") from error
        assert isinstance(answer, CheckpointAnswer), "the conversation lets nothing else pass here"
        return answer

    def _refuse_where_impossible(self) -> None:
        if self._daemon_gone:
            raise CheckpointShutdown("the daemon has gone; nothing can be stored any more")
        if self._lease_gone:
            raise CheckpointShutdown("the lease was lost; another worker has the shard")
        if self._broken is not None or not self._connection.may_checkpoint:
            raise CheckpointInvalidState(
                "a checkpoint is possible only while process_records, shard_ended or shutdown_requested runs"
            )

    def _is_lost_lease(self, error: BaseException) -> bool:
        """Whether the error only says that the lease is lost, which is no failure: leaseLost follows.

        No record can be skipped, because every later checkpoint is refused.
        """
        if not self._lease_gone and not self._daemon_gone:
            return False
        if isinstance(error, BaseExceptionGroup):
            return error.split(CheckpointShutdown)[1] is None
        return isinstance(error, CheckpointShutdown)


def _start(action: Initialize, extra: Mapping[str, Scalar]) -> ShardStart:
    text = action.sequence_number
    if text is None:
        return ShardStart(action.shard_id, None, extra)
    try:
        position = ExtendedSequenceNumber(text, action.sub_sequence_number or 0)
    except ValueError as error:
        raise RemoteProtocolError(f"initialize: not a position: {error}") from error
    return ShardStart(action.shard_id, position, extra)
