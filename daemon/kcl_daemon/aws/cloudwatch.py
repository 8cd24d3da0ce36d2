"""The port `CloudWatch` over botocore's client.

Owns the request, and threads of its own: figures must never take the place of a lease write. The client is made at the
first call, because its model takes memory that a daemon without metrics need not have.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

from anyio import to_thread

from kcl_daemon.aws.calls import SDK_ERRORS, Lane, translated
from kcl_daemon.aws.session import Clients, Services
from kcl_daemon.config.metrics_settings import MetricsLevel
from kcl_daemon.config.settings import Endpoints, Settings
from kcl_daemon.errors import AwsError, ConfigurationError
from kcl_daemon.ports import Log
from kcl_daemon.ports_metrics import Statistic

_OPERATION: Final = "PutMetricData"
_CALLS: Final = 1


class AwsCloudWatch:
    """Figures told to CloudWatch.

    Args:
        make_client: makes botocore's client; called once, in a thread.
    """

    def __init__(self, make_client: Callable[[], Any]) -> None:
        self._make_client = make_client
        self._client: Any = None  # Any: its type is in stubs that nothing else needs
        self._lane = Lane(_CALLS, not_found=AwsError)

    async def put(self, namespace: str, statistics: Sequence[Statistic]) -> None:
        """As the port says."""
        await self._lane.run(_OPERATION, partial(self._put, namespace, list(map(datum, statistics))))

    def locate(self) -> str:
        """Its address; blocks for a moment, and may raise AwsError."""
        if self._client is None:
            self._client = self._make_client()
        return str(self._client.meta.endpoint_url)

    def close(self) -> None:
        """Close idle connections."""
        if self._client is not None:
            self._client.close()

    def _put(self, namespace: str, data: list[dict[str, Any]]) -> None:
        if self._client is None:
            self._client = self._make_client()
        self._client.put_metric_data(Namespace=namespace, MetricData=data)


def datum(statistic: Statistic) -> dict[str, Any]:
    """A statistic as the API has it; without a time, so that CloudWatch takes that of the call (KCL)."""
    return {
        "MetricName": statistic.name,
        "Unit": statistic.unit,
        "Dimensions": [{"Name": name, "Value": value} for name, value in statistic.dimensions.items()],
        "StatisticValues": {
            "SampleCount": statistic.count,
            "Sum": statistic.total,
            "Minimum": statistic.least,
            "Maximum": statistic.most,
        },
    }


@asynccontextmanager
async def open_cloudwatch(
    settings: Settings, clients: Clients, log: Log
) -> AsyncGenerator[AwsCloudWatch | None, None]:
    """CloudWatch while the context is open; None where it is not to be told.

    Args:
        settings: say where and as whom.
        clients: of the other services. Where Kinesis is spoken to without TLS it is a double of the service; then what
            is not a double of CloudWatch is told nothing.
        log: told of the latter.
    """
    if settings.metrics.level is MetricsLevel.NONE:
        yield None
        return
    cloudwatch = AwsCloudWatch(partial(_client, settings.endpoints))
    if _is_double(clients.kinesis.meta.endpoint_url):
        try:
            url = await to_thread.run_sync(cloudwatch.locate, abandon_on_cancel=True)
        except AwsError as error:
            url = str(error)
        if not _is_double(url):
            log.info(
                "metrics_not_told",
                why="Kinesis is a local double, CloudWatch is not",
                advice="set AWS_ENDPOINT_URL_CLOUDWATCH to a double as well, or metricsLevel=NONE",
            )
            yield None
            return
    try:
        yield cloudwatch
    finally:
        cloudwatch.close()


def _is_double(url: str) -> bool:
    return url.startswith("http://")


def _client(endpoints: Endpoints) -> Any:
    try:
        return Services(endpoints).client("cloudwatch", _CALLS)
    except SDK_ERRORS as error:
        raise translated(error, operation=_OPERATION, not_found=AwsError) from error
    except (ConfigurationError, ValueError) as error:
        raise AwsError(str(error), operation=_OPERATION) from error
