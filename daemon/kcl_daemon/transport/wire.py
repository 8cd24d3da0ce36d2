"""Whole exchanges over pooled connections: a signed request in, the read answer out, or its body as it comes.

Owns what is tried again (a kept connection that the server had closed) and how many large bodies are received at once.
Knows nothing of signatures and operations.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from anyio import Semaphore

from kcl_daemon.transport.connection import LARGE_BYTES, Connection, ConnectionBroken
from kcl_daemon.transport.dial import Pool
from kcl_daemon.transport.head import Head

T = TypeVar("T")

# More large bodies at the same time would be no faster, hold up the loop for longer and take more memory.
LARGE_AT_ONCE: Final = 4
# No server closes a connection that was used so recently; one that breaks then broke for another reason.
_STALE_S: Final = 2.0

Read = Callable[[Head, bytearray], T]
"""Reads an answer that has come whole; runs while the body still counts as being received."""


@dataclass(frozen=True, slots=True)
class Streamed:
    """An answer whose body is still coming.

    Args:
        head: status and headers.
        pieces: the body; ConnectionBroken where it breaks off or nothing comes for too long.
    """

    head: Head
    pieces: AsyncIterator[bytes]


class Wire(Protocol):
    """The way to one endpoint: direct, or through a proxy. Every call raises ConnectionBroken where it fails."""

    async def exchange(self, head: bytes, body: bytes, read: Read[T], *, once: bool = False) -> T:
        """Send a request, and what `read` makes of the answer.

        It may be sent twice unless `once`: then nobody knows whether a request took effect that was not answered.
        """
        ...

    def stream(self, head: bytes, body: bytes, *, silence_s: float) -> AbstractAsyncContextManager[Streamed]:
        """Send a request; its answer while the context is open, held up by nobody but who takes it.

        Args:
            head: of the request.
            body: of the request.
            silence_s: how long nothing may come.
        """
        ...

    async def aclose(self) -> None:
        """Close idle connections."""
        ...


class DirectWire:
    """The endpoint itself.

    Args:
        pool: its connections.
        large: how many large bodies may be received at once, over all endpoints.
    """

    def __init__(self, pool: Pool, large: Semaphore) -> None:
        self._pool = pool
        self._large = large

    async def exchange(self, head: bytes, body: bytes, read: Read[T], *, once: bool = False) -> T:
        """As the protocol says."""
        try:
            return await self._exchange(head, body, read, fresh=False)
        except _Stale:
            if once:
                raise
        return await self._exchange(head, body, read, fresh=True)

    @asynccontextmanager
    async def stream(self, head: bytes, body: bytes, *, silence_s: float) -> AsyncGenerator[Streamed, None]:
        """As the protocol says."""
        connection = await self._pool.dial(silence_s=silence_s)
        try:
            answer = await connection.request(head + body)
            yield Streamed(answer, connection.pieces())
        finally:
            connection.abort()

    async def aclose(self) -> None:
        """As the protocol says."""
        self._pool.close()

    async def _exchange(self, head: bytes, body: bytes, read: Read[T], *, fresh: bool) -> T:
        async with self._pool.connection(fresh=fresh) as connection:
            answer = await _request(connection, head + body)
            if answer.length < LARGE_BYTES:
                return read(answer, await connection.body())
            async with self._large:
                return read(answer, await connection.body())


class _Stale(ConnectionBroken):
    """Raised when a connection that nobody had used for a while broke before any answer came."""


async def _request(connection: Connection, data: bytes) -> Head:
    try:
        return await connection.request(data)
    except ConnectionBroken as broken:
        if connection.rested_s > _STALE_S and not broken.answered:
            raise _Stale(str(broken), answered=False) from broken
        raise
