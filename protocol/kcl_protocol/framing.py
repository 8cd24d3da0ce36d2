"""Cuts a byte stream into lines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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

    def close(self) -> bytes | OversizedLine | None:
        """The last line if it has no terminator, else None. Empties the framer."""
        self._after_cr = False
        return self._take() if self._length_bytes else None

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
