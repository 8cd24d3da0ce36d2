"""Failures on demand: which call fails next, and how. Knows neither Kinesis nor DynamoDB nor HTTP."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

# The code of a fault that is no answer at all: the connection is cut.
DROP: Final = "drop"

_STATUSES: Final = {"InternalFailure": 500, "InternalServerError": 500, "ServiceUnavailable": 503}


@dataclass(frozen=True, slots=True)
class Fault:
    """One failure.

    Args:
        code: the service's error code, or `DROP`.
        after: the call takes effect and only its answer is lost.
    """

    code: str
    after: bool = False


class Faults:
    """Failures waiting for their calls, first in, first out for each operation. May be filled from another thread."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Fault]] = {}

    def add(self, operation: str, fault: Fault, times: int) -> None:
        """Let the next `times` calls of the operation fail, after those that were asked for before."""
        if times < 1:
            raise ValueError(f"times must be at least 1: {times}")
        self._waiting.setdefault(operation, deque()).extend([fault] * times)

    def take(self, operation: str) -> Fault | None:
        """The failure that this call must have; None: let it through."""
        waiting = self._waiting.get(operation)
        return waiting.popleft() if waiting else None

    def clear(self) -> None:
        """Nothing is to fail any more."""
        self._waiting.clear()


def http_status(code: str) -> int:
    """The HTTP status that an error code comes with."""
    return _STATUSES.get(code, 400)
