"""The port of figures: what loops count and time by it, and a silent one; apart from `ports` only for its size.

A call is a look-up and an addition, so that it may stand in the record path, for each batch; never for each record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol, Self

from kcl_daemon.metrics.metric import Metric, Operation


class Span(Protocol):
    """An operation under way, as a context. It succeeds unless an error comes out of it, or `failed` was called.

    What is cancelled is not counted.
    """

    def __enter__(self) -> Self:
        """It begins."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """It ends; the error goes on."""
        ...

    def failed(self) -> None:
        """It has failed, though no error comes out of it."""
        ...


class Meters(Protocol):
    """Takes figures; never raises, never waits."""

    def add(self, metric: Metric, value: float = 1.0, /, **labels: str) -> None:
        """A value: seconds for times, bytes, or a number; a gauge is set, all else is added up.

        Args:
            metric: of the list.
            value: in the metric's unit.
            labels: those that the metric has; one that does not apply is left out.
        """
        ...

    def operation(self, operation: Operation, /, **labels: str) -> Span:
        """Time an operation and count how it ends."""
        ...

    def done(self, operation: Operation, seconds: float, ok: bool = True, /, **labels: str) -> None:
        """An operation that somebody else has timed."""
        ...


class _SilentSpan:
    """A span that nobody hears of; one for all."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def failed(self) -> None:
        """Nobody hears of it."""


_SILENCE: Final = _SilentSpan()


class NoMeters:
    """Meters that count nothing."""

    def add(self, metric: Metric, value: float = 1.0, /, **labels: str) -> None:
        """Nothing."""

    def operation(self, operation: Operation, /, **labels: str) -> Span:  # noqa: ARG002 - of the port
        """A span that nobody hears of."""
        return _SILENCE

    def done(self, operation: Operation, seconds: float, ok: bool = True, /, **labels: str) -> None:
        """Nothing."""


NO_METERS: Final[Meters] = NoMeters()


@dataclass(frozen=True, slots=True)
class Statistic:
    """What came together of one metric since it was last told (CloudWatch: StatisticSet).

    Args:
        name: on CloudWatch.
        unit: on CloudWatch.
        dimensions: names and values.
        count: of values.
        total: their sum, in that unit.
        least: the smallest.
        most: the largest.
    """

    name: str
    unit: str
    dimensions: Mapping[str, str]
    count: int
    total: float
    least: float
    most: float


class CloudWatch(Protocol):
    """Where figures are told to."""

    async def put(self, namespace: str, statistics: Sequence[Statistic]) -> None:
        """PutMetricData, once; a call that fails may have taken effect.

        Raises:
            AwsError: it failed.
        """
        ...
