"""Metrics have connections of their own: they never delay a lease write."""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from ssl import SSLContext
from typing import Final

import msgspec

from kcl_daemon.aws.access import SDK_ERRORS, AwsAccess, CallLimiter, open_client, translated
from kcl_daemon.aws.session import Clients, ServiceClient, Services
from kcl_daemon.config.services import Endpoints
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import AwsError, ConfigurationError
from kcl_daemon.ports import Clock, Log, Statistic
from kcl_daemon.transport.caller import AwsJsonClient, JsonApi
from kcl_daemon.transport.pool import AccessKeys, Parameters, ServiceEndpoint

_OPERATION: Final = "PutMetricData"
_API: Final = JsonApi("GraniteServiceVersion20100801.", AwsError, "application/x-amz-json-1.0")
_CALLS: Final = 1
# As the SDK. The fastest level already shrinks a body to a thirtieth.
_PACKED_FROM_BYTES: Final = 10_240
_GZIP_BITS: Final = 31

_SAMPLE_REQUEST: Final[Parameters] = {"Namespace": "any", "MetricData": [{"MetricName": "any"}]}


class AwsCloudWatch:
    def __init__(self, caller: AwsJsonClient) -> None:
        self._caller = caller

    async def put(self, namespace: str, statistics: Sequence[Statistic]) -> None:
        request = {"Namespace": namespace, "MetricData": [datum(each) for each in statistics]}
        await self._caller.call("PutMetricData", request, lambda _answer: None, once=True)


class Dimension(msgspec.Struct, gc=False):
    """A struct: dictionaries take three times as long."""

    Name: str
    Value: str


class StatisticValues(msgspec.Struct, gc=False):
    SampleCount: int
    Sum: float
    Minimum: float
    Maximum: float


class MetricDatum(msgspec.Struct, gc=False):
    """Without a timestamp: CloudWatch uses the time of the call (KCL)."""

    MetricName: str
    Unit: str
    Dimensions: list[Dimension]
    StatisticValues: StatisticValues


def datum(statistic: Statistic) -> MetricDatum:
    return MetricDatum(
        statistic.name,
        statistic.unit,
        [Dimension(name, value) for name, value in statistic.dimensions.items()],
        StatisticValues(statistic.count, statistic.total, statistic.least, statistic.most),
    )


class LazyAccess:
    """`make` runs in a thread at first use."""

    def __init__(self, make: Callable[[], ServiceClient], limiter: CallLimiter) -> None:
        self._make = make
        self._limiter = limiter
        self._asked: ServiceClient | None = None
        self._access: AwsAccess | None = None

    async def target(self, operation: str, parameters: Parameters) -> ServiceEndpoint:  # noqa: ARG002 - see `_SAMPLE_REQUEST`
        return await (await self._made()).target(operation, _SAMPLE_REQUEST)

    async def keys(self) -> AccessKeys:
        return await (await self._made()).keys()

    def tls(self) -> SSLContext:
        assert self._access is not None
        return self._access.tls()

    def pack(self, body: bytes) -> bytes | None:
        """None if it is small or the SDK's configuration forbids it."""
        if len(body) < _PACKED_FROM_BYTES or self._packs_nothing():
            return None
        packer = zlib.compressobj(1, zlib.DEFLATED, _GZIP_BITS)
        return packer.compress(body) + packer.flush()

    def close(self) -> None:
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
    """None if Kinesis is a local endpoint (no TLS) and CloudWatch is not."""
    access = LazyAccess(partial(_service_client, settings.endpoints), CallLimiter(_CALLS, not_found=AwsError))
    if _is_loopback_url(clients.kinesis.meta.endpoint_url) and not await _is_local_endpoint(access):
        log.info(
            "cloudwatch_not_used",
            why="Kinesis is a local endpoint, CloudWatch is not",
            advice="set AWS_ENDPOINT_URL_CLOUDWATCH to a local endpoint too, or metricsLevel=NONE",
        )
        yield None
        return
    try:
        async with open_client(access, _API, clock, ca_bundle=clients.ca_bundle, pack=access.pack) as client:
            yield AwsCloudWatch(client)
    finally:
        access.close()


async def _is_local_endpoint(access: LazyAccess) -> bool:
    try:
        return _is_loopback_url((await access.target(_OPERATION, _SAMPLE_REQUEST)).url)
    except AwsError:
        return False


def _is_loopback_url(url: str) -> bool:
    return url.startswith("http://")


def _service_client(endpoints: Endpoints) -> ServiceClient:
    try:
        return Services(endpoints).service_client("cloudwatch", _CALLS)
    except SDK_ERRORS as error:
        raise translated(error, operation=_OPERATION, not_found=AwsError) from error
    except (ConfigurationError, ValueError) as error:
        raise AwsError(str(error), operation=_OPERATION) from error
