"""What the engine tells, from bytes to events: lines that are JSON objects with a name.

Pure, and bounded in memory. What such a line should not be comes out as `Unreadable`, and the next one is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

import orjson

Event: TypeAlias = Mapping[str, object]
EVENT_BYTES_MOST: Final = 8 * 1024 * 1024  # figures of thousands of shards
_SHOWN_BYTES: Final = 200


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A line that is no event.

    Args:
        error: why.
        line: how it begins.
    """

    error: str
    line: str


class EventCutter:
    """Cuts bytes into events; the last line counts when its end is there.

    Args:
        most_bytes: of a line; a longer one is passed over.
    """

    def __init__(self, most_bytes: int = EVENT_BYTES_MOST) -> None:
        self._most_bytes = most_bytes
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[Event | Unreadable]:
        """The events that this piece completes."""
        *ends, rest = piece.split(b"\n")
        found: list[Event | Unreadable] = []
        for end in ends:
            self._add(end)
            found.append(self._take())
        self._add(rest)
        return found

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size <= self._most_bytes:
            self._parts.append(part)
        else:
            self._parts = [b"".join(self._parts)[:_SHOWN_BYTES]]

    def _take(self) -> Event | Unreadable:
        line, size = b"".join(self._parts), self._size
        self._parts, self._size = [], 0
        if size > self._most_bytes:
            return _unreadable(f"it has {size} bytes, more than {self._most_bytes}", line)
        return read_event(line)


def read_event(line: bytes) -> Event | Unreadable:
    """The event that a line is."""
    try:
        told = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return _unreadable(str(error), line)
    if not isinstance(told, dict) or not isinstance(told.get("event"), str):
        return _unreadable("it is no object with the name of an event", line)
    return told


def _unreadable(error: str, line: bytes) -> Unreadable:
    return Unreadable(error, line[:_SHOWN_BYTES].decode(errors="replace"))
