"""The way to Kinesis through an HTTP proxy, by the SDK's own HTTP client in threads.

Slower than the direct way, and equal to it in what it promises. Which requests go through a proxy is said by
HTTPS_PROXY, HTTP_PROXY and NO_PROXY, read as the SDK reads them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from threading import Thread
from typing import TYPE_CHECKING, Final, TypeVar, cast

from anyio import CapacityLimiter, to_thread
from botocore.awsrequest import AWSPreparedRequest, HeadersDict
from botocore.httpsession import URLLib3Session
from botocore.utils import get_environ_proxies

from kcl_daemon.aws.calls import SDK_ERRORS
from kcl_daemon.transport.connection import ConnectionBroken
from kcl_daemon.transport.head import Framing, Head
from kcl_daemon.transport.values import Target
from kcl_daemon.transport.wire import Read, Streamed

if TYPE_CHECKING:
    from botocore.awsrequest import AWSResponse

T = TypeVar("T")

_CONNECT_S: Final = 5.0
_AT_ONCE: Final = 16
# Event streams block a thread each; as many as there may be shards.
_STREAMS: Final = 256
_PIECE_BYTES: Final = 64 * 1024


def proxies_for(target: Target) -> dict[str, str]:
    """The proxies of the environment that apply to an endpoint; empty: it is reached directly."""
    proxies = cast("Mapping[str, str]", get_environ_proxies(target.url))
    scheme = "https" if target.is_tls else "http"
    return {scheme: proxies[scheme]} if scheme in proxies else {}


class ProxiedWire:
    """A `Wire` through a proxy.

    Args:
        target: the endpoint.
        proxies: as `proxies_for` gives them.
        ca_bundle: file of trusted certificates; None: the SDK's.
        silence_s: how long nothing may come.
    """

    def __init__(
        self, target: Target, proxies: Mapping[str, str], *, ca_bundle: str | None, silence_s: float
    ) -> None:
        self._target = target
        self._proxies = dict(proxies)
        self._verify = ca_bundle or True
        self._calls = CapacityLimiter(_AT_ONCE)
        self._streams = CapacityLimiter(_STREAMS)
        self._session = self._open_session(silence_s, _AT_ONCE)

    async def exchange(self, head: bytes, body: bytes, read: Read[T], *, once: bool = False) -> T:  # noqa: ARG002 - always once
        """As the protocol says; a caller that is cancelled goes at once, while the thread waits for its answer."""
        request = self._request(head, body, stream=False)

        def send() -> tuple[Head, bytearray]:
            """Blocks until the whole answer is there."""
            answer = self._session.send(request)
            return _head(answer), bytearray(answer.content)

        return read(*await _blocking(send, self._calls))

    @asynccontextmanager
    async def stream(self, head: bytes, body: bytes, *, silence_s: float) -> AsyncGenerator[Streamed, None]:
        """As the protocol says."""
        session = self._open_session(silence_s, 1)
        try:
            request = self._request(head, body, stream=True)
            answer = await _blocking(lambda: session.send(request), self._streams)
            try:
                yield Streamed(_head(answer), self._pieces(answer))
            finally:
                _hang_up(answer)
        finally:
            session.close()

    async def aclose(self) -> None:
        """As the protocol says."""
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
    """Close the connection of an answer, never waiting: a thread may be in the middle of reading, which holds its lock."""
    shut = getattr(
        answer.raw, "shutdown", None
    )  # wakes that thread; an older urllib3 has none, and it wakes by itself
    if shut is not None:
        with suppress(*SDK_ERRORS, RuntimeError, ValueError):  # it may have come to its end
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
