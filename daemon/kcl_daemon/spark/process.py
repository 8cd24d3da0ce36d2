"""One run of the engine as a process: started, listened to, ended.

Owns its pipes and its process group. What its events mean is known to `supervisor`.

What the engine tells, from bytes to events: lines that are JSON objects with a name.

Pure, and bounded in memory. What such a line should not be comes out as `Unreadable`, and the next one is read.

What the engine told last of its queries and shards, for the snapshot; forgotten when it ends or falls silent.

Owns the shape of the event `spark_figures` on this side. Figures are never older than `FORGOTTEN_S`: an engine that
hangs must not look like one that works.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Final, TypeAlias

import anyio
import msgspec
import orjson

from kcl_daemon.children.pipes import LineCutter, PipeReader, PipeWriter
from kcl_daemon.children.process import ProcessGroup
from kcl_daemon.ports import Clock, Log
from kcl_daemon.telemetry.snapshot import SparkQueryView, SparkShardView, SparkView
from kcl_daemon.text import masked, on_one_line

Event: TypeAlias = Mapping[str, object]
MAX_EVENT_BYTES: Final = 8 * 1024 * 1024  # figures of thousands of shards
_SHOWN_BYTES: Final = 200


@dataclass(frozen=True, slots=True)
class UnreadableLine:
    """A line that is no event.

    Args:
        error: why.
        line: how it begins.
    """

    error: str
    line: str


class EventSplitter:
    """Cuts bytes into events; the last line counts when its end is there.

    Args:
        most_bytes: of a line; a longer one is passed over.
    """

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[Event | UnreadableLine]:
        """The events that this piece completes."""
        *ends, rest = piece.split(b"\n")
        found: list[Event | UnreadableLine] = []
        for end in ends:
            self._add(end)
            found.append(self._take())
        self._add(rest)
        return found

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size <= self._max_bytes:
            self._parts.append(part)
        else:
            self._parts = [b"".join(self._parts)[:_SHOWN_BYTES]]

    def _take(self) -> Event | UnreadableLine:
        line, size = b"".join(self._parts), self._size
        self._parts, self._size = [], 0
        if size > self._max_bytes:
            return _unreadable(f"it has {size} bytes, more than {self._max_bytes}", line)
        return read_event(line)


def read_event(line: bytes) -> Event | UnreadableLine:
    """The event that a line is."""
    try:
        reported = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        return _unreadable(str(error), line)
    if not isinstance(reported, dict) or not isinstance(reported.get("event"), str):
        return _unreadable("it is no object with the name of an event", line)
    return reported


def _unreadable(error: str, line: bytes) -> UnreadableLine:
    return UnreadableLine(error, line[:_SHOWN_BYTES].decode(errors="replace"))


_EVENTS_BYTES: Final = 64 * 1024
_OUTPUT_BYTES: Final = 16 * 1024
# A killed process is gone at once, unless it hangs in the kernel (a dead network file system).
_KILL_PATIENCE_S: Final = 5.0


class EngineProcess:
    """An engine that has been started. `listen` once; `stop` meanwhile.

    Args:
        process: leads a process group of its own, in which its JVM is, too; its pipes belong to this object from now on.
        clock: for the patience at its end.
        log: for signals that cannot be sent.
    """

    def __init__(self, process: subprocess.Popen[bytes], clock: Clock, log: Log) -> None:
        self._group = ProcessGroup(process, log)
        self._stdin = PipeWriter(_taken(process.stdin))
        self._stdout = PipeReader(_taken(process.stdout))
        self._stderr = PipeReader(_taken(process.stderr))
        self._clock = clock
        self._ended = anyio.Event()

    @classmethod
    def start(
        cls, command: tuple[str, ...], environment: Mapping[str, str], *, clock: Clock, log: Log
    ) -> EngineProcess:
        """Start one in this environment; OSError where that is impossible.

        No await is in between: whoever wants to stop it finds it either not started or here.
        """
        process = subprocess.Popen(  # noqa: S603 - our own program, no shell
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        return cls(process, clock, log)

    @property
    def pid(self) -> int:
        """Process id, and number of its process group."""
        return self._group.pid

    async def listen(
        self, options: bytes, on_event: Callable[[Event | UnreadableLine], None], log: Log
    ) -> int:
        """Give it its options and pass on what it says until it ends; the exit code.

        Its JVM and its workers are ended with it, also where this is cancelled.
        """
        try:
            async with anyio.create_task_group() as pipes:
                pipes.start_soon(self._give, options)
                pipes.start_soon(_forward, self._stderr, log)
                pipes.start_soon(_events, self._stdout, on_event)
                await self._group.reaped()
                # A process that left the group may hold the other ends open: wait for none of it.
                self._stdin.close()
                self._stdout.finish()
                self._stderr.finish()
        finally:
            await self._end()
        status = self._group.status
        assert status is not None, "ended without a status"
        return status

    async def stop(self, within_s: float) -> None:
        """SIGTERM, and SIGKILL to all of its group where that takes longer; `listen` goes on meanwhile."""
        self._group.signal_leader(signal.SIGTERM)  # the JVM must finish the batch under way
        with self._clock.move_on_after(within_s):
            await self._ended.wait()
        self._group.signal(signal.SIGKILL)

    async def _give(self, options: bytes) -> None:
        with suppress(BrokenPipeError):  # its end tells more
            await self._stdin.send(options)

    async def _end(self) -> None:
        """Nothing of it is left after this; takes no time where it has ended by itself."""
        if self._group.status is None:
            self._group.signal(signal.SIGKILL)
            patience = self._clock.move_on_after(_KILL_PATIENCE_S)
            patience.shield = True
            with patience:
                await self._group.reaped()
        self._ended.set()
        self._stdin.close()
        self._stdout.close()
        self._stderr.close()


def _taken(pipe: IO[bytes] | None) -> int:
    """The descriptor of a pipe, without the file object around it."""
    assert pipe is not None
    with pipe:
        return os.dup(pipe.fileno())


async def _events(pipe: PipeReader, on_event: Callable[[Event | UnreadableLine], None]) -> None:
    cutter = EventSplitter()
    while piece := await pipe.receive(_EVENTS_BYTES):
        for reported in cutter.feed(piece):
            on_event(reported)


async def _forward(pipe: PipeReader, log: Log) -> None:
    """What Spark, Java and the pipeline print."""
    cutter = LineCutter()
    while piece := await pipe.receive(_OUTPUT_BYTES):
        for line in cutter.feed(piece):
            log.info("spark_output", line=line)
    for line in cutter.finish():
        log.info("spark_output", line=line)


FORGOTTEN_S: Final = 30.0
"""The engine tells each two seconds."""


class _Query(msgspec.Struct, frozen=True):
    """As the engine tells of a query."""

    running: bool
    failures: int
    batch: int
    since_commit_s: float
    input_rows_per_s: float | None
    processed_rows_per_s: float | None
    batch_s: float | None
    state_rows: int | None
    late_rows: int | None


class _Shard(msgspec.Struct, frozen=True):
    """As the engine tells of a shard."""

    behind_ms: int | None
    rows: int
    size_bytes: int
    committed: int
    trimmed: int
    waiting: int
    lag_s: float
    spooled_bytes: int


class _EngineReport(msgspec.Struct, frozen=True):
    """The fields of the event."""

    queries: dict[str, _Query]
    shards: dict[str, _Shard]


class EngineMetrics:
    """The last that was told.

    Args:
        clock: for the age of it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ui: str | None = None
        self._reported: _EngineReport | None = None
        self._reported_s = 0.0

    def set_ui(self, ui: object) -> None:
        """Where Spark's own page is; None: nowhere."""
        self._ui = on_one_line(masked(ui)) if isinstance(ui, str) else None

    def take(self, fields: Mapping[str, object]) -> str | None:
        """The fields of the event `spark_figures`; why they cannot be read, None where they can."""
        try:
            self._reported = msgspec.convert(fields, _EngineReport)
        except msgspec.ValidationError as error:
            self._reported = None
            return str(error)
        self._reported_s = self._clock.monotonic()
        return None

    def forget(self) -> None:
        """The engine has ended."""
        self._reported = self._ui = None

    def now(self) -> SparkView | None:
        """The engine at this moment; None: it has not been heard of lately."""
        reported, age_s = self._reported, self._clock.monotonic() - self._reported_s
        if reported is None or age_s > FORGOTTEN_S:
            return None
        return SparkView(
            ui=self._ui,
            queries=tuple(_query(name, each, age_s) for name, each in sorted(reported.queries.items())),
            shards=tuple(_shard(name, each, age_s) for name, each in sorted(reported.shards.items())),
        )


def _query(name: str, reported: _Query, age_s: float) -> SparkQueryView:
    return SparkQueryView(
        name=on_one_line(name),
        running=reported.running,
        failures=reported.failures,
        batch=None if reported.batch < 0 else reported.batch,
        since_commit_s=reported.since_commit_s + age_s,
        input_rows_per_s=reported.input_rows_per_s,
        processed_rows_per_s=reported.processed_rows_per_s,
        batch_s=reported.batch_s,
        state_rows=reported.state_rows,
        late_rows=reported.late_rows,
    )


def _shard(name: str, reported: _Shard, age_s: float) -> SparkShardView:
    return SparkShardView(
        shard_id=on_one_line(name),
        behind_ms=reported.behind_ms,
        rows=reported.rows,
        data_bytes=reported.size_bytes,
        committed=reported.committed,
        redelivered=reported.trimmed,
        waiting=reported.waiting,
        lag_s=reported.lag_s + age_s if reported.waiting else 0.0,
        spooled_bytes=reported.spooled_bytes,
    )
