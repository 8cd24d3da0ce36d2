"""The life of one shard in this process: every rule of the client, once for the plain and the async form.

Owns when a method is called, when its action counts as done, when a checkpoint is possible and what is tried again.
Knows nothing of descriptors, event loops or threads: those are behind `Runtime`. The plain form drives the same
coroutines over a runtime that blocks (`plain`).

The two forms of a processor behind one face, so that `session` need not know which one it drives.

Owns the guard against a method of the wrong kind: an `async def` in a plain processor would return at once without
having run, and its records would be lost without a sound.

The daemon's messages out of bytes, ours into bytes, each checked against the rules of the conversation.

Owns the connection of framing, codec and conversation to a source and a sink of bytes. Knows nothing of processors.
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

P = ParamSpec("P")


class Callbacks(Protocol):
    """A processor's methods, each to be awaited; every exception is the user's."""

    @property
    def checkpoint_at_shard_end(self) -> bool:
        """As in `RecordProcessor`."""
        ...

    async def initialize(self, start: ShardStart) -> None:
        """Begin."""
        ...

    async def process_records(self, batch: Batch) -> None:
        """Take a batch."""
        ...

    async def lease_lost(self) -> None:
        """Stop, nothing more can be stored."""
        ...

    async def shard_ended(self) -> None:
        """Finish, nothing more will come."""
        ...

    async def shutdown_requested(self) -> None:
        """Store what is done."""
        ...


class PlainCallbacks:
    """The face of a `RecordProcessor`."""

    def __init__(self, processor: RecordProcessor, checkpointer: Checkpointer) -> None:
        self._processor = processor
        self._checkpointer = checkpointer

    @property
    def checkpoint_at_shard_end(self) -> bool:
        """What the class says."""
        return self._processor.checkpoint_at_shard_end

    async def initialize(self, start: ShardStart) -> None:
        """Call the method of that name."""
        _call(self._processor.initialize, start)

    async def process_records(self, batch: Batch) -> None:
        """Call the method of that name."""
        _call(self._processor.process_records, batch, self._checkpointer)

    async def lease_lost(self) -> None:
        """Call the method of that name."""
        _call(self._processor.lease_lost)

    async def shard_ended(self) -> None:
        """Call the method of that name."""
        _call(self._processor.shard_ended, self._checkpointer)

    async def shutdown_requested(self) -> None:
        """Call the method of that name."""
        _call(self._processor.shutdown_requested, self._checkpointer)


class AsyncCallbacks:
    """The face of an `AsyncRecordProcessor`."""

    def __init__(self, processor: AsyncRecordProcessor, checkpointer: AsyncCheckpointer) -> None:
        self._processor = processor
        self._checkpointer = checkpointer

    @property
    def checkpoint_at_shard_end(self) -> bool:
        """What the class says."""
        return self._processor.checkpoint_at_shard_end

    async def initialize(self, start: ShardStart) -> None:
        """Await the method of that name."""
        await _await(self._processor.initialize, start)

    async def process_records(self, batch: Batch) -> None:
        """Await the method of that name."""
        await _await(self._processor.process_records, batch, self._checkpointer)

    async def lease_lost(self) -> None:
        """Await the method of that name."""
        await _await(self._processor.lease_lost)

    async def shard_ended(self) -> None:
        """Await the method of that name."""
        await _await(self._processor.shard_ended, self._checkpointer)

    async def shutdown_requested(self) -> None:
        """Await the method of that name."""
        await _await(self._processor.shutdown_requested, self._checkpointer)


def _call(method: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
    result = method(*args, **kwargs)
    if isinstance(result, Awaitable):
        close = getattr(result, "close", None)
        if callable(close):
            close()  # else Python would add its own warning to the error
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


class DaemonGone(Exception):
    """Raised when the daemon has closed one of the pipes: the orderly end, or its death."""


class DaemonConnection:
    """One conversation with the daemon, seen from the child.

    Args:
        read: the daemon's next bytes, b"" at the end or ConnectionError.
        write: sends all of the bytes; ConnectionError once nobody reads them.
        max_line_bytes: longest line taken from the daemon.
    """

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
        """Whether a `CheckpointRequest` may be sent now."""
        return self._conversation.may_checkpoint

    async def receive(self) -> DaemonMessage:
        """The next message.

        Raises:
            DaemonGone: there is none and will be none; a line that was cut off is dropped.
            RemoteProtocolError: it is malformed, or out of turn.
        """
        line = await self._next_line()
        message = decode_daemon_line(line)
        self._conversation.receive(message)
        if isinstance(message, Initialize):
            self.extra_fields = _extra_fields(line)
        return message

    def send(self, message: ChildMessage) -> None:
        """Send a message.

        Raises:
            DaemonGone: nobody reads any more.
            LocalProtocolError: it is not our turn to say this.
        """
        self._conversation.send(message)
        # A line of its own whatever stands before it: something may have written to the pipe before we took it over.
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
    """What a session needs of the world."""

    @property
    def turn(self) -> AbstractAsyncContextManager[object]:
        """Held by whoever is speaking: one checkpoint at a time, and no status in the middle of one."""
        ...

    async def read(self) -> bytes:
        """The daemon's next bytes, b"" at the end; ConnectionError where it broke off."""
        ...

    def write(self, data: bytes, /) -> None:
        """Send all of it; ConnectionError once the daemon is gone."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait that long."""
        ...

    async def finish(self, steps: Coroutine[object, object, T]) -> T:
        """Run the steps to their end even where the caller is cancelled: half a question breaks the conversation."""
        ...


class ProcessorFailed(Exception):
    """Raised when an exception left a method of the processor; it is the `__cause__`.

    Attributes:
        action: what the processor was doing, by its name on the wire.
    """

    def __init__(self, action: str) -> None:
        super().__init__(action)
        self.action = action


class Session:
    """One shard from `initialize` to the end of stdin.

    Args:
        runtime: bytes, waiting and turns.
        max_line_bytes: longest line taken from the daemon.
    """

    def __init__(self, runtime: Runtime, *, max_line_bytes: int) -> None:
        self._runtime = runtime
        self._connection = DaemonConnection(runtime.read, runtime.write, max_line_bytes)
        self._whole_shard_stored = False
        self._daemon_gone = False
        self._lease_gone = False
        self._broken: RemoteProtocolError | None = None

    async def serve(self, callbacks: Callbacks) -> None:
        """Perform the daemon's actions until it closes the connection; returns then, also in mid-action.

        Raises:
            ProcessorFailed: the action was not done and not reported as done.
            ProtocolError: the daemon said what we do not understand.
            SystemExit: the processor's own wish.
        """
        try:
            while not self._daemon_gone:
                # No name for the message: an idle child must not hold its last batch in memory.
                await self._perform(await self._next_action(), callbacks)
        except DaemonGone:
            return

    async def store(self, request: CheckpointRequest, attempts: int) -> None:
        """Ask for a checkpoint until it is stored, refused for good, or tried often enough.

        Raises:
            CheckpointError: the last refusal.
            ValueError: no attempt is allowed.
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
        # An explicit last position is not enough for every daemon (KCL: ShardRecordProcessorCheckpointer turns it
        # into SHARD_END only at times); none at all always means the end of the shard.
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
            self._broken = error  # ends the session even where the processor swallows the error below
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
        """Losing the lease in the middle of the work is nobody's failure: leaseLost follows, or the end of stdin.

        Nothing can be skipped by it, because from then on every checkpoint is refused.
        """
        if not self._lease_gone and not self._daemon_gone:
            return False
        if isinstance(error, BaseExceptionGroup):  # of a task group in the processor
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
