"""A small HTTP/1.1 server for a few readers: GET only, everything bounded, no request body.

Owns connections and what a bad or slow caller is told. h11 owns the syntax; knows nothing of what is served.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import anyio
import h11
from anyio.abc import ByteStream, Listener, SocketStream

from kcl_daemon.admin.access import Answer, Request, plain
from kcl_daemon.ports import Clock, Log

HEAD_BYTES_MOST: Final = 16 * 1024
CONNECTIONS_MOST: Final = 64
HEAD_WITHIN_S: Final = 10.0
"""From the connection, or the last answer, to the end of the next request."""
SENT_WITHIN_S: Final = 10.0
"""For the whole of an answer: who reads slower than that is cut off."""
_RECEIVE_BYTES: Final = 16 * 1024
_ADVICE: Final = "a fault of the daemon, which works on; report it with this traceback"
_LINGER_S: Final = 1.0
_LINGER_READS: Final = 16
# After these the connection ends.
_LAST: Final = frozenset(
    {
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
        HTTPStatus.NOT_IMPLEMENTED,
        HTTPStatus.HTTP_VERSION_NOT_SUPPORTED,
    }
)
_ALWAYS: Final = (
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a caller may use; the names are those of the constants above."""

    connections_most: int = CONNECTIONS_MOST
    head_within_s: float = HEAD_WITHIN_S
    sent_within_s: float = SENT_WITHIN_S


LIMITS: Final = Limits()


class Server:
    """Serves connections.

    Args:
        answer: makes the answer to a request.
        clock: for deadlines.
        log: for faults of ours.
        limits: for callers.
    """

    def __init__(
        self,
        answer: Callable[[Request], Awaitable[Answer]],
        *,
        clock: Clock,
        log: Log,
        limits: Limits = LIMITS,
    ) -> None:
        self._answer = answer
        self._log = log
        self._open = 0
        self.clock = clock
        self.limits = limits

    async def serve(self, listener: Listener[SocketStream]) -> None:
        """Serve until cancelled; then connections are closed as they are."""
        await listener.serve(self.converse)

    async def converse(self, stream: ByteStream) -> None:
        """Serve one connection to its end. Whatever the caller does, nothing is raised."""
        self._open += 1
        try:
            async with stream:
                conversation = _Conversation(self, stream)
                if self._open > self.limits.connections_most:
                    await conversation.turn_away()
                else:
                    await conversation.hold()
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            self._log.debug("status_page_caller_gone", error=type(error).__name__)
        except Exception:  # noqa: BLE001 - what this worker does is worth more than what it shows
            self._log.error("status_page_failed", exc_info=True, advice=_ADVICE)
        finally:
            self._open -= 1

    async def answered(self, request: Request) -> Answer:
        """The answer, whatever happens: a page that cannot be made must not end the daemon."""
        try:
            return await self._answer(request)
        except Exception:  # noqa: BLE001 - see above
            self._log.error("status_page_failed", path=request.path, exc_info=True, advice=_ADVICE)
            return plain(HTTPStatus.INTERNAL_SERVER_ERROR, "this could not be made; the log has the reason")


class _Refused(Exception):
    """Raised for a request that is not answered; the connection ends."""

    def __init__(self, status: HTTPStatus, words: str) -> None:
        super().__init__(words)
        self.answer = plain(status, words)


class _Conversation:
    """One connection."""

    def __init__(self, server: Server, stream: ByteStream) -> None:
        self._server = server
        self._stream = stream
        self._wire = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MOST)
        self._wants_body = True

    async def hold(self) -> None:
        """Request and answer in turns, until one side has had enough."""
        try:
            while (request := await self._request()) is not None:
                sent = await self._send(await self._server.answered(request))
                if not sent or self._wire.our_state is not h11.DONE:
                    return
                self._wire.start_next_cycle()
        except _Refused as refused:
            await self._send_last(refused.answer)
        except h11.RemoteProtocolError as error:
            status = HTTPStatus(error.error_status_hint)
            await self._send_last(plain(status, f"not a request that is understood: {status.phrase.lower()}"))

    async def turn_away(self) -> None:
        """There are too many callers."""
        await self._send_last(plain(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections", Retry_After="5"))

    async def _request(self) -> Request | None:
        """The next request; None where the caller is done, or has sent nothing for too long."""
        with self._server.clock.move_on_after(self._server.limits.head_within_s):
            head = await self._next_event()
            if not isinstance(head, h11.Request):
                return None
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.headers}
            if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
                raise _Refused(HTTPStatus.BAD_REQUEST, "a request has no body here")
            await self._next_event()  # its end
            self._wants_body = head.method != b"HEAD"
            return Request(
                method=head.method.decode("ascii"),
                path=head.target.decode("ascii").partition("?")[0],
                host=headers.get("host", ""),
                authorization=headers.get("authorization", ""),
                accept=headers.get("accept", ""),
            )
        if self._wire.trailing_data[0]:
            raise _Refused(HTTPStatus.REQUEST_TIMEOUT, "the request took too long to come")
        return None

    async def _next_event(self) -> object:
        while (event := self._wire.next_event()) is h11.NEED_DATA:
            self._wire.receive_data(await self._received())
        return event

    async def _received(self) -> bytes:
        """What came; nothing at the end."""
        try:
            return await self._stream.receive(_RECEIVE_BYTES)
        except anyio.EndOfStream:
            return b""

    async def _send(self, answer: Answer) -> bool:
        """Send an answer; whether it got through in time."""
        parts = [self._wire.send(_head(answer))]
        if self._wants_body:
            parts.append(self._wire.send(h11.Data(data=answer.body)))
        parts.append(self._wire.send(h11.EndOfMessage()))
        with self._server.clock.move_on_after(self._server.limits.sent_within_s):
            await self._stream.send(b"".join(part for part in parts if part))
            return True
        return False

    async def _send_last(self, answer: Answer) -> None:
        """Send an answer to what was not read to its end.

        A connection that is closed with something unread is reset, and the answer could be lost: so that is read first.
        """
        if self._wire.our_state in {h11.IDLE, h11.SEND_RESPONSE} and await self._send(answer):
            with self._server.clock.move_on_after(_LINGER_S):
                await self._stream.send_eof()
                for _ in range(_LINGER_READS):
                    if not await self._received():
                        return


def _head(answer: Answer) -> h11.Response:
    headers = [
        ("Content-Type", answer.content_type),
        ("Content-Length", str(len(answer.body))),
        *_ALWAYS,
        *answer.headers.items(),
    ]
    if answer.status in _LAST:
        headers.append(("Connection", "close"))
    return h11.Response(status_code=answer.status, headers=headers, reason=answer.status.phrase.encode())
