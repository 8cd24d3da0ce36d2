"""What the Spark engine or the lander of this host does. Counters begin with its process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from kcl_daemon.metrics.metric import Shown, StatusTable, Table, families, sample, words
from kcl_daemon.text import about, size

_M: Final = families(
    """
    gauge spark_query_running{query}: Whether a Spark query runs: 1, or 0 while a failed query waits to restart.
    counter spark_query_failures{query}: Failures of a Spark query since its engine started.
    gauge spark_query_batch{query}: Number of the last batch that a Spark query committed.
    gauge spark_query_since_commit_seconds{query}: Time since a Spark query's last commit, or its engine's start; grows while there are no records.
    gauge spark_query_input_rate{query}: Input rows a second of a Spark query, from Spark's report of its last batch.
    gauge spark_query_processed_rate{query}: Rows a second that a Spark query processed, from Spark's report of its last batch.
    gauge spark_query_batch_duration_seconds{query}: How long the last batch with rows of a Spark query took.
    gauge spark_query_state_rows{query}: Rows in the state of a Spark query's windows and joins.
    counter spark_query_late_rows{query}: Rows that Spark dropped because they were later than a query's watermark; Spark counts them after grouping.
    counter spark_shard_rows{shard_id}: Rows of a shard that were given to Spark since its engine started.
    counter spark_shard_bytes{shard_id}: Bytes of a shard that were given to Spark, as stored in the spool.
    counter spark_shard_committed_rows{shard_id}: Rows of a shard that all Spark queries have committed.
    counter spark_shard_redelivered_rows{shard_id}: Rows of a shard that arrived again and were dropped, since its relay connected.
    gauge spark_shard_waiting_rows{shard_id}: Rows of a shard that were given to Spark and that some Spark query has not committed.
    gauge spark_shard_lag_seconds{shard_id}: Age of the oldest row, by arrival, that some Spark query has not committed; 0: there is none.
    gauge spark_shard_spooled_bytes{shard_id}: Bytes of a shard in the spool.
    counter landing_segments{shard_id,stream}: Segments of a shard that were written since its lander started.
    counter landing_bytes{shard_id,stream}: Bytes of these segments, as stored.
    counter landing_rows{shard_id,stream}: Records in these segments.
    counter landing_redelivered_rows{shard_id,stream}: Records of a shard that arrived again and were dropped, as the log has them.
    gauge landing_waiting_bytes{shard_id,stream}: Records of a shard that the lander has and that are not durable yet, in bytes of memory.
    gauge landing_lag_seconds{shard_id,stream}: Age of the oldest record that the lander has and that is not durable yet; 0: there is none.
    """,
    from_snapshot=True,
)


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
    """Why the store takes nothing, and since when."""

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


def _ago(seconds: float) -> str:
    return f"{about(seconds)} ago"


def _per_s(rows: float) -> str:
    return f"{rows:.0f}/s"


def _s(seconds: float) -> str:
    return f"{seconds:.2f} s"


QUERIES: Final[Table[SparkQueryView]] = Table(
    "Spark queries",
    (
        words("Query", lambda each: each.name),
        words("State", lambda each: "running" if each.running else "failed, starts again"),
        sample(_M["spark_query_running"], lambda each: each.running),
        sample(_M["spark_query_failures"], lambda each: each.failures),
        Shown("Batch", lambda each: each.batch, metric=_M["spark_query_batch"]),
        Shown("Last commit", lambda each: each.since_commit_s, _ago, _M["spark_query_since_commit_seconds"]),
        Shown("Rows in", lambda each: each.input_rows_per_s, _per_s, _M["spark_query_input_rate"]),
        Shown("Rows done", lambda each: each.processed_rows_per_s, _per_s, _M["spark_query_processed_rate"]),
        Shown("Batch took", lambda each: each.batch_s, _s, _M["spark_query_batch_duration_seconds"]),
        Shown("Rows in state", lambda each: each.state_rows, metric=_M["spark_query_state_rows"]),
        Shown("Dropped as late", lambda each: each.late_rows, metric=_M["spark_query_late_rows"]),
    ),
)
SPARK_SHARDS: Final[Table[SparkShardView]] = Table(
    "Shards in Spark",
    (
        words("Shard", lambda each: each.shard_id),
        Shown("Rows", lambda each: each.rows, metric=_M["spark_shard_rows"]),
        sample(_M["spark_shard_bytes"], lambda each: each.data_bytes),
        Shown("Committed", lambda each: each.committed, metric=_M["spark_shard_committed_rows"]),
        sample(_M["spark_shard_redelivered_rows"], lambda each: each.redelivered),
        Shown("Waiting", lambda each: each.waiting, metric=_M["spark_shard_waiting_rows"], drops=3),
        sample(_M["spark_shard_lag_seconds"], lambda each: each.lag_s),
        Shown("Oldest waits", lambda each: each.lag_s if each.waiting else None, about),
        sample(_M["spark_shard_spooled_bytes"], lambda each: each.spooled_bytes),
    ),
    "no shard is connected",
)
LANDING: Final[Table[LandingShardView]] = Table(
    "Landing log",
    (
        words("Shard", lambda each: each.name),
        Shown("Rows", lambda each: each.rows),
        sample(_M["landing_segments"], lambda each: each.segments),
        Shown("Bytes", lambda each: each.size_bytes, size, _M["landing_bytes"]),
        sample(_M["landing_rows"], lambda each: each.rows),
        Shown("Last segment", lambda each: each.number),
        sample(_M["landing_redelivered_rows"], lambda each: each.redelivered),
        Shown("Waiting", lambda each: each.waiting_rows, drops=3),
        Shown("Bytes waiting", lambda each: each.waiting_bytes, size, _M["landing_waiting_bytes"]),
        sample(_M["landing_lag_seconds"], lambda each: each.lag_s),
        Shown("Oldest waits", lambda each: each.lag_s if each.waiting_rows else None, about),
    ),
    "no shard is connected",
)


def query_table(view: SparkView) -> StatusTable:
    return QUERIES.of(view.queries, "" if view.ui is None else f"{QUERIES.title} ({view.ui})")


def spark_shard_table(view: SparkView) -> StatusTable:
    return SPARK_SHARDS.of(sorted(view.shards, key=lambda each: (-each.lag_s, each.shard_id)))


def landing_table(view: LandingView) -> StatusTable:
    title = "" if view.trouble is None else f"{LANDING.title}, store: {view.trouble}"
    return LANDING.of(sorted(view.shards, key=lambda each: (-each.lag_s, each.name)), title)
