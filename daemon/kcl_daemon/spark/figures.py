"""What the engine told last of its queries and shards, for the snapshot; forgotten when it ends or falls silent.

Owns the shape of the event `spark_figures` on this side. Figures are never older than `FORGOTTEN_S`: an engine that
hangs must not look like one that works.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from kcl_daemon.observe.redact import masked, on_one_line
from kcl_daemon.observe.spark_view import SparkQueryView, SparkShardView, SparkView
from kcl_daemon.ports import Clock

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


class _Figures(msgspec.Struct, frozen=True):
    """The fields of the event."""

    queries: dict[str, _Query]
    shards: dict[str, _Shard]


class EngineFigures:
    """The last that was told.

    Args:
        clock: for the age of it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ui: str | None = None
        self._told: _Figures | None = None
        self._told_s = 0.0

    def shown_at(self, ui: object) -> None:
        """Where Spark's own page is; None: nowhere."""
        self._ui = on_one_line(masked(ui)) if isinstance(ui, str) else None

    def take(self, fields: Mapping[str, object]) -> str | None:
        """The fields of the event `spark_figures`; why they cannot be read, None where they can."""
        try:
            self._told = msgspec.convert(fields, _Figures)
        except msgspec.ValidationError as error:
            self._told = None
            return str(error)
        self._told_s = self._clock.monotonic()
        return None

    def forget(self) -> None:
        """The engine has ended."""
        self._told = self._ui = None

    def now(self) -> SparkView | None:
        """The engine at this moment; None: it has not been heard of lately."""
        told, age_s = self._told, self._clock.monotonic() - self._told_s
        if told is None or age_s > FORGOTTEN_S:
            return None
        return SparkView(
            ui=self._ui,
            queries=tuple(_query(name, each, age_s) for name, each in sorted(told.queries.items())),
            shards=tuple(_shard(name, each, age_s) for name, each in sorted(told.shards.items())),
        )


def _query(name: str, told: _Query, age_s: float) -> SparkQueryView:
    return SparkQueryView(
        name=on_one_line(name),
        running=told.running,
        failures=told.failures,
        batch=None if told.batch < 0 else told.batch,
        since_commit_s=told.since_commit_s + age_s,
        input_rows_per_s=told.input_rows_per_s,
        processed_rows_per_s=told.processed_rows_per_s,
        batch_s=told.batch_s,
        state_rows=told.state_rows,
        late_rows=told.late_rows,
    )


def _shard(name: str, told: _Shard, age_s: float) -> SparkShardView:
    return SparkShardView(
        shard_id=on_one_line(name),
        behind_ms=told.behind_ms,
        rows=told.rows,
        data_bytes=told.size_bytes,
        committed=told.committed,
        redelivered=told.trimmed,
        waiting=told.waiting,
        lag_s=told.lag_s + age_s if told.waiting else 0.0,
        spooled_bytes=told.spooled_bytes,
    )
