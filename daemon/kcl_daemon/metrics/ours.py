"""Metrics that KCL lacks: what stands still and why, restarts, throttles, what is lost. On Prometheus and OTLP only.

Pure data. CloudWatch asks for money for each of its metrics, so that it is told KCL's and nothing else.
"""

from __future__ import annotations

from typing import Final

from kcl_daemon.metrics.kcl_shards import SHARD_BEHIND
from kcl_daemon.metrics.metric import SHARD, Family, Kind, Metric, Unit, counter, gauge

_DELAYS: Final = (0.005, 0.02, 0.1, 0.5, 2.0)


def _own(family: Family, unit: Unit = Unit.COUNT) -> Metric:
    return Metric("", "", unit, labels=family.labels, family=family)


def _counted(stem: str, text: str, labels: tuple[str, ...] = ()) -> Metric:
    return _own(counter(stem, text, labels))


# --- the worker

LEASE_AGE: Final = _own(
    gauge(
        "lease_age",
        "Time since the oldest renewal of all held leases; a lease is lost at `failoverTimeMillis`.",
        unit=Unit.SECONDS,
    ),
    Unit.SECONDS,
)
LEADERLESS: Final = _own(
    gauge(
        "leaderless",
        "Time since the last heartbeat of any leader; 0 on the leader itself.",
        unit=Unit.SECONDS,
    ),
    Unit.SECONDS,
)
IN_HAND: Final = _own(
    gauge("retrieval_held", "Records that are read but not yet written to their child.", unit=Unit.BYTES),
    Unit.BYTES,
)
LOOP_LAG: Final = _own(
    Family(
        "loop_lag",
        Kind.HISTOGRAM,
        "How late a timer of the event loop was; everything in the daemon waits that long.",
        unit=Unit.SECONDS,
        buckets=_DELAYS,
    ),
    Unit.SECONDS,
)
CALLS: Final = _counted("aws_calls", "AWS calls, by outcome.", ("service", "operation", "outcome"))

LEFT_OUT: Final = _counted(
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
TOLD_LOST: Final = _counted(
    "metrics_not_sent",
    "Statistics not sent to CloudWatch, because of failures or because there were too many.",
)
OTLP_LOST: Final = _counted("otlp_exports_failed", "Exports to the OTLP collector that failed.")

# --- from the snapshot

INFO: Final = gauge(
    "worker", "This worker; always 1.", ("worker_id", "application", "version"), from_snapshot=True
)
UPTIME: Final = gauge(
    "worker_uptime", "Time since the worker was created.", unit=Unit.SECONDS, from_snapshot=True
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
    Unit.SECONDS,
    from_snapshot=True,
)
SHARD_WAITS: Final = gauge(
    "shard_waits",
    "How long a shard has waited for its current cause.",
    (*SHARD, "cause"),
    Unit.SECONDS,
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
    Unit.SECONDS,
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
    "child_resident_memory", "Resident memory of a shard's child.", SHARD, Unit.BYTES, from_snapshot=True
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
