"""What a properties file says about metrics. Pure values, part of `Settings`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class MetricsLevel(Enum):
    """How much is told; the values are KCL's."""

    NONE = "NONE"
    SUMMARY = "SUMMARY"
    DETAILED = "DETAILED"


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """Metrics in CloudWatch, and over OTLP.

    Args:
        level: how much.
        buffer_ms: how long figures are gathered before they are sent.
        queue_most: how many figures wait at most.
        dimensions: the names that figures are told apart by; `ALL`: every one.
        namespace: of the figures in CloudWatch; None: the application's name.
        otlp_endpoint: the address that figures are posted to over OTLP; None: nowhere.
        otlp_period_ms: how often.
    """

    level: MetricsLevel = MetricsLevel.DETAILED
    buffer_ms: int = 10_000
    queue_most: int = 10_000
    dimensions: tuple[str, ...] = ("ALL",)
    namespace: str | None = None
    otlp_endpoint: str | None = None
    otlp_period_ms: int = 30_000
