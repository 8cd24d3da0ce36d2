"""The properties of metrics. Pure data, part of the table in `keys`."""

from __future__ import annotations

import re
from typing import Final

from kcl_daemon.config.key import MILLISECONDS, Key
from kcl_daemon.config.kinds import INT_MAX, Kind, Refused, choice, trimmed, whole_number
from kcl_daemon.config.metrics_settings import MetricsLevel

_SEPARATOR: Final = re.compile(r"[\s,]+")
_DIMENSION: Final = re.compile(r"[A-Za-z][A-Za-z0-9]{0,99}")
_WAITS: Final = "no CloudWatch metrics are sent yet"


def dimensions() -> Kind:
    """Names separated by commas or blanks, braces around them tolerated; nothing at all is no dimension (KCL)."""

    def read(text: str) -> tuple[str, ...]:
        names = tuple(word for word in _SEPARATOR.split(trimmed(text).strip("{}")) if word)
        for each in names:
            if not _DIMENSION.fullmatch(each):
                raise Refused(f"{each!r:.80} is no dimension")
        return names

    return Kind(
        read, "names such as Operation, ShardId, WorkerIdentifier, separated by commas; ALL; or nothing"
    )


METRICS_KEYS: Final[tuple[Key, ...]] = (
    Key(
        "metricsLevel",
        choice({level.value: level for level in MetricsLevel}),
        "metrics.level",
        "How much is told to CloudWatch.",
        waits=_WAITS,
        waits_not=("none",),
    ),
    Key(
        "metricsBufferTimeMillis",
        MILLISECONDS,
        "metrics.buffer_ms",
        "How long figures are gathered before they are sent.",
        waits=_WAITS,
    ),
    Key(
        "metricsMaxQueueSize",
        whole_number(1, INT_MAX, "figures"),
        "metrics.queue_most",
        "How many figures wait at most; older ones are dropped.",
        waits=_WAITS,
    ),
    Key(
        "metricsEnabledDimensions",
        dimensions(),
        "metrics.dimensions",
        "The names that figures are told apart by.",
        default="ALL",
        waits=_WAITS,
    ),
)
