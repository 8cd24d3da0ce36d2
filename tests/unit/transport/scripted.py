"""A server on loopback that answers exactly what a test says, byte by byte, over plain connections or TLS."""

from __future__ import annotations

import re
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
from anyio.abc import ByteStream, SocketAttribute
from anyio.streams.tls import TLSListener

from kcl_daemon.transport.caller import AwsJsonClient
from kcl_daemon.transport.kinesis import KINESIS_API
from kcl_daemon.transport.pool import (
    LARGE_BODIES_AT_ONCE,
    AccessKeys,
    ConnectionPool,
    DirectTransport,
    HttpTransport,
    Parameters,
    ServiceEndpoint,
)
from tests.unit.fakes import LoopClock

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


@dataclass
class Exchange:
    """One request, and the connection to answer it on."""

    connection: ByteStream
    head: bytes
    body: bytes

    async def answer(self, body: bytes = b"{}", status: str = "200 OK", headers: str = "") -> None:
        """An ordinary answer."""
        head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
        await self.connection.send(head.encode() + body)


Script = Callable[[Exchange], Awaitable[None]]


@dataclass
class Server:
    """What the server has seen."""

    port: int
    connections: int = 0
    requests: list[bytes] = field(default_factory=list[bytes])


@asynccontextmanager
async def serving(script: Script, tls: ssl.SSLContext | None = None) -> AsyncGenerator[Server, None]:
    """A server that plays the script for each request; a connection is closed when the script raises EndOfStream."""
    plain = await anyio.create_tcp_listener(local_host="127.0.0.1")
    server = Server(plain.extra(SocketAttribute.local_port))
    listener = plain if tls is None else TLSListener(plain, tls, standard_compatible=False)

    async def talk(connection: ByteStream) -> None:
        server.connections += 1
        received = b""
        async with connection:
            try:
                while True:
                    while b"\r\n\r\n" not in received:
                        received += await connection.receive()
                    head, _, received = received.partition(b"\r\n\r\n")
                    found = _LENGTH.search(head)
                    length = int(found[1]) if found else 0
                    while len(received) < length:
                        received += await connection.receive()
                    body, received = received[:length], received[length:]
                    server.requests.append(body)
                    await script(Exchange(connection, head, body))
            except (anyio.EndOfStream, anyio.BrokenResourceError):
                return

    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, talk)
        try:
            yield server
        finally:
            group.cancel_scope.cancel()


class FixedAccess:
    """The port `Access` with one endpoint and fixed credentials."""

    def __init__(self, url: str, tls: ssl.SSLContext | None = None) -> None:
        self._target = ServiceEndpoint(url, "us-east-1", "kinesis")
        self._tls = tls

    async def target(self, operation: str, parameters: Parameters) -> ServiceEndpoint:
        return self._target

    async def keys(self) -> AccessKeys:
        return AccessKeys("AKID", "secret")

    def tls(self) -> ssl.SSLContext:
        return self._tls or ssl.create_default_context()


@asynccontextmanager
async def calling(
    url: str,
    *,
    silence_s: float = 60.0,
    tls: ssl.SSLContext | None = None,
    clock: LoopClock | None = None,
    on_date: Callable[[float], None] | None = None,
) -> AsyncGenerator[AwsJsonClient, None]:
    """A caller of that endpoint."""
    access, used = FixedAccess(url, tls), clock or LoopClock()
    large = anyio.Semaphore(LARGE_BODIES_AT_ONCE)

    def transport_of(target: ServiceEndpoint) -> HttpTransport:
        return DirectTransport(
            ConnectionPool(target, access.tls, silence_s=silence_s, now_s=used.monotonic), large
        )

    caller = AwsJsonClient(access, KINESIS_API, clock=used, transport_of=transport_of, on_date=on_date)
    try:
        yield caller
    finally:
        await caller.aclose()
        await anyio.wait_all_tasks_blocked()
