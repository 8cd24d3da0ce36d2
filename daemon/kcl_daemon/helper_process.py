"""A program that runs beside the daemon and serves its children, the relays: restarted until that does not help.

It gets its options as the first line of stdin, perhaps more lines later, and sends events as JSON lines. The daemon ends with it if it refuses to
go on.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import IO, ClassVar, Final, Generic, Protocol, TypeAlias, TypeVar

import anyio
import msgspec
import orjson

from kcl_daemon.children.pipes import LineCutter, PipeReader, PipeWriter
from kcl_daemon.children.platform import child_leader
from kcl_daemon.children.process import ProcessGroup
from kcl_daemon.children.start import environment_of, reap
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import ConfigurationError, KclError
from kcl_daemon.leases.lease import Lease
from kcl_daemon.ports import Clock, Log

Event: TypeAlias = Mapping[str, object]
MAX_EVENT_BYTES: Final = 8 * 1024 * 1024  # figures of thousands of shards
_SHOWN_BYTES: Final = 200


@dataclass(frozen=True, slots=True)
class UnreadableLine:
    error: str
    line: str


def event_splitter(max_bytes: int = MAX_EVENT_BYTES) -> Callable[[bytes], list[Event | UnreadableLine]]:
    """Feed the result with pieces. Of a line longer than `max_bytes` it keeps only the beginning."""
    parts: list[bytes] = []
    size = 0

    def feed(piece: bytes) -> list[Event | UnreadableLine]:
        nonlocal parts, size
        found: list[Event | UnreadableLine] = []
        for number, part in enumerate(piece.split(b"\n")):
            if number:
                line, too_long = b"".join(parts), f"it has {size} bytes, more than {max_bytes}"
                found.append(read_event(line) if size <= max_bytes else _unreadable(too_long, line))
                parts, size = [], 0
            size += len(part)
            if size <= max_bytes:
                parts.append(part)
            else:
                parts = [b"".join(parts)[:_SHOWN_BYTES]]
        return found

    return feed


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
# A killed process ends at once, unless it hangs in the kernel.
_KILL_PATIENCE_S: Final = 5.0


class HelperProcess:
    """Starts a helper in a process group of its own, with all that it starts; OSError if it cannot start.

    Call `listen` once, `stop` meanwhile.
    """

    def __init__(
        self, command: tuple[str, ...], environment: Mapping[str, str], *, clock: Clock, log: Log
    ) -> None:
        process = subprocess.Popen(  # noqa: S603 - our own program, no shell
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._group = ProcessGroup(child_leader(process.pid), partial(reap, process), log)
        self._stdin = PipeWriter(_taken(process.stdin))
        self._stdout = PipeReader(_taken(process.stdout))
        self._stderr = PipeReader(_taken(process.stderr))
        self._clock = clock
        self._ended = anyio.Event()

    @property
    def pid(self) -> int:
        return self._group.pid

    async def listen(
        self,
        lines: AsyncGenerator[bytes, None],
        on_event: Callable[[Event | UnreadableLine], None],
        log_line: Callable[[str], None],
    ) -> int:
        """Report events until the helper ends; gives the exit code.

        Ends its group with it, also when cancelled. `lines` are asked for when it has room for the next one. What it
        prints is logged by `log_line`.
        """
        giving = anyio.CancelScope()
        try:
            async with anyio.create_task_group() as pipes:
                pipes.start_soon(self._give, lines, giving)
                pipes.start_soon(self._forward_stderr, log_line)
                pipes.start_soon(_events, self._stdout, on_event)
                await self._group.reaped()
                # A process that left the group may hold the other ends: do not wait.
                giving.cancel()
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
        self._group.signal_leader(signal.SIGTERM)  # a JVM must finish its batch
        with self._clock.move_on_after(within_s):
            await self._ended.wait()
        self._group.signal(signal.SIGKILL)

    async def _forward_stderr(self, log_line: Callable[[str], None]) -> None:
        await _forward(self._stderr, log_line)
        self._group.pipe_closed()

    async def _give(self, lines: AsyncGenerator[bytes, None], giving: anyio.CancelScope) -> None:
        with giving, suppress(BrokenPipeError):
            async with aclosing(lines):
                async for line in lines:
                    await self._stdin.send(line)

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
    feed = event_splitter()
    while piece := await pipe.receive(_EVENTS_BYTES):
        for reported in feed(piece):
            on_event(reported)


async def _forward(pipe: PipeReader, log_line: Callable[[str], None]) -> None:
    cutter = LineCutter()
    while piece := await pipe.receive(_OUTPUT_BYTES):
        for line in cutter.feed(piece):
            log_line(line)
    for line in cutter.finish():
        log_line(line)


# For the last checkpoints after a drain.
_FINAL_CHECKPOINTS_MS: Final = 5_000


def with_relays(settings: Settings, *, relay: Path, socket: Path, drain_ms: int) -> Settings:
    """Settings whose children are relays.

    Answers have no timeout, because the helper holds relays back. Empty batches let idle shards checkpoint what
    is done, and tell until when all is known of them.
    """
    grace_ms = max(settings.child.shutdown_grace_ms, drain_ms + _FINAL_CHECKPOINTS_MS)
    child = replace(
        settings.child,
        command=(sys.executable, "-I", "-S", str(relay), str(socket)),
        call_for_empty=True,
        is_relay=True,
        stuck_timeout_ms=None,
        timeout_s=None,
        shutdown_grace_ms=grace_ms,
    )
    return replace(settings, child=child)


CLOSED: Final = ".closed"
"""A waiting relay looks for this file beside its socket."""
EXIT_REFUSED: Final = 78
ONE_VERSION: Final = "helper and daemon have different versions: install both from one package"
_STOP_WITHIN_S: Final = 40.0
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_GOOD_AFTER_S: Final = 300.0


class StoppableWorker(Protocol):
    async def run(self) -> None: ...

    def request_stop(self) -> None: ...


View_co = TypeVar("View_co", covariant=True)


FORGOTTEN_S: Final = 30.0
"""Figures expire: a hung helper must not look like a working one. They come every two seconds."""


class HelperFigures(Generic[View_co]):
    """The last report. `read` raises ValidationError; `aged` adds to it the seconds since it came."""

    def __init__(
        self,
        clock: Clock,
        read: Callable[[Mapping[str, object]], View_co],
        aged: Callable[[View_co, float], View_co],
    ) -> None:
        self._clock = clock
        self._read = read
        self._aged = aged
        self._reported: View_co | None = None
        self._reported_s = 0.0

    def take(self, fields: Mapping[str, object]) -> str | None:
        """The error if the fields are unreadable."""
        try:
            self._reported = self._read(fields)
        except msgspec.ValidationError as error:
            self._reported = None
            return str(error)
        self._reported_s = self._clock.monotonic()
        return None

    def forget(self) -> None:
        self._reported = None

    def now(self) -> View_co | None:
        """None: no recent report."""
        reported, age_s = self._reported, self._clock.monotonic() - self._reported_s
        return None if reported is None or age_s > FORGOTTEN_S else self._aged(reported, age_s)


class Helper(ABC, Generic[View_co]):
    """Call `run` and `stop` once.

    `closed` is the file that makes relays give up. `failure` says why it is not restarted.
    """

    pid_field: ClassVar[str]

    def __init__(
        self,
        options: bytes,
        *,
        command: tuple[str, ...],
        closed: Path,
        figures: HelperFigures[View_co],
        clock: Clock,
        log: Log,
        environment: Mapping[str, str],
    ) -> None:
        self._options = options
        self._closed = closed
        self._ready = False
        self._command = command
        self._environment = environment
        self._clock = clock
        self._log = log
        self._process: HelperProcess | None = None
        self._stopping = anyio.Event()
        self._worker: StoppableWorker | None = None
        self._asked = False
        self._figures = figures
        self.said = ""
        self.failure: KclError | None = None

    @abstractmethod
    def judge(self, code: int) -> KclError | None:
        """Why it is not started again; None: it is."""

    @abstractmethod
    def log_started(self, log: Log) -> None: ...

    @abstractmethod
    def log_ended(self, log: Log, code: int, pause_s: float) -> None: ...

    @abstractmethod
    def log_line(self, log: Log, line: str) -> None: ...

    @abstractmethod
    def log_unread(self, log: Log, event: UnreadableLine) -> None: ...

    @abstractmethod
    def heard(self, name: str, fields: Mapping[str, object], log: Log) -> None:
        """An event, already logged. It may call `is_ready` and `request_worker_stop`."""

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """What it is told from its start on."""
        yield self._options

    def background(self, worker: StoppableWorker) -> StoppableWorker:
        """The worker to run; its stop also reaches the helper.

        The helper stops it when all was read, or when it must not go on.
        """
        self._worker = worker
        if self._asked:
            worker.request_stop()
        return _WorkerWithHelper(worker, self.on_worker_stop)

    def figures(self) -> View_co | None:
        """None: the helper does not run or report."""
        return self._figures.now()

    def log_to(self, log: Log) -> None:
        """It applies to a running helper, too."""
        self._log = log

    def learns_leases(self, leases: Callable[[], Sequence[Lease] | None]) -> None:
        """`leases`: of all streams, as the leader has read them last; None while another worker leads."""

    def on_worker_stop(self) -> None:
        """Relays must not wait for a helper that is not ready."""
        if not self._ready:
            self._closed.touch()

    async def run(self) -> None:
        """Restart the helper until `stop`, or until it refuses; that stops the worker."""
        pause_s = _FIRST_PAUSE_S
        while not self._stopping.is_set():
            started_s = self._clock.monotonic()
            code = await self._run_once()
            if self._stopping.is_set():
                return
            self.failure = self.judge(code)
            if self.failure is not None:
                self.request_worker_stop()
                return
            if self._clock.monotonic() - started_s > _GOOD_AFTER_S:
                pause_s = _FIRST_PAUSE_S
            self.log_ended(self._log, code, pause_s)
            with self._clock.move_on_after(pause_s):
                await self._stopping.wait()
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def stop(self, within_s: float = _STOP_WITHIN_S) -> None:
        """A ready helper may finish what it does within that time."""
        self._stopping.set()
        if self._process is not None:
            await self._process.stop(within_s if self._ready else 0)

    def is_ready(self) -> None:
        self._ready = True

    def request_worker_stop(self) -> None:
        self._asked = True
        self.on_worker_stop()
        if self._worker is not None:
            self._worker.request_stop()

    async def _run_once(self) -> int:
        try:
            process = HelperProcess(self._command, self._environment, clock=self._clock, log=self._log)
        except OSError as error:
            self.said = str(error)
            return EXIT_REFUSED
        self._process = process
        log = self._log.bind(**{self.pid_field: process.pid})
        self.log_started(log)
        try:
            return await process.listen(
                self.lines(),
                lambda event: self._heard(event, process.pid),
                lambda line: self.log_line(log, line),
            )
        finally:
            self._process, self._ready = None, False
            self._figures.forget()

    def _heard(self, event: Event | UnreadableLine, pid: int) -> None:
        log = self._log.bind(**{self.pid_field: pid})
        if isinstance(event, UnreadableLine):
            self.log_unread(log, event)
            return
        fields = {name: value for name, value in event.items() if name not in {"level", "event"}}
        name, level = str(event["event"]), str(event.get("level"))
        levels = {"debug": log.debug, "warning": log.warning, "error": log.error}
        levels.get(level, log.info)(name, **fields)
        if level == "error":
            self.said = str(fields.get("error", name))
        self.heard(name, fields, log)


class _WorkerWithHelper:
    def __init__(self, worker: StoppableWorker, on_worker_stop: Callable[[], None]) -> None:
        self._worker = worker
        self._worker_stops = on_worker_stop

    async def run(self) -> None:
        await self._worker.run()

    def request_stop(self) -> None:
        self._worker_stops()
        self._worker.request_stop()


@asynccontextmanager
async def running(helper: Helper[object]) -> AsyncGenerator[None, None]:
    """The helper while the context is open. Raises its `failure` at the end."""
    async with anyio.create_task_group() as group:
        group.start_soon(helper.run)
        try:
            yield
        except BaseException:
            with anyio.CancelScope(shield=True):
                await helper.stop(within_s=0)
            raise
        with anyio.CancelScope(shield=True):
            await helper.stop()
    if helper.failure is not None:
        raise helper.failure


def relay_file(wanted_by: str, extra: str, *modules: str) -> Path:
    """The program of a relay. ConfigurationError if one of the modules is not installed."""
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"{wanted_by} needs {' and '.join(missing)}: pip install 'kcl-daemon[{extra}]'"
        )
    spec = find_spec("kcl_landing")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).with_name("relay.py")


def helper_environment(*, credentials: bool, **more: str) -> dict[str, str]:
    return environment_of(os.environ, more, credentials=credentials)
