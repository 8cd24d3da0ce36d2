"""The port `CloudWatch` over the daemon's own transport: the SDK takes 35 ms of CPU for 1,000 sets, this takes 2.

Owns the request, and connections of its own: figures must never take the place of a lease write. The SDK's client, which
only says where CloudWatch is and as whom we speak to it, is made at the first call: its model takes memory that a daemon
without metrics need not have.
"""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from ssl import SSLContext
from typing import Final

import msgspec
from anyio.lowlevel import checkpoint

from kcl_daemon import __version__
from kcl_daemon.aws.access import AwsAccess, plain_transports
from kcl_daemon.aws.calls import SDK_ERRORS, CallLimiter, translated
from kcl_daemon.aws.session import Clients, ServiceClient, Services
from kcl_daemon.config.metrics_and_page import MetricsLevel
from kcl_daemon.config.services import Endpoints
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import AwsError, ConfigurationError
from kcl_daemon.ports import Clock, Log, Statistic
from kcl_daemon.transport.caller import AwsJsonClient
from kcl_daemon.transport.pool import AccessKeys, Parameters, ServiceEndpoint

_OPERATION: Final = "PutMetricData"
_PREFIX: Final = "GraniteServiceVersion20100801."
_CONTENT: Final = "application/x-amz-json-1.0"
_CALLS: Final = 1
# As the SDK does; sets repeat themselves, so that the quickest way already leaves a thirtieth.
_PACKED_FROM_BYTES: Final = 10_240
_GZIP_BITS: Final = 31

# The address is the same whatever is told; with this the SDK need not look at a large request to find it.
_SOME: Final[Parameters] = {"Namespace": "any", "MetricData": [{"MetricName": "any"}]}


class AwsCloudWatch:
    """Figures told to CloudWatch.

    Args:
        caller: of CloudWatch.
    """

    def __init__(self, caller: AwsJsonClient) -> None:
        self._caller = caller

    async def put(self, namespace: str, statistics: Sequence[Statistic]) -> None:
        """As the port says."""
        request = {"Namespace": namespace, "MetricData": [datum(each) for each in statistics]}
        await self._caller.call("PutMetricData", request, _ignore_answer, once=True)


class Dimension(msgspec.Struct, gc=False):
    """A dimension as the API has it. Structs, as there are thousands: dictionaries take three times as long."""

    Name: str
    Value: str


class StatisticValues(msgspec.Struct, gc=False):
    """The values of a statistic set as the API has them."""

    SampleCount: int
    Sum: float
    Minimum: float
    Maximum: float


class MetricDatum(msgspec.Struct, gc=False):
    """A statistic set as the API has it; without a time, so that CloudWatch takes that of the call (KCL)."""

    MetricName: str
    Unit: str
    Dimensions: list[Dimension]
    StatisticValues: StatisticValues


def datum(statistic: Statistic) -> MetricDatum:
    """A statistic as the API has it."""
    return MetricDatum(
        statistic.name,
        statistic.unit,
        [Dimension(name, value) for name, value in statistic.dimensions.items()],
        StatisticValues(statistic.count, statistic.total, statistic.least, statistic.most),
    )


class LazyAccess:
    """The port `Access` of the transport, whose client is made when it is first asked.

    Args:
        make: makes the client; runs in a thread, and may raise AwsError.
        limiter: for that and for all that may block.
    """

    def __init__(self, make: Callable[[], ServiceClient], limiter: CallLimiter) -> None:
        self._make = make
        self._limiter = limiter
        self._asked: ServiceClient | None = None
        self._access: AwsAccess | None = None

    async def target(self, operation: str, parameters: Parameters) -> ServiceEndpoint:  # noqa: ARG002 - see `_SOME`
        """As the port says."""
        return await (await self._made()).target(operation, _SOME)

    async def keys(self) -> AccessKeys:
        """As the port says."""
        return await (await self._made()).keys()

    def tls(self) -> SSLContext:
        """As the port says; a target has been asked for before."""
        assert self._access is not None
        return self._access.tls()

    def pack(self, body: bytes) -> bytes | None:
        """A large body as gzip; None where it is small, or the SDK's configuration says that none is to be packed."""
        if len(body) < _PACKED_FROM_BYTES or self._packs_nothing():
            return None
        packer = zlib.compressobj(1, zlib.DEFLATED, _GZIP_BITS)
        return packer.compress(body) + packer.flush()

    def close(self) -> None:
        """Close what the SDK keeps open."""
        if self._asked is not None:
            self._asked.client.close()

    async def _made(self) -> AwsAccess:
        if self._access is None:
            self._asked = await self._limiter.run(_OPERATION, self._make)
            self._access = AwsAccess(self._asked, self._limiter)
        return self._access

    def _packs_nothing(self) -> bool:
        return self._asked is not None and bool(
            getattr(self._asked.client.meta.config, "disable_request_compression", False)
        )


@asynccontextmanager
async def open_cloudwatch(
    settings: Settings, clients: Clients, clock: Clock, log: Log
) -> AsyncGenerator[AwsCloudWatch | None, None]:
    """CloudWatch while the context is open; None where it is not to be told.

    Args:
        settings: say where and as whom.
        clients: of the other services. Where Kinesis is spoken to without TLS it is a double of the service; then what
            is not a double of CloudWatch is told nothing.
        clock: for signatures.
        log: told of the latter.
    """
    if settings.metrics.level is MetricsLevel.NONE:
        yield None
        return
    access = LazyAccess(partial(_service_client, settings.endpoints), CallLimiter(_CALLS, not_found=AwsError))
    if _is_loopback_url(clients.kinesis.meta.endpoint_url) and not await _is_local_endpoint(access):
        log.info(
            "metrics_not_told",
            why="Kinesis is a local endpoint, CloudWatch is not",
            advice="set AWS_ENDPOINT_URL_CLOUDWATCH to a local endpoint too, or metricsLevel=NONE",
        )
        yield None
        return
    caller = AwsJsonClient(
        access,
        clock=clock,
        wire=plain_transports(access, ca_bundle=clients.ca_bundle, clock=clock),
        prefix=_PREFIX,
        user_agent=f"kcl-daemon/{__version__}",
        not_found=AwsError,
        content_type=_CONTENT,
        packs=access.pack,
    )
    try:
        yield AwsCloudWatch(caller)
    finally:
        await caller.aclose()
        access.close()
        await checkpoint()  # closed transports let go of their sockets in the loop's next turn


async def _is_local_endpoint(access: LazyAccess) -> bool:
    try:
        return _is_loopback_url((await access.target(_OPERATION, _SOME)).url)
    except AwsError:
        return False


def _is_loopback_url(url: str) -> bool:
    return url.startswith("http://")


def _ignore_answer(_answer: bytearray) -> None:
    """There is nothing in a good answer."""


def _service_client(endpoints: Endpoints) -> ServiceClient:
    try:
        return Services(endpoints).asked("cloudwatch", _CALLS)
    except SDK_ERRORS as error:
        raise translated(error, operation=_OPERATION, not_found=AwsError) from error
    except (ConfigurationError, ValueError) as error:
        raise AwsError(str(error), operation=_OPERATION) from error
