"""One run of the Spark engine: its process, its events (JSON lines) and its last metrics.

Metrics expire: a hung engine must not look like a working one.
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
    error: str
    line: str


class EventSplitter:
    """Memory is bounded: skips lines longer than `max_bytes`."""

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[Event | UnreadableLine]:
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
# A killed process ends at once, unless it hangs in the kernel (a dead network file system).
_KILL_PATIENCE_S: Final = 5.0


class EngineProcess:
    """Call `listen` once, `stop` meanwhile.

    `process` leads its own process group, with the JVM; its pipes now belong to this object.
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
        """OSError if it cannot start. Never awaits, so `stop` finds the engine started or not."""
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
        return self._group.pid

    async def listen(
        self, options: bytes, on_event: Callable[[Event | UnreadableLine], None], log: Log
    ) -> int:
        """Pass on events until the engine ends; gives the exit code.

        Ends its JVM and workers with it, also when cancelled.
        """
        try:
            async with anyio.create_task_group() as pipes:
                pipes.start_soon(self._give, options)
                pipes.start_soon(_forward, self._stderr, log)
                pipes.start_soon(_events, self._stdout, on_event)
                await self._group.reaped()
                # A process that left the group may hold the other ends: do not wait.
                self._stdin.close()
                self._stdout.finish()
                self._stderr.finish()
        finally:
            await self._end()
        status = self._group.status
        assert status is not None, "ended without a status"
        return status

    async def stop(self, within_s: float) -> None:
        """SIGTERM, later SIGKILL to the group; `listen` must still run."""
        self._group.signal_leader(signal.SIGTERM)  # the JVM must finish its batch
        with self._clock.move_on_after(within_s):
            await self._ended.wait()
        self._group.signal(signal.SIGKILL)

    async def _give(self, options: bytes) -> None:
        with suppress(BrokenPipeError):
            await self._stdin.send(options)

    async def _end(self) -> None:
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
    assert pipe is not None
    with pipe:
        return os.dup(pipe.fileno())


async def _events(pipe: PipeReader, on_event: Callable[[Event | UnreadableLine], None]) -> None:
    cutter = EventSplitter()
    while piece := await pipe.receive(_EVENTS_BYTES):
        for reported in cutter.feed(piece):
            on_event(reported)


async def _forward(pipe: PipeReader, log: Log) -> None:
    cutter = LineCutter()
    while piece := await pipe.receive(_OUTPUT_BYTES):
        for line in cutter.feed(piece):
            log.info("spark_output", line=line)
    for line in cutter.finish():
        log.info("spark_output", line=line)


FORGOTTEN_S: Final = 30.0
"""The engine reports every two seconds."""


class _Query(msgspec.Struct, frozen=True):
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
    behind_ms: int | None
    rows: int
    size_bytes: int
    committed: int
    trimmed: int
    waiting: int
    lag_s: float
    spooled_bytes: int


class _EngineReport(msgspec.Struct, frozen=True):
    queries: dict[str, _Query]
    shards: dict[str, _Shard]


class EngineMetrics:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ui: str | None = None
        self._reported: _EngineReport | None = None
        self._reported_s = 0.0

    def set_ui(self, ui: object) -> None:
        self._ui = on_one_line(masked(ui)) if isinstance(ui, str) else None

    def take(self, fields: Mapping[str, object]) -> str | None:
        """Gives the error if the fields are unreadable."""
        try:
            self._reported = msgspec.convert(fields, _EngineReport)
        except msgspec.ValidationError as error:
            self._reported = None
            return str(error)
        self._reported_s = self._clock.monotonic()
        return None

    def forget(self) -> None:
        self._reported = self._ui = None

    def now(self) -> SparkView | None:
        """None: no recent report."""
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
