"""How many KiB per second a lease delivers, smoothed (KCL: LeaseStatsRecorder).

Bytes and times in, a figure out. It knows neither leases nor renewals; whoever holds a lease keeps one of these beside
it and drops it with the lease.
"""

from __future__ import annotations

from collections import deque
from typing import Final

_ALPHA: Final = 0.5
_BYTES_IN_KIB: Final = 1024
# Rows carry six decimals: what would be written as 0 is 0.
_LEAST_KBPS: Final = 0.0000005


class Throughput:
    """The throughput of one lease. Not for use by several threads.

    Differs from KCL in that a new owner goes on from the figure in the row instead of forgetting it: a shard that has
    just been moved because it is busy does not look idle while its new owner starts.
    """

    def __init__(self, window_s: float, *, stored_kbps: float | None = None) -> None:
        """Begin.

        Args:
            window_s: how long a delivery counts, the interval between two renewals.
            stored_kbps: what the lease row said when the lease was taken over.
        """
        if window_s <= 0:
            raise ValueError(f"window of a throughput is {window_s} s, it must be above 0")
        self._window_s = window_s
        self._kbps = stored_kbps
        self._deliveries: deque[tuple[float, int]] = deque()

    def record(self, size_bytes: int, *, now_s: float) -> None:
        """A batch is about to be delivered: the bytes of its user records, at a monotonic time."""
        self._deliveries.append((now_s, size_bytes))
        self._forget_before(now_s - self._window_s)

    def at_renewal(self, *, now_s: float) -> float | None:
        """Take the next step of the average, once in each window, and return KiB per second.

        Half of the figure comes from the window that ends now, so it halves with each idle window. None until
        something was recorded or stored: the row is then left without a figure.
        """
        seen = bool(self._deliveries)
        self._forget_before(now_s - self._window_s)
        latest = sum(size_bytes for _, size_bytes in self._deliveries) / _BYTES_IN_KIB / self._window_s
        if self._kbps is not None:
            smoothed = _ALPHA * latest + (1 - _ALPHA) * self._kbps
            self._kbps = smoothed if smoothed >= _LEAST_KBPS else 0.0
        elif seen:
            self._kbps = latest
        return self._kbps

    def _forget_before(self, time_s: float) -> None:
        while self._deliveries and self._deliveries[0][0] <= time_s:
            self._deliveries.popleft()
