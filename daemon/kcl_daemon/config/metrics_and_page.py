"""Settings and properties of metrics and of the status page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_address
from typing import Final

from kcl_daemon.config.kinds import (
    INT_MAX,
    MILLISECONDS,
    InvalidValue,
    Key,
    ValueKind,
    check_port,
    choice,
    name,
    trimmed,
    whole_number,
)
from kcl_daemon.config.properties import Problem


class MetricsLevel(Enum):
    NONE = "NONE"
    SUMMARY = "SUMMARY"
    DETAILED = "DETAILED"


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """The keys say what the fields mean.

    Args:
        queue_most: more figures are dropped.
        dimensions: `ALL`: every one.
        namespace: None: the application's name.
        otlp_endpoint: None: no export.
    """

    level: MetricsLevel = MetricsLevel.DETAILED
    buffer_ms: int = 10_000
    queue_most: int = 10_000
    dimensions: tuple[str, ...] = ("ALL",)
    namespace: str | None = None
    otlp_endpoint: str | None = None
    otlp_period_ms: int = 30_000


_SEPARATOR: Final = re.compile(r"[\s,]+")
_ADDRESS: Final = re.compile(
    r"https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:(?P<port>[0-9]{1,5}))?(/[!-?A-~]*)?"
)
_DIMENSION: Final = re.compile(r"[A-Za-z][A-Za-z0-9]{0,99}")


def dimensions() -> ValueKind:
    """Separated by commas or blanks, with or without braces; empty: none (KCL)."""

    def read(text: str) -> tuple[str, ...]:
        names = tuple(word for word in _SEPARATOR.split(trimmed(text).strip("{}")) if word)
        for each in names:
            if not _DIMENSION.fullmatch(each):
                raise InvalidValue(f"{each!r:.80} is not a dimension")
        return names

    return ValueKind(
        read, "names such as Operation, ShardId, WorkerIdentifier, separated by commas; ALL; or empty"
    )


def otlp_address() -> ValueKind:
    """Without user and password."""

    def read(text: str) -> str:
        word = trimmed(text)
        match = _ADDRESS.fullmatch(word)
        if match is None:
            raise InvalidValue("not a valid URL")
        check_port(match["port"])
        return word

    return ValueKind(
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


LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class AdminSettings:
    """`port` 0: a free one, None: no page. Without token and file, callers need none."""

    port: int | None = None
    address: str = LOOPBACK
    token: str | None = None
    token_file: str | None = None


def request_address(address: str) -> str:
    """The IP address for requests from this machine, or ValueError."""
    where = ip_address(address)
    # `::` also serves IPv4, and a container may lack IPv6 on loopback.
    return LOOPBACK if where.is_unspecified else str(where)


def is_loopback(address: str) -> bool:
    return ip_address(address).is_loopback


_PORT_MAX: Final = 65_535
_TOKEN: Final = re.compile(r"[!-~]{16,256}")
FIT_FOR_A_HEADER: Final = "16 to 256 printable ASCII characters, no spaces"


def is_token(text: str) -> bool:
    """Long enough not to be guessed, and valid in a header."""
    return _TOKEN.fullmatch(text) is not None


def token() -> ValueKind:
    """The message never repeats a refused token."""

    def read(text: str) -> str:
        word = trimmed(text)
        if not is_token(word):
            raise InvalidValue("not a token")
        return word

    return ValueKind(read, FIT_FOR_A_HEADER)


def address() -> ValueKind:
    def read(text: str) -> str:
        try:
            return str(ip_address(trimmed(text)))
        except ValueError:
            raise InvalidValue("not an IP address") from None

    return ValueKind(
        read, "an IP address of this machine; 0.0.0.0 is all of IPv4, :: is all of IPv4 and IPv6"
    )


def file() -> ValueKind:
    def read(text: str) -> str:
        word = trimmed(text)
        if not word or "\0" in word:
            raise InvalidValue("not a path")
        return word

    return ValueKind(read, "a path")


ADMIN_PORT: Final = Key(
    "adminPort",
    whole_number(0, _PORT_MAX),
    "admin.port",
    "Port of the status page, the probes and `/metrics` ([status page](status-page.md)). 0: a free "
    "port, which the log shows.",
    default="none: no status page",
    extension=True,
)
ADMIN_ADDRESS: Final = Key(
    "adminAddress",
    address(),
    "admin.address",
    "Address of the status page. Any address except a loopback one needs a token.",
    extension=True,
)
ADMIN_TOKEN: Final = Key(
    "adminToken",
    token(),
    "admin.token",
    "Token for all pages except `/livez` and `/readyz`: as bearer token, or as password with any user name.",
    default="none: no token is needed",
    extension=True,
)
ADMIN_TOKEN_FILE: Final = Key(
    "adminTokenFile",
    file(),
    "admin.token_file",
    "File with the token, read at start. Spaces around the token are ignored.",
    default="none",
    extension=True,
)
ADMIN_KEYS: Final[tuple[Key, ...]] = (ADMIN_PORT, ADMIN_ADDRESS, ADMIN_TOKEN, ADMIN_TOKEN_FILE)


def check_admin(values: Mapping[str, object], lines: Mapping[str, int]) -> Iterator[Problem]:
    given = [key for key in (ADMIN_TOKEN, ADMIN_TOKEN_FILE) if key.name in lines]
    if len(given) > 1:
        reason = f"and {ADMIN_TOKEN.name} are both set; keep one"
        yield Problem(reason, ADMIN_TOKEN_FILE.name, None, lines[ADMIN_TOKEN_FILE.name])
    where = values.get(ADMIN_ADDRESS.name, LOOPBACK)
    assert isinstance(where, str), "an address is text"
    if ADMIN_PORT.name in values and not given and not is_loopback(where):
        reason = (
            f"other hosts can reach this address, so it needs {ADMIN_TOKEN.name} or {ADMIN_TOKEN_FILE.name}"
        )
        yield Problem(reason, ADMIN_ADDRESS.name, where, lines[ADMIN_ADDRESS.name])
