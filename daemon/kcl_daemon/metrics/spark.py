"""Figures of the Spark engine of this host: its queries, and the shards that it is fed. On Prometheus and OTLP only.

Pure data. All of them are read off the snapshot, so that they go when a query, a shard or the engine goes. There are as
many series as the pipeline has queries and the engine has shards.
"""

from __future__ import annotations

from typing import Final

from kcl_daemon.metrics.metric import Family, Unit, counter, gauge

_QUERY: Final = ("query",)
_SHARD: Final = ("shard_id",)


def _gauge(stem: str, text: str, labels: tuple[str, ...], unit: Unit = Unit.COUNT) -> Family:
    return gauge(stem, text, labels, unit, from_snapshot=True)


def _counter(stem: str, text: str, labels: tuple[str, ...], unit: Unit = Unit.COUNT) -> Family:
    return counter(stem, text, labels, unit, from_snapshot=True)


QUERY_RUNNING: Final = _gauge(
    "spark_query_running",
    "Whether a Spark query runs: 1, or 0 while a failed query waits to restart.",
    _QUERY,
)
QUERY_FAILURES: Final = _counter(
    "spark_query_failures", "Failures of a Spark query since its engine started.", _QUERY
)
QUERY_BATCH: Final = _gauge(
    "spark_query_batch", "Number of the last batch that a Spark query committed.", _QUERY
)
QUERY_SINCE_COMMIT: Final = _gauge(
    "spark_query_since_commit",
    "Time since a Spark query's last commit, or its engine's start; grows while there are no records.",
    _QUERY,
    Unit.SECONDS,
)
QUERY_INPUT: Final = _gauge(
    "spark_query_input_rate",
    "Input rows a second of a Spark query, from Spark's report of its last batch.",
    _QUERY,
)
QUERY_PROCESSED: Final = _gauge(
    "spark_query_processed_rate",
    "Rows a second that a Spark query processed, from Spark's report of its last batch.",
    _QUERY,
)
QUERY_DURATION: Final = _gauge(
    "spark_query_batch_duration",
    "How long the last batch with rows of a Spark query took.",
    _QUERY,
    Unit.SECONDS,
)
QUERY_STATE: Final = _gauge(
    "spark_query_state_rows", "Rows in the state of a Spark query's windows and joins.", _QUERY
)
QUERY_LATE: Final = _counter(
    "spark_query_late_rows",
    "Rows that Spark dropped because they were later than a query's watermark; Spark counts them after grouping.",
    _QUERY,
)
SHARD_ROWS: Final = _counter(
    "spark_shard_rows", "Rows of a shard that were given to Spark since its engine started.", _SHARD
)
SHARD_BYTES: Final = _counter(
    "spark_shard",
    "Bytes of a shard that were given to Spark, as stored in the spool.",
    _SHARD,
    Unit.BYTES,
)
SHARD_COMMITTED: Final = _counter(
    "spark_shard_committed_rows", "Rows of a shard that all Spark queries have committed.", _SHARD
)
SHARD_REDELIVERED: Final = _counter(
    "spark_shard_redelivered_rows",
    "Rows of a shard that arrived again and were dropped, since its relay connected.",
    _SHARD,
)
SHARD_WAITING: Final = _gauge(
    "spark_shard_waiting_rows",
    "Rows of a shard that were given to Spark and that some Spark query has not committed.",
    _SHARD,
)
SHARD_LAG: Final = _gauge(
    "spark_shard_lag",
    "Age of the oldest row, by arrival, that some Spark query has not committed; 0: there is none.",
    _SHARD,
    Unit.SECONDS,
)
SHARD_SPOOLED: Final = _gauge("spark_shard_spooled", "Bytes of a shard in the spool.", _SHARD, Unit.BYTES)

FAMILIES: Final = (
    QUERY_RUNNING,
    QUERY_FAILURES,
    QUERY_BATCH,
    QUERY_SINCE_COMMIT,
    QUERY_INPUT,
    QUERY_PROCESSED,
    QUERY_DURATION,
    QUERY_STATE,
    QUERY_LATE,
    SHARD_ROWS,
    SHARD_BYTES,
    SHARD_COMMITTED,
    SHARD_REDELIVERED,
    SHARD_WAITING,
    SHARD_LAG,
    SHARD_SPOOLED,
)
