"""What the Spark engine or the lander of this host does. Counters begin with its process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from kcl_daemon.text import about


@dataclass(frozen=True, slots=True)
class SparkQueryView:
    """`batch` is the newest committed. Without a commit `since_commit_s` counts from when it was first seen.

    A stateless query has neither `state_rows`, of windows and joins, nor `late_rows`, dropped behind the watermark.
    """

    name: str
    running: bool
    failures: int
    batch: int | None
    since_commit_s: float
    input_rows_per_s: float | None
    processed_rows_per_s: float | None
    batch_s: float | None
    state_rows: int | None
    late_rows: int | None


@dataclass(frozen=True, slots=True)
class SparkShardView:
    """`committed`: rows that all queries committed; the others wait, the oldest for `lag_s`.

    `redelivered`: duplicates dropped since its relay connected.
    """

    shard_id: str
    behind_ms: int | None
    rows: int
    data_bytes: int
    committed: int
    redelivered: int
    waiting: int
    lag_s: float
    spooled_bytes: int


@dataclass(frozen=True, slots=True)
class SparkView:
    ui: str | None
    queries: tuple[SparkQueryView, ...]
    shards: tuple[SparkShardView, ...]


@dataclass(frozen=True, slots=True)
class LandingTrouble:
    """Why the store does not take what it is given, and since when."""

    cause: str
    message: str
    since_s: float

    def __str__(self) -> str:
        return f"{self.cause} since {about(self.since_s)}: {self.message}"


@dataclass(frozen=True, slots=True)
class LandingShardView:
    """`name`: the shard id, after `STREAM/` if the daemon reads many streams.

    `number` and `landed_ms` (epoch) are of the last segment, `size_bytes` of all as stored. `lag_s`: age of the oldest
    record that waits. `redelivered`: rows that came again and were dropped.
    """

    name: str
    rows: int
    size_bytes: int
    segments: int
    number: int | None
    waiting_rows: int
    waiting_bytes: int
    lag_s: float
    landed_ms: int | None
    redelivered: int


@dataclass(frozen=True, slots=True)
class LandingView:
    shards: tuple[LandingShardView, ...]
    trouble: LandingTrouble | None


HelperSource: TypeAlias = Callable[[], SparkView | LandingView | None]
"""None if there is no engine and no lander, or it is silent."""


def no_helper() -> None:
    return None
