"""The one clock of the demo: what its processes compare their times by.

Owns nothing else. The daemon takes its time from a port, so that it can be simulated; the demo is a program of its own
around real processes, and has to compare times that several of them took.
"""

from __future__ import annotations

import time


def monotonic_s() -> float:
    """Seconds by the system's monotonic clock; the same clock in every process of one machine (CLOCK_MONOTONIC)."""
    return time.monotonic()  # noqa: TID251 - real processes on one machine: there is no port between them
