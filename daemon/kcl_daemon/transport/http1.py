"""One exchange at a time. Ambiguous answers are refused.

Uses asyncio, not anyio: with a `BufferedProtocol` the kernel writes a body straight into the buffer from which it is
decoded.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - see the module's docstring
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol, cast

MAX_HEAD_BYTES: Final = 16 * 1024
# GetRecords returns up to 10 MiB of data as base64, and keys.
MAX_BODY_BYTES: Final = 64 * 2**20
_MAX_LENGTH_DIGITS: Final = 20
_NO_CONTENT: Final = 204
_OK: Final = 200
_MAX_LINE_BYTES: Final = 4096
_MAX_SIZE_DIGITS: Final = 8
_CRLF: Final = 2
_HEX: Final = frozenset(b"0123456789abcdefABCDEF")
# Limits one read, so that other tasks run in between.
_READ_BYTES: Final = 1024 * 1024
# Reading stops while this much of an event stream waits.
_STREAM_READ_BYTES: Final = 256 * 1024
# Read only when `body` is called.
LARGE_BYTES: Final = 256 * 1024


class MalformedAnswer(Exception):
    """The connection is unusable then."""


class Framing(Enum):
    LENGTH = "after so many bytes"
    CHUNKED = "after the chunk of no length"
    CLOSE = "when the connection is closed"


@dataclass(frozen=True, slots=True)
class Head:
    """Header names are in lower case; of repeated headers the last counts. An unknown `length` is 0."""

    status: int
    headers: Mapping[str, str]
    framing: Framing
    length: int

    @property
    def is_final(self) -> bool:
        return self.status >= _OK

    @property
    def keeps_alive(self) -> bool:
        return self.framing is not Framing.CLOSE and self.headers.get("connection", "").lower() != "close"


def parse_head(data: bytes) -> Head:
    """Without its final empty line. MalformedAnswer if the body's length is unclear or too large."""
    lines = data.decode("latin-1").split("\r\n")
    status = _status(lines[0])
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise MalformedAnswer(f"no header: {line[:80]!r}")
        name, value = name.lower(), value.strip()
        if name == "content-length" and headers.get(name, value) != value:
            raise MalformedAnswer("two lengths of one body")
        headers[name] = value
    if not lines[0].startswith("HTTP/1.1"):
        headers["connection"] = "close"
    framing, length = _framing(status, headers)
    return Head(status, headers, framing, length)


def _status(line: str) -> int:
    version, _, rest = line.partition(" ")
    digits = rest[:3]
    known = version in {"HTTP/1.1", "HTTP/1.0"} and digits.isascii() and digits.isdigit() and len(digits) == 3
    if not known or rest[3:4] not in {"", " "}:
        raise MalformedAnswer(f"no answer of HTTP/1.1: {line[:80]!r}")
    return int(digits)


def _framing(status: int, headers: Mapping[str, str]) -> tuple[Framing, int]:
    if status < _OK or status == _NO_CONTENT:
        return Framing.LENGTH, 0
    coding = headers.get("transfer-encoding")
    if coding is not None:
        if coding.lower() != "chunked" or "content-length" in headers:
            raise MalformedAnswer(f"a body of unclear length: transfer-encoding {coding[:80]!r}")
        return Framing.CHUNKED, 0
    text = headers.get("content-length")
    if text is None:
        return Framing.CLOSE, 0
    is_number = text.isascii() and text.isdigit() and len(text) <= _MAX_LENGTH_DIGITS
    if not is_number or int(text) > MAX_BODY_BYTES:
        raise MalformedAnswer(f"a body of {text[:20]!r} bytes")
    return Framing.LENGTH, int(text)


class BodyReader(Protocol):
    """MalformedAnswer in `feed`, and in `close` of an incomplete body."""

    @property
    def ended(self) -> bool:
        """Do not feed a complete body."""
        ...

    def feed(self, data: memoryview) -> list[bytes]: ...

    def close(self) -> None: ...


def body_reader(framing: Framing, length: int) -> BodyReader:
    match framing:
        case Framing.CHUNKED:
            return ChunkedBody()
        case Framing.LENGTH:
            return SizedBody(length)
        case Framing.CLOSE:
            return BodyUntilClose()


class SizedBody:
    def __init__(self, length: int) -> None:
        self._left = length

    @property
    def ended(self) -> bool:
        return self._left == 0

    def feed(self, data: memoryview) -> list[bytes]:
        if len(data) > self._left:
            raise MalformedAnswer("the body is longer than its Content-Length")
        self._left -= len(data)
        return [bytes(data)] if data else []

    def close(self) -> None:
        if self._left:
            raise MalformedAnswer(f"the connection was closed {self._left} bytes before the end of the body")


class BodyUntilClose:
    def __init__(self) -> None:
        self.ended = False

    def feed(self, data: memoryview) -> list[bytes]:
        return [bytes(data)] if data else []

    def close(self) -> None:
        self.ended = True


class ChunkedBody:
    """Skips extensions and trailers."""

    def __init__(self) -> None:
        self.ended = False
        self._left = 0
        self._line = bytearray()
        self._last = False

    def feed(self, data: memoryview) -> list[bytes]:
        pieces: list[bytes] = []
        while data:
            if self.ended:
                raise MalformedAnswer("data after the end of the body")
            data = self._data(data, pieces) if self._left else self._control(data)
        return pieces

    def close(self) -> None:
        if not self.ended:
            raise MalformedAnswer("the connection was closed in the middle of the body")

    def _data(self, data: memoryview, pieces: list[bytes]) -> memoryview:
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
        piece = bytes(data[:_MAX_LINE_BYTES])
        end = piece.find(b"\n")
        self._line += piece if end < 0 else piece[: end + 1]
        if len(self._line) > _MAX_LINE_BYTES:
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
        if not digits or len(digits) > _MAX_SIZE_DIGITS or not _HEX.issuperset(digits):
            raise MalformedAnswer(f"no length of a chunk: {line[:80]!r}")
        length = int(digits, 16)
        if length > MAX_BODY_BYTES:
            raise MalformedAnswer(f"a chunk of {length} bytes")
        self._last = length == 0
        self._left = length + _CRLF if length else 0


class ConnectionBroken(Exception):
    """`answered`: part of the answer had come. If not, the server may just have closed an idle connection."""

    def __init__(self, what: str, *, answered: bool) -> None:
        super().__init__(what)
        self.answered = answered


class Connection(asyncio.BufferedProtocol):
    """Call `request`, then `body` or `pieces` to the end, then again; each may raise ConnectionBroken.

    After a cancellation or error call `abort`. A peer that is silent for `silence_s` counts as dead.
    """

    def __init__(self, silence_s: float) -> None:
        self.silence_s = silence_s
        self.idle_since_s = 0.0
        self.rested_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._scratch = bytearray(MAX_HEAD_BYTES)
        self._filled = 0
        self._expecting = False
        self._head: Head | None = None
        self._body: bytearray | None = None
        self._received = 0
        self._reader: BodyReader | None = None
        self._pieces: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._broken: ConnectionBroken | None = None
        self._paused = False
        self._moved_s = 0.0
        self._watch: asyncio.TimerHandle | None = None

    @property
    def is_usable(self) -> bool:
        return self._broken is None and not self._expecting and self._transport is not None

    async def request(self, data: bytes) -> Head:
        if not self.is_usable:
            raise self._broken or ConnectionBroken("the connection is in use or closed", answered=False)
        assert self._transport is not None
        self._head, self._body, self._reader = None, None, None
        self._filled = self._received = 0
        self._expecting = True
        self._moved_s = self._loop.time()
        self._start_watch()
        self._transport.write(data)
        return await self._answer_head()

    async def body(self) -> bytearray:
        if self._reader is not None:
            whole = bytearray()
            async for piece in self.pieces():
                whole += piece
            return whole
        self._resume()
        while self._expecting:
            await self._wait()
        body, self._body = self._body, None
        return body if body is not None else bytearray()

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """While a piece is not taken, nothing is read."""
        self._by_pieces()
        while True:
            while not self._pieces:
                if not self._expecting:
                    return
                await self._wait()
            piece = self._pieces.popleft()
            if not self._pieces:
                self._resume()
            yield piece

    def abort(self, why: str = "closed by the daemon") -> None:
        """Waiting calls fail. A second call does nothing."""
        self._fail(why)

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(f"the connection broke: {exc}" if exc else "the peer closed the connection")

    def eof_received(self) -> bool:
        if self._expecting and self._reader is not None:
            try:
                self._reader.close()
            except MalformedAnswer as error:
                self._fail(str(error))
            else:
                self._complete()
        return False

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Never empty: TLS would take that for the end."""
        if self._body is not None and self._expecting:
            return memoryview(self._body)[self._received : self._received + _READ_BYTES]
        return memoryview(self._scratch)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._moved_s = self._loop.time()
        try:
            self._take(nbytes)
        except MalformedAnswer as error:
            self._fail(str(error))

    def _take(self, nbytes: int) -> None:
        if not self._expecting:
            raise MalformedAnswer("data without a request")
        if self._body is not None:
            self._received += nbytes
            self._complete_if_whole()
        elif self._reader is not None:
            self._take_pieces(memoryview(self._scratch)[:nbytes])
        else:
            self._filled += nbytes
            self._take_heads()

    def _take_heads(self) -> None:
        while self._head is None:
            end = self._scratch.find(b"\r\n\r\n", 0, self._filled)
            if end < 0:
                if self._filled == MAX_HEAD_BYTES:
                    raise MalformedAnswer(f"a head of more than {MAX_HEAD_BYTES} bytes")
                return
            head = parse_head(bytes(self._scratch[:end]))
            rest = bytes(self._scratch[end + 4 : self._filled])
            if head.is_final:
                self._begin_body(head, rest)
            else:
                self._scratch[: len(rest)] = rest
                self._filled = len(rest)

    def _begin_body(self, head: Head, rest: bytes) -> None:
        self._head = head
        self._filled = 0
        if head.framing is Framing.LENGTH:
            if len(rest) > head.length:
                raise MalformedAnswer("the body is longer than its Content-Length")
            self._body = bytearray(head.length)
            self._body[: len(rest)] = rest
            self._received = len(rest)
            if not self._complete_if_whole() and head.length >= LARGE_BYTES:
                self._pause()
        else:
            self._reader = body_reader(head.framing, 0)
            self._take_pieces(memoryview(rest))
        self._wake()

    def _by_pieces(self) -> None:
        if self._body is None:
            return
        assert self._head is not None
        self._reader = body_reader(Framing.LENGTH, self._head.length)
        body, self._body = memoryview(self._body)[: self._received], None
        self._pieces.extend(self._reader.feed(body))
        self._resume()

    def _take_pieces(self, data: memoryview) -> None:
        assert self._reader is not None
        pieces = self._reader.feed(data)
        self._pieces.extend(pieces)
        if self._reader.ended:
            self._complete()
        elif pieces:
            if len(self._scratch) < _STREAM_READ_BYTES:
                self._scratch = bytearray(_STREAM_READ_BYTES)
            self._pause()
            self._wake()

    def _complete_if_whole(self) -> bool:
        assert self._head is not None
        if self._received < self._head.length:
            return False
        self._complete()
        return True

    def _complete(self) -> None:
        assert self._head is not None
        self._expecting = False
        if self._transport is not None:
            if self._head.keeps_alive:
                self._resume()
            else:
                self._transport.close()
                self._transport = None
        self._wake()

    def _fail(self, why: str) -> None:
        if self._broken is None:
            self._broken = ConnectionBroken(why, answered=self._head is not None or self._filled > 0)
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        self._wake()

    async def _answer_head(self) -> Head:
        while True:
            if self._head is not None:
                return self._head
            await self._wait()

    async def _wait(self) -> None:
        self._raise_broken()
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None
        if self._expecting:
            self._raise_broken()

    def _raise_broken(self) -> None:
        if self._broken is not None:
            raise self._broken

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _resume(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            self._moved_s = self._loop.time()
            self._transport.resume_reading()

    def _start_watch(self) -> None:
        """One timer for all exchanges: one for each would cost more than all else."""
        if self._watch is None:
            self._watch = self._loop.call_later(self.silence_s, self._check_silence)

    def _check_silence(self) -> None:
        self._watch = None
        if not self._expecting or self._broken is not None:
            return
        left_s = self.silence_s - (self._loop.time() - self._moved_s)
        if self._paused:
            left_s = self.silence_s
        if left_s > 0:
            self._watch = self._loop.call_later(left_s, self._check_silence)
        else:
            self._fail(f"nothing came for {self.silence_s:g} s")
