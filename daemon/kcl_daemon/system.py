"""The real clock and randomness, which nothing else asks the machine for, and whole lines in a file."""

from __future__ import annotations

import os
import random  # noqa: TID251 - this module is the adapter of the Randomness port
import time
import uuid
from math import inf
from typing import Final

import anyio

_MILLISECONDS: Final = 1_000_000  # nanoseconds in one
_SKEW_LEAST_S: Final = 5.0
# Fan-out answers every five minutes.
_LEARNED_LASTS_S: Final = 600.0
# A machine's monotonic clock may be wrong by so much, slewed by NTP.
_DRIFT: Final = 0.001


class SystemClock:
    def monotonic(self) -> float:
        return time.monotonic()  # noqa: TID251 - this module is the adapter of the Clock port

    def wall_ms(self) -> int:
        return time.time_ns() // _MILLISECONDS

    def passed_ms(self) -> int:
        return self.wall_ms()

    async def sleep(self, seconds: float) -> None:
        """Always a point of cancellation."""
        await anyio.sleep(max(seconds, 0))

    def move_on_after(self, seconds: float | None) -> anyio.CancelScope:
        return anyio.move_on_after(seconds)


class ServiceClock(SystemClock):
    """The service judges positions in time by its own clock; the machine's may be minutes off."""

    def __init__(self) -> None:
        self._skew_s = self._passed_s = 0.0
        self._learned_s = -inf

    def learn(self, service_s: float) -> None:
        self._skew_s = service_s - super().wall_ms() / 1000
        passed_s = self._passed_at(self.monotonic())
        self._passed_s = passed_s if 0 <= passed_s - service_s < _SKEW_LEAST_S else service_s
        self._learned_s = self.monotonic()

    def wall_ms(self) -> int:
        return super().wall_ms() + round(self._skew_s * 1000) * (abs(self._skew_s) > _SKEW_LEAST_S)

    def passed_ms(self) -> int:
        """By what was learned alone: the machine's time of day may be ahead, or be set."""
        passed_s = self._passed_at(self.monotonic())
        return int(passed_s * 1000) if passed_s < inf else self.wall_ms()

    def machine_ahead_s(self) -> float | None:
        """None: unknown."""
        return -self._skew_s if self.monotonic() - self._learned_s < _LEARNED_LASTS_S else None

    def _passed_at(self, now_s: float) -> float:
        return self._passed_s + (now_s - self._learned_s) * (1 - _DRIFT)


class SystemRandomness:
    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def uniform(self, low: float, high: float) -> float:
        return self._random.uniform(low, high)

    def token(self) -> str:
        return str(uuid.uuid4())  # noqa: TID251 - this module is the adapter of the Randomness port


def append_lines(file: int, data: bytes) -> None:
    """Returns after fsync; OSError: nothing was appended."""
    size_bytes = os.fstat(file).st_size
    if size_bytes and os.pread(file, 1, size_bytes - 1) != b"\n":
        data = b"\n" + data  # after a half line from a power loss
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(file, view) :]
        os.fsync(file)
    except OSError:
        os.ftruncate(file, size_bytes)
        raise
