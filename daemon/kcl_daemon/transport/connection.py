"""One connection: requests go out, heads and bodies come back, one exchange at a time.

Owns the socket and the watch over it: a peer that says nothing for too long is taken for dead, so that a half-open
connection is noticed. Knows nothing of signatures or of what bodies mean.

This module and `dial` use asyncio's transports without anyio between: a `BufferedProtocol` has the kernel write a body
straight into the one buffer from which it is decoded, which no stream interface does.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - see the module's docstring
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final, cast

from kcl_daemon.transport.chunks import BodyReader, body_reader
from kcl_daemon.transport.head import HEAD_BYTES_MOST, Framing, Head, MalformedAnswer, parse_head

# The most of a body that is asked for at once; the event loop has its turn in between.
_READ_BYTES: Final = 1024 * 1024
# Pieces of an event stream that may wait for their taker before reading stops.
_STREAM_READ_BYTES: Final = 256 * 1024
# Bodies from here on wait for `body`; smaller ones are read at once.
LARGE_BYTES: Final = 256 * 1024


class ConnectionBroken(Exception):
    """Raised when an exchange cannot be completed; says what happened.

    Attributes:
        answered: whether any of the answer had come. If not, the server may just have closed an idle connection.
    """

    def __init__(self, what: str, *, answered: bool) -> None:
        super().__init__(what)
        self.answered = answered


class Connection(asyncio.BufferedProtocol):
    """The protocol of one connection.

    Use: `request`, then either `body` or `pieces` to their end, then again. Whoever is cancelled or meets an error in
    between must `abort`.

    Args:
        silence_s: how long the peer may say nothing while something is awaited of it.
    """

    def __init__(self, silence_s: float) -> None:
        self.silence_s = silence_s
        self.idle_since_s = 0.0  # the pool's notes
        self.rested_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._scratch = bytearray(HEAD_BYTES_MOST)
        self._filled = 0  # of the scratch buffer, while a head is read
        self._expecting = False  # whether the peer may send anything
        self._head: Head | None = None
        self._body: bytearray | None = None
        self._received = 0  # of the body
        self._reader: BodyReader | None = None
        self._pieces: deque[bytes] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._broken: ConnectionBroken | None = None
        self._paused = False
        self._moved_s = 0.0
        self._watch: asyncio.TimerHandle | None = None

    @property
    def is_usable(self) -> bool:
        """Whether another request can go out: open, and nothing left of the one before."""
        return self._broken is None and not self._expecting and self._transport is not None

    async def request(self, data: bytes) -> Head:
        """Send a request and wait for the head of its answer.

        Raises:
            ConnectionBroken: there was none, or it was malformed.
        """
        if not self.is_usable:
            raise self._broken or ConnectionBroken("the connection is in use or closed", answered=False)
        assert self._transport is not None
        self._head, self._body, self._reader = None, None, None
        self._filled = self._received = 0
        self._expecting = True
        self._moved_s = self._loop.time()
        self._keep_watch()
        self._transport.write(data)
        return await self._answer_head()

    async def body(self) -> bytearray:
        """The whole body of the answer. The connection can be used again afterwards.

        Raises:
            ConnectionBroken: it did not come to its end.
        """
        if self._reader is not None:
            whole = bytearray()
            async for piece in self.pieces():
                whole += piece
            return whole
        self._go_on()
        while self._expecting:
            await self._wait()
        body, self._body = self._body, None
        return body if body is not None else bytearray()

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The body piece by piece; what is not taken holds up the sender.

        Raises:
            ConnectionBroken: it did not come to its end, or nothing came for `silence_s`.
        """
        self._by_pieces()
        while True:
            while not self._pieces:
                if not self._expecting:
                    return
                await self._wait()
            piece = self._pieces.popleft()
            if not self._pieces:
                self._go_on()
            yield piece

    def abort(self, why: str = "given up") -> None:
        """Close at once; whoever waits is told. Again: no effect."""
        self._fail(why)

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is open."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed, by either side."""
        self._fail(f"the connection broke: {exc}" if exc else "the peer closed the connection")

    def eof_received(self) -> bool:
        """The peer will send no more; the transport is closed then."""
        if self._expecting and self._reader is not None:
            try:
                self._reader.close()
            except MalformedAnswer as error:
                self._fail(str(error))
            else:
                self._complete()
        return False

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - asyncio's signature
        """Where the next bytes go; never empty, TLS would take that for the end."""
        if self._body is not None and self._expecting:
            return memoryview(self._body)[self._received : self._received + _READ_BYTES]
        return memoryview(self._scratch)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """So many bytes have come."""
        self._moved_s = self._loop.time()
        try:
            self._take(nbytes)
        except MalformedAnswer as error:
            self._fail(str(error))

    def _take(self, nbytes: int) -> None:
        if not self._expecting:
            raise MalformedAnswer("something came that nobody asked for")
        if self._body is not None:
            self._received += nbytes
            self._complete_if_whole()
        elif self._reader is not None:
            self._take_pieces(memoryview(self._scratch)[:nbytes])
        else:
            self._filled += nbytes
            self._take_heads()

    def _take_heads(self) -> None:
        """Look for a whole head in the scratch buffer."""
        while self._head is None:
            end = self._scratch.find(b"\r\n\r\n", 0, self._filled)
            if end < 0:
                if self._filled == HEAD_BYTES_MOST:
                    raise MalformedAnswer(f"a head of more than {HEAD_BYTES_MOST} bytes")
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
                raise MalformedAnswer("more came than the body's length")
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
        """A body of known length that somebody wants in pieces."""
        if self._body is None:
            return
        assert self._head is not None
        self._reader = body_reader(Framing.LENGTH, self._head.length)
        body, self._body = memoryview(self._body)[: self._received], None
        self._pieces.extend(self._reader.feed(body))
        self._go_on()

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
        """The exchange is over."""
        assert self._head is not None
        self._expecting = False
        if self._transport is not None:
            if self._head.keeps_alive:
                self._go_on()
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

    # Waiting, and watching the peer.

    async def _answer_head(self) -> Head:
        while True:
            if self._head is not None:
                return self._head
            await self._wait()

    async def _wait(self) -> None:
        """Until something has happened; raises where that was the end."""
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

    def _go_on(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            self._moved_s = self._loop.time()
            self._transport.resume_reading()

    def _keep_watch(self) -> None:
        """One timer for all exchanges, looked at when it ends: setting one for each call would cost more than the rest."""
        if self._watch is None:
            self._watch = self._loop.call_later(self.silence_s, self._look)

    def _look(self) -> None:
        self._watch = None
        if not self._expecting or self._broken is not None:
            return
        left_s = self.silence_s - (self._loop.time() - self._moved_s)
        if self._paused:
            left_s = self.silence_s
        if left_s > 0:
            self._watch = self._loop.call_later(left_s, self._look)
        else:
            self._fail(f"nothing came for {self.silence_s:g} s")
