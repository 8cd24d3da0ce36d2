"""The conversation between the daemon and one child about one shard: its rules and its two ends.

1. The first action is `initialize`.
2. The child finishes each action with exactly one status of its name before the next one. After a wrong name
   the two sides disagree, and nothing can repair that.
3. Inside any action the child may ask for checkpoints, one at a time; then only the answer may follow. In
   initialize and leaseLost the answer is an error. While idle it may ask, too; then the next action can
   come before the answer, which is the next message after it.
   Inside processRecords it may also reject records, an extension: many at once, whose answers come in the same
   order. Until it has them all it may only reject more.
4. `shutdownRequested` comes at most once, and no records follow it.
5. `leaseLost` or `shardEnded` ends the shard, never both; nothing follows its status.
6. Before KCL 2.0 both ends were called `shutdown`, with reason TERMINATE (shard end) or ZOMBIE (lease lost).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, Protocol, TypeVar

from kcl_protocol.codec import (
    FRAME_START,
    Echo,
    LogLine,
    Stray,
    decode_child_line,
    decode_frame_header,
    decode_log_line,
    encode,
)
from kcl_protocol.errors import LocalProtocolError, ProtocolError, RemoteProtocolError
from kcl_protocol.messages import (
    CheckpointRequest,
    ChildMessage,
    DaemonMessage,
    FrameHeader,
    Message,
    Reject,
    Shutdown,
    Status,
)

_EXCERPT_CHARACTERS: Final = 80
_HEAD_BYTES: Final = 256
_CHILD_LINE_MOST_BYTES: Final = 1024 * 1024
_NOTHING: Final[Mapping[MessageKind, State]] = {}


class Role(StrEnum):
    DAEMON = "daemon"
    CHILD = "child"

    @property
    def other(self) -> Role:
        return Role.CHILD if self is Role.DAEMON else Role.DAEMON


class State(StrEnum):
    """`..._CHECKPOINT`, `..._REJECT`: the child waits for that answer within that action."""

    START = "start"
    INITIALIZING = "initializing"
    INITIALIZING_CHECKPOINT = "initializing_checkpoint"
    IDLE = "idle"
    IDLE_CHECKPOINT = "idle_checkpoint"
    PROCESSING = "processing"
    PROCESSING_CHECKPOINT = "processing_checkpoint"
    PROCESSING_REJECT = "processing_reject"
    STOPPING = "stopping"
    STOPPING_CHECKPOINT = "stopping_checkpoint"
    STOPPED = "stopped"
    LOSING_LEASE = "losing_lease"
    LOSING_LEASE_CHECKPOINT = "losing_lease_checkpoint"
    ENDING_SHARD = "ending_shard"
    ENDING_SHARD_CHECKPOINT = "ending_shard_checkpoint"
    OVER = "over"


class MessageKind(StrEnum):
    INITIALIZE = "initialize"
    PROCESS_RECORDS = "processRecords"
    SHUTDOWN_REQUESTED = "shutdownRequested"
    LEASE_LOST = "leaseLost"
    SHARD_ENDED = "shardEnded"
    CHECKPOINT_ANSWER = "checkpoint answer"
    CHECKPOINT_REQUEST = "checkpoint request"
    REJECT_ANSWER = "reject answer"
    REJECT = "reject"
    STATUS = "status"


_KINDS: Final[Mapping[str, MessageKind]] = {kind.value: kind for kind in MessageKind}

_ASKING: Final = {
    CheckpointRequest.action: (MessageKind.CHECKPOINT_REQUEST, MessageKind.CHECKPOINT_ANSWER),
    Reject.action: (MessageKind.REJECT, MessageKind.REJECT_ANSWER),
}

TransitionTable = Mapping[State, Mapping[MessageKind, State]]

# The state during an action, and the one after it.
_ACTIONS: Final[Mapping[State, State]] = {
    State.INITIALIZING: State.IDLE,
    State.PROCESSING: State.IDLE,
    State.STOPPING: State.STOPPED,
    State.LOSING_LEASE: State.OVER,
    State.ENDING_SHARD: State.OVER,
}


def _checkpoint_in(action: State) -> State:
    return State(f"{action.value}_checkpoint")


_ENDS: Final = {MessageKind.LEASE_LOST: State.LOSING_LEASE, MessageKind.SHARD_ENDED: State.ENDING_SHARD}

_BEGINS: Final = {
    MessageKind.PROCESS_RECORDS: State.PROCESSING,
    MessageKind.SHUTDOWN_REQUESTED: State.STOPPING,
    **_ENDS,
}

DAEMON_TRANSITIONS: Final[TransitionTable] = {
    State.START: {MessageKind.INITIALIZE: State.INITIALIZING},
    State.IDLE: _BEGINS,
    # The request and the action crossed, or the daemon reads only inside actions, as the Java daemon does.
    State.IDLE_CHECKPOINT: {
        MessageKind.CHECKPOINT_ANSWER: State.IDLE,
        **{kind: _checkpoint_in(action) for kind, action in _BEGINS.items()},
    },
    State.STOPPED: _ENDS,
    **{_checkpoint_in(action): {MessageKind.CHECKPOINT_ANSWER: action} for action in _ACTIONS},
    State.PROCESSING_REJECT: {MessageKind.REJECT_ANSWER: State.PROCESSING},
    State.OVER: {},
}

CHILD_TRANSITIONS: Final[TransitionTable] = {
    State.IDLE: {MessageKind.CHECKPOINT_REQUEST: State.IDLE_CHECKPOINT},
    State.PROCESSING_REJECT: {MessageKind.REJECT: State.PROCESSING_REJECT},
    **{
        action: {
            MessageKind.CHECKPOINT_REQUEST: _checkpoint_in(action),
            **({MessageKind.REJECT: State.PROCESSING_REJECT} if action is State.PROCESSING else {}),
            MessageKind.STATUS: after,
        }
        for action, after in _ACTIONS.items()
    },
}

TRANSITIONS: Final[Mapping[Role, TransitionTable]] = {
    Role.DAEMON: DAEMON_TRANSITIONS,
    Role.CHILD: CHILD_TRANSITIONS,
}

# Before its first batch a child has nothing to checkpoint; after losing the lease it may not.
_MAY_CHECKPOINT: Final = frozenset(
    state
    for action in (State.PROCESSING, State.STOPPING, State.ENDING_SHARD)
    for state in (action, _checkpoint_in(action))
) | {State.IDLE_CHECKPOINT}


class ForeignMessage(Protocol):
    @property
    def action(self) -> str: ...


AnyMessage = Message | ForeignMessage
M = TypeVar("M", bound=AnyMessage)


class Conversation:
    """One conversation as one side sees it.

    A refused message changes nothing. After `receive` refused one, end the conversation: the sides disagree.
    """

    def __init__(self, role: Role) -> None:
        self._role = role
        self._other = role.other
        self._state = State.START
        self._awaiting: str | None = None
        self._rejects = 0

    @property
    def state(self) -> State:
        return self._state

    @property
    def awaiting(self) -> str | None:
        """Whose status the child still owes."""
        return self._awaiting

    @property
    def may_checkpoint(self) -> bool:
        return self._state in _MAY_CHECKPOINT

    @property
    def may_reject(self) -> bool:
        return self._state in {State.PROCESSING, State.PROCESSING_REJECT}

    @property
    def is_over(self) -> bool:
        return self._state is State.OVER

    def send(self, message: Message) -> None:
        """LocalProtocolError if our side may not send this now."""
        self._advance(self._role, message, LocalProtocolError)

    def receive(self, message: AnyMessage) -> None:
        """RemoteProtocolError, with what was expected."""
        self._advance(self._other, message, RemoteProtocolError)

    def _advance(self, speaker: Role, message: AnyMessage, error: type[ProtocolError]) -> None:
        kind = _kind_of(speaker, message)
        following = TRANSITIONS[speaker].get(self._state, _NOTHING).get(kind)
        is_for_another = isinstance(message, Status) and message.response_for != self._awaiting
        if following is None or is_for_another:
            raise error(
                f"{speaker.value} said {_describe(message, kind)} in state {self._state.value}; "
                f"expected {self._expected(speaker)}"
            )
        self._rejects += (kind is MessageKind.REJECT) - (kind is MessageKind.REJECT_ANSWER)
        self._state = State.PROCESSING_REJECT if self._rejects else following
        if kind is MessageKind.STATUS:
            self._awaiting = None
        elif message.action not in _ASKING:
            self._awaiting = message.action

    def _expected(self, speaker: Role) -> str:
        kinds = TRANSITIONS[speaker].get(self._state, _NOTHING)
        if not kinds:
            return "nothing more" if self.is_over else f"nothing until the {speaker.other.value} has spoken"
        return " or ".join(
            f"status for {self._awaiting!r}" if kind is MessageKind.STATUS else kind.value for kind in kinds
        )


def _kind_of(speaker: Role, message: AnyMessage) -> MessageKind:
    asked = _ASKING.get(message.action)
    if asked is not None:  # a request and its answer have the same name
        return asked[speaker is Role.DAEMON]
    kind = _KINDS.get(message.action)
    if kind is not None:
        return kind
    is_end = isinstance(message, Shutdown) and message.reason == "TERMINATE"
    return MessageKind.SHARD_ENDED if is_end else MessageKind.LEASE_LOST


def _describe(message: AnyMessage, kind: MessageKind) -> str:
    if isinstance(message, Status):
        return f"status for {message.response_for!r:.{_EXCERPT_CHARACTERS}}"
    return message.action if isinstance(message, Shutdown) else kind.value


@dataclass(frozen=True, slots=True)
class OversizedLine:
    """`length_bytes` is without terminator, `head` its first 256 bytes."""

    length_bytes: int
    head: bytes


class LineFramer:
    """LF, CR and CRLF end a line (KCL: Java's `BufferedReader.readLine`).

    Of a line above `max_line_bytes`, without terminator, it keeps the head, and reports it when it ends.
    """

    def __init__(self, max_line_bytes: int) -> None:
        if max_line_bytes < 1:
            raise ValueError(f"max_line_bytes must be positive, not {max_line_bytes}")
        self._max_line_bytes = max_line_bytes
        self._buffer = bytearray()
        self._length_bytes = 0
        self._after_cr = False

    def feed(self, data: bytes) -> list[bytes | OversizedLine]:
        """The lines that end in this piece; also empty ones."""
        if self._after_cr and data:
            self._after_cr = False
            data = data.removeprefix(b"\n")  # its line was delivered at the CR
        if self._is_one_line(data):
            return [data[:-1]]
        ended: list[bytes | OversizedLine] = []
        for piece in data.splitlines(keepends=True):
            content = piece.rstrip(b"\r\n")
            is_end = len(content) < len(piece)
            if is_end and not self._length_bytes and len(content) <= self._max_line_bytes:
                ended.append(content)
                continue
            self._keep(content)
            if is_end:
                ended.append(self._take())
        self._after_cr = self._after_cr or data.endswith(b"\r")
        return ended

    def close(self) -> list[bytes | OversizedLine]:
        """The last line if it has no terminator. Empties the framer."""
        self._after_cr = False
        return [self._take()] if self._length_bytes else []

    def _is_one_line(self, data: bytes) -> bool:
        return (
            not self._length_bytes
            and 0 <= data.find(b"\n") == len(data) - 1 <= self._max_line_bytes
            and b"\r" not in data
        )

    def _keep(self, content: bytes) -> None:
        self._length_bytes += len(content)
        if self._length_bytes <= self._max_line_bytes:
            self._buffer += content
        else:
            self._buffer += content[:_HEAD_BYTES]
            del self._buffer[_HEAD_BYTES:]

    def _take(self) -> bytes | OversizedLine:
        kept, length_bytes = bytes(self._buffer), self._length_bytes
        self._buffer.clear()
        self._length_bytes = 0
        return kept if length_bytes <= self._max_line_bytes else OversizedLine(length_bytes, kept)


class DaemonSide(Conversation):
    """Messages are checked only by `receive`, after they were decoded: a child may send one too early.

    With `accepts_logs` it may send `log` messages.
    """

    def __init__(self, *, accepts_logs: bool = False, max_line_bytes: int = _CHILD_LINE_MOST_BYTES) -> None:
        super().__init__(Role.DAEMON)
        self._accepts_logs = accepts_logs
        self._framer = LineFramer(max_line_bytes)

    def receive_data(self, data: bytes) -> Iterator[ChildMessage | LogLine | Stray]:
        """What the child wrote; b"" is the end of its output. Never raises."""
        for line in self._framer.feed(data) if data else self._framer.close():
            yield self._decoded(line)

    def send_data(self, message: DaemonMessage) -> bytes:
        self.send(message)
        return encode(message)

    def _decoded(self, line: bytes | OversizedLine) -> ChildMessage | LogLine | Stray:
        if isinstance(line, OversizedLine):
            return Stray(f"a line of {line.length_bytes} bytes", line.head.decode(errors="replace"))
        match decode_child_line(line):
            case Stray() as stray:
                said = decode_log_line(line) if self._accepts_logs else None
                return stray if said is None else said
            case Echo(action):
                return Stray("it echoed an action of ours", action)
            case message:
                return message


class ChildSide(Conversation, Generic[M]):
    """`decode` reads a line, as `decode_daemon_line` does.

    With `decode_frame` a batch may come as a frame, of at most `max_line_bytes` too.
    """

    def __init__(
        self,
        decode: Callable[[bytes], M],
        *,
        max_line_bytes: int,
        decode_frame: Callable[[FrameHeader, bytes], M] | None = None,
    ) -> None:
        super().__init__(Role.CHILD)
        self._decode = decode
        self._decode_frame = decode_frame
        self._max_line_bytes = max_line_bytes
        self._framer = LineFramer(max_line_bytes)
        self._received: deque[bytes | OversizedLine | RemoteProtocolError | tuple[FrameHeader, bytes]] = (
            deque()
        )
        self._header: FrameHeader | None = None
        self._pieces: list[memoryview] = []
        self._missing_bytes = 0

    @property
    def missing_bytes(self) -> int:
        """Of a frame that has begun to arrive; 0 without one."""
        return self._missing_bytes

    def receive_data(self, data: bytes) -> None:
        if self._decode_frame is None:
            self._take_lines(data)
            return
        at = 0
        while at < len(data):
            if self._header is not None:
                at += self._take_frame(memoryview(data)[at : at + self._missing_bytes])
                continue
            end = data.find(b"\n", at) + 1 or len(data)
            self._take_lines(data[at:end])
            at = end
            if self._received and _begins_frame(self._received[-1]):
                self._begin_frame()

    def next_message(self) -> M | None:
        """None until there is more data. Raises RemoteProtocolError if it is malformed or not allowed now."""
        if not self._received:
            return None
        match self._received.popleft():
            case OversizedLine() as line:
                raise self._too_long(f"line of {line.length_bytes}")
            case RemoteProtocolError() as error:
                raise error
            case bytes() as line:
                message = self._decode(line)
            case (header, body):
                assert self._decode_frame is not None, "without it nothing is taken for a frame"
                message = self._decode_frame(header, body)
        self.receive(message)
        return message

    def _take_lines(self, data: bytes) -> None:
        self._received.extend(line for line in self._framer.feed(data) if not _is_blank(line))

    def _begin_frame(self) -> None:
        line = self._received.pop()
        assert isinstance(line, bytes), "it begins as a header does"
        try:
            header = decode_frame_header(line)
            if header.size_bytes > self._max_line_bytes:
                raise self._too_long(f"frame of {header.size_bytes}")
        except RemoteProtocolError as error:
            self._received.append(error)
        else:
            self._header, self._missing_bytes = header, header.size_bytes
            self._take_frame(memoryview(b""))

    def _take_frame(self, piece: memoryview) -> int:
        """The pieces are copied once, when the frame is complete."""
        self._pieces.append(piece)
        self._missing_bytes -= len(piece)
        if not self._missing_bytes and self._header is not None:
            self._received.append((self._header, b"".join(self._pieces)))
            self._header = None
            self._pieces.clear()
        return len(piece)

    def _too_long(self, what: str) -> RemoteProtocolError:
        return RemoteProtocolError(f"the daemon's {what} bytes is over max_line_bytes={self._max_line_bytes}")

    def send_data(self, message: ChildMessage) -> bytes:
        self.send(message)
        # The newline ends whatever was written to the pipe before.
        return b"\n" + encode(message)


def _begins_frame(line: object) -> bool:
    return isinstance(line, bytes) and line.startswith(FRAME_START)


def _is_blank(line: bytes | OversizedLine) -> bool:
    return isinstance(line, bytes) and (not line or line.isspace())
