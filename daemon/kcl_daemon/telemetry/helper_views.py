"""What the Spark engine or the lander of this host does at one moment.

Durations are seconds before then. Counters start with the process of the engine or the lander.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from kcl_daemon.text import about


@dataclass(frozen=True, slots=True)
class SparkQueryView:
    """One streaming query.

    Args:
        batch: the newest committed.
        since_commit_s: since the last commit, or since it was first seen.
        state_rows: in windows and joins; None: stateless.
        late_rows: dropped behind the watermark; None: stateless.
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
    """One shard that the engine reads, through any host.

    Args:
        committed: rows that all queries committed.
        redelivered: duplicates dropped since its relay connected.
        waiting: rows that some query has not committed.
        lag_s: age of the oldest of these.
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
    """What is durable of one shard, and what waits.

    Args:
        name: the shard id, after `STREAM/` if the daemon reads many streams.
        size_bytes: of its segments, as stored.
        number: of its last segment; None: it has none.
        lag_s: age of the oldest record that waits.
        landed_ms: when the last segment was written, in epoch milliseconds.
        redelivered: rows that arrived again and were dropped.
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
