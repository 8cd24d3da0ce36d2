"""Failures on demand: which call fails next, and how. Knows neither Kinesis nor DynamoDB nor HTTP.

Answers that go wrong on their way: slow, cut, mangled. Knows no operation; errors of the service are `faults`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
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


class ResponseFaultKind(StrEnum):
    """What happens to an answer, or to one event of a subscription.

    DELAY: it comes later.
    CUT: half of it comes, then the connection is cut.
    SHORT: half of it comes, in an answer that is otherwise well-formed: JSON that ends early, or an event stream that
        ends within a frame.
    CORRUPT: one byte in its middle is another; in an event stream no checksum holds then.
    EXCEPTION: (events only) an exception comes instead, and the stream ends.
    END: (events only) the stream ends before it.
    """

    DELAY = "delay"
    CUT = "cut"
    SHORT = "short"
    CORRUPT = "corrupt"
    EXCEPTION = "exception"
    END = "end"


@dataclass(frozen=True, slots=True)
class ResponseFault:
    """One answer's trouble.

    Args:
        kind: what happens.
        event: to which event of a subscription, from 0; without meaning elsewhere.
        seconds: how long a DELAY is.
        code: of an EXCEPTION.
    """

    kind: ResponseFaultKind
    event: int = 0
    seconds: float = 0.0
    code: str = "InternalFailureException"


class ResponseFaults:
    """Troubles waiting for their answers, first in, first out for each operation."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[ResponseFault]] = {}

    def add(self, operation: str, trouble: ResponseFault, times: int = 1) -> None:
        """Let it happen to the next `times` answers of the operation, after those asked for before.

        Raises:
            ValueError: fewer than one time, or a kind for events only at another operation.
        """
        if times < 1:
            raise ValueError(f"times must be at least 1: {times}")
        if operation != "SubscribeToShard" and trouble.kind in {
            ResponseFaultKind.EXCEPTION,
            ResponseFaultKind.END,
        }:
            raise ValueError(
                f"{trouble.kind} can happen to events of SubscribeToShard only, not to {operation}"
            )
        self._waiting.setdefault(operation, deque()).extend([trouble] * times)

    def take(self, operation: str) -> ResponseFault | None:
        """What must happen to this answer; None: nothing."""
        waiting = self._waiting.get(operation)
        return waiting.popleft() if waiting else None

    def clear(self) -> None:
        """Nothing is to happen any more."""
        self._waiting.clear()


def corrupted(body: bytes) -> bytes:
    """The body with another byte in its middle, one that neither JSON nor UTF-8 knows."""
    middle = len(body) // 2
    other = 0xFF if body[middle : middle + 1] != b"\xff" else 0xFE
    return body[:middle] + bytes([other]) + body[middle + 1 :]
