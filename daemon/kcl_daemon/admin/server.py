"""A small HTTP/1.1 server (h11): GET and HEAD only, everything bounded."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address
from math import inf
from pathlib import Path
from typing import Final

import anyio
import h11
from anyio.abc import ByteStream, Listener, SocketAttribute, SocketStream
from anyio.streams.stapled import MultiListener

from kcl_daemon.admin.site import AdminAccess, AdminRequest, AdminResponse, AdminSite, MetricsRenderer, plain
from kcl_daemon.config.metrics_and_page import (
    FIT_FOR_A_HEADER,
    AdminSettings,
    is_loopback,
    is_token,
    request_address,
)
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.ports import Clock, Log
from kcl_daemon.telemetry.snapshot import SnapshotSource

MAX_HEAD_BYTES: Final = 16 * 1024
_RECEIVE_BYTES: Final = 16 * 1024
_ADVICE: Final = "a bug in the daemon; it continues; report it with this traceback"
_LINGER_S: Final = 1.0
_LINGER_READS: Final = 16
_ALWAYS: Final = (
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)
RETRY_S: Final = 5.0
_ALL_OF_IPV4: Final = str(IPv4Address(0))
_ALL_OF_IPV6: Final = str(IPv6Address(0))


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """`head_within_s` is from the last response to the end of the next request."""

    max_connections: int = 64
    head_within_s: float = 10.0
    sent_within_s: float = 10.0


SERVER_LIMITS: Final = ServerLimits()


class AdminServer:
    def __init__(
        self,
        answer: Callable[[AdminRequest], Awaitable[AdminResponse]],
        *,
        clock: Clock,
        log: Log,
        limits: ServerLimits = SERVER_LIMITS,
    ) -> None:
        self._answer = answer
        self._log = log
        self._open: set[_ClientConnection] = set()
        self.clock = clock
        self.limits = limits

    async def serve(self, listener: Listener[SocketStream]) -> None:
        await listener.serve(self.converse)

    async def converse(self, stream: ByteStream) -> None:
        """Never raises for what the caller does."""
        conversation = _ClientConnection(self, stream)
        has_room = self._make_room_for(conversation)
        if has_room:
            self._open.add(conversation)
        try:
            async with stream:
                with conversation.scope:
                    await (conversation.hold() if has_room else conversation.reject())
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            self._log.debug("status_page_caller_gone", error=type(error).__name__)
        except Exception:  # noqa: BLE001 - what this worker does is worth more than what it shows
            self._log.error("status_page_failed", exc_info=True, advice=_ADVICE)
        finally:
            self._open.discard(conversation)

    def _make_room_for(self, newcomer: _ClientConnection) -> bool:
        """If all connections are used, close the one idle longest, for a remote caller none of the local probes."""
        if len(self._open) < self.limits.max_connections:
            return True
        waited_for = [
            each
            for each in self._open
            if each.waits_since_s < inf and (newcomer.is_local or not each.is_local)
        ]
        if not waited_for:
            return False
        put_out = min(waited_for, key=lambda each: (each.is_local, each.waits_since_s))
        put_out.scope.cancel()
        self._open.discard(put_out)
        return True

    async def answered(self, request: AdminRequest) -> AdminResponse:
        """Never raises: a failed page must not end the daemon."""
        try:
            return await self._answer(request)
        except Exception:  # noqa: BLE001 - see above
            self._log.error("status_page_failed", path=request.path, exc_info=True, advice=_ADVICE)
            return plain(
                HTTPStatus.INTERNAL_SERVER_ERROR, "this page could not be built; the log has the reason"
            )


class _Refused(Exception):
    def __init__(self, status: HTTPStatus, words: str, **headers: str) -> None:
        super().__init__(words)
        self.answer = plain(status, words, **headers)


class _ClientConnection:
    """`waits_since_s` is when it began to wait for the caller; infinite while the caller waits for us."""

    def __init__(self, server: AdminServer, stream: ByteStream) -> None:
        self.scope = anyio.CancelScope()
        self.is_local = _is_local(stream)
        self.waits_since_s = server.clock.monotonic()
        self._server = server
        self._stream = stream
        self._wire = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        self._wants_body = True

    async def hold(self) -> None:
        try:
            while (request := await self._request()) is not None:
                self.waits_since_s = inf
                sent = await self._send(await self._server.answered(request))
                if not sent or self._wire.our_state is not h11.DONE:
                    return
                self._wire.start_next_cycle()
        except _Refused as refused:
            await self._send_last(refused.answer)
        except h11.RemoteProtocolError as error:
            status = HTTPStatus(error.error_status_hint)
            await self._send_last(plain(status, f"not a request that is understood: {status.phrase.lower()}"))

    async def reject(self) -> None:
        await self._send_last(plain(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections", Retry_After="5"))

    async def _request(self) -> AdminRequest | None:
        self.waits_since_s = self._server.clock.monotonic()
        self._wants_body = True
        with self._server.clock.move_on_after(self._server.limits.head_within_s):
            head = await self._next_event()
            if not isinstance(head, h11.Request):
                return None
            self._wants_body = head.method != b"HEAD"
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
            if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
                raise _Refused(HTTPStatus.BAD_REQUEST, "request bodies are not allowed")
            if head.method == b"CONNECT":  # a success would end HTTP on this connection
                raise _Refused(
                    HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are allowed", Allow="GET, HEAD"
                )
            await self._next_event()
            return AdminRequest(
                method=head.method.decode("ascii"),
                path=head.target.decode("ascii").partition("?")[0],
                host=headers.get("host", ""),
                authorization=headers.get("authorization", ""),
                accept=headers.get("accept", ""),
            )
        if self._wire.trailing_data[0]:
            raise _Refused(HTTPStatus.REQUEST_TIMEOUT, "the request took too long")
        return None

    async def _next_event(self) -> object:
        while (event := self._wire.next_event()) is h11.NEED_DATA:
            self._wire.receive_data(await self._received())
        return event

    async def _received(self) -> bytes:
        try:
            return await self._stream.receive(_RECEIVE_BYTES)
        except anyio.EndOfStream:
            return b""

    async def _send(self, answer: AdminResponse, *, is_last: bool = False) -> bool:
        parts = [self._wire.send(_head(answer, is_last=is_last))]
        if self._wants_body:
            parts.append(self._wire.send(h11.Data(data=answer.body)))
        parts.append(self._wire.send(h11.EndOfMessage()))
        self.waits_since_s = self._server.clock.monotonic()
        with self._server.clock.move_on_after(self._server.limits.sent_within_s):
            await self._stream.send(b"".join(part for part in parts if part))
            return True
        return False

    async def _send_last(self, answer: AdminResponse) -> None:
        """Reads the rest of the request: closing with unread data could lose the response."""
        if self._wire.our_state in {h11.IDLE, h11.SEND_RESPONSE} and await self._send(answer, is_last=True):
            with self._server.clock.move_on_after(_LINGER_S):
                await self._stream.send_eof()
                for _ in range(_LINGER_READS):
                    if not await self._received():
                        return


def _is_local(stream: ByteStream) -> bool:
    # None: the caller has gone. (The warnings are about a Django method.)
    peer = stream.extra(SocketAttribute.remote_address, None)  # noqa: S610 # nosec B610
    try:
        return isinstance(peer, tuple) and is_loopback(peer[0])
    except ValueError:
        return False


def _head(answer: AdminResponse, *, is_last: bool) -> h11.Response:
    headers = [
        ("Content-Type", answer.content_type),
        ("Content-Length", str(len(answer.body))),
        *_ALWAYS,
        *answer.headers.items(),
    ]
    if is_last:
        headers.append(("Connection", "close"))
    return h11.Response(status_code=answer.status, headers=headers, reason=answer.status.phrase.encode())


@asynccontextmanager
async def served(
    settings: AdminSettings,
    source: SnapshotSource,
    *,
    clock: Clock,
    log: Log,
    metrics: MetricsRenderer | None = None,
) -> AsyncGenerator[None, None]:
    """Serve while the context is open, if a port is set; ConfigurationError for a bad token file."""
    if settings.port is None:
        yield
        return
    access = AdminAccess(settings.address, await token_of(settings))
    site = AdminSite(source, access=access, clock=clock, metrics=metrics)
    async with anyio.create_task_group() as group:
        group.start_soon(_sampled, site, log)
        group.start_soon(_listen, settings, AdminServer(site.answer, clock=clock, log=log), clock, log)
        yield
        group.cancel_scope.cancel()


async def token_of(settings: AdminSettings) -> str | None:
    """ConfigurationError for a bad token file."""
    if settings.token_file is None:
        return settings.token
    return await anyio.to_thread.run_sync(token_in, Path(settings.token_file), "adminTokenFile")


def token_in(file: Path, name: str) -> str:
    """`file` may be a pipe. ConfigurationError if it has no valid token."""
    try:
        token = file.read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise ConfigurationError(f"{name} {file} cannot be read: {reason}") from None
    if not is_token(token):
        raise ConfigurationError(f"{name} {file} contains no valid token: {FIT_FOR_A_HEADER}")
    return token


async def _sampled(site: AdminSite, log: Log) -> None:
    """A failure ends only the sparklines."""
    try:
        await site.sample()
    except Exception:
        advice = "a bug in the daemon; it continues without sparklines; report it with this traceback"
        log.error("status_page_not_sampled", exc_info=True, advice=advice)  # noqa: G201 - the port has no such method


async def _listen(settings: AdminSettings, server: AdminServer, clock: Clock, log: Log) -> None:
    """Retries if the port is taken, as by a worker that is being replaced."""
    reported: str | None = None
    while True:
        failed: Sequence[BaseException] = ()
        try:
            await serve_once(settings, server, log)
        except* OSError as errors:
            # Connections handle their own errors.
            failed = errors.exceptions
        while failed and isinstance(failed[0], BaseExceptionGroup):
            failed = failed[0].exceptions
        error = str(failed[0]) if failed else "it ended"
        if error != reported:
            reported = error
            advice = (
                "the port is in use, the address does not exist, or too many files are open; the worker "
                "continues"
            )
            address, port = settings.address, settings.port
            log.warning("status_page_not_served", address=address, port=port, error=error, advice=advice)
        await clock.sleep(RETRY_S)


async def serve_once(settings: AdminSettings, server: AdminServer, log: Log) -> None:
    """Until it is cancelled. Raises OSError (in a group, once it has begun): the port is taken, or there is no such address."""
    async with _listening(settings.address, settings.port or 0) as listener:
        port: int = listener.extra_attributes[SocketAttribute.local_port]()
        log.info("status_page_served", url=url_of(settings.address, port))
        await server.serve(listener)


@asynccontextmanager
async def _listening(address: str, port: int) -> AsyncGenerator[MultiListener[SocketStream], None]:
    """For all of IPv6 also on IPv4, which anyio keeps apart; OSError: the port is taken, or there is no such address."""
    # Closes every listener, even when cancelled; a MultiListener stops at the first.
    async with AsyncExitStack() as held:
        given = await held.enter_async_context(
            await anyio.create_tcp_listener(local_host=address, local_port=port)
        )
        if address != _ALL_OF_IPV6:
            yield given
            return
        bound: int = given.extra_attributes[SocketAttribute.local_port]()
        more = await held.enter_async_context(
            await anyio.create_tcp_listener(local_host=_ALL_OF_IPV4, local_port=bound)
        )
        yield MultiListener([*given.listeners, *more.listeners])


def url_of(address: str, port: int) -> str:
    where = request_address(address)
    return f"http://[{where}]:{port}/" if ":" in where else f"http://{where}:{port}/"
