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

from kcl_daemon import __version__
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
# A smaller difference is no reason for a refusal.
_SKEW_S: Final = 60.0
_TIME_CODES: Final = frozenset({
    "AuthFailure", "InvalidSignatureException", "RequestExpired", "RequestInTheFuture", "RequestTimeTooSkewed",
    "SignatureDoesNotMatch",
})  # fmt: skip
CONTENT_TYPE: Final = "application/x-amz-json-1.1"
_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_PATH_SAFE: Final = "/~"
_USER_AGENT: Final = f"kcl-daemon/{__version__}"
T = TypeVar("T")
_MAX_ERROR_BYTES: Final = 64 * 1024
_MS_PER_S: Final = 1000
_DATED_EVERY_S: Final = 10.0
_PACKED: Final = "gzip"


class ErrorResponse(Exception):
    """`code` has no namespace; if the service gave none, it is the HTTP status."""

    def __init__(self, code: str, message: str, status: int, body: bytes = b"") -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.status = status
        self.body = body


class ClockSkewError(ErrorResponse):
    def __init__(self, refused: ErrorResponse, server_s: float) -> None:
        super().__init__(refused.code, refused.message, refused.status, refused.body)
        self.server_s = server_s


class _ErrorBody(msgspec.Struct):
    type: str = msgspec.field(name="__type", default="")
    code: str = ""
    message: str | None = None
    Message: str | None = None


def error_response(head: Head, body: bytes | bytearray, *, signed_s: float) -> ErrorResponse:
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
    """Epoch seconds."""
    try:
        return parsedate_to_datetime(head.headers.get("date", "")).timestamp()
    except (ValueError, OverflowError):
        return None


@dataclass(frozen=True, slots=True)
class JsonApi:
    prefix: str
    not_found: type[AwsError]
    content_type: str = CONTENT_TYPE
    error_of: Callable[[ErrorResponse, str], AwsError | None] | None = None


class Signer:
    def __init__(self, target: ServiceEndpoint, api: JsonApi) -> None:
        self._target = target
        self._api = api
        self._canonical_path = quote(target.path, safe=_PATH_SAFE)
        self._host = target.host
        self._start = (
            f"POST {target.path} HTTP/1.1\r\nHost: {self._host}\r\nUser-Agent: {_USER_AGENT}\r\n"
            f"Content-Type: {api.content_type}\r\n"
        )
        self._day_key: tuple[str, str, bytes] | None = None

    def head(
        self, operation: str, body: bytes, keys: AccessKeys, *, epoch_s: float, encoding: str | None = None
    ) -> bytes:
        """`encoding` is not signed."""
        date = strftime("%Y%m%dT%H%M%SZ", gmtime(epoch_s))
        name = f"{self._api.prefix}{operation}"
        names, signature = self._signature(name, body, keys, date)
        scope = self._scope(date)
        token = f"X-Amz-Security-Token: {keys.token}\r\n" if keys.token else ""
        encoded = f"Content-Encoding: {encoding}\r\n" if encoding else ""
        return (
            f"{self._start}X-Amz-Target: {name}\r\nX-Amz-Date: {date}\r\n{token}{encoded}"
            f"Authorization: {_ALGORITHM} Credential={keys.access_key}/{scope}, SignedHeaders={names}, "
            f"Signature={signature}\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode("latin-1")

    def _signature(self, name: str, body: bytes, keys: AccessKeys, date: str) -> tuple[str, str]:
        token, token_name = "", ""
        if keys.token:
            token, token_name = f"x-amz-security-token:{keys.token}\n", "x-amz-security-token;"
        names = f"content-type;host;x-amz-date;{token_name}x-amz-target"
        canonical = (
            f"POST\n{self._canonical_path}\n\ncontent-type:{self._api.content_type}\nhost:{self._host}\n"
            f"x-amz-date:{date}\n{token}x-amz-target:{name}\n\n{names}\n{sha256(body).hexdigest()}"
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


@dataclass(frozen=True, slots=True)
class ResponseStream:
    """`pieces` raises Unavailable if the body breaks off or stalls."""

    headers: Mapping[str, str]
    pieces: AsyncIterator[bytes]


class AwsJsonClient:
    """`pack` gives None for a body that is sent plain."""

    def __init__(
        self,
        access: ServiceAccess,
        api: JsonApi,
        *,
        clock: Clock,
        transport_of: Callable[[ServiceEndpoint], HttpTransport],
        pack: Callable[[bytes], bytes | None] | None = None,
        on_date: Callable[[float], None] | None = None,
    ) -> None:
        self._access = access
        self._api = api
        self._clock = clock
        self._transport_of = transport_of
        self._pack = pack
        self._on_date = on_date
        self._routes: dict[ServiceEndpoint, tuple[Signer, HttpTransport]] = {}
        self._skew_s = 0.0
        self._dated_s = -_DATED_EVERY_S

    async def call(
        self, operation: str, parameters: Parameters, read: Callable[[bytearray], T], *, once: bool = False
    ) -> T:
        """What `read` makes of a successful body, on the loop. `once`: for a write. Raises AwsError."""
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
        """On its own connection; cancelling is safe. Errors inside the stream are in its body.

        Silence for `silence_s`, while somebody waits, ends it: this detects half-open connections.
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
        while self._routes:
            _, (_, transport) = self._routes.popitem()
            await transport.aclose()

    async def _call(
        self, operation: str, parameters: Parameters, read: Callable[[bytearray], T], *, once: bool
    ) -> T:
        signed = await self._signed(operation, parameters)

        def answered(head: Head, answer: bytearray) -> T:
            if head.status != OK:
                raise error_response(head, answer, signed_s=signed.epoch_s)
            self._report_date(head)
            return read(answer)

        return await signed.transport.exchange(signed.head, signed.body, answered, once=once)

    @asynccontextmanager
    async def _opened(
        self, operation: str, parameters: Parameters, silence_s: float
    ) -> AsyncGenerator[StreamedResponse, None]:
        signed = await self._signed(operation, parameters)
        async with signed.transport.stream(signed.head, signed.body, silence_s=silence_s) as stream:
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
        signer, transport = self._routes.get(target) or self._route(target)
        plain = msgspec.json.encode(parameters)
        packed = None if self._pack is None else self._pack(plain)
        body, encoding = (plain, None) if packed is None else (packed, _PACKED)
        epoch_s = self._clock.wall_ms() / _MS_PER_S + self._skew_s
        head = signer.head(operation, body, keys, epoch_s=epoch_s, encoding=encoding)
        return _SignedRequest(head, body, epoch_s, transport)

    def _route(self, target: ServiceEndpoint) -> tuple[Signer, HttpTransport]:
        route = Signer(target, self._api), self._transport_of(target)
        return self._routes.setdefault(target, route)

    def _report_date(self, head: Head) -> None:
        now_s = self._clock.monotonic()
        if self._on_date is None or now_s - self._dated_s < _DATED_EVERY_S:
            return
        date_s = date_of(head)
        if date_s is not None:
            self._dated_s = now_s
            self._on_date(date_s)

    def _set_time(self, wrong: ClockSkewError) -> None:
        self._skew_s = wrong.server_s - self._clock.wall_ms() / _MS_PER_S

    @contextmanager
    def _reported(self, operation: str) -> Generator[None, None, None]:
        try:
            yield
        except ConnectionBroken as broken:
            raise Unavailable(str(broken), operation=operation) from broken
        except ErrorResponse as refused:
            api, code = self._api, refused.code
            own = None if api.error_of is None else api.error_of(refused, operation)
            raise own or service_error(
                code, refused.message, operation=operation, not_found=api.not_found, status=refused.status
            ) from refused


@dataclass(frozen=True, slots=True)
class _SignedRequest:
    head: bytes
    body: bytes
    epoch_s: float
    transport: HttpTransport
