"""PURE: where frames of HTTP/2 begin and end, and what request and answer look like in it.

Frames are told apart here, and not by the library that reads them, for two reasons: a length that cannot be is refused
before anything of it is kept, and GOAWAY is understood without it. The library takes that for the end of everything,
while the standard lets streams that are under way go on to their end (RFC 9113, 6.8).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kcl_daemon.transport.head import Framing, Head

HEADER_BYTES: Final = 9
_LENGTH_BYTES: Final = 3
_TYPE_AT: Final = 3
_SETTINGS: Final = 4
_GOAWAY: Final = 7
_GOAWAY_LEAST_BYTES: Final = 8
_STREAM_NUMBER: Final = 2**31 - 1
_SHOWN_BYTES: Final = 80
# Headers of HTTP/1.1 that say something about the connection; HTTP/2 forbids them.
_OF_CONNECTION: Final = frozenset({"host", "connection", "content-length", "transfer-encoding"})


class MalformedHttp2(Exception):
    """Raised when what came is no frame of HTTP/2; nothing that follows on the connection can be read."""


@dataclass(frozen=True, slots=True)
class GoAway:
    """The peer takes no more streams on this connection.

    Args:
        last_stream: streams with a higher number were not looked at.
        code: 0 where all others go on to their end.
        told: why, in the peer's words; often nothing.
    """

    last_stream: int
    code: int
    told: str


class FrameSplitter:
    """Takes pieces of any size, gives whole frames. Of no further use once it has raised.

    Args:
        frame_bytes_most: longest payload that we allow the peer.
    """

    def __init__(self, frame_bytes_most: int) -> None:
        self._most = frame_bytes_most
        self._parts: list[bytes] = []
        self._have = 0
        self._needed = HEADER_BYTES
        self._has_begun = False

    @property
    def has_begun(self) -> bool:
        """Whether the peer has shown that it speaks HTTP/2: its first frame is one of settings."""
        return self._has_begun

    def feed(self, data: bytes) -> list[memoryview | GoAway]:
        """The frames that this piece completes, with their headers.

        Raises:
            MalformedHttp2: a frame is longer than allowed, or the first one has no settings. Frames before it in the
                same piece are lost with it.
        """
        self._parts.append(data)
        self._have += len(data)
        if self._have < self._needed:
            return []
        view = memoryview(self._parts[0] if len(self._parts) == 1 else b"".join(self._parts))
        found: list[memoryview | GoAway] = []
        at = 0
        while (end := at + self._frame_bytes(view[at:])) <= len(view):
            found.append(self._frame(view[at:end]))
            at = end
        self._needed = end - at
        self._parts = [bytes(view[at:])]
        self._have = len(view) - at
        return found

    def _frame_bytes(self, view: memoryview) -> int:
        """Length of the frame that begins so, or of its header while that is not there."""
        if len(view) < HEADER_BYTES:
            return HEADER_BYTES
        length = int.from_bytes(view[:_LENGTH_BYTES])
        if not self._has_begun and view[_TYPE_AT] != _SETTINGS:
            raise MalformedHttp2(f"no settings of HTTP/2: {bytes(view[:_SHOWN_BYTES])!r}")
        if length > self._most:
            raise MalformedHttp2(f"a frame of {length} bytes, more than the {self._most} that were allowed")
        return HEADER_BYTES + length

    def _frame(self, frame: memoryview) -> memoryview | GoAway:
        self._has_begun = True
        if frame[_TYPE_AT] != _GOAWAY:
            return frame
        payload = bytes(frame[HEADER_BYTES:])
        if len(payload) < _GOAWAY_LEAST_BYTES:
            raise MalformedHttp2(f"GOAWAY of {len(payload)} bytes")
        told = payload[8 : 8 + _SHOWN_BYTES].decode("latin-1")
        return GoAway(int.from_bytes(payload[:4]) & _STREAM_NUMBER, int.from_bytes(payload[4:8]), told)


def request_headers(head: bytes, *, scheme: str) -> list[tuple[str, str]]:
    """A head of HTTP/1.1, as `sign` writes it, in the form of HTTP/2.

    `Host` becomes `:authority`, which services check the signature of `host` against.

    Args:
        head: request line and headers.
        scheme: `https` or `http`.
    """
    line, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, path, _ = line.split(" ")
    headers = [(name.lower(), value) for name, _, value in (each.partition(": ") for each in lines)]
    authority = dict(headers)["host"]
    return [
        (":method", method),
        (":scheme", scheme),
        (":authority", authority),
        (":path", path),
        *(each for each in headers if each[0] not in _OF_CONNECTION),
    ]


def answer_head(headers: Iterable[tuple[bytes, bytes]]) -> Head:
    """The head of an answer, whose body ends with its stream; ValueError where it has no status."""
    told = {bytes(name).decode("latin-1"): bytes(value).decode("latin-1") for name, value in headers}
    status = int(told.pop(":status", ""))
    return Head(status, told, Framing.CLOSE, 0)
