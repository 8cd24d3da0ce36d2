"""The two ends of a conversation: bytes in, messages out. Neither does any I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from kcl_protocol.codec import (
    Echo,
    LogLine,
    Stray,
    decode_child_line,
    decode_log_line,
    encode,
)
from kcl_protocol.conversation import AnyMessage, Conversation, Role
from kcl_protocol.errors import RemoteProtocolError
from kcl_protocol.messages import ChildMessage, DaemonMessage

# enough to recognise who wrote it
_HEAD_BYTES: Final = 256


@dataclass(frozen=True, slots=True)
class OversizedLine:
    """A line that was dropped; `length_bytes` is without terminator, `head` its first 256 bytes."""

    length_bytes: int
    head: bytes


class LineFramer:
    """Cuts a stream into lines; LF, CR and CRLF end a line (KCL: Java's `BufferedReader.readLine`).

    It holds one unfinished line of at most `max_line_bytes` (without terminator). A longer line is discarded
    as it arrives and reported when it ends.
    """

    def __init__(self, max_line_bytes: int) -> None:
        if max_line_bytes < 1:
            raise ValueError(f"max_line_bytes must be positive, not {max_line_bytes}")
        self._max_line_bytes = max_line_bytes
        self._buffer = bytearray()
        self._length_bytes = 0
        self._after_cr = False

    def feed(self, data: bytes) -> list[bytes | OversizedLine]:
        """The lines that end in this piece, without terminators; empty lines included."""
        if self._after_cr and data:
            # the LF of a line that was delivered at its CR
            self._after_cr = False
            data = data.removeprefix(b"\n")
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
        """Fast path for nearly all pieces."""
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


_CHILD_LINE_MOST_BYTES: Final = 1024 * 1024


class DaemonSide(Conversation):
    """The daemon's end of the conversation with one child.

    A child may speak before its turn, so its messages are decoded as they come, and checked only when they are
    given to `receive`. With `accepts_logs`, the child may send `log` messages.
    """

    def __init__(self, *, accepts_logs: bool = False, max_line_bytes: int = _CHILD_LINE_MOST_BYTES) -> None:
        super().__init__(Role.DAEMON)
        self._accepts_logs = accepts_logs
        self._framer = LineFramer(max_line_bytes)

    def receive_data(self, data: bytes) -> Iterator[ChildMessage | LogLine | Stray]:
        """What the child wrote, decoded; b"" is the end of its output. Never raises."""
        for line in self._framer.feed(data) if data else self._framer.close():
            yield self._decoded(line)

    def send_data(self, message: DaemonMessage) -> bytes:
        """The line of a message. Raises as `send`."""
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


M = TypeVar("M", bound=AnyMessage)


class ChildSide(Conversation, Generic[M]):
    """The record processor's end of the conversation with its daemon.

    `decode` reads a line of the daemon, as `decode_daemon_line` does.
    """

    def __init__(self, decode: Callable[[bytes], M], *, max_line_bytes: int) -> None:
        super().__init__(Role.CHILD)
        self._decode = decode
        self._max_line_bytes = max_line_bytes
        self._framer = LineFramer(max_line_bytes)
        self._lines: deque[bytes | OversizedLine] = deque()

    def receive_data(self, data: bytes) -> None:
        self._lines.extend(line for line in self._framer.feed(data) if not _is_blank(line))

    def next_message(self) -> M | None:
        """None until there is more data. Raises RemoteProtocolError if it is malformed or not allowed now."""
        if not self._lines:
            return None
        line = self._lines.popleft()
        if isinstance(line, OversizedLine):
            raise RemoteProtocolError(
                f"the daemon's line of {line.length_bytes} bytes is over max_line_bytes={self._max_line_bytes}"
            )
        message = self._decode(line)
        self.receive(message)
        return message

    def send_data(self, message: ChildMessage) -> bytes:
        """What to write for a message. Raises as `send`."""
        self.send(message)
        # The leading newline ends whatever was written to the pipe before.
        return b"\n" + encode(message)


def _is_blank(line: bytes | OversizedLine) -> bool:
    return isinstance(line, bytes) and (not line or line.isspace())
