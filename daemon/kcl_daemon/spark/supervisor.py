"""Restarts the Spark engine, and stops the daemon when that does not help.

Relays wait for the engine by themselves.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Protocol

import anyio
import orjson

from kcl_daemon.children.start import environment_of
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import ConfigurationError, KclError
from kcl_daemon.ports import Clock, Log
from kcl_daemon.spark.process import EngineMetrics, EngineProcess, Event, UnreadableLine
from kcl_daemon.telemetry.snapshot import SparkView

# For the last checkpoints after the drain.
_LAST_WORDS_MS: Final = 5_000


def engine_options(settings: Settings, socket: Path) -> bytes:
    """The engine's first line; it listens on `socket`."""
    spark = settings.spark
    options: Mapping[str, object] = {
        "pipeline": spark.pipeline,
        "application": settings.application_name,
        "stream": settings.stream_name,
        "socket": str(socket),
        "state_dir": spark.state_dir or f"{settings.application_name}-spark",
        "spool_dir": spark.spool_dir or "",
        "spool_max_bytes": spark.spool_max_bytes,
        "master": spark.master,
        "remote": spark.remote or "",
        "transport": spark.used_transport,
        "listen": spark.engine_listen or "",
        "certificate": spark.engine_certificate or "",
        "key": spark.engine_key or "",
        "token_file": spark.engine_token_file or "",
        "conf": dict(spark.conf),
        "packages": spark.packages,
        "driver_memory": spark.driver_memory,
        "trigger": spark.trigger,
        "max_bytes_per_trigger": spark.max_bytes_per_trigger,
        "max_skew_ms": spark.max_skew_ms,
        "max_skew_wait_ms": spark.max_skew_wait_ms,
        "checkpoint_interval_ms": spark.checkpoint_interval_ms,
        "drain_timeout_ms": spark.drain_timeout_ms,
        "on_lost_range": spark.on_lost_range,
        "state_reset": spark.state_reset,
        "columns": spark.columns,
    }
    return orjson.dumps(options, option=orjson.OPT_APPEND_NEWLINE)


def uplink_options(settings: Settings, socket: Path) -> bytes:
    """The first line of the uplink, which replaces the engine if that is on another host."""
    spark = settings.spark
    options: Mapping[str, object] = {
        "engine": spark.engine,
        "authority": spark.engine_authority or "",
        "token_file": spark.engine_token_file,
        "application": settings.application_name,
        "stream": settings.stream_name,
        "socket": str(socket),
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
            settings.child.shutdown_grace_ms, settings.spark.drain_timeout_ms + _LAST_WORDS_MS
        ),
    )
    return replace(settings, child=child)


COMMAND: Final = (sys.executable, "-m", "kcl_spark.engine")
UPLINK: Final = (sys.executable, "-m", "kcl_spark.uplink")
"""Replaces the engine if that is on another host."""
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
        """Use this log from now on, also for a running engine."""
        self._log = log

    def on_worker_stop(self) -> None:
        """Relays must not wait for an engine that is not ready."""
        if not self._ready:
            self._closed.touch()

    async def run(self) -> None:
        """Run and restart the engine until `stop`, or until it refuses; that stops the worker."""
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
        feeds = settings.spark.engine is not None
        engine = SparkEngine(
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
    missing = [name for name in ("kcl_spark", "pyspark", "pyarrow") if find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"sparkPipeline needs {' and '.join(missing)}: pip install 'kcl-daemon[spark]'"
        )
    spec = find_spec("kcl_spark")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).with_name("relay.py")
