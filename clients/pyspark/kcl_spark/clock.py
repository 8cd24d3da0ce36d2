"""The one clock of the client; nothing else in the package asks the system for the time."""

from __future__ import annotations

import threading
import time


def monotonic_s() -> float:
    """Seconds that never go back, from an arbitrary start."""
    return time.monotonic()  # noqa: TID251 - a program of its own beside Spark: there is no port


def pause(seconds: float) -> None:
    """Wait that long."""
    threading.Event().wait(seconds)
