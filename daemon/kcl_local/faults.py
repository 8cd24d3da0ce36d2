"""Failures that tests order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, deque
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, TypeVar

DROP: Final = "drop"
PART: Final = "part"

_STATUSES: Final = {
    "InternalFailure": 500,
    "InternalServerError": 500,
    "ServiceUnavailable": 503,
    "SlowDown": 503,
    "NotImplemented": 501,
    "ConditionalRequestConflict": 409,
    "PreconditionFailed": 412,
    "AccessDenied": 403,
}

T = TypeVar("T")


def http_status(code: str) -> int:
    return _STATUSES.get(code, 400)


@dataclass(frozen=True, slots=True)
class Fault:
    """With `after` the call takes effect and only its answer is lost; code `DROP` cuts the connection."""

    code: str
    after: bool = False


class ResponseFaultKind(StrEnum):
    """What happens to an answer, or to one event of a subscription.

    CUT sends half and cuts the connection; SHORT sends half in a well-formed answer; CORRUPT changes one byte.
    EXCEPTION and END are for events only: the stream ends instead of the event.
    """

    DELAY = "delay"
    CUT = "cut"
    SHORT = "short"
    CORRUPT = "corrupt"
    EXCEPTION = "exception"
    END = "end"


@dataclass(frozen=True, slots=True)
class ResponseFault:
    """`event` counts from 0."""

    kind: ResponseFaultKind
    event: int = 0
    seconds: float = 0.0
    code: str = "InternalFailureException"


class FaultQueue(Generic[T]):
    def __init__(self) -> None:
        self._waiting: dict[str, deque[T]] = {}

    def add(self, operation: str, fault: T, times: int = 1) -> None:
        if times < 1:
            raise ValueError(f"times must be at least 1: {times}")
        self._waiting.setdefault(operation, deque()).extend([fault] * times)

    def take(self, operation: str) -> T | None:
        waiting = self._waiting.get(operation)
        return waiting.popleft() if waiting else None

    def clear(self) -> None:
        self._waiting.clear()


class FaultyService(ABC):
    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.faults: FaultQueue[Fault] = FaultQueue()
        self.troubles: FaultQueue[ResponseFault] = FaultQueue()
        self.parts: FaultQueue[Fault] = FaultQueue()
        """A PutRecords refuses every second record."""

    @property
    @abstractmethod
    def operations(self) -> frozenset[str]: ...

    def fail_next(self, operation: str, code: str, times: int = 1) -> None:
        self.faults.add(operation, Fault(code), times)

    def clear_faults(self) -> None:
        self.faults.clear()
        self.troubles.clear()
        self.parts.clear()


def corrupted(body: bytes) -> bytes:
    middle = len(body) // 2
    other = 0xFF if body[middle : middle + 1] != b"\xff" else 0xFE
    return body[:middle] + bytes([other]) + body[middle + 1 :]


def half(body: bytes) -> bytes:
    return body[: len(body) // 2]
