from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from threading import BoundedSemaphore, Thread
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, cast

from anyio import CapacityLimiter, Semaphore, to_thread
from anyio.lowlevel import checkpoint
from botocore import xform_name
from botocore.awsrequest import AWSPreparedRequest, HeadersDict
from botocore.credentials import RefreshableCredentials
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    LoginError,
    MetadataRetrievalError,
    NoAuthTokenError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    RefreshWithMFAUnsupportedError,
    SSOError,
    TokenRetrievalError,
    UnknownCredentialError,
)
from botocore.httpsession import URLLib3Session, get_cert_path
from botocore.parsers import ResponseParserError
from botocore.utils import get_environ_proxies
from urllib3.exceptions import HTTPError

from kcl_daemon.errors import (
    AccessDenied,
    AwsError,
    InvalidRequest,
    SchemaNotFound,
    StreamNotFound,
    TableNotFound,
    Unavailable,
)
from kcl_daemon.ports import Clock
from kcl_daemon.transport.caller import AwsJsonClient, JsonApi
from kcl_daemon.transport.http1 import ConnectionBroken, Framing, Head
from kcl_daemon.transport.pool import (
    LARGE_BODIES_AT_ONCE,
    AccessKeys,
    ConnectionPool,
    DirectTransport,
    HttpTransport,
    Parameters,
    Read,
    ServiceAccess,
    ServiceEndpoint,
    StreamedResponse,
)
from kcl_daemon.transport.service_answers import cancelled_part, service_error

if TYPE_CHECKING:
    from botocore.awsrequest import AWSRequest, AWSResponse
    from botocore.credentials import Credentials, ReadOnlyCredentials
    from mypy_boto3_dynamodb.type_defs import AttributeValueTypeDef

    from kcl_daemon.aws.session import ServiceClient


T = TypeVar("T")
Item = Mapping[str, "AttributeValueTypeDef"]

# Includes threads of cancelled callers.
_THREADS_PER_SLOT: Final = 3
_CONDITION_FAILED: Final = "ConditionalCheckFailedException"
_TRANSACTION_CANCELLED: Final = "TransactionCanceledException"
_PART_REFUSED: Final = "ConditionalCheckFailed"
_PART_UNTOUCHED: Final = "None"
_CREDENTIALS: Final = (
    CredentialRetrievalError,
    LoginError,
    MetadataRetrievalError,
    NoAuthTokenError,
    NoCredentialsError,
    PartialCredentialsError,
    RefreshWithMFAUnsupportedError,
    SSOError,
    TokenRetrievalError,
    UnknownCredentialError,
)
SDK_ERRORS: Final = (BotoCoreError, ClientError, ResponseParserError, HTTPError, OSError)
# A renewal takes 10 ms: 8 threads renew 2,400 leases in the 3 s between renewals.
_LEASE_WRITES: Final = 8
_OTHER_WRITES: Final = 2
_READS: Final = 4
# The SDK only finds endpoints and credentials of Kinesis.
_KINESIS_CALLS: Final = 4
_SCHEMA_CALLS: Final = 2
DYNAMODB_CONNECTIONS: Final = _LEASE_WRITES + _OTHER_WRITES + _READS
GLUE_CONNECTIONS: Final = _SCHEMA_CALLS
_ADDRESSING: Final = ("StreamARN", "ConsumerARN")
_HANDLER_ID: Final = "kcl-daemon-endpoint"
_asking: ContextVar[bool] = ContextVar("_asking", default=False)
_CONNECT_S: Final = 5.0
_AT_ONCE: Final = 16
_STREAMS: Final = 256
_PIECE_BYTES: Final = 64 * 1024
_SILENCE_S: Final = 10.0


class ConditionFailed(AwsError):
    """`item` refused the write."""

    def __init__(self, operation: str, item: Item | None) -> None:
        super().__init__("the condition does not hold", operation=operation)
        self.item = item


class TransactionCancelled(AwsError):
    """Indexes of the parts whose conditions do not hold."""

    def __init__(self, operation: str, refused: tuple[int, ...]) -> None:
        super().__init__("conditions do not hold", operation=operation)
        self.refused = refused


class CallLimiter:
    def __init__(self, slots: int, *, not_found: type[AwsError]) -> None:
        self._not_found = not_found
        self._limiter = CapacityLimiter(slots)
        self._threads = BoundedSemaphore(slots * _THREADS_PER_SLOT)

    async def run(self, operation: str, call: Callable[[], T]) -> T:
        """Also Unavailable if too many threads of cancelled callers go on."""
        return await to_thread.run_sync(
            self._work, operation, call, abandon_on_cancel=True, limiter=self._limiter
        )

    def _work(self, operation: str, call: Callable[[], T]) -> T:
        if not self._threads.acquire(blocking=False):
            raise Unavailable("too many earlier calls have not been answered yet", operation=operation)
        try:
            return call()
        except SDK_ERRORS as error:
            raise translated(error, operation=operation, not_found=self._not_found) from error
        finally:
            self._threads.release()


def translated(error: Exception, *, operation: str, not_found: type[AwsError]) -> AwsError:
    """If the SDK failed on the way (AssumeRole), the error names that operation."""
    if isinstance(error, ClientError):
        return _error_for(error, operation, not_found)
    if isinstance(error, _CREDENTIALS):
        return AccessDenied(str(error), operation=operation)
    if isinstance(error, ParamValidationError):
        return InvalidRequest(str(error), operation=operation)
    return Unavailable(f"{type(error).__name__}: {error}", operation=operation)


def _error_for(error: ClientError, operation: str, not_found: type[AwsError]) -> AwsError:
    answer = cast("Mapping[str, object]", error.response)
    details = cast("Mapping[str, str]", answer.get("Error", {}))
    code = details.get("Code", "")
    if code == _CONDITION_FAILED:
        return ConditionFailed(operation, cast("Item | None", answer.get("Item")))
    if code == _TRANSACTION_CANCELLED:
        return _cancellation(answer, operation, not_found)
    metadata = cast("Mapping[str, int]", answer.get("ResponseMetadata", {}))
    return service_error(
        code,
        details.get("Message", ""),
        operation=error.operation_name or operation,
        not_found=not_found,
        status=metadata.get("HTTPStatusCode"),
    )


def _cancellation(answer: Mapping[str, object], operation: str, not_found: type[AwsError]) -> AwsError:
    reasons = cast("list[Mapping[str, str]]", answer.get("CancellationReasons", []))
    codes = [reason.get("Code", _PART_UNTOUCHED) for reason in reasons]
    refused = tuple(number for number, code in enumerate(codes) if code == _PART_REFUSED)
    if refused:
        return TransactionCancelled(operation, refused)
    for code, reason in zip(codes, reasons, strict=True):
        if code != _PART_UNTOUCHED:
            return cancelled_part(code, reason.get("Message", ""), operation=operation, not_found=not_found)
    return Unavailable("the transaction was cancelled without a reason", operation=operation)


@dataclass(frozen=True, slots=True)
class TableLimiters:
    reads: CallLimiter
    writes: CallLimiter


class CallLimiters:
    def __init__(self) -> None:
        reads = CallLimiter(_READS, not_found=TableNotFound)
        self.leases = TableLimiters(reads, CallLimiter(_LEASE_WRITES, not_found=TableNotFound))
        self.others = TableLimiters(reads, CallLimiter(_OTHER_WRITES, not_found=TableNotFound))
        self.kinesis = CallLimiter(_KINESIS_CALLS, not_found=StreamNotFound)
        self.schemas = CallLimiter(_SCHEMA_CALLS, not_found=SchemaNotFound)


class _EndpointFound(Exception):
    def __init__(self, target: ServiceEndpoint) -> None:
        super().__init__(target.url)
        self.target = target


class AwsAccess:
    def __init__(self, service_client: ServiceClient, limiter: CallLimiter) -> None:
        self._client = service_client.client
        self._credentials = service_client.credentials
        self._ca_bundle = service_client.ca_bundle
        self._limiter = limiter
        self._targets: dict[tuple[object, ...], ServiceEndpoint] = {}
        self._keys: AccessKeys | None = None
        self._frozen: ReadOnlyCredentials | None = None
        self._renewing = False
        self._context: ssl.SSLContext | None = None
        service = self._client.meta.service_model.service_id.hyphenize()
        self._client.meta.events.register(f"before-sign.{service}", _found, unique_id=_HANDLER_ID)

    async def target(self, operation: str, parameters: Parameters) -> ServiceEndpoint:
        """Asks the SDK once per operation and ARN."""
        key = (operation, *map(parameters.get, _ADDRESSING))
        found = self._targets.get(key)
        if found is None:
            found = await self._limiter.run(operation, lambda: self._ask(operation, parameters))
            self._targets[key] = found
        return found

    async def keys(self) -> AccessKeys:
        """While one call renews the credentials, others use those that are still valid."""
        credentials, known = self._credentials, self._keys
        if known is not None and not isinstance(credentials, RefreshableCredentials):
            return known
        if known is None or _expires_soon(credentials):
            if known is not None and self._renewing:
                return known
            self._renewing = True
            try:
                frozen = await self._limiter.run("Credentials", credentials.get_frozen_credentials)
            finally:
                self._renewing = False
        else:
            # Does not block; someone else may have renewed shared credentials.
            frozen = credentials.get_frozen_credentials()
        if frozen is not self._frozen:
            self._keys, self._frozen = _keys(frozen), frozen
        assert self._keys is not None
        return self._keys

    def tls(self) -> ssl.SSLContext:
        """`AWS_CA_BUNDLE` or the profile's, else the system's certificates, else the SDK's."""
        if self._context is None:
            bundle = self._ca_bundle
            if bundle is None and not _has_system_certificates():
                bundle = str(get_cert_path(True))
            self._context = ssl.create_default_context(cafile=bundle)
        return self._context

    def _ask(self, operation: str, parameters: Parameters) -> ServiceEndpoint:
        call = cast("Callable[..., object]", getattr(self._client, xform_name(operation)))
        token = _asking.set(True)
        try:
            call(**parameters)
        except _EndpointFound as found:
            return found.target
        finally:
            _asking.reset(token)
        raise Unavailable("the SDK did not say where the service is", operation=operation)


def _found(*, request: AWSRequest, signing_name: str, region_name: str, **_: object) -> None:
    if _asking.get():
        raise _EndpointFound(ServiceEndpoint(str(request.url), region_name, signing_name))


def _expires_soon(credentials: Credentials | RefreshableCredentials) -> bool:
    return isinstance(credentials, RefreshableCredentials) and credentials.refresh_needed()


def _keys(frozen: ReadOnlyCredentials) -> AccessKeys:
    if not frozen.access_key or not frozen.secret_key:
        raise AccessDenied("the AWS credentials are empty", operation="Credentials")
    return AccessKeys(frozen.access_key, frozen.secret_key, frozen.token or None)


def _has_system_certificates() -> bool:
    paths = cast("_Paths", ssl.get_default_verify_paths())
    folder = Path(paths.capath) if paths.capath else None
    return bool(paths.cafile) or (folder is not None and folder.is_dir() and any(folder.iterdir()))


class _Paths(Protocol):
    """Missing in the stubs of `ssl`."""

    cafile: str | None
    capath: str | None


def proxies_for(target: ServiceEndpoint) -> dict[str, str]:
    proxies = cast("Mapping[str, str]", get_environ_proxies(target.url))
    scheme = "https" if target.is_tls else "http"
    return {scheme: proxies[scheme]} if scheme in proxies else {}


class ProxyTransport:
    def __init__(
        self, target: ServiceEndpoint, proxies: Mapping[str, str], *, ca_bundle: str | None, silence_s: float
    ) -> None:
        self._target = target
        self._proxies = dict(proxies)
        self._verify = ca_bundle or True
        self._calls = CapacityLimiter(_AT_ONCE)
        self._streams = CapacityLimiter(_STREAMS)
        self._session = self._open_session(silence_s, _AT_ONCE)

    async def exchange(self, head: bytes, body: bytes, read: Read[T], *, once: bool = False) -> T:  # noqa: ARG002 - always once
        request = self._request(head, body, stream=False)

        def send() -> tuple[Head, bytearray]:
            answer = self._session.send(request)
            return _head(answer), bytearray(answer.content)

        return read(*await _blocking(send, self._calls))

    @asynccontextmanager
    async def stream(
        self, head: bytes, body: bytes, *, silence_s: float
    ) -> AsyncGenerator[StreamedResponse, None]:
        session = self._open_session(silence_s, 1)
        try:
            request = self._request(head, body, stream=True)
            answer = await _blocking(lambda: session.send(request), self._streams)
            try:
                yield StreamedResponse(_head(answer), self._pieces(answer))
            finally:
                _hang_up(answer)
        finally:
            session.close()

    async def aclose(self) -> None:
        self._session.close()

    async def _pieces(self, answer: AWSResponse) -> AsyncGenerator[bytes, None]:
        pieces = cast("Iterator[bytes]", answer.raw.stream(_PIECE_BYTES, decode_content=False))
        while piece := await _blocking(lambda: next(pieces, b""), self._streams):
            yield piece

    def _open_session(self, silence_s: float, connections: int) -> URLLib3Session:
        return URLLib3Session(
            verify=self._verify,  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - the stubs forget that it may be a path
            proxies=self._proxies,
            timeout=(_CONNECT_S, silence_s),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - the stubs forget that it may be a pair
            max_pool_connections=connections,
        )

    def _request(self, head: bytes, body: bytes, *, stream: bool) -> AWSPreparedRequest:
        lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")[1:]
        headers = HeadersDict(dict(line.split(": ", 1) for line in lines))
        return AWSPreparedRequest("POST", self._target.url, headers, body, stream)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType] - the stubs want another class than the SDK uses


def _hang_up(answer: AWSResponse) -> None:
    """A thread that is reading holds the connection's lock."""
    shut = getattr(answer.raw, "shutdown", None)  # wakes that thread; older urllib3 versions lack it
    if shut is not None:
        with suppress(*SDK_ERRORS, RuntimeError, ValueError):
            shut()
    Thread(target=answer.raw.close, name="hang-up", daemon=True).start()


def _head(answer: AWSResponse) -> Head:
    headers = {str(name).lower(): str(value) for name, value in answer.headers.items()}
    return Head(answer.status_code, headers, Framing.CLOSE, 0)


async def _blocking(call: Callable[[], T], limiter: CapacityLimiter) -> T:
    try:
        return await to_thread.run_sync(call, abandon_on_cancel=True, limiter=limiter)
    except SDK_ERRORS as error:
        raise ConnectionBroken(f"through the proxy: {error}", answered=False) from error


@asynccontextmanager
async def open_client(
    access: ServiceAccess,
    api: JsonApi,
    clock: Clock,
    *,
    ca_bundle: str | None,
    pack: Callable[[bytes], bytes | None] | None = None,
    on_date: Callable[[float], None] | None = None,
) -> AsyncGenerator[AwsJsonClient, None]:
    large = Semaphore(LARGE_BODIES_AT_ONCE)

    def transport_of(target: ServiceEndpoint) -> HttpTransport:
        proxies = proxies_for(target)
        if proxies:
            return ProxyTransport(target, proxies, ca_bundle=ca_bundle, silence_s=_SILENCE_S)
        return DirectTransport(
            ConnectionPool(target, access.tls, silence_s=_SILENCE_S, now_s=clock.monotonic), large
        )

    client = AwsJsonClient(access, api, clock=clock, transport_of=transport_of, pack=pack, on_date=on_date)
    try:
        yield client
    finally:
        await client.aclose()
        await checkpoint()  # closed transports release their sockets later
