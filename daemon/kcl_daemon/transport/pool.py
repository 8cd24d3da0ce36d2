"""One connection for each call under way, not for each shard."""

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
_CONNECT_S: Final = 5.0
_IDLE_S: Final = 15.0  # services close theirs after 20 s or more
_MAX_IDLE: Final = 32
# Then the next address of the name is tried too.
_NEXT_ADDRESS_S: Final = 0.25
T = TypeVar("T")
# More would only block the loop longer and take more memory.
LARGE_BODIES_AT_ONCE: Final = 4
# No server closes a connection so soon after use.
_STALE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class AccessKeys:
    """Its `repr` has no secrets."""

    access_key: str
    secret_key: str
    token: str | None = None

    def __repr__(self) -> str:
        return f"AccessKeys({self.access_key!r})"


@dataclass(frozen=True, slots=True)
class ServiceEndpoint:
    url: str
    region: str
    service: str

    @property
    def is_tls(self) -> bool:
        return self.url.lower().startswith("https:")

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        if not parts.hostname:
            raise ValueError(f"no host in endpoint {self.url!r}")
        return parts.hostname, parts.port or (443 if self.is_tls else 80)

    @property
    def host(self) -> str:
        name, port = self.address
        shown = f"[{name}]" if ":" in name else name
        return shown if port == (443 if self.is_tls else 80) else f"{shown}:{port}"

    @property
    def path(self) -> str:
        return urlsplit(self.url).path or "/"


class ServiceAccess(Protocol):
    """AccessDenied if there are no credentials."""

    async def target(self, operation: str, parameters: Parameters) -> ServiceEndpoint:
        """It may depend on the account in an ARN. AwsError if the parameters are invalid."""
        ...

    async def keys(self) -> AccessKeys: ...

    def tls(self) -> SSLContext: ...


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
        return len(self._idle)

    @asynccontextmanager
    async def connection(self, *, fresh: bool = False) -> AsyncGenerator[Connection, None]:
        """Errors as `dial`. After an error the connection is kept if the answer came whole."""
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
        tls = self._tls() if self._target.is_tls else None
        return await _connect(self._target, tls, silence_s)

    def close(self) -> None:
        """Connections in use close later."""
        self._closed = True
        while self._idle:
            self._idle.pop().abort()

    def _kept(self) -> Connection | None:
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


Read = Callable[[Head, bytearray], T]


@dataclass(frozen=True, slots=True)
class StreamedResponse:
    """The body is still arriving; `pieces` raises ConnectionBroken if it breaks off or stalls."""

    head: Head
    pieces: AsyncIterator[bytes]


class HttpTransport(Protocol):
    """Failed calls raise ConnectionBroken."""

    async def exchange(self, head: bytes, body: bytes, read: Read[T], *, once: bool = False) -> T:
        """May be sent twice unless `once`."""
        ...

    def stream(
        self, head: bytes, body: bytes, *, silence_s: float
    ) -> AbstractAsyncContextManager[StreamedResponse]: ...

    async def aclose(self) -> None: ...


class DirectTransport:
    def __init__(self, pool: ConnectionPool, large: Semaphore) -> None:
        self._pool = pool
        self._large = large

    async def exchange(self, head: bytes, body: bytes, read: Read[T], *, once: bool = False) -> T:
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
        connection = await self._pool.dial(silence_s=silence_s)
        try:
            answer = await connection.request(head + body)
            yield StreamedResponse(answer, connection.pieces())
        finally:
            connection.abort()

    async def aclose(self) -> None:
        self._pool.close()

    async def _exchange(self, head: bytes, body: bytes, read: Read[T], *, fresh: bool) -> T:
        async with self._pool.connection(fresh=fresh) as connection:
            answer = await _request(connection, head + body)
            if answer.length < LARGE_BYTES:
                return read(answer, await connection.body())
            async with self._large:
                return read(answer, await connection.body())


class _StaleConnection(ConnectionBroken):
    """A kept connection broke before any answer came."""


async def _request(connection: Connection, data: bytes) -> Head:
    try:
        return await connection.request(data)
    except ConnectionBroken as broken:
        if connection.rested_s > _STALE_S and not broken.answered:
            raise _StaleConnection(str(broken), answered=False) from broken
        raise
