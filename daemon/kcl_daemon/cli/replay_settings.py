from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import ClassVar

import click

from kcl_daemon.config.kinds import TIME_MOST_S, RunUntil, age_s, moment_s
from kcl_daemon.config.metrics_and_page import AdminSettings, MetricsLevel
from kcl_daemon.config.retrieval import RetrievalMode
from kcl_daemon.config.settings import DEFAULTS, Settings
from kcl_daemon.config.tables import TableOptions, TablesSettings
from kcl_daemon.leases.layout import TableLayout
from kcl_daemon.leases.row import KEY, Row
from kcl_daemon.shards.lineage import InitialPosition, StartAt
from kcl_daemon.system import SystemClock


@dataclass(frozen=True, slots=True)
class ReplayRange:
    """The epoch seconds are what the texts meant when the replay began."""

    ROW: ClassVar = "Replay"

    texts: tuple[str, str]
    from_s: float
    to_s: float
    shards: frozenset[str] = frozenset()

    def row(self) -> Row:
        start, end = self.texts
        return {
            KEY: self.ROW,
            "entityType": "REPLAY",
            "fromText": start,
            "toText": end,
            "fromMillis": round(self.from_s * 1000),
            "toMillis": round(self.to_s * 1000),
            **({"shards": " ".join(sorted(self.shards))} if self.shards else {}),
        }

    @staticmethod
    def of(row: Row) -> ReplayRange:
        start, end = row.get("fromMillis"), row.get("toMillis")
        assert isinstance(start, int)
        assert isinstance(end, int)
        texts = (str(row.get("fromText")), str(row.get("toText")))
        return ReplayRange(texts, start / 1000, end / 1000, frozenset(str(row.get("shards") or "").split()))

    def is_asked_by(self, asked: ReplayRange) -> bool:
        same = self.texts == asked.texts or (self.from_s, self.to_s) == (asked.from_s, asked.to_s)
        return same and self.shards == asked.shards

    def __str__(self) -> str:
        return f"{time_text(self.from_s)} to {time_text(self.to_s)}"


def time_text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def time_of(text: str) -> float:
    """Epoch seconds; `2h` and `-2h` are two hours ago. Raises click.BadParameter."""
    age = age_s(text.strip().removeprefix("-"))
    seconds = moment_s(text.strip()) if age is None else SystemClock().wall_ms() / 1000 - age
    if seconds is None or seconds > TIME_MOST_S:
        raise click.BadParameter(f"{text!r} is not a time, such as 2026-11-20T12:00:00Z or -2h")
    return seconds


def replay_settings(
    settings: Settings, name: str, span: ReplayRange, program: Sequence[str], consumer: str | None
) -> Settings:
    streams = settings.streams
    retrieval = replace(
        settings.retrieval, mode=RetrievalMode.POLLING if consumer is None else RetrievalMode.FANOUT
    )
    leases = DEFAULTS.leases
    return replace(
        settings,
        application_name=f"{settings.application_name}-replay-{name}",
        worker_id=f"replay-{name}",
        sole_worker=True,
        initial_position=InitialPosition(StartAt.TIMESTAMP, span.from_s),
        streams=replace(
            streams,
            arns=tuple(replace(each, position=None) for each in streams.arns),
            names=tuple(replace(each, position=None) for each in streams.names),
        ),
        changes=replace(settings.changes, snapshot=False),
        run_until=RunUntil(round(span.to_s * 1000)),
        tables=TablesSettings(
            leases=TableOptions(tags=settings.tables.leases.tags), layout=TableLayout.SINGLE
        ),
        leases=replace(leases, failover_time_ms=settings.leases.failover_time_ms),
        shards=replace(settings.shards, cleanup_finished=False, only=span.shards),
        retrieval=retrieval,
        fan_out=replace(settings.fan_out, consumer_arn=None, consumer_name=consumer),
        admin=AdminSettings(),
        metrics=replace(settings.metrics, level=MetricsLevel.NONE, otlp_endpoint=None),
        child=replace(settings.child, command=tuple(program)) if program else settings.child,
    )
