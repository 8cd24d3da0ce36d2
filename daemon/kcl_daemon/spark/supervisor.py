"""The Spark engine beside the daemon: its options, its figures, and what its end means."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import msgspec
import orjson

from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import ConfigurationError, KclError
from kcl_daemon.helper_process import (
    CLOSED,
    EXIT_REFUSED,
    ONE_VERSION,
    Helper,
    HelperFigures,
    UnreadableLine,
    helper_environment,
    relay_file,
    running,
    with_relays,
)
from kcl_daemon.ports import Clock, Log
from kcl_daemon.telemetry.helper_views import SparkQueryView, SparkShardView, SparkView
from kcl_daemon.text import masked, on_one_line


class _EngineReport(msgspec.Struct, frozen=True):
    queries: dict[str, dict[str, object]]
    shards: dict[str, dict[str, object]]


def _view(fields: Mapping[str, object]) -> SparkView:
    reported = msgspec.convert(fields, _EngineReport)
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


def _aged(reported: SparkView, age_s: float) -> SparkView:
    return replace(
        reported,
        queries=tuple(replace(each, since_commit_s=each.since_commit_s + age_s) for each in reported.queries),
        shards=tuple(
            replace(each, lag_s=each.lag_s + age_s if each.waiting else 0.0) for each in reported.shards
        ),
    )


class EngineMetrics(HelperFigures[SparkView]):
    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, _view, _aged)
        self._ui: str | None = None

    def set_ui(self, ui: object) -> None:
        self._ui = on_one_line(masked(ui)) if isinstance(ui, str) else None

    def forget(self) -> None:
        super().forget()
        self._ui = None

    def now(self) -> SparkView | None:
        view = super().now()
        return None if view is None else replace(view, ui=self._ui)


def engine_options(settings: Settings, socket: Path) -> bytes:
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


COMMAND: Final = (sys.executable, "-m", "kcl_spark.engine")
EXIT_PIPELINE: Final = 65


class PipelineFailed(KclError):
    """The pipeline failed for good; nothing uncommitted was checkpointed."""


class SparkEngine(Helper[SparkView]):
    pid_field = "engine_pid"

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
        self._metrics = EngineMetrics(clock)
        super().__init__(
            options,
            command=command,
            closed=closed,
            figures=self._metrics,
            clock=clock,
            log=log,
            environment=helper_environment(credentials=inherit_credentials),
        )

    def judge(self, code: int) -> KclError | None:
        if code == EXIT_REFUSED:
            return ConfigurationError(f"the Spark engine refuses to start: {self.said}")
        return PipelineFailed(self.said) if code == EXIT_PIPELINE else None

    def log_started(self, log: Log) -> None:
        log.info("spark_engine_started")

    def log_ended(self, log: Log, code: int, pause_s: float) -> None:
        log.warning("spark_engine_ended", code=code, restart_in_s=pause_s)

    def log_line(self, log: Log, line: str) -> None:
        log.info("spark_output", line=line)

    def log_unread(self, log: Log, event: UnreadableLine) -> None:
        log.warning("spark_event_not_read", error=event.error, line=event.line, advice=ONE_VERSION)

    def heard(self, name: str, fields: Mapping[str, object], log: Log) -> None:
        if name == "engine_ready":
            self.is_ready()
        elif name == "caught_up":
            self.request_worker_stop()
        elif name == "spark_started":
            self._metrics.set_ui(fields.get("ui"))
        elif name == "spark_figures" and (problem := self._metrics.take(fields)) is not None:
            log.warning("spark_figures_not_read", error=problem, advice=ONE_VERSION)


@asynccontextmanager
async def spark_engine(
    settings: Settings, *, clock: Clock, log: Log
) -> AsyncGenerator[tuple[Settings, SparkEngine], None]:
    """The engine while the context is open.

    Raises:
        ConfigurationError: the client is not installed, or the engine refused to start.
        PipelineFailed: at the end of the context.
    """
    relay = relay_file("sparkPipeline", "spark", "kcl_spark", "pyspark", "pyarrow")
    with TemporaryDirectory(prefix="kcl-spark-") as folder:  # a socket's path must be short
        socket = Path(folder) / "engine"
        engine = SparkEngine(
            engine_options(settings, socket),
            closed=socket.with_suffix(CLOSED),
            clock=clock,
            log=log,
            inherit_credentials=settings.child.inherit_credentials,
        )
        async with running(engine):
            drain_ms = settings.spark.drain_timeout_ms
            yield with_relays(settings, relay=relay, socket=socket, drain_ms=drain_ms), engine
