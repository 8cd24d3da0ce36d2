"""Event streams to one endpoint over HTTP/2: many of them on one connection, more connections when it is full.

Owns which connection a stream goes to, and the way back to HTTP/1.1 where HTTP/2 cannot be had. Knows nothing of
signatures and operations.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from ssl import SSLContext
from typing import TypeVar

from anyio import Lock, fail_after

from kcl_daemon.transport.connection import ConnectionBroken
from kcl_daemon.transport.dial import CONNECT_S, connect
from kcl_daemon.transport.head import Head
from kcl_daemon.transport.http2_connection import Http2Connection, NotHttp2
from kcl_daemon.transport.http2_frames import request_headers
from kcl_daemon.transport.http2_stream import Http2Stream, Unprocessed
from kcl_daemon.transport.values import Target
from kcl_daemon.transport.wire import Read, Streamed, Wire

T = TypeVar("T")


class Http2Wire:
    """A `Wire` whose streams share connections; calls go the plain way.

    Args:
        target: the endpoint.
        plain: the way by HTTP/1.1, for calls, and for streams where there is no HTTP/2.
        tls: for encrypted connections, with HTTP/2 on offer; called when one is opened.
        tell: is told once, when the first stream goes the plain way, and why.
        why_not: a reason to go that way from the beginning.
    """

    def __init__(
        self,
        target: Target,
        plain: Wire,
        *,
        tls: Callable[[], SSLContext],
        tell: Callable[[str], None],
        why_not: str | None = None,
    ) -> None:
        self._target = target
        self._plain = plain
        self._tls = tls
        self._tell = tell
        self._why_not = why_not
        self._told = False
        self._connections: list[Http2Connection] = []
        self._dialing = Lock()
        self._failures = 0
        self._failure = ""

    async def exchange(self, head: bytes, body: bytes, read: Read[T], *, once: bool = False) -> T:
        """As the protocol says."""
        return await self._plain.exchange(head, body, read, once=once)

    @asynccontextmanager
    async def stream(self, head: bytes, body: bytes, *, silence_s: float) -> AsyncGenerator[Streamed, None]:
        """As the protocol says; what breaks one stream need not break the others on its connection."""
        opened = None
        try:
            opened = await self._opened(head, body, silence_s)
        except NotHttp2 as other:
            self._tell_once(str(other))
        if opened is None:
            async with self._plain.stream(head, body, silence_s=silence_s) as streamed:
                yield streamed
            return
        connection, stream, answer = opened
        try:
            yield Streamed(answer, stream.pieces())
        finally:
            connection.leave(stream)

    async def aclose(self) -> None:
        """As the protocol says; connections with streams on them close with the last of these."""
        while self._connections:
            self._connections.pop().retire()
        await self._plain.aclose()

    async def _opened(
        self, head: bytes, body: bytes, silence_s: float
    ) -> tuple[Http2Connection, Http2Stream, Head]:
        """A stream whose answer has begun. What the service did not look at is sent once more, elsewhere."""
        try:
            return await self._open(head, body, silence_s)
        except Unprocessed:
            return await self._open(head, body, silence_s)

    async def _open(
        self, head: bytes, body: bytes, silence_s: float
    ) -> tuple[Http2Connection, Http2Stream, Head]:
        connection = await self._with_room()
        headers = request_headers(head, scheme="https" if self._target.is_tls else "http")
        stream = connection.open(headers, body, silence_s=silence_s)
        try:
            return connection, stream, await stream.answer()
        except BaseException:
            connection.leave(stream)
            raise

    async def _with_room(self) -> Http2Connection:
        """A connection for one more stream; the caller opens it before anybody else has a turn."""
        failures = self._failures
        found = self._kept()
        if found is not None:
            return found
        async with self._dialing:
            found = self._kept()
            if found is not None:
                return found
            if (
                self._failures != failures
            ):  # who waited for it shares its end, else each would take as long again
                raise ConnectionBroken(self._failure, answered=False)
            try:
                made = await self._dial()
            except NotHttp2 as other:
                self._why_not = str(other)
                raise
            except ConnectionBroken as broken:
                self._failures += 1
                self._failure = str(broken)
                raise
            self._connections.append(made)
            return made

    def _kept(self) -> Http2Connection | None:
        """The first one with room, so that the others can run empty; NotHttp2 where there is no sense in asking."""
        if self._why_not is not None:
            raise NotHttp2(self._why_not, answered=False)
        self._connections = [each for each in self._connections if not each.is_closed]
        return next((each for each in self._connections if each.has_room), None)

    async def _dial(self) -> Http2Connection:
        tls = self._tls() if self._target.is_tls else None
        connection = await connect(self._target, tls, Http2Connection)
        try:
            with fail_after(CONNECT_S):
                await connection.ready()
        except TimeoutError as error:
            connection.retire()
            why = f"no settings of HTTP/2 from {self._target.host} within {CONNECT_S:g} s"
            raise ConnectionBroken(why, answered=False) from error
        except BaseException:
            connection.retire()
            raise
        if not connection.has_room:
            connection.retire()
            raise ConnectionBroken(f"{self._target.host} takes no streams", answered=False)
        return connection

    def _tell_once(self, why: str) -> None:
        if not self._told:
            self._told = True
            self._tell(why)
