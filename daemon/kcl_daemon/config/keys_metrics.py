"""The properties of metrics. Pure data, part of the table in `keys`."""

from __future__ import annotations

import re
from typing import Final

from kcl_daemon.config.key import MILLISECONDS, Key
from kcl_daemon.config.kinds import INT_MAX, Kind, Refused, check_port, choice, name, trimmed, whole_number
from kcl_daemon.config.metrics_settings import MetricsLevel

_SEPARATOR: Final = re.compile(r"[\s,]+")
_ADDRESS: Final = re.compile(
    r"https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>[0-9]{1,5}))?(/[!-?A-~]*)?"
)
_DIMENSION: Final = re.compile(r"[A-Za-z][A-Za-z0-9]{0,99}")


def dimensions() -> Kind:
    """Names separated by commas or blanks, braces around them tolerated; nothing at all is no dimension (KCL)."""

    def read(text: str) -> tuple[str, ...]:
        names = tuple(word for word in _SEPARATOR.split(trimmed(text).strip("{}")) if word)
        for each in names:
            if not _DIMENSION.fullmatch(each):
                raise Refused(f"{each!r:.80} is not a dimension")
        return names

    return Kind(
        read, "names such as Operation, ShardId, WorkerIdentifier, separated by commas; ALL; or empty"
    )


def otlp_address() -> Kind:
    """An address with http or https, and a path if need be; no user and no password."""

    def read(text: str) -> str:
        word = trimmed(text)
        match = _ADDRESS.fullmatch(word)
        if match is None:
            raise Refused("not a valid URL")
        check_port(match["port"])
        return word

    return Kind(
        read, "http://HOST:PORT/PATH or the same with https, such as http://127.0.0.1:4318/v1/metrics"
    )


METRICS_KEYS: Final[tuple[Key, ...]] = (
    Key(
        "metricsLevel",
        choice({level.value: level for level in MetricsLevel}),
        "metrics.level",
        "How many metrics go to CloudWatch ([metrics](metrics.md)). NONE: no metrics.",
    ),
    Key(
        "metricsBufferTimeMillis",
        MILLISECONDS,
        "metrics.buffer_ms",
        "How long metrics are buffered before they are sent.",
    ),
    Key(
        "metricsMaxQueueSize",
        whole_number(1, INT_MAX, "figures"),
        "metrics.queue_most",
        "Maximum length of the queue; metrics that do not fit are dropped.",
    ),
    Key(
        "metricsEnabledDimensions",
        dimensions(),
        "metrics.dimensions",
        "CloudWatch dimensions to use.",
        default="ALL",
    ),
    Key(
        "metricsNamespace",
        name(
            r"(?!AWS/)[A-Za-z0-9_.#:/-]{1,255}",
            "1 to 255 of letters, digits and . _ # : / -, not beginning with AWS/",
        ),
        "metrics.namespace",
        "CloudWatch namespace of the metrics.",
        default="`applicationName`",
        extension=True,
    ),
    Key(
        "metricsOtlpEndpoint",
        otlp_address(),
        "metrics.otlp_endpoint",
        "URL of the collector, with path, that gets the [metrics](metrics.md) over OTLP/HTTP. Needs "
        "`pip install 'kcl-daemon[otlp]'`. Headers come from `OTEL_EXPORTER_OTLP_HEADERS`.",
        default="none: no export",
        extension=True,
    ),
    Key(
        "metricsOtlpPeriodMillis",
        MILLISECONDS,
        "metrics.otlp_period_ms",
        "Time between two exports.",
        extension=True,
    ),
)
