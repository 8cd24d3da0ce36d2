"""Restarts the Spark engine, and stops the daemon when that does not help.

The engine sends events as JSON lines. Metrics expire: a hung engine must not look like a working one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Final, Protocol, TypeAlias

import anyio
import msgspec
import orjson

from kcl_daemon.children.pipes import LineCutter, PipeReader, PipeWriter
from kcl_daemon.children.process import ProcessGroup
from kcl_daemon.children.start import environment_of, reap
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import ConfigurationError, KclError
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


class EngineProcess:
    """Starts the engine in a process group of its own, with the JVM; OSError if it cannot start.

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
        self._group = ProcessGroup(process.pid, partial(reap, process), log)
        self._stdin = PipeWriter(_taken(process.stdin))
        self._stdout = PipeReader(_taken(process.stdout))
        self._stderr = PipeReader(_taken(process.stderr))
        self._clock = clock
        self._ended = anyio.Event()

    @property
    def pid(self) -> int:
        return self._group.pid

    async def listen(
        self, options: bytes, on_event: Callable[[Event | UnreadableLine], None], log: Log
    ) -> int:
        """Report events until the engine ends; gives the exit code.

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
    feed = event_splitter()
    while piece := await pipe.receive(_EVENTS_BYTES):
        for reported in feed(piece):
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


class _EngineReport(msgspec.Struct, frozen=True):
    queries: dict[str, dict[str, object]]
    shards: dict[str, dict[str, object]]


class EngineMetrics:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ui: str | None = None
        self._reported: SparkView | None = None
        self._reported_s = 0.0

    def set_ui(self, ui: object) -> None:
        self._ui = on_one_line(masked(ui)) if isinstance(ui, str) else None

    def take(self, fields: Mapping[str, object]) -> str | None:
        """The error if the fields are unreadable."""
        try:
            self._reported = _view(msgspec.convert(fields, _EngineReport))
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
            queries=tuple(
                replace(each, since_commit_s=each.since_commit_s + age_s) for each in reported.queries
            ),
            shards=tuple(
                replace(each, lag_s=each.lag_s + age_s if each.waiting else 0.0) for each in reported.shards
            ),
        )


def _view(reported: _EngineReport) -> SparkView:
    return SparkView(
        ui=None,
        queries=tuple(
            msgspec.convert({**each, "name": on_one_line(name)}, SparkQueryView)
            for name, each in sorted(reported.queries.items())
        ),
        shards=tuple(
            msgspec.convert(
                {
                    **each,
                    "shard_id": on_one_line(name),
                    "data_bytes": each.get("size_bytes"),
                    "redelivered": each.get("trimmed"),
                },
                SparkShardView,
            )
            for name, each in sorted(reported.shards.items())
        ),
    )


# For the last checkpoints after the drain.
_FINAL_CHECKPOINTS_MS: Final = 5_000


def engine_options(settings: Settings, socket: Path) -> bytes:
    """The engine's first line: the settings by name."""
    spark = settings.spark
    options: dict[str, object] = {name: value for name, value in asdict(spark).items() if value is not None}
    options |= {
        "application": settings.application_name,
        "stream": settings.stream_name,
        "socket": str(socket),
        "state_dir": spark.state_dir or f"{settings.application_name}-spark",
        "conf": dict(spark.conf),
    }
    return orjson.dumps(options, option=orjson.OPT_APPEND_NEWLINE)


def with_relays(settings: Settings, *, relay: Path, socket: Path) -> Settings:
    """Settings whose children are relays.

    Answers have no timeout, because Spark holds relays back. Empty batches let idle shards checkpoint what
    Spark commits.
    """
    child = replace(
        settings.child,
        command=(sys.executable, "-I", "-S", str(relay), str(socket)),
        call_for_empty=True,
        stuck_timeout_ms=None,
        timeout_s=None,
        shutdown_grace_ms=max(
            settings.child.shutdown_grace_ms, settings.spark.drain_timeout_ms + _FINAL_CHECKPOINTS_MS
        ),
    )
    return replace(settings, child=child)


COMMAND: Final = (sys.executable, "-m", "kcl_spark.engine")
CLOSED: Final = ".closed"
"""A waiting relay looks for this file beside its socket."""
EXIT_PIPELINE: Final = 65
EXIT_REFUSED: Final = 78
_STOP_WITHIN_S: Final = 40.0
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_GOOD_AFTER_S: Final = 300.0
_ONE_VERSION: Final = "engine and daemon have different versions: install both from one package"


class StoppableWorker(Protocol):
    async def run(self) -> None: ...

    def request_stop(self) -> None: ...


class PipelineFailed(KclError):
    """The pipeline failed for good; nothing uncommitted was checkpointed."""


class SparkEngine:
    """Call `run` and `stop` once.

    `closed` is the file that makes relays give up. `failure` says why it is not restarted.
    """

    def __init__(
        self,
        options: bytes,
        *,
        closed: Path,
        clock: Clock,
        log: Log,
        command: tuple[str, ...] = COMMAND,
        inherit_credentials: bool = True,
    ) -> None:
        self._options = options
        self._closed = closed
        self._ready = False
        self._command = command
        self._environment = environment_of(os.environ, {}, credentials=inherit_credentials)
        self._clock = clock
        self._log = log
        self._process: EngineProcess | None = None
        self._stopping = anyio.Event()
        self._worker: StoppableWorker | None = None
        self._asked = False
        self._said = ""
        self._figures = EngineMetrics(clock)
        self.failure: KclError | None = None

    def background(self, worker: StoppableWorker) -> StoppableWorker:
        """The worker to run; its stop also reaches the engine.

        The engine stops it when all was read or the pipeline failed.
        """
        self._worker = worker
        if self._asked:
            worker.request_stop()
        return _WorkerWithEngine(worker, self.on_worker_stop)

    def figures(self) -> SparkView | None:
        """None: the engine does not run or report."""
        return self._figures.now()

    def log_to(self, log: Log) -> None:
        """It applies to a running engine, too."""
        self._log = log

    def on_worker_stop(self) -> None:
        """Relays must not wait for an engine that is not ready."""
        if not self._ready:
            self._closed.touch()

    async def run(self) -> None:
        """Restart the engine until `stop`, or until it refuses; that stops the worker."""
        pause_s = _FIRST_PAUSE_S
        while not self._stopping.is_set():
            started_s = self._clock.monotonic()
            code = await self._run_once()
            if self._stopping.is_set():
                return
            self.failure = self._judge(code)
            if self.failure is not None:
                self._request_worker_stop()
                return
            if self._clock.monotonic() - started_s > _GOOD_AFTER_S:
                pause_s = _FIRST_PAUSE_S
            self._log.warning("spark_engine_ended", code=code, restart_in_s=pause_s)
            with self._clock.move_on_after(pause_s):
                await self._stopping.wait()
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def stop(self, within_s: float = _STOP_WITHIN_S) -> None:
        """A ready engine may finish its batch within that time."""
        self._stopping.set()
        if self._process is not None:
            await self._process.stop(within_s if self._ready else 0)

    async def _run_once(self) -> int:
        try:
            process = EngineProcess(self._command, self._environment, clock=self._clock, log=self._log)
        except OSError as error:
            self._said = str(error)
            return EXIT_REFUSED
        self._process = process
        log = self._log.bind(engine_pid=process.pid)
        log.info("spark_engine_started")
        try:
            return await process.listen(self._options, lambda event: self._heard(event, process.pid), log)
        finally:
            self._process, self._ready = None, False
            self._figures.forget()

    def _heard(self, event: Event | UnreadableLine, pid: int) -> None:
        log = self._log.bind(engine_pid=pid)
        if isinstance(event, UnreadableLine):
            log.warning("spark_event_not_read", error=event.error, line=event.line, advice=_ONE_VERSION)
            return
        fields = {name: value for name, value in event.items() if name not in {"level", "event"}}
        name = str(event["event"])
        levels = {"debug": log.debug, "warning": log.warning, "error": log.error}
        levels.get(str(event.get("level")), log.info)(name, **fields)
        if name in {"engine_refused", "pipeline_failed"}:
            self._said = str(fields.get("error"))
        elif name == "engine_ready":
            self._ready = True
        elif name == "caught_up":
            self._request_worker_stop()
        elif name == "spark_started":
            self._figures.set_ui(fields.get("ui"))
        elif name == "spark_figures" and (problem := self._figures.take(fields)) is not None:
            log.warning("spark_figures_not_read", error=problem, advice=_ONE_VERSION)

    def _judge(self, code: int) -> KclError | None:
        if code == EXIT_REFUSED:
            return ConfigurationError(f"the Spark engine refuses to start: {self._said}")
        if code == EXIT_PIPELINE:
            return PipelineFailed(self._said)
        return None

    def _request_worker_stop(self) -> None:
        self._asked = True
        self.on_worker_stop()
        if self._worker is not None:
            self._worker.request_stop()


class _WorkerWithEngine:
    def __init__(self, worker: StoppableWorker, on_worker_stop: Callable[[], None]) -> None:
        self._worker = worker
        self._worker_stops = on_worker_stop

    async def run(self) -> None:
        await self._worker.run()

    def request_stop(self) -> None:
        self._worker_stops()
        self._worker.request_stop()


class NoEngine:
    def background(self, worker: StoppableWorker) -> StoppableWorker:
        return worker

    def figures(self) -> SparkView | None:
        return None

    def log_to(self, log: Log) -> None: ...


@asynccontextmanager
async def spark_engine(
    settings: Settings, *, clock: Clock, log: Log
) -> AsyncGenerator[tuple[Settings, SparkEngine | NoEngine], None]:
    """The engine while the context is open; without a pipeline nothing happens.

    Raises:
        ConfigurationError: the client is not installed, or the engine refused to start.
        PipelineFailed: at the end of the context.
    """
    if settings.spark.pipeline is None:
        yield settings, NoEngine()
        return
    relay = _relay()
    with TemporaryDirectory(prefix="kcl-spark-") as folder:  # a socket's path must be short
        socket = Path(folder) / "engine"
        engine = SparkEngine(
            engine_options(settings, socket),
            closed=socket.with_suffix(CLOSED),
            clock=clock,
            log=log,
            inherit_credentials=settings.child.inherit_credentials,
        )
        async with anyio.create_task_group() as group:
            group.start_soon(engine.run)
            try:
                yield with_relays(settings, relay=relay, socket=socket), engine
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await engine.stop(within_s=0)
                raise
            with anyio.CancelScope(shield=True):
                await engine.stop()
    if engine.failure is not None:
        raise engine.failure


def _relay() -> Path:
    missing = [name for name in ("kcl_spark", "pyspark", "pyarrow") if find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"sparkPipeline needs {' and '.join(missing)}: pip install 'kcl-daemon[spark]'"
        )
    spec = find_spec("kcl_landing")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).with_name("relay.py")
