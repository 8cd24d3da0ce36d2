"""Answers that go wrong on their way: slow, cut, mangled. Knows no operation; errors of the service are `faults`."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
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
class Trouble:
    """One answer's trouble.

    Args:
        kind: what happens.
        event: to which event of a subscription, from 0; without meaning elsewhere.
        seconds: how long a DELAY is.
        code: of an EXCEPTION.
    """

    kind: Kind
    event: int = 0
    seconds: float = 0.0
    code: str = "InternalFailureException"


class Troubles:
    """Troubles waiting for their answers, first in, first out for each operation."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Trouble]] = {}

    def add(self, operation: str, trouble: Trouble, times: int = 1) -> None:
        """Let it happen to the next `times` answers of the operation, after those asked for before.

        Raises:
            ValueError: fewer than one time, or a kind for events only at another operation.
        """
        if times < 1:
            raise ValueError(f"times must be at least 1: {times}")
        if operation != "SubscribeToShard" and trouble.kind in {Kind.EXCEPTION, Kind.END}:
            raise ValueError(
                f"{trouble.kind} can happen to events of SubscribeToShard only, not to {operation}"
            )
        self._waiting.setdefault(operation, deque()).extend([trouble] * times)

    def take(self, operation: str) -> Trouble | None:
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
