"""Signed calls of one service: requests by operation, answers or event streams back, errors in the daemon's words.

Owns endpoints in use, signatures and the service's time. Must not know what the operations mean.

What an answer that is no success says: the service's code and words, and whether our time was wrong.

Pure: the meaning of codes is `kcl_daemon.transport.service_answers`'.

PURE: signature version 4 for the one form of request that we send, at a tenth of the SDK's CPU.

Owns the head of a request. The signing key of a day is kept. Knows no clock and no connection.
"""

from __future__ import annotations

import hmac
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from hashlib import sha256
from time import gmtime, strftime
from typing import Final, TypeVar
from urllib.parse import quote

import msgspec

from kcl_daemon.errors import AwsError, Unavailable
from kcl_daemon.ports import Clock
from kcl_daemon.transport.http1 import ConnectionBroken, Head
from kcl_daemon.transport.pool import (
    AccessKeys,
    HttpTransport,
    Parameters,
    ServiceAccess,
    ServiceEndpoint,
    StreamedResponse,
)
from kcl_daemon.transport.service_answers import service_error

OK: Final = 200
# A signature may be five minutes off; less than this is not what a refusal was for.
_SKEW_S: Final = 60.0
_TIME_CODES: Final = frozenset({
    "AuthFailure", "InvalidSignatureException", "RequestExpired", "RequestInTheFuture", "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
})  # fmt: skip


class ErrorResponse(Exception):
    """Raised when the service answered with an error.

    Attributes:
        code: its error code without namespace; the HTTP status where it gave none.
        message: its words.
        status: HTTP status.
        body: all that it said.
    """

    def __init__(self, code: str, message: str, status: int, body: bytes = b"") -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status
        self.body = body


class ClockSkewError(ErrorResponse):
    """Raised when the signature had another time than the service's.

    Attributes:
        server_s: its time, epoch seconds.
    """

    def __init__(self, refused: ErrorResponse, server_s: float) -> None:
        super().__init__(refused.code, refused.message, refused.status, refused.body)
        self.server_s = server_s


class _ErrorBody(msgspec.Struct):
    """The body of an error of a JSON service."""

    type: str = msgspec.field(name="__type", default="")
    code: str = ""
    message: str | None = None
    Message: str | None = None


def error_response(head: Head, body: bytes | bytearray, *, signed_s: float) -> ErrorResponse:
    """The refusal that an answer is; a body that nobody understands is shown in part.

    Args:
        head: of the answer, not 200.
        body: of the answer, or its beginning.
        signed_s: the time of our signature, epoch seconds.
    """
    try:
        fields = msgspec.json.decode(body, type=_ErrorBody)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        fields = _ErrorBody(message=bytes(body[:200]).decode("latin-1"))
    code = fields.type or fields.code or head.headers.get("x-amzn-errortype", "")
    code = code.rpartition("#")[2].partition(":")[0] or str(head.status)
    refused = ErrorResponse(code, fields.message or fields.Message or "", head.status, bytes(body))
    server_s = date_of(head)
    if code in _TIME_CODES and server_s is not None and abs(server_s - signed_s) > _SKEW_S:
        return ClockSkewError(refused, server_s)
    return refused


def date_of(head: Head) -> float | None:
    """The service's time as an answer tells it, epoch seconds."""
    try:
        return parsedate_to_datetime(head.headers.get("date", "")).timestamp()
    except (ValueError, OverflowError):
        return None


CONTENT_TYPE: Final = "application/x-amz-json-1.1"
_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_PATH_SAFE: Final = "/~"


class Signer:
    """Writes signed heads for one endpoint.

    Args:
        target: the endpoint.
        prefix: before the operation's name in `X-Amz-Target`.
        user_agent: who we say we are; not signed.
        content_type: of the bodies.
    """

    def __init__(
        self, target: ServiceEndpoint, *, prefix: str, user_agent: str, content_type: str = CONTENT_TYPE
    ) -> None:
        self._target = target
        self._prefix = prefix
        self._content_type = content_type
        self._canonical_path = quote(target.path, safe=_PATH_SAFE)
        self._host = target.host
        self._start = (
            f"POST {target.path} HTTP/1.1\r\nHost: {self._host}\r\nUser-Agent: {user_agent}\r\n"
            f"Content-Type: {content_type}\r\n"
        )
        self._day_key: tuple[str, str, bytes] | None = None

    def head(
        self, operation: str, body: bytes, keys: AccessKeys, *, epoch_s: float, encoding: str | None = None
    ) -> bytes:
        """Request line and headers, with the empty line after them.

        Args:
            operation: such as `GetRecords`.
            body: what will follow.
            keys: who signs.
            epoch_s: the service's time; it refuses signatures that are some minutes off.
            encoding: of the body, such as `gzip`; not signed, as the body is.
        """
        date = strftime("%Y%m%dT%H%M%SZ", gmtime(epoch_s))
        api = f"{self._prefix}{operation}"
        names, signature = self._signature(api, body, keys, date)
        scope = self._scope(date)
        token = f"X-Amz-Security-Token: {keys.token}\r\n" if keys.token else ""
        encoded = f"Content-Encoding: {encoding}\r\n" if encoding else ""
        return (
            f"{self._start}X-Amz-Target: {api}\r\nX-Amz-Date: {date}\r\n{token}{encoded}"
            f"Authorization: {_ALGORITHM} Credential={keys.access_key}/{scope}, SignedHeaders={names}, "
            f"Signature={signature}\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode("latin-1")

    def _signature(self, api: str, body: bytes, keys: AccessKeys, date: str) -> tuple[str, str]:
        """Names of the signed headers, and the signature."""
        token, token_name = "", ""
        if keys.token:
            token, token_name = f"x-amz-security-token:{keys.token}\n", "x-amz-security-token;"
        names = f"content-type;host;x-amz-date;{token_name}x-amz-target"
        canonical = (
            f"POST\n{self._canonical_path}\n\ncontent-type:{self._content_type}\nhost:{self._host}\n"
            f"x-amz-date:{date}\n{token}x-amz-target:{api}\n\n{names}\n{sha256(body).hexdigest()}"
        )
        digest = sha256(canonical.encode()).hexdigest()
        text = f"{_ALGORITHM}\n{date}\n{self._scope(date)}\n{digest}"
        return names, hmac.digest(self._key(keys, date[:8]), text.encode(), "sha256").hex()

    def _scope(self, date: str) -> str:
        return f"{date[:8]}/{self._target.region}/{self._target.service}/aws4_request"

    def _key(self, keys: AccessKeys, day: str) -> bytes:
        if self._day_key is None or self._day_key[:2] != (day, keys.secret_key):
            key = f"AWS4{keys.secret_key}".encode()
            for part in (day, self._target.region, self._target.service, "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._day_key = (day, keys.secret_key, key)
        return self._day_key[2]


T = TypeVar("T")

# What is read of an answer that refuses a stream, to learn why.
_MAX_ERROR_BYTES: Final = 64 * 1024
_MS_PER_S: Final = 1000
# The service's time is read from an answer now and then, not from each.
_DATED_EVERY_S: Final = 10.0
_PACKED: Final = "gzip"


def ignore_date(_server_s: float) -> None:
    """The default of `on_date`."""


def _not_packed(_body: bytes) -> None:
    """The default of `packs`."""


@dataclass(frozen=True, slots=True)
class ResponseStream:
    """A good answer whose body is still coming.

    Args:
        headers: names in lower case.
        pieces: the body in order, in pieces of any size; taken one at a time, and reading stops while none is taken.
            It ends with the body; Unavailable where it breaks off before, or nothing comes for too long.
    """

    headers: Mapping[str, str]
    pieces: AsyncIterator[bytes]


class AwsJsonClient:
    """Makes calls. Never tries again by itself, with two exceptions that cannot do harm.

    These are a request that a kept connection swallowed, where it may be sent twice, and one whose signature had the
    wrong time: that is sent once more with the server's time, which then stays in use.

    Args:
        access: endpoints and credentials.
        clock: for signatures.
        wire: makes the way to an endpoint; it is kept for all calls to it.
        prefix: before the operation's name in `X-Amz-Target`.
        user_agent: who we say we are.
        not_found: what a missing resource is called here, such as StreamNotFound.
        content_type: of requests.
        means: what a refusal of some operation means beyond the common codes; None: nothing more.
        on_date: told now and then what time it is for the service, epoch seconds, as a good answer says.
        packs: makes the gzip of a body; it gives None where the body is to go as it is.
    """

    def __init__(
        self,
        access: ServiceAccess,
        *,
        clock: Clock,
        wire: Callable[[ServiceEndpoint], HttpTransport],
        prefix: str,
        user_agent: str,
        not_found: type[AwsError],
        content_type: str = CONTENT_TYPE,
        means: Callable[[ErrorResponse, str], AwsError | None] | None = None,
        packs: Callable[[bytes], bytes | None] = _not_packed,
        on_date: Callable[[float], None] = ignore_date,
    ) -> None:
        self._access = access
        self._clock = clock
        self._wire = wire
        self._prefix = prefix
        self._user_agent = user_agent
        self._not_found = not_found
        self._content_type = content_type
        self._means = means
        self._packs = packs
        self._routes: dict[ServiceEndpoint, tuple[Signer, HttpTransport]] = {}
        self._skew_s = 0.0
        self._on_date = on_date
        self._dated_s = -_DATED_EVERY_S

    async def call(
        self, operation: str, parameters: Parameters, read: Callable[[bytearray], T], *, once: bool = False
    ) -> T:
        """What `read` makes of the body of a good answer.

        Cancelled at any point: the connection is closed.

        Args:
            operation: such as `GetRecords`.
            parameters: the request.
            read: runs on the loop; its exceptions pass through.
            once: for writes: it is never sent again where it may have taken effect.

        Raises:
            AwsError: as `kcl_daemon.transport.service_answers` names the refusal; Unavailable where no answer came.
        """
        with self._reported(operation):
            try:
                return await self._call(operation, parameters, read, once=once)
            except ClockSkewError as wrong:
                self._set_time(wrong)
                return await self._call(operation, parameters, read, once=once)

    @asynccontextmanager
    async def open_stream(
        self, operation: str, parameters: Parameters, *, silence_s: float
    ) -> AsyncGenerator[ResponseStream, None]:
        """An answer that is read while it comes (`SubscribeToShard`), on a connection or a stream of its own.

        That is closed when the context is left, in whatever way. Both the call and its pieces may be
        cancelled at any time.

        Args:
            operation: such as `SubscribeToShard`.
            parameters: the request.
            silence_s: how long nothing may come, before the answer and between its pieces, while somebody waits for
                it: a half-open connection ends so.

        Raises:
            AwsError: as for `call`, when the context is entered. Errors inside the stream are in its body, for the
                caller to read.
        """
        with self._reported(operation):
            try:
                opening = self._opened(operation, parameters, silence_s)
                stream = await opening.__aenter__()
            except ClockSkewError as wrong:
                self._set_time(wrong)
                opening = self._opened(operation, parameters, silence_s)
                stream = await opening.__aenter__()
        try:
            yield ResponseStream(stream.head.headers, self._pieces(operation, stream))
        finally:
            await opening.__aexit__(None, None, None)

    async def aclose(self) -> None:
        """Close idle connections; those in use close when their call ends."""
        while self._routes:
            _, (_, wire) = self._routes.popitem()
            await wire.aclose()

    async def _call(
        self, operation: str, parameters: Parameters, read: Callable[[bytearray], T], *, once: bool
    ) -> T:
        signed = await self._signed(operation, parameters)

        def answered(head: Head, answer: bytearray) -> T:
            if head.status != OK:
                raise error_response(head, answer, signed_s=signed.epoch_s)
            self._report_date(head)
            return read(answer)

        return await signed.wire.exchange(signed.head, signed.body, answered, once=once)

    @asynccontextmanager
    async def _opened(
        self, operation: str, parameters: Parameters, silence_s: float
    ) -> AsyncGenerator[StreamedResponse, None]:
        signed = await self._signed(operation, parameters)
        async with signed.wire.stream(signed.head, signed.body, silence_s=silence_s) as stream:
            if stream.head.status != OK:
                said = bytearray()
                async for piece in stream.pieces:
                    said += piece
                    if len(said) > _MAX_ERROR_BYTES:
                        break
                raise error_response(stream.head, said, signed_s=signed.epoch_s)
            self._report_date(stream.head)
            yield stream

    async def _pieces(self, operation: str, stream: StreamedResponse) -> AsyncGenerator[bytes, None]:
        with self._reported(operation):
            async for piece in stream.pieces:
                yield piece

    async def _signed(self, operation: str, parameters: Parameters) -> _SignedRequest:
        target = await self._access.target(operation, parameters)
        keys = await self._access.keys()
        signer, wire = self._routes.get(target) or self._route(target)
        plain = msgspec.json.encode(parameters)
        packed = self._packs(plain)
        body, encoding = (plain, None) if packed is None else (packed, _PACKED)
        epoch_s = self._clock.wall_ms() / _MS_PER_S + self._skew_s
        head = signer.head(operation, body, keys, epoch_s=epoch_s, encoding=encoding)
        return _SignedRequest(head, body, epoch_s, wire)

    def _route(self, target: ServiceEndpoint) -> tuple[Signer, HttpTransport]:
        signer = Signer(
            target, prefix=self._prefix, user_agent=self._user_agent, content_type=self._content_type
        )
        return self._routes.setdefault(target, (signer, self._wire(target)))

    def _report_date(self, head: Head) -> None:
        now_s = self._clock.monotonic()
        if now_s - self._dated_s < _DATED_EVERY_S:
            return
        date_s = date_of(head)
        if date_s is not None:
            self._dated_s = now_s
            self._on_date(date_s)

    def _set_time(self, wrong: ClockSkewError) -> None:
        self._skew_s = wrong.server_s - self._clock.wall_ms() / _MS_PER_S

    @contextmanager
    def _reported(self, operation: str) -> Generator[None, None, None]:
        """What goes wrong inside, in the daemon's words."""
        try:
            yield
        except ConnectionBroken as broken:
            raise Unavailable(str(broken), operation=operation) from broken
        except ErrorResponse as refused:
            particular = None if self._means is None else self._means(refused, operation)
            raise particular or service_error(
                refused.code,
                refused.message,
                operation=operation,
                not_found=self._not_found,
                status=refused.status,
            ) from refused


@dataclass(frozen=True, slots=True)
class _SignedRequest:
    """A request that is ready to go."""

    head: bytes
    body: bytes
    epoch_s: float
    wire: HttpTransport
