"""A program that runs beside the daemon and serves its children, the relays.

It is given its options as the first line of stdin, perhaps more lines later, and sends events as JSON lines; they are
logged. It is started again after a pause, which doubles, until it says by its exit code that this does not help: then
the daemon ends with it. A helper is one class, a `Helper`, in a file of its own. Only the daemon whose properties ask
for it loads that file.
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
from tempfile import TemporaryDirectory
from typing import IO, ClassVar, Final, Generic, Protocol, TypeAlias, TypeVar, cast

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
from kcl_daemon.telemetry.helper_views import LandingView, SparkView
from kcl_daemon.wings import HELPERS, imported

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
    """In a process group of its own; OSError if it cannot start.

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
        """Gives the exit code.

        Ends its group with it, also when cancelled. `lines` are asked for when it has room. What it prints is logged by `log_line`.
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
    """Answers have no timeout, because the helper holds relays back.

    Empty batches let idle shards checkpoint what is done.
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
FORGOTTEN_S: Final = 30.0
"""Figures expire: a hung helper must not look like a working one. They come every two seconds."""
_ONE_VERSION: Final = "helper and daemon have different versions: install both from one package"
_STOP_WITHIN_S: Final = 40.0
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_GOOD_AFTER_S: Final = 300.0


class StoppableWorker(Protocol):
    async def run(self) -> None: ...

    def request_stop(self) -> None: ...


View_co = TypeVar("View_co", covariant=True)


class LogLine:
    """An event of the supervision; the fields are for the reader, and for docs/events.md."""

    def __init__(self, level: str, event: str, **fields: type) -> None:
        del fields
        self.level, self.event = level, event


class Helper(ABC, Generic[View_co]):
    """Call `run` and `stop` once. `failure` says why it is not started again."""

    # For people: what it is, what it does not do if it refuses, what asks for it, and what must be installed.
    refusing: ClassVar[str]
    wanted_by: ClassVar[str]
    extra: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]
    program: ClassVar[str]
    pid_field: ClassVar[str]
    ready: ClassVar[str]
    reports: ClassVar[str]
    # What is logged of it.
    started: ClassVar[LogLine]
    ended: ClassVar[LogLine]
    printed: ClassVar[LogLine]
    unread: ClassVar[LogLine]
    unread_figures: ClassVar[LogLine]

    def __init__(
        self, settings: Settings, socket: Path, *, clock: Clock, log: Log, command: tuple[str, ...] = ()
    ) -> None:
        self._settings = settings
        self._socket = socket
        self._closed = socket.with_suffix(CLOSED)
        self._command = command or (sys.executable, "-m", self.program)
        self._clock = clock
        self._log = log
        self._is_ready = False
        self._process: HelperProcess | None = None
        self._stopping = anyio.Event()
        self._worker: StoppableWorker | None = None
        self._asked = False
        self._seen: Callable[[float], View_co] | None = None
        self._seen_s = 0.0
        self.said = ""
        self.failure: KclError | None = None

    @classmethod
    def relay(cls) -> Path:
        """The program of a relay. ConfigurationError if something is not installed."""
        if missing := [name for name in cls.needs if find_spec(name) is None]:
            raise ConfigurationError(
                f"{cls.wanted_by} needs {' and '.join(missing)}: pip install 'kcl-daemon[{cls.extra}]'"
            )
        spec = find_spec("kcl_landing")
        assert spec is not None
        assert spec.origin is not None
        return Path(spec.origin).with_name("relay.py")

    @staticmethod
    @abstractmethod
    def drain_ms(settings: Settings) -> int:
        """How long what it has may take at shutdown."""

    @staticmethod
    @abstractmethod
    def environment(settings: Settings) -> dict[str, str]: ...

    @staticmethod
    @abstractmethod
    def options(settings: Settings, socket: Path) -> bytes:
        """A line."""

    @abstractmethod
    def read(self, fields: Mapping[str, object]) -> Callable[[float], View_co]:
        """Its figures, as they are so many seconds later. Raises msgspec.ValidationError."""

    @abstractmethod
    def tell(self, log: Log, level: str, event: str, /, **fields: object) -> None:
        """Log from the module of the helper, because levels are set by module."""

    def heard(self, name: str, fields: Mapping[str, object]) -> None:
        """An event, already logged. It may call `request_worker_stop`."""

    def judge(self, code: int) -> KclError | None:
        """Why it is not started again; None: it is."""
        return ConfigurationError(f"{self.refusing}: {self.said}") if code == EXIT_REFUSED else None

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """What it is told from its start on."""
        yield self.options(self._settings, self._socket)

    def learns_leases(self, leases: Callable[[], Sequence[Lease] | None]) -> None:
        """`leases`: of all streams, as the leader has read them last; None while another worker leads."""

    def background(self, worker: StoppableWorker) -> StoppableWorker:
        """The worker to run; its stop also reaches the helper."""
        self._worker = worker
        if self._asked:
            worker.request_stop()
        return _WorkerWithHelper(worker, self._on_worker_stop)

    def figures(self) -> View_co | None:
        """None: it does not run, or has not reported for a while."""
        age_s = self._clock.monotonic() - self._seen_s
        return None if self._seen is None or age_s > FORGOTTEN_S else self._seen(age_s)

    def log_to(self, log: Log) -> None:
        """It applies to a running helper, too."""
        self._log = log

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
            self._say(self._log, self.ended, code=code, restart_in_s=pause_s)
            with self._clock.move_on_after(pause_s):
                await self._stopping.wait()
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def stop(self, within_s: float = _STOP_WITHIN_S) -> None:
        self._stopping.set()
        if self._process is not None:
            await self._process.stop(within_s if self._is_ready else 0)

    def request_worker_stop(self) -> None:
        self._asked = True
        self._on_worker_stop()
        if self._worker is not None:
            self._worker.request_stop()

    def _on_worker_stop(self) -> None:
        """Relays must not wait for a helper that is not ready."""
        if not self._is_ready:
            self._closed.touch()

    async def _run_once(self) -> int:
        try:
            process = HelperProcess(
                self._command, self.environment(self._settings), clock=self._clock, log=self._log
            )
        except OSError as error:
            self.said = str(error)
            return EXIT_REFUSED
        self._process = process
        log = self._log.bind(**{self.pid_field: process.pid})
        self._say(log, self.started)
        try:
            return await process.listen(
                self.lines(),
                lambda event: self.take(event, process.pid),
                lambda line: self._say(log, self.printed, line=line),
            )
        finally:
            self._process, self._is_ready, self._seen = None, False, None

    def take(self, event: Event | UnreadableLine, pid: int) -> None:
        log = self._log.bind(**{self.pid_field: pid})
        if isinstance(event, UnreadableLine):
            self._say(log, self.unread, error=event.error, line=event.line, advice=_ONE_VERSION)
            return
        fields = {name: value for name, value in event.items() if name not in {"level", "event"}}
        name, level = str(event["event"]), str(event.get("level"))
        self.tell(log, level if level in {"debug", "warning", "error"} else "info", name, **fields)
        if level == "error":
            self.said = str(fields.get("error", name))
        if name == self.ready:
            self._is_ready = True
        elif name == self.reports:
            self._take_figures(fields, log)
        else:
            self.heard(name, fields)

    def _take_figures(self, fields: Mapping[str, object], log: Log) -> None:
        self._seen, self._seen_s = None, self._clock.monotonic()
        try:
            self._seen = self.read(fields)
        except msgspec.ValidationError as error:
            self._say(log, self.unread_figures, error=str(error), advice=_ONE_VERSION)

    def _say(self, log: Log, said: LogLine, /, **fields: object) -> None:
        self.tell(log, said.level, said.event, **fields)


class _WorkerWithHelper:
    def __init__(self, worker: StoppableWorker, on_worker_stop: Callable[[], None]) -> None:
        self._worker = worker
        self._worker_stops = on_worker_stop

    async def run(self) -> None:
        await self._worker.run()

    def request_stop(self) -> None:
        self._worker_stops()
        self._worker.request_stop()


def helper_of(wanted_by: str) -> type[Helper[LandingView | SparkView]]:
    """The helper that a property asks for."""
    return cast("type[Helper[LandingView | SparkView]]", imported(HELPERS[wanted_by]))


@asynccontextmanager
async def beside(
    kind: type[Helper[View_co]], settings: Settings, *, clock: Clock, log: Log
) -> AsyncGenerator[tuple[Settings, Helper[View_co]], None]:
    """The helper while the context is open, and the settings whose children are its relays.

    Raises:
        ConfigurationError: something is not installed, or the helper refuses to go on.
        KclError: its `failure`, at the end of the context.
    """
    relay = kind.relay()
    with TemporaryDirectory(prefix="kcl-helper-") as folder:  # a socket's path must be short
        socket = Path(folder) / "socket"
        helper = kind(settings, socket, clock=clock, log=log)
        async with anyio.create_task_group() as group:
            group.start_soon(helper.run)
            try:
                yield (
                    with_relays(settings, relay=relay, socket=socket, drain_ms=kind.drain_ms(settings)),
                    helper,
                )
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await helper.stop(within_s=0)
                raise
            with anyio.CancelScope(shield=True):
                await helper.stop()
    if helper.failure is not None:
        raise helper.failure


def helper_environment(*, credentials: bool, **more: str) -> dict[str, str]:
    return environment_of(os.environ, more, credentials=credentials)
