"""What a host states: its marks, and as the host of the leader the rosters."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple, TypeAlias

import msgspec

from kcl_landing.control import EmitEvent
from kcl_landing.log import LogInfo, Mark, Marks, Roster, marks_path, roster_path

MARKS_S: Final = 1.0
_RENEWED_S: Final = 5.0

Stated: TypeAlias = Mapping[str, Mark]


class _Said(msgspec.Struct, frozen=True, rename="camel"):
    roster: dict[str, dict[str, tuple[str, ...]]]
    failover_ms: int


class _Roster(NamedTuple):
    stream: str
    failover_ms: int
    shards: dict[str, tuple[str, ...]]


_read_said: Final = msgspec.json.Decoder(_Said).decode


class Rosters:
    """The newest of each stream. Thread-safe."""

    def __init__(self, log_event: EmitEvent) -> None:
        self._log_event = log_event
        self._lock = threading.Lock()
        self._waiting: dict[str, _Roster] = {}
        self._parents: set[tuple[str, str]] = set()

    def hear(self, line: bytes) -> None:
        """What cannot be read is logged and changes nothing."""
        try:
            said = _read_said(line)
            if wrong := [each for each in said.roster if not each or "/" in each or each.startswith(".")]:
                raise msgspec.ValidationError(f"{wrong[0]!r} is no name of a stream")
        except (msgspec.MsgspecError, RecursionError) as error:
            self._log_event("warning", "landing_roster_not_read", error=str(error), line=repr(line[:200]))
            return
        with self._lock:
            for stream, shards in said.roster.items():
                self._waiting[stream] = _Roster(stream, said.failover_ms, shards)
                self._parents.update((stream, each) for above in shards.values() for each in above)

    def take(self) -> _Roster | None:
        with self._lock:
            stream = next(iter(self._waiting), None)
            return None if stream is None else self._waiting.pop(stream)

    def take_parents(self) -> set[tuple[str, str]]:
        with self._lock:
            found, self._parents = self._parents, set()
            return found

    def give_back(self, roster: _Roster) -> None:
        with self._lock:
            self._waiting.setdefault(roster.stream, roster)


def merged(stated: Iterable[Stated]) -> dict[str, Mark]:
    """All are true; the last one of the newest writer is kept."""
    found: dict[str, Mark] = {}
    for each in stated:
        for key, mark in each.items():
            before = found.get(key, mark)
            found[key] = max(before, mark, key=lambda one: (one.token, one.complete_ms, one.number))
    return found


class HostObjects:
    """What is written next: at most one in MARKS_S, rosters and marks in turn."""

    def __init__(self, info: LogInfo, worker: str, window_ms: int, rosters: Rosters) -> None:
        self._log_id = info.log_id
        self._worker = worker
        self._window_ms = window_ms
        self._rosters = rosters
        self._roster: _Roster | None = None
        self._said: Stated = {}
        self._best: dict[str, Mark] = {}
        self._since_ms: dict[str, int] = {}
        self._said_s = self._next_s = -math.inf
        self._failures = 0

    def next(self, now_s: float, at_ms: int, stated: Callable[[], Stated]) -> tuple[str, bytes] | None:
        if now_s < self._next_s:
            return None
        shards = self._kept(stated())
        is_due = shards != self._said or (bool(shards) and now_s - self._said_s >= _RENEWED_S)
        self._roster = None if is_due and self._roster is not None else self._rosters.take()
        if self._roster is None and not is_due:
            return None
        self._next_s = now_s + MARKS_S
        if self._roster is not None:
            stream, failover_ms, parents = self._roster
            roster = Roster(self._log_id, stream, at_ms, failover_ms, parents)
            return roster_path(stream), msgspec.json.encode(roster)
        self._said, self._said_s = shards, now_s
        return marks_path(self._worker), self._marks(shards, at_ms)

    def _kept(self, stated: Stated) -> Stated:
        """A relay that begins again may know less than the one before, whose mark is still true."""
        for key, mark in stated.items():
            before = self._best.get(key, mark)
            is_same = before.token == mark.token and before.number <= mark.number
            until_ms = max(mark.complete_ms, before.complete_ms) if is_same else mark.complete_ms
            self._best[key] = Mark(mark.number, until_ms, mark.token)
        return {key: self._best[key] for key in stated}

    def done(self) -> None:
        self._failures = 0

    def trouble(self, now_s: float) -> None:
        """Whether it was written is unknown; what was there before is true, too."""
        self._failures += 1
        self._next_s = now_s + min(MARKS_S * 2**self._failures, _RENEWED_S)
        if self._roster is not None:
            self._rosters.give_back(self._roster)
        else:
            self._said_s = -math.inf

    def _marks(self, shards: Stated, at_ms: int) -> bytes:
        # Kinesis' clock may be ahead.
        known = {key: Mark(at.number, min(at.complete_ms, at_ms), at.token) for key, at in shards.items()}
        streams = {key.partition("/")[0] for key in shards}
        self._since_ms = {each: min(self._since_ms.get(each, at_ms), at_ms) for each in streams}
        said = Marks(self._log_id, self._worker, at_ms, self._window_ms, known, self._since_ms)
        return msgspec.json.encode(said)
