"""Keeps the engine running: starts it, starts it again when it dies, ends the daemon where that does not help.

Owns when the engine runs and what its end means. Relays wait for it by themselves, so that the worker need not know.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Protocol

import anyio

from kcl_daemon.children.environment import environment_of
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import ConfigurationError, KclError
from kcl_daemon.observe.spark_view import SparkView
from kcl_daemon.ports import Clock, Log
from kcl_daemon.spark.figures import EngineFigures
from kcl_daemon.spark.lines import Event, Unreadable
from kcl_daemon.spark.process import EngineProcess
from kcl_daemon.spark.wiring import engine_options, uplink_options, with_relays

COMMAND: Final = (sys.executable, "-m", "kcl_spark.engine")
UPLINK: Final = (sys.executable, "-m", "kcl_spark.uplink")
"""In place of the engine, where that is another host's."""
CLOSED: Final = ".closed"
"""What the relay looks for beside its socket while it waits."""
EXIT_PIPELINE: Final = 65
EXIT_REFUSED: Final = 78
_STOP_WITHIN_S: Final = 40.0
_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_GOOD_AFTER_S: Final = 300.0
_ONE_VERSION: Final = "engine and daemon have different versions: install both from one package"


class Runnable(Protocol):
    """A worker, as far as the engine knows one."""

    async def run(self) -> None:
        """Work until the graceful stop that was asked for is done."""
        ...

    def request_stop(self) -> None:
        """Ask for the graceful stop."""
        ...


class PipelineFailed(KclError):
    """Raised when the Spark pipeline failed for good; nothing of what it had in hand was checkpointed."""


class Engine:
    """The engine of a daemon, over all its runs. `run` and `stop` once.

    Args:
        options: its first line.
        closed: this file tells relays that wait for the engine that it will not come any more.
        clock: for pauses and patience.
        log: for what it tells.
        command: the program.
        inherit_credentials: whether it finds the daemon's AWS credentials in its environment.

    Attributes:
        failure: why it is not started again; None while all is well.
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
        self._worker: Runnable | None = None
        self._asked = False
        self._said = ""
        self._figures = EngineFigures(clock)
        self.failure: KclError | None = None

    def beside(self, worker: Runnable) -> Runnable:
        """The worker to run: the same, with a word to the engine when it is asked to stop.

        It is asked also by the engine: when all was read, or the pipeline failed.
        """
        self._worker = worker
        if self._asked:
            worker.request_stop()
        return _Beside(worker, self.worker_stops)

    def figures(self) -> SparkView | None:
        """How its queries and shards are; None: it does not run, or is not heard of."""
        return self._figures.now()

    def tell_by(self, log: Log) -> None:
        """Log by this from now on, with an engine that runs already, too: it may be a log that is counted."""
        self._log = log

    def worker_stops(self) -> None:
        """The worker begins to stop: nobody must wait for an engine that is not there yet."""
        if not self._ready:
            self._closed.touch()

    async def run(self) -> None:
        """Start it and keep it running until `stop`, or until it refuses; then the worker is asked to stop."""
        pause_s = _FIRST_PAUSE_S
        while not self._stopping.is_set():
            started_s = self._clock.monotonic()
            code = await self._run_once()
            if self._stopping.is_set():
                return
            self.failure = self._judge(code)
            if self.failure is not None:
                self._ask_to_stop()
                return
            if self._clock.monotonic() - started_s > _GOOD_AFTER_S:
                pause_s = _FIRST_PAUSE_S
            self._log.warning("spark_engine_ended", code=code, restart_in_s=pause_s)
            with self._clock.move_on_after(pause_s):
                await self._stopping.wait()
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def stop(self, within_s: float = _STOP_WITHIN_S) -> None:
        """End it: the batch under way may finish in that time. One that was not ready yet has none."""
        self._stopping.set()
        if self._process is not None:
            await self._process.stop(within_s if self._ready else 0)

    async def _run_once(self) -> int:
        try:
            process = EngineProcess.start(self._command, self._environment, clock=self._clock, log=self._log)
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

    def _heard(self, event: Event | Unreadable, pid: int) -> None:
        log = self._log.bind(engine_pid=pid)
        if isinstance(event, Unreadable):
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
            self._ask_to_stop()
        elif name == "spark_started":
            self._figures.shown_at(fields.get("ui"))
        elif name == "spark_figures" and (problem := self._figures.take(fields)) is not None:
            log.warning("spark_figures_not_read", error=problem, advice=_ONE_VERSION)

    def _judge(self, code: int) -> KclError | None:
        if code == EXIT_REFUSED:
            return ConfigurationError(f"the Spark engine refuses to start: {self._said}")
        if code == EXIT_PIPELINE:
            return PipelineFailed(self._said)
        return None

    def _ask_to_stop(self) -> None:
        self._asked = True
        self.worker_stops()
        if self._worker is not None:
            self._worker.request_stop()


class _Beside:
    """A worker beside an engine."""

    def __init__(self, worker: Runnable, worker_stops: Callable[[], None]) -> None:
        self._worker = worker
        self._worker_stops = worker_stops

    async def run(self) -> None:
        await self._worker.run()

    def request_stop(self) -> None:
        self._worker_stops()
        self._worker.request_stop()


class NoEngine:
    """Stands in where there is no pipeline."""

    def beside(self, worker: Runnable) -> Runnable:
        """The worker as it is."""
        return worker

    def figures(self) -> SparkView | None:
        """Nothing."""
        return None

    def tell_by(self, log: Log) -> None:
        """It has nothing to tell."""


@asynccontextmanager
async def spark_engine(
    settings: Settings, *, clock: Clock, log: Log
) -> AsyncGenerator[tuple[Settings, Engine | NoEngine], None]:
    """The engine for the time of the block, and the settings for a worker beside it; without a pipeline nothing happens.

    Raises:
        ConfigurationError: the client is not installed, or the engine refused to start.
        PipelineFailed: at the end of the block, which was asked to end.
    """
    if settings.spark.pipeline is None:
        yield settings, NoEngine()
        return
    relay = _relay()
    with TemporaryDirectory(prefix="kcl-spark-") as folder:  # a socket's path must be short
        socket = Path(folder) / "engine"
        feeds = settings.spark.engine is not None
        engine = Engine(
            uplink_options(settings, socket) if feeds else engine_options(settings, socket),
            closed=socket.with_suffix(CLOSED),
            clock=clock,
            log=log,
            command=UPLINK if feeds else COMMAND,
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
    """The relay's file, found without importing anything of it."""
    missing = [name for name in ("kcl_spark", "pyspark", "pyarrow") if find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"sparkPipeline needs {' and '.join(missing)}: pip install 'kcl-daemon[spark]'"
        )
    spec = find_spec("kcl_spark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).with_name("relay.py")
