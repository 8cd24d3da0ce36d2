"""Metrics that KCL lacks, and those of the Spark engine.

On Prometheus and OTLP only: CloudWatch charges for each.

Snapshot series end with their shard, query or engine.
"""

from __future__ import annotations

from typing import Final

from kcl_daemon.metrics.kcl import SHARD_BEHIND
from kcl_daemon.metrics.metric import SHARD, Family, Metric, MetricKind, MetricUnit, counter, gauge

_DELAYS: Final = (0.005, 0.02, 0.1, 0.5, 2.0)


def _own(family: Family, unit: MetricUnit = MetricUnit.COUNT) -> Metric:
    return Metric("", "", unit, labels=family.labels, family=family)


def _counted(stem: str, text: str, labels: tuple[str, ...] = ()) -> Metric:
    return _own(counter(stem, text, labels))


# --- the worker

LEASE_AGE: Final = _own(
    gauge(
        "lease_age",
        "Time since the oldest renewal of all held leases; a lease is lost at `failoverTimeMillis`.",
        unit=MetricUnit.SECONDS,
    ),
    MetricUnit.SECONDS,
)
LEADERLESS: Final = _own(
    gauge(
        "leaderless",
        "Time since the last heartbeat of any leader; 0 on the leader itself.",
        unit=MetricUnit.SECONDS,
    ),
    MetricUnit.SECONDS,
)
BUFFERED_BYTES: Final = _own(
    gauge(
        "retrieval_held", "Records that are read but not yet written to their child.", unit=MetricUnit.BYTES
    ),
    MetricUnit.BYTES,
)
LOOP_LAG: Final = _own(
    Family(
        "loop_lag",
        MetricKind.HISTOGRAM,
        "How late a timer of the event loop was; everything in the daemon waits that long.",
        unit=MetricUnit.SECONDS,
        buckets=_DELAYS,
    ),
    MetricUnit.SECONDS,
)
CALLS: Final = _counted("aws_calls", "AWS calls, by outcome.", ("service", "operation", "outcome"))

NOT_DELIVERED: Final = _counted(
    "records_left_out",
    "Records that were read but not delivered: `before_checkpoint` (already done; normal at each start), or "
    "`other_shard` (in an aggregate, with a hash outside the shard).",
    (*SHARD, "reason"),
)

# --- from the log: these events are counted as they are written

EVENTS: Final = _counted(
    "log_events", "Warnings and errors in the log; docs/events.md says what to do.", ("level", "event")
)
STALLS: Final = _counted(
    "shard_stalls", "Times that a shard made no progress for longer than the limit of its cause."
)
CHILDREN_STARTED: Final = _counted("children_started", "Child processes started.")
CHILDREN_FAILED: Final = _counted(
    "children_failed", "Children that ended, timed out or broke the protocol, and were replaced."
)
CRASHES: Final = _counted(
    "consumer_crashes", "Crashes of a shard's consumer, caused by a fault of the daemon itself."
)
REFUSED: Final = _counted(
    "checkpoints_refused", "Checkpoints that children asked for and that were not stored."
)
MALFORMED_ROWS: Final = _counted(
    "lease_rows_malformed", "Rows of the lease table that this worker could not read."
)
MALFORMED_AGGREGATES: Final = _counted("aggregates_malformed", "KPL aggregates that could not be unpacked.")
TRIMMED: Final = _counted("positions_trimmed", "Checkpoints older than the retention: records were lost.")
SKIPPED: Final = _counted("records_skipped", "Records skipped because their processor kept failing.")
DEAD_LETTERS: Final = _counted(
    "dead_letters", "Records stored as dead letters because their processor kept failing."
)
STRAY_LINES: Final = _counted("child_stray_lines", "Lines on a child's stdout that are not a message.")
CLOUDWATCH_LOST: Final = _counted(
    "metrics_not_sent",
    "Statistics not sent to CloudWatch, because of failures or because there were too many.",
)
OTLP_LOST: Final = _counted("otlp_exports_failed", "Exports to the OTLP collector that failed.")

# --- from the snapshot

INFO: Final = gauge(
    "worker", "This worker; always 1.", ("worker_id", "application", "version"), from_snapshot=True
)
UPTIME: Final = gauge(
    "worker_uptime", "Time since the worker was created.", unit=MetricUnit.SECONDS, from_snapshot=True
)
WORKING: Final = gauge(
    "worker_started", "Whether the worker has its tables and stream, and runs: 1 or 0.", from_snapshot=True
)
STOPPING: Final = gauge(
    "worker_stopping", "Whether the worker was asked to stop: 1 or 0.", from_snapshot=True
)
SHARD_IDLE: Final = gauge(
    "shard_idle",
    "Time since a shard's last progress: a finished batch, a checkpoint, or an answer with no new records.",
    SHARD,
    MetricUnit.SECONDS,
    from_snapshot=True,
)
SHARD_WAITS: Final = gauge(
    "shard_waits",
    "How long a shard has waited for its current cause.",
    (*SHARD, "cause"),
    MetricUnit.SECONDS,
    from_snapshot=True,
)
SHARD_STALLED: Final = gauge(
    "shard_stalled",
    "Whether a shard makes no progress for longer than allowed, whatever the cause: 1 or 0.",
    SHARD,
    from_snapshot=True,
)
SHARD_READ_BEHIND: Final = gauge(
    "shard_read_behind",
    "How far the last answer of Kinesis for a shard was behind the tip, whether or not its records are done.",
    SHARD,
    MetricUnit.SECONDS,
    from_snapshot=True,
)
SHARD_FAILURES: Final = gauge(
    "shard_failures",
    "Children of a shard that failed in a row without progress; from 2 the shard is failing.",
    SHARD,
    from_snapshot=True,
)
SHARD_RESTARTS: Final = counter(
    "child_restarts",
    "Restarts of a shard's child since its lease was taken.",
    SHARD,
    from_snapshot=True,
)
CHILD_MEMORY: Final = gauge(
    "child_resident_memory",
    "Resident memory of a shard's child.",
    SHARD,
    MetricUnit.BYTES,
    from_snapshot=True,
)
FROM_SNAPSHOT: Final = (
    INFO,
    UPTIME,
    WORKING,
    STOPPING,
    SHARD_IDLE,
    SHARD_WAITS,
    SHARD_STALLED,
    SHARD_BEHIND,
    SHARD_READ_BEHIND,
    SHARD_FAILURES,
    SHARD_RESTARTS,
    CHILD_MEMORY,
)


_QUERY: Final = ("query",)
_SHARD: Final = ("shard_id",)


def _gauge(stem: str, text: str, labels: tuple[str, ...], unit: MetricUnit = MetricUnit.COUNT) -> Family:
    return gauge(stem, text, labels, unit, from_snapshot=True)


def _counter(stem: str, text: str, labels: tuple[str, ...], unit: MetricUnit = MetricUnit.COUNT) -> Family:
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
    MetricUnit.SECONDS,
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
    MetricUnit.SECONDS,
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
    MetricUnit.BYTES,
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
    MetricUnit.SECONDS,
)
SHARD_SPOOLED: Final = _gauge(
    "spark_shard_spooled", "Bytes of a shard in the spool.", _SHARD, MetricUnit.BYTES
)

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
