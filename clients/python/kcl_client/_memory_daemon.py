"""The daemon of `testing`: says a list of actions, answers checkpoints by KCL's rules, notes everything.

Owns the daemon's side of one conversation in memory. Knows nothing of processors.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable

from kcl_protocol.codec import decode_child_line, encode
from kcl_protocol.conversation import Conversation, Role
from kcl_protocol.errors import CheckpointIllegalArgument
from kcl_protocol.framing import LineFramer
from kcl_protocol.messages import (
    Action,
    CheckpointAnswer,
    CheckpointRequest,
    DaemonMessage,
    Message,
    ProcessRecords,
    ShardEnded,
    Status,
)
from kcl_protocol.sequence import SHARD_END, ExtendedSequenceNumber


class MemoryDaemon:
    """A byte source and sink that behaves as a daemon with one child.

    Args:
        actions: said one after the other, each when the child has finished the one before; then the end.
        errors: answers to the first checkpoints, by wire name; None stores.
        start: the checkpoint before the first action.

    Attributes:
        messages: what both sides said.
        checkpoints: the positions stored.
        refusals: the wire names answered.
    """

    def __init__(
        self, actions: Iterable[Action], errors: Iterable[str | None], start: ExtendedSequenceNumber
    ) -> None:
        self.messages: list[Message] = []
        self.checkpoints: list[ExtendedSequenceNumber] = []
        self.refusals: list[str] = []
        self._actions = deque(actions)
        self._errors = deque(errors)
        self._stored = self._delivered = start
        self._answer: CheckpointAnswer | None = None
        self._conversation = Conversation(Role.DAEMON)
        self._framer = LineFramer(sys.maxsize)

    def read(self) -> bytes:
        """The answer that the child waits for, else the next action, else b""."""
        if self._answer is not None:
            answer, self._answer = self._answer, None
            return self._say(answer)
        if not self._actions:
            return b""
        action = self._actions.popleft()
        if isinstance(action, ProcessRecords) and action.records:
            last = action.records[-1]
            self._delivered = ExtendedSequenceNumber(last.sequence_number, last.sub_sequence_number)
        elif isinstance(action, ShardEnded):
            self._delivered = SHARD_END
        return self._say(action)

    def write(self, data: bytes) -> None:
        """Take what the child says.

        Raises:
            RemoteProtocolError: the child may not say that now.
        """
        for line in self._framer.feed(data):
            if line == b"":
                continue
            assert isinstance(line, bytes), "there is no limit to the length of a line here"
            message = decode_child_line(line)
            assert isinstance(message, Status | CheckpointRequest), f"not a child's message: {message}"
            self._conversation.receive(message)
            self.messages.append(message)
            if isinstance(message, CheckpointRequest):
                self._answer = self._judge(message)

    def _say(self, message: DaemonMessage) -> bytes:
        self._conversation.send(message)
        self.messages.append(message)
        return encode(message)

    def _judge(self, request: CheckpointRequest) -> CheckpointAnswer:
        error = self._errors.popleft() if self._errors else None
        if error is None:
            error = self._store(request)
        if error is not None:
            self.refusals.append(error)
        return CheckpointAnswer(request.sequence_number, request.sub_sequence_number, error)

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
