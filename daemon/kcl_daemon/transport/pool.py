"""Opens connections, and keeps those that are still good for the next call.

Owns how many there are. One for each call under way, not one for each shard: polls are short and far apart.

What the transport is told from outside: where the service is, and as whom we speak to it.

Knows no SDK; `kcl_daemon.aws.access` finds all this out with one.

Whole exchanges over pooled connections: a signed request in, the read answer out, or its body as it comes.

Owns what is tried again (a kept connection that the server had closed) and how many large bodies are received at once.
Knows nothing of signatures and operations.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - see `connection`
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from ssl import SSLContext, SSLError
from typing import Final, Protocol, TypeVar
from urllib.parse import urlsplit

from anyio import Semaphore, fail_after

from kcl_daemon.transport.http1 import LARGE_BYTES, Connection, ConnectionBroken, Head

Parameters = Mapping[str, object]
"""The members of a request, as the service's JSON has them."""


@dataclass(frozen=True, slots=True)
class AccessKeys:
    """Credentials as they are now. Their secret parts are in no `repr`.

    Args:
        access_key: shown in signatures.
        secret_key: signs.
        token: of temporary credentials.
    """

    access_key: str
    secret_key: str
    token: str | None = None

    def __repr__(self) -> str:
        return f"Keys({self.access_key!r})"


@dataclass(frozen=True, slots=True)
class ServiceEndpoint:
    """Where requests of one kind go, and what their signatures are made for.

    Args:
        url: of the endpoint, with scheme; a path in it is kept.
        region: signing region.
        service: signing name, such as `kinesis`.
    """

    url: str
    region: str
    service: str

    @property
    def is_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.url.lower().startswith("https:")

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to connect to; ValueError where the URL has none."""
        parts = urlsplit(self.url)
        if not parts.hostname:
            raise ValueError(f"no host in endpoint {self.url!r}")
        return parts.hostname, parts.port or (443 if self.is_tls else 80)

    @property
    def host(self) -> str:
        """The Host header: the port only where it is not the scheme's own."""
        name, port = self.address
        shown = f"[{name}]" if ":" in name else name
        return shown if port == (443 if self.is_tls else 80) else f"{shown}:{port}"

    @property
    def path(self) -> str:
        """The path of the request line."""
        return urlsplit(self.url).path or "/"


class ServiceAccess(Protocol):
    """Finds endpoints and credentials; may take a moment the first time and when credentials are renewed."""

    async def target(self, operation: str, parameters: Parameters) -> ServiceEndpoint:
        """Where such a request goes.

        It depends on region, configured endpoints, FIPS and dual-stack settings and on the account of an ARN.

        Raises:
            AwsError: there is no such endpoint, or the parameters fit none.
        """
        ...

    async def keys(self) -> AccessKeys:
        """Credentials that are valid now; AccessDenied where there are none."""
        ...

    def tls(self) -> SSLContext:
        """What connections are verified against."""
        ...


_CONNECT_S: Final = 5.0
_IDLE_S: Final = 15.0  # services close theirs after some 20 s or more
_MAX_IDLE: Final = 32
# How long one address of a name may keep us from trying the next.
_NEXT_ADDRESS_S: Final = 0.25


async def _connect(target: ServiceEndpoint, tls: SSLContext | None, silence_s: float) -> Connection:
    host, port = target.address
    try:
        with fail_after(_CONNECT_S):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection(silence_s), host, port, ssl=tls, happy_eyeballs_delay=_NEXT_ADDRESS_S
            )
    except TimeoutError as error:
        raise ConnectionBroken(
            f"no connection to {target.host} within {_CONNECT_S:g} s", answered=False
        ) from error
    except SSLError as error:
        raise ConnectionBroken(
            f"no encrypted connection to {target.host}: {error}", answered=False
        ) from error
    except OSError as error:
        raise ConnectionBroken(f"no connection to {target.host}: {error}", answered=False) from error
    return connection


class ConnectionPool:
    """Connections to one endpoint.

    Args:
        target: where they go.
        tls: for encrypted ones; called when the first is opened.
        silence_s: how long the peer may say nothing.
        now_s: seconds by a clock that never goes back.
    """

    def __init__(
        self,
        target: ServiceEndpoint,
        tls: Callable[[], SSLContext],
        *,
        silence_s: float,
        now_s: Callable[[], float],
    ) -> None:
        self._target = target
        self._tls = tls
        self._silence_s = silence_s
        self._now_s = now_s
        self._idle: deque[Connection] = deque()
        self._slots = Semaphore(_MAX_IDLE, fast_acquire=True)
        self._closed = False

    @property
    def idle(self) -> int:
        """Connections that nobody uses now."""
        return len(self._idle)

    @asynccontextmanager
    async def connection(self, *, fresh: bool = False) -> AsyncGenerator[Connection, None]:
        """A connection for one exchange: one that is open already, unless `fresh`.

        Left by an error it is kept if its answer has come whole, as a refusal has; cancelled, it is closed. Errors as
        `dial`.
        """
        async with self._slots:
            connection = (None if fresh else self._kept()) or await self.dial(silence_s=self._silence_s)
            try:
                yield connection
            except Exception:
                self._keep(connection)
                raise
            except BaseException:
                connection.abort()
                raise
            self._keep(connection)

    async def dial(self, *, silence_s: float) -> Connection:
        """A new connection that belongs to the caller.

        Raises:
            ConnectionBroken: name, port, certificate or network did not allow it, or it took too long.
        """
        tls = self._tls() if self._target.is_tls else None
        return await _connect(self._target, tls, silence_s)

    def close(self) -> None:
        """Close what is idle, and later what is in use."""
        self._closed = True
        while self._idle:
            self._idle.pop().abort()

    def _kept(self) -> Connection | None:
        """The one used last, so that the others grow old and are closed."""
        oldest_s = self._now_s() - _IDLE_S
        while self._idle and (not self._idle[0].is_usable or self._idle[0].idle_since_s < oldest_s):
            self._idle.popleft().abort()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_usable:
                connection.rested_s = self._now_s() - connection.idle_since_s
                return connection
        return None

    def _keep(self, connection: Connection) -> None:
        if self._closed or not connection.is_usable:
            connection.abort()
            return
        connection.idle_since_s = self._now_s()
        self._idle.append(connection)


T = TypeVar("T")

# More large bodies at the same time would be no faster, hold up the loop for longer and take more memory.
LARGE_BODIES_AT_ONCE: Final = 4
# No server closes a connection that was used so recently; one that breaks then broke for another reason.
_STALE_S: Final = 2.0

Read = Callable[[Head, bytearray], T]
"""Reads an answer that has come whole; runs while the body still counts as being received."""


@dataclass(frozen=True, slots=True)
class StreamedResponse:
    """An answer whose body is still coming.

    Args:
        head: status and headers.
        pieces: the body; ConnectionBroken where it breaks off or nothing comes for too long.
    """

    head: Head
    pieces: AsyncIterator[bytes]


class HttpTransport(Protocol):
    """The way to one endpoint: direct, or through a proxy. Every call raises ConnectionBroken where it fails."""

    async def exchange(self, head: bytes, body: bytes, read: Read[T], *, once: bool = False) -> T:
        """Send a request, and what `read` makes of the answer.

        It may be sent twice unless `once`: then nobody knows whether a request took effect that was not answered.
        """
        ...

    def stream(
        self, head: bytes, body: bytes, *, silence_s: float
    ) -> AbstractAsyncContextManager[StreamedResponse]:
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


class DirectTransport:
    """The endpoint itself.

    Args:
        pool: its connections.
        large: how many large bodies may be received at once, over all endpoints.
    """

    def __init__(self, pool: ConnectionPool, large: Semaphore) -> None:
        self._pool = pool
        self._large = large

    async def exchange(self, head: bytes, body: bytes, read: Read[T], *, once: bool = False) -> T:
        """As the protocol says."""
        try:
            return await self._exchange(head, body, read, fresh=False)
        except _StaleConnection:
            if once:
                raise
        return await self._exchange(head, body, read, fresh=True)

    @asynccontextmanager
    async def stream(
        self, head: bytes, body: bytes, *, silence_s: float
    ) -> AsyncGenerator[StreamedResponse, None]:
        """As the protocol says."""
        connection = await self._pool.dial(silence_s=silence_s)
        try:
            answer = await connection.request(head + body)
            yield StreamedResponse(answer, connection.pieces())
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


class _StaleConnection(ConnectionBroken):
    """Raised when a connection that nobody had used for a while broke before any answer came."""


async def _request(connection: Connection, data: bytes) -> Head:
    try:
        return await connection.request(data)
    except ConnectionBroken as broken:
        if connection.rested_s > _STALE_S and not broken.answered:
            raise _StaleConnection(str(broken), answered=False) from broken
        raise
