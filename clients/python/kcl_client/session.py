"""The life of one shard in this process: every rule of the client, once for the plain and the async form.

Owns when a method is called, when its action counts as done, when a checkpoint is possible and what is tried again.
Knows nothing of descriptors, event loops or threads: those are behind `Runtime`. The plain form drives the same
coroutines over a runtime that blocks (`plain`).
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol, TypeVar, assert_never

from kcl_client.callbacks import Callbacks
from kcl_client.checkpointer import CHECKPOINT_ATTEMPTS, FIRST_BACKOFF_S
from kcl_client.dialogue import DaemonGone, Dialogue
from kcl_client.records import Batch, Record, Scalar, ShardStart
from kcl_protocol.errors import (
    CheckpointError,
    CheckpointInvalidState,
    CheckpointShutdown,
    RemoteProtocolError,
    checkpoint_error,
)
from kcl_protocol.messages import (
    Action,
    CheckpointAnswer,
    CheckpointRequest,
    Initialize,
    LeaseLost,
    ProcessRecords,
    ShardEnded,
    Shutdown,
    ShutdownRequested,
    Status,
)
from kcl_protocol.sequence import ExtendedSequenceNumber, Sentinel

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
        self._dialogue = Dialogue(runtime.read, runtime.write, max_line_bytes)
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
        message = await self._dialogue.receive()
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
                self._dialogue.send(Status(action.action))

    def _steps(self, action: Action, callbacks: Callbacks) -> Coroutine[object, object, None]:
        match action:
            case Initialize():
                return callbacks.initialize(_start(action, self._dialogue.extra_fields))
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
            self._dialogue.send(request)
            answer = await self._dialogue.receive()
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
        if self._broken is not None or not self._dialogue.may_checkpoint:
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
