"""The Spark engine beside the daemon."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

import msgspec
import orjson

from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import KclError
from kcl_daemon.helper_process import Helper, LogLine, helper_environment
from kcl_daemon.ports import Log
from kcl_daemon.telemetry.helper_views import SparkQueryView, SparkShardView, SparkView
from kcl_daemon.text import masked, on_one_line

EXIT_PIPELINE: Final = 65


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


class PipelineFailed(KclError):
    """The pipeline failed for good; nothing uncommitted was checkpointed."""


class SparkEngine(Helper[SparkView]):
    refusing = "the Spark engine refuses to start"
    wanted_by = "sparkPipeline"
    extra = "spark"
    needs = ("kcl_spark", "pyspark", "pyarrow")
    program = "kcl_spark.engine"
    pid_field = "engine_pid"
    ready = "engine_ready"
    reports = "spark_figures"
    started = LogLine("info", "spark_engine_started")
    ended = LogLine("warning", "spark_engine_ended", code=int, restart_in_s=float)
    printed = LogLine("info", "spark_output", line=str)
    unread = LogLine("warning", "spark_event_not_read", error=str, line=str, advice=str)
    unread_figures = LogLine("warning", "spark_figures_not_read", error=str, advice=str)
    _ui: str | None = None

    @staticmethod
    def drain_ms(settings: Settings) -> int:
        return settings.spark.drain_timeout_ms

    @staticmethod
    def environment(settings: Settings) -> dict[str, str]:
        return helper_environment(credentials=settings.child.inherit_credentials)

    @staticmethod
    def options(settings: Settings, socket: Path) -> bytes:
        spark = settings.spark
        options = {name: value for name, value in asdict(spark).items() if value is not None}
        options |= {
            "application": settings.application_name,
            "stream": settings.stream_name,
            "socket": str(socket),
            "state_dir": spark.state_dir or f"{settings.application_name}-spark",
            "conf": dict(spark.conf),
        }
        return orjson.dumps(options, option=orjson.OPT_APPEND_NEWLINE)

    def read(self, fields: Mapping[str, object]) -> Callable[[float], SparkView]:
        reported = _view(fields)
        return lambda age_s: replace(_aged(reported, age_s), ui=self._ui)

    def judge(self, code: int) -> KclError | None:
        return PipelineFailed(self.said) if code == EXIT_PIPELINE else super().judge(code)

    def heard(self, name: str, fields: Mapping[str, object]) -> None:
        if name == "caught_up":
            self.request_worker_stop()
        elif name == "spark_started":
            ui = fields.get("ui")
            self._ui = on_one_line(masked(ui)) if isinstance(ui, str) else None

    def tell(self, log: Log, level: str, event: str, /, **fields: object) -> None:
        getattr(log, level)(event, **fields)
