"""Talks with one child: gives it an action, serves its checkpoints, waits for its status (KCL: MultiLangProtocol).

Owns the pace of the conversation and its time-outs. Knows nothing of batches, leases or restarts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from kcl_daemon.config.log_settings import level_of
from kcl_daemon.consumer.tally import Tally
from kcl_daemon.errors import ChildBrokeProtocol, ChildError, ChildExited, ChildTimedOut
from kcl_daemon.log_level import at_level
from kcl_daemon.ports import Child, Clock, Log
from kcl_daemon.retrieval.batch import Batch
from kcl_protocol import Echo, LogLine, Stray, decode_child_line, decode_log_line, encode
from kcl_protocol.conversation import Conversation, Role
from kcl_protocol.errors import CheckpointInvalidState, RemoteProtocolError
from kcl_protocol.framing import LineFramer, OversizedLine
from kcl_protocol.messages import (
    Action,
    CheckpointAnswer,
    CheckpointRequest,
    ChildMessage,
    ProcessRecords,
    Status,
)

T = TypeVar("T")

# What a child says is short; a longer line is no message and is dropped while it streams by.
_LINE_MOST_BYTES: Final = 1024 * 1024
_INBOX_MESSAGES: Final = 16
_EXIT_STATUS_WAIT_S: Final = 1.0
_LOG_MESSAGE_CHARACTERS: Final = 16 * 1024
# A log event takes some 10 to 50 microseconds: nobody else waits longer than a few milliseconds for a flood.
_LINES_PER_TURN: Final = 64
# Stands for a batch whose line is written already.
_RECORDS: Final = ProcessRecords((), None)


def _nothing() -> None:
    pass


class Dialogue:
    """The conversation with one child. `pump` must run beside it, from start to end.

    Args:
        child: whom it is held with.
        clock: for time-outs.
        log: the child's.
        timeout_s: for each of its messages; None: for ever.
        warn_after_s: an action that takes longer is told; None: none is.
        hears_logs: whether its `log` messages go to the log; else they are stray output, as everything unknown is.
        encode_answer: how the answer to a checkpoint is written.
        on_checkpoint: stores one.
        on_silence: called when nothing more will come.
    """

    def __init__(
        self,
        child: Child,
        *,
        clock: Clock,
        log: Log,
        timeout_s: float | None,
        warn_after_s: float | None = None,
        hears_logs: bool = False,
        encode_answer: Callable[[CheckpointAnswer], bytes] = encode,
        on_checkpoint: Callable[[CheckpointRequest], Awaitable[CheckpointAnswer]],
        on_silence: Callable[[], None],
        tally: Tally | None = None,
    ) -> None:
        self._tally = tally
        self._child = child
        self._clock = clock
        self._log = log
        self._timeout_s = timeout_s
        self._warn_after_s = warn_after_s
        self._hears_logs = hears_logs
        self._encode_answer = encode_answer
        self._on_checkpoint = on_checkpoint
        self._on_silence = on_silence
        self._conversation = Conversation(Role.DAEMON)
        self._framer = LineFramer(_LINE_MOST_BYTES)
        self._inbox: deque[ChildMessage] = deque()
        self._arrived = anyio.Event()
        self._flooded = False
        self._strays = 0
        self.silent = False

    async def pump(self) -> None:
        """Read the child's stdout until it is closed, also between actions, so that a chatty child cannot block.

        Only messages wait in the inbox. Says by `on_silence` when nothing more will come; returns then.
        """
        while data := await self._child.receive():
            for number, line in enumerate(self._framer.feed(data), start=1):
                self._line(line)
                if number % _LINES_PER_TURN == 0:
                    await checkpoint()
        rest = self._framer.close()
        if rest is not None:
            self._line(rest)
        self.silent = True
        self._arrived.set()
        self._on_silence()

    async def perform(self, action: Action, *, on_its_way: Callable[[], None] = _nothing) -> None:
        """Have the child do one action.

        Args:
            action: which.
            on_its_way: called just before its line is written. What the child asked for before has been answered then; if
                it is not called, the child has not heard of the action.

        Raises:
            ChildExited: it ended or closed its stdout first.
            ChildTimedOut: one of its messages took longer than the time-out; it should be ended.
            ChildBrokeProtocol: it answered something else.
        """
        self._conversation.send(action)
        if self._inbox:
            await self._serve_waiting(action)
        self._begin(on_its_way)
        await self._send(encode(action), action.action)
        await self._finish(action)
        if self._tally is not None:
            self._tally.performed(action)

    async def deliver(self, batch: Batch, *, on_its_way: Callable[[], None] = _nothing) -> None:
        """Have the child process records; the batch is released as soon as the line is written. The rest as `perform`."""
        self._conversation.send(_RECORDS)
        if self._inbox:
            await self._serve_waiting(_RECORDS)
        self._begin(on_its_way)
        try:
            # Held by nobody but the one who writes it: the child may take hours for the records.
            await self._send(batch.take_line(), _RECORDS.action)
        finally:
            batch.release()
        try:
            await self._finish(_RECORDS)
        except ChildError:
            if self._tally is not None:
                self._tally.failed()
            raise
        if self._tally is not None:
            self._tally.processed(batch)

    def _begin(self, on_its_way: Callable[[], None]) -> None:
        on_its_way()
        if self._tally is not None:
            self._tally.begin()

    async def _serve_waiting(self, action: Action) -> None:
        """Answer the checkpoints that the child asked for between two actions, as the Java daemon does at its next wait.

        Before the line of the action, not behind it: a request without a position would cover records that the child has
        not seen yet, and the answer is the next line that it reads.
        """
        while self._inbox:
            match self._inbox.popleft():
                case CheckpointRequest() as request:
                    await self._serve(request, action)
                case Status() as status:
                    # It would be taken for the answer to this action, and records would count as done that nobody has seen.
                    raise ChildBrokeProtocol(f"it sent {status} before it was given {action.action}")

    async def _finish(self, action: Action) -> None:
        """Serve the child until it says that the action is done."""
        while True:
            match await self._next(action.action):
                case Status() as status:
                    self._received(status)
                    return
                case CheckpointRequest() as request:
                    await self._serve(request, action)

    async def _serve(self, request: CheckpointRequest, action: Action) -> None:
        if self._flooded:
            raise ChildBrokeProtocol(f"it sent more than {_INBOX_MESSAGES} messages without an answer to any")
        self._received(request)
        answer = await self._answer(request)
        self._conversation.send(answer)
        await self._send(self._encode_answer(answer), action.action)

    def _received(self, message: ChildMessage) -> None:
        try:
            self._conversation.receive(message)
        except RemoteProtocolError as broken:
            raise ChildBrokeProtocol(str(broken)) from broken

    async def _answer(self, request: CheckpointRequest) -> CheckpointAnswer:
        if self._conversation.may_checkpoint:
            return await self._on_checkpoint(request)
        refused = CheckpointInvalidState.wire_name
        self._log.warning(
            "checkpoint_refused", error=refused, reason=f"not possible during {self._conversation.awaiting}"
        )
        return CheckpointAnswer(request.sequence_number, request.sub_sequence_number, refused)

    async def exited(self, doing: str) -> ChildExited:
        """The error that says how the child went; waits a moment for its exit code."""
        with self._clock.move_on_after(_EXIT_STATUS_WAIT_S):
            return ChildExited(doing, await self._child.wait())
        return ChildExited(doing, None)

    async def _send(self, line: bytes, doing: str) -> None:
        try:
            await self._in_time(doing, lambda: self._child.send(line))
        except ChildExited as gone:
            raise await self.exited(doing) from gone

    async def _next(self, doing: str) -> ChildMessage:
        receive = self._receive if self._warn_after_s is None else partial(self._receive_or_warn, doing)
        message = await self._in_time(doing, receive)
        if message is None:
            raise await self.exited(doing)
        return message

    async def _receive(self) -> ChildMessage | None:
        """The next message, None where no more will come. Cancelled: it stays in the inbox."""
        while not self._inbox:
            if self.silent:
                return None
            self._arrived = anyio.Event()
            await self._arrived.wait()
        return self._inbox.popleft()

    async def _receive_or_warn(self, doing: str) -> ChildMessage | None:
        """The same, with a word in the log when it takes long (KCL: logWarningForTaskAfterMillis)."""
        with self._clock.move_on_after(self._warn_after_s):
            return await self._receive()
        self._log.warning("child_is_slow", action=doing, waited_s=self._warn_after_s)
        return await self._receive()

    async def _in_time(self, doing: str, wait: Callable[[], Awaitable[T]]) -> T:
        if self._timeout_s is None:
            return await wait()  # the record path: a scope that never ends would be a third of its cost
        with self._clock.move_on_after(self._timeout_s):
            return await wait()
        raise ChildTimedOut(doing, self._timeout_s)

    def _line(self, line: bytes | OversizedLine) -> None:
        if isinstance(line, OversizedLine):
            self._stray(f"a line of {line.length_bytes} bytes", line.head.decode(errors="replace"))
            return
        match decode_child_line(line):
            case Stray() as stray:
                if self._hears_logs and (said := decode_log_line(line)) is not None:
                    self._pass_on(said)
                elif not stray.blank:
                    self._stray(stray.reason, stray.text)
            case Echo(action):
                self._stray("it echoed an action of ours", action)
            case message:
                if len(self._inbox) < _INBOX_MESSAGES:
                    self._inbox.append(message)
                    self._arrived.set()
                else:
                    # Nobody asked for so many; the next look at them ends the conversation.
                    self._flooded = True
                    self._stray("more messages than were asked for", str(message))

    def _pass_on(self, said: LogLine) -> None:
        at_level(self._log, level_of(said.level) or "info")(
            "child_log", message=said.message[:_LOG_MESSAGE_CHARACTERS]
        )

    def _stray(self, reason: str, text: str) -> None:
        """Say it loudly once for each child: a message lost in the noise makes a child wait for ever."""
        self._strays += 1
        tell = self._log.warning if self._strays == 1 else self._log.debug
        awaiting = self._conversation.awaiting
        tell(
            "child_stray_output",
            reason=reason,
            text=text[:200],
            count=self._strays,
            awaits=None if awaiting is None else f"status for {awaiting}",
        )
