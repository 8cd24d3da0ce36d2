"""Opens connections, and keeps those that are still good for the next call.

Owns how many there are. One for each call under way, not one for each shard: polls are short and far apart.
"""

from __future__ import annotations

import asyncio  # noqa: TID251 - see `connection`
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from ssl import SSLContext, SSLError
from typing import Final

from anyio import Semaphore, fail_after

from kcl_daemon.transport.connection import Connection, ConnectionBroken
from kcl_daemon.transport.values import Target

_CONNECT_S: Final = 5.0
_IDLE_S: Final = 15.0  # services close theirs after some 20 s or more
_MOST: Final = 32
# How long one address of a name may keep us from trying the next.
_NEXT_ADDRESS_S: Final = 0.25


async def _connect(target: Target, tls: SSLContext | None, silence_s: float) -> Connection:
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


class Pool:
    """Connections to one endpoint.

    Args:
        target: where they go.
        tls: for encrypted ones; called when the first is opened.
        silence_s: how long the peer may say nothing.
        now_s: seconds by a clock that never goes back.
    """

    def __init__(
        self, target: Target, tls: Callable[[], SSLContext], *, silence_s: float, now_s: Callable[[], float]
    ) -> None:
        self._target = target
        self._tls = tls
        self._silence_s = silence_s
        self._now_s = now_s
        self._idle: deque[Connection] = deque()
        self._slots = Semaphore(_MOST, fast_acquire=True)
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
