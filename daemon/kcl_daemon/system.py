"""The real clock and real chance: the only place where the daemon asks the machine for either.

Knows nothing else. The simulator puts its own in their place.
"""

from __future__ import annotations

import random  # noqa: TID251 - this module is the adapter of the Randomness port
import time
import uuid
from typing import Final

import anyio

_MILLISECONDS: Final = 1_000_000  # nanoseconds in one
_SKEW_LEAST_S: Final = 5.0


class SystemClock:
    """The machine's clock, as the Clock port. `monotonic` is what the event loop counts by, too."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start."""
        return time.monotonic()  # noqa: TID251 - this module is the adapter of the Clock port

    def wall_ms(self) -> int:
        """Epoch milliseconds."""
        return time.time_ns() // _MILLISECONDS

    async def sleep(self, seconds: float) -> None:
        """Wait; at once where there is nothing to wait for, but always a place to be cancelled."""
        await anyio.sleep(max(seconds, 0))

    def move_on_after(self, seconds: float | None) -> anyio.CancelScope:
        """A scope with that deadline; None: without."""
        return anyio.move_on_after(seconds)


class ServiceClock(SystemClock):
    """The machine's clock with the service's time of day, as far as the service has told it.

    A position by time is judged by the service's clock, and a machine's may be minutes off without any signature being refused.
    """

    def __init__(self) -> None:
        self._skew_s = 0.0

    def learn(self, service_s: float) -> None:
        """The service's time now, epoch seconds; it is told in whole seconds, so small differences are none."""
        skew_s = service_s - super().wall_ms() / 1000
        self._skew_s = skew_s if abs(skew_s) > _SKEW_LEAST_S else 0.0

    def wall_ms(self) -> int:
        """Epoch milliseconds by the service's clock."""
        return super().wall_ms() + round(self._skew_s * 1000)


class SystemRandomness:
    """Chance from the operating system, as the Randomness port."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def uniform(self, low: float, high: float) -> float:
        """A number between the two."""
        return self._random.uniform(low, high)

    def token(self) -> str:
        """A random UUID."""
        return str(uuid.uuid4())  # noqa: TID251 - this module is the adapter of the Randomness port
