from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_address
from typing import Final

from kcl_daemon.config.kinds import (
    INT_MAX,
    MILLISECONDS,
    PORT_MAX,
    Form,
    InvalidValue,
    ValueKind,
    check_port,
    file,
    java,
    member,
    name,
    ours,
    trimmed,
    whole_number,
    without_names,
)

_SEPARATOR: Final = re.compile(r"[\s,]+")
_ADDRESS: Final = re.compile(
    r"https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>[0-9]{1,5}))?(/[!-?A-~]*)?"
)
_DIMENSION: Final = re.compile(r"[A-Za-z][A-Za-z0-9]{0,99}")
_NAMESPACE: Final = name(
    r"(?!AWS/)[A-Za-z0-9_.#:/-]{1,255}",
    "1 to 255 of letters, digits and . _ # : / -, not beginning with AWS/",
)
LOOPBACK: Final = "127.0.0.1"
_TOKEN: Final = re.compile(r"[!-~]{16,256}")
FIT_FOR_A_HEADER: Final = "16 to 256 printable ASCII characters, no spaces"


class MetricsLevel(Enum):
    NONE = "NONE"
    SUMMARY = "SUMMARY"
    DETAILED = "DETAILED"


def _dimensions() -> ValueKind[tuple[str, ...]]:
    """With or without braces; empty: none (KCL)."""

    def read(text: str) -> tuple[str, ...]:
        names = tuple(word for word in _SEPARATOR.split(trimmed(text).strip("{}")) if word)
        for each in names:
            if not _DIMENSION.fullmatch(each):
                raise InvalidValue(f"{each!r:.80} is not a dimension")
        return names

    return ValueKind(
        read,
        "names such as Operation, ShardId, WorkerIdentifier, separated by commas; ALL; or empty",
        form=Form(rf"[{{}}\s,]*({_DIMENSION.pattern}([\s,}}]+|$))*"),
    )


def _otlp_address() -> ValueKind[str]:

    def read(text: str) -> str:
        word = trimmed(text)
        match = _ADDRESS.fullmatch(word)
        if match is None:
            raise InvalidValue("not a valid URL")
        check_port(match["port"])
        return word

    return ValueKind(
        read,
        "http://HOST:PORT/PATH or the same with https, such as http://127.0.0.1:4318/v1/metrics",
        form=Form(without_names(_ADDRESS)),
    )


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    level: MetricsLevel = java("metricsLevel", member(MetricsLevel), MetricsLevel.DETAILED)
    """How many metrics go to CloudWatch ([metrics](metrics.md)). NONE: no metrics."""
    buffer_ms: int = java("metricsBufferTimeMillis", MILLISECONDS, 10_000)
    """How long metrics are buffered before they are sent."""
    queue_most: int = java("metricsMaxQueueSize", whole_number(1, INT_MAX, "figures"), 10_000)
    """Maximum length of the queue; metrics that do not fit are dropped."""
    dimensions: tuple[str, ...] = java("metricsEnabledDimensions", _dimensions(), ("ALL",), shown="ALL")
    """CloudWatch dimensions to use."""
    namespace: str | None = ours("metricsNamespace", _NAMESPACE, None, shown="`applicationName`")
    """CloudWatch namespace of the metrics."""
    otlp_endpoint: str | None = ours("metricsOtlpEndpoint", _otlp_address(), None, shown="none: no export")
    """URL of the collector, with path, that gets the [metrics](metrics.md) over OTLP/HTTP. Needs
    `pip install 'kcl-daemon[otlp]'`. Headers come from `OTEL_EXPORTER_OTLP_HEADERS`."""
    otlp_period_ms: int = ours("metricsOtlpPeriodMillis", MILLISECONDS, 30_000)
    """Time between two exports."""


def is_token(text: str) -> bool:
    return _TOKEN.fullmatch(text) is not None


def _token() -> ValueKind[str]:
    """The message never repeats a refused token."""

    def read(text: str) -> str:
        word = trimmed(text)
        if not is_token(word):
            raise InvalidValue("not a token")
        return word

    return ValueKind(read, FIT_FOR_A_HEADER, form=Form(_TOKEN.pattern))


def _address() -> ValueKind[str]:
    def read(text: str) -> str:
        try:
            return str(ip_address(trimmed(text)))
        except ValueError:
            raise InvalidValue("not an IP address") from None

    return ValueKind(
        read,
        "an IP address of this machine; 0.0.0.0 is all of IPv4, :: is all of IPv4 and IPv6",
        form=Form(r"[0-9A-Fa-f:.]+(%\S+)?"),
    )


@dataclass(frozen=True, slots=True)
class AdminSettings:
    """Without token and file, callers need none."""

    port: int | None = ours("adminPort", whole_number(0, PORT_MAX), None, shown="none: no status page")
    """Port of the status page, the probes and `/metrics` ([status page](status-page.md)). 0: a free port,
    which the log shows."""
    address: str = ours("adminAddress", _address(), LOOPBACK)
    """Address of the status page. Any address except a loopback one needs a token."""
    token: str | None = ours("adminToken", _token(), None, shown="none: no token is needed")
    """Token for all pages except `/livez` and `/readyz`: as bearer token, or as password with any user
    name."""
    token_file: str | None = ours("adminTokenFile", file(), None)
    """File with the token, read at start. Spaces around the token are ignored."""


def request_address(address: str) -> str:
    """For requests from this machine; ValueError."""
    where = ip_address(address)
    # `::` also serves IPv4, and a container may lack IPv6 on loopback.
    return LOOPBACK if where.is_unspecified else str(where)


def is_loopback(address: str) -> bool:
    return ip_address(address).is_loopback
