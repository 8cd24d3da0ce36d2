"""PURE: bodies that come in chunks, or until the connection is closed."""

from __future__ import annotations

from typing import Final, Protocol

from kcl_daemon.transport.head import BODY_BYTES_MOST, Framing, MalformedAnswer

_LINE_BYTES_MOST: Final = 4096
_SIZE_DIGITS_MOST: Final = 8
_CRLF: Final = 2
_HEX: Final = frozenset(b"0123456789abcdefABCDEF")


class BodyReader(Protocol):
    """Takes what comes over the connection and gives what belongs to the body."""

    @property
    def ended(self) -> bool:
        """Whether the body is complete; nothing may be fed after that."""
        ...

    def feed(self, data: memoryview) -> list[bytes]:
        """The pieces of the body in what has just come; MalformedAnswer where there is an error in it."""
        ...

    def close(self) -> None:
        """The connection was closed by the other side; MalformedAnswer where that leaves the body incomplete."""
        ...


def body_reader(framing: Framing, length: int) -> BodyReader:
    """The reader for a body of that framing."""
    match framing:
        case Framing.CHUNKED:
            return Chunks()
        case Framing.LENGTH:
            return Counted(length)
        case Framing.CLOSE:
            return UntilClose()


class Counted:
    """A body of known length, read piece by piece."""

    def __init__(self, length: int) -> None:
        self._left = length

    @property
    def ended(self) -> bool:
        """As the protocol says."""
        return self._left == 0

    def feed(self, data: memoryview) -> list[bytes]:
        """As the protocol says."""
        if len(data) > self._left:
            raise MalformedAnswer("more came than the body's length")
        self._left -= len(data)
        return [bytes(data)] if data else []

    def close(self) -> None:
        """As the protocol says."""
        if self._left:
            raise MalformedAnswer(f"the connection was closed {self._left} bytes before the end of the body")


class UntilClose:
    """A body that ends with the connection."""

    def __init__(self) -> None:
        self.ended = False

    def feed(self, data: memoryview) -> list[bytes]:
        """As the protocol says."""
        return [bytes(data)] if data else []

    def close(self) -> None:
        """As the protocol says."""
        self.ended = True


class Chunks:
    """A chunked body; extensions and trailers are read over."""

    def __init__(self) -> None:
        self.ended = False
        self._left = 0  # of the chunk under way, its line end included
        self._line = bytearray()
        self._last = False  # the chunk of no length has come: trailers, then the end

    def feed(self, data: memoryview) -> list[bytes]:
        """As the protocol says."""
        pieces: list[bytes] = []
        while data:
            if self.ended:
                raise MalformedAnswer("more came than the body")
            data = self._data(data, pieces) if self._left else self._control(data)
        return pieces

    def close(self) -> None:
        """As the protocol says."""
        if not self.ended:
            raise MalformedAnswer("the connection was closed in the middle of the body")

    def _data(self, data: memoryview, pieces: list[bytes]) -> memoryview:
        """Bytes of a chunk, then its line end."""
        content = min(len(data), self._left - _CRLF)
        if content > 0:
            pieces.append(bytes(data[:content]))
            self._left -= content
            return data[content:]
        if data[0] != b"\r\n"[_CRLF - self._left]:
            raise MalformedAnswer("a chunk is longer than it said")
        self._left -= 1
        return data[1:]

    def _control(self, data: memoryview) -> memoryview:
        """Part of a line between chunks."""
        piece = bytes(data[:_LINE_BYTES_MOST])
        end = piece.find(b"\n")
        self._line += piece if end < 0 else piece[: end + 1]
        if len(self._line) > _LINE_BYTES_MOST:
            raise MalformedAnswer("a line between chunks does not end")
        if end < 0:
            return data[len(piece) :]
        line = bytes(self._line)
        self._line.clear()
        self._control_line(line)
        return data[end + 1 :]

    def _control_line(self, line: bytes) -> None:
        if not line.endswith(b"\r\n"):
            raise MalformedAnswer(f"a line without CR: {line[:80]!r}")
        if self._last:
            self.ended = line == b"\r\n"
            return
        digits = line.partition(b";")[0].strip()
        if not digits or len(digits) > _SIZE_DIGITS_MOST or not _HEX.issuperset(digits):
            raise MalformedAnswer(f"no length of a chunk: {line[:80]!r}")
        length = int(digits, 16)
        if length > BODY_BYTES_MOST:
            raise MalformedAnswer(f"a chunk of {length} bytes")
        self._last = length == 0
        self._left = length + _CRLF if length else 0
