"""What tests with real children share: the programs' commands, a log that remembers."""

from __future__ import annotations

import gc
import os
import sys
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from kcl_daemon.children.process import ProcessChildren
from kcl_daemon.children.start import SAME_AS_DAEMON, ChildOptions
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import Child
from kcl_daemon.system import SystemClock

SHARD = ShardId("shardId-000000000000")
GUARD_DESCRIPTORS = 1  # the daemon's end of its pipe, while there are children
PROGRAMS = Path(__file__).with_name("programs.py")


def command(program: str, argument: str = "") -> tuple[str, ...]:
    """How to start one of `programs.py`."""
    return (sys.executable, "-I", "-S", str(PROGRAMS), program, argument)


def preloaded(program: str, argument: str = "") -> tuple[str, ...]:
    """The same program, for children that are forked from a template."""
    return (sys.executable, "-m", "tests.process.children.preloaded", program, argument)


@dataclass
class RecordedEvents:
    """What was logged: all events counted, the last thousand kept."""

    count: int = 0
    last: deque[tuple[str, str, dict[str, object]]] = field(default_factory=lambda: deque(maxlen=1000))

    def lines(self) -> list[object]:
        """The kept lines of stderr."""
        return [fields["line"] for _, event, fields in self.last if event == "child_stderr"]


@dataclass
class RecordingLog:
    """The port `Log`; every logger bound from this one records in the same place."""

    recorded: RecordedEvents = field(default_factory=RecordedEvents)
    bound: dict[str, object] = field(default_factory=dict[str, object])

    def bind(self, **fields: object) -> RecordingLog:
        return RecordingLog(self.recorded, {**self.bound, **fields})

    def debug(self, event: str, /, **fields: object) -> None:
        self._record("debug", event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        self._record("info", event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        self._record("warning", event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        self._record("error", event, fields)

    def _record(self, level: str, event: str, fields: dict[str, object]) -> None:
        self.recorded.count += 1
        self.recorded.last.append((level, event, {**self.bound, **fields}))


def children_of(
    argv: tuple[str, ...], log: RecordingLog | None = None, options: ChildOptions = SAME_AS_DAEMON
) -> ProcessChildren:
    """The adapter under test."""
    return ProcessChildren(argv, log or RecordingLog(), SystemClock(), options)


async def receive_line(child: Child) -> bytes:
    """Everything up to the end of one line or of stdout."""
    text = b""
    while not text.endswith(b"\n"):
        piece = await child.receive()
        if not piece:
            break
        text += piece
    return text


async def drained(child: Child) -> bytes:
    """All of its stdout."""
    pieces: list[bytes] = []
    while piece := await child.receive():
        pieces.append(piece)
    return b"".join(pieces)


async def ended(pid: int) -> None:
    """Returns once a process that is not ours to reap has ended."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        await anyio.wait_readable(pidfd)
    finally:
        os.close(pidfd)


def open_descriptors() -> int:
    """How many descriptors this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def descriptors_in_use() -> int:
    """The same without those that tests before have dropped: else the collector may close some in the middle of a count."""
    gc.collect()
    return open_descriptors()


def is_gone(pid: int) -> bool:
    """Whether not even a zombie is left."""
    return not Path(f"/proc/{pid}").exists()
