"""Samples between two reports, and the averages that the reports carry (KCL: WorkerMetricStatsManager). No I/O."""

from __future__ import annotations

from collections import deque
from decimal import ROUND_HALF_UP, Decimal
from math import fsum
from typing import Final

FAILED: Final = Decimal(-1)
"""The average of a window in which nothing could be measured; leaders give no leases to a worker that ends with it."""

_SAMPLES_MAX: Final = 300
_AVERAGES_MOST: Final = 10
_MICRO: Final = Decimal("0.000001")


class Recorder:
    """Gathers the samples of one window after another.

    Unlike in Java, a window in which nothing was tried adds no average, and until the first figure ever there are no
    averages: a worker that has just started, or whose CPU cannot be read at all, counts as one without a metric and
    still gets leases.

    Args:
        averages_most: how many averages are kept (KCL: noOfPersistedMetricsPerWorkerMetrics).
    """

    def __init__(self, averages_most: int = _AVERAGES_MOST) -> None:
        self._samples: deque[float] = deque(maxlen=_SAMPLES_MAX)
        self._averages: deque[Decimal] = deque(maxlen=averages_most)
        self._failures = 0
        self._ever = False

    @property
    def averages(self) -> tuple[Decimal, ...]:
        """Of the last windows, oldest first."""
        return tuple(self._averages)

    def add(self, percent: float | None) -> None:
        """Take one capture; None and anything outside 0 to 100 is a failed one. Of more than 300 the last count."""
        if percent is None or not 0 <= percent <= 100:
            self._failures += 1
        else:
            self._samples.append(percent)
            self._ever = True

    def drain(self) -> Decimal | None:
        """End the window: its average, half-up to 6 decimals, or FAILED; None where it added no average."""
        average = self._average()
        self._samples.clear()
        self._failures = 0
        if average is not None:
            self._averages.append(average)
        return average

    def _average(self) -> Decimal | None:
        if self._samples:
            mean = fsum(self._samples) / len(self._samples)
            return Decimal(str(mean)).quantize(_MICRO, ROUND_HALF_UP)
        return FAILED if self._failures and self._ever else None
