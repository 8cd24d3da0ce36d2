from __future__ import annotations

from typing import Final

from kcl_daemon.errors import Invariant
from kcl_daemon.metrics.metric import SHARD, Family, Metric, MetricKind, MetricUnit, families

_F: Final = families(
    """
    gauge lease_age_seconds: Time since the oldest renewal of all held leases; a lease is lost at `failoverTimeMillis`.
    gauge leaderless_seconds: Time since the last heartbeat of any leader; 0 on the leader itself.
    gauge retrieval_held_bytes: Records that are read but not yet written to their child.
    counter aws_calls{service,operation,outcome}: AWS calls, by outcome.
    counter records_left_out{shard_id,stream,reason}: Records that were read but not delivered: `before_checkpoint` (already done; normal at each start), `other_shard` (in an aggregate, with a hash outside the shard), or `filtered` (no match for `recordFilter`).
    counter records_set_aside{shard_id,stream,cause}: Records that were not processed, stored as dead letters or left out: `rejected` (by their processor), `failed` (their processor kept failing), `attempts` (`maxRecordAttempts`), `expired` (`maxRecordAgeMillis`).
    counter log_events{level,event}: Warnings and errors in the log; docs/events.md says what to do.
    counter shard_stalls: Times that a shard made no progress for longer than the limit of its cause.
    counter children_started: Child processes started.
    counter children_failed: Children that ended, timed out or broke the protocol, and were replaced.
    counter consumer_crashes: Crashes of a shard's consumer, caused by a fault of the daemon itself.
    counter invariant_violations{invariant}: Consumers stopped because an invariant did not hold, a fault of the daemon itself ([reliability](reliability.md)).
    counter checkpoints_refused: Checkpoints that children asked for and that were not stored.
    counter lease_rows_malformed: Rows of the lease table that this worker could not read.
    counter aggregates_malformed: KPL aggregates that could not be unpacked.
    counter positions_trimmed: Checkpoints older than the retention: records were lost.
    counter records_skipped: Records skipped because their processor kept failing.
    counter dead_letters: Records stored as dead letters because their processor kept failing (`records_set_aside` has all).
    counter child_stray_lines: Lines on a child's stdout that are not a message.
    counter metrics_not_sent: Statistics not sent to CloudWatch, because of failures or because there were too many.
    counter otlp_exports_failed: Exports to the OTLP collector that failed.
    """
)

RECORD_LATENCY: Final = Family(
    "record_latency",
    MetricKind.HISTOGRAM,
    "The time from the arrival of a record in the stream until it is finished. As text for all shards of a stream, since the start; "
    "as native histogram and over OTLP for each shard.",
    SHARD,
    MetricUnit.SECONDS,
    # About even in size, with the limits that people promise: a second, a minute, five minutes, half an hour.
    (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0, 43200.0),
    from_snapshot=True,
)

FROM_SNAPSHOT: Final = families(
    """
    gauge worker{worker_id,application,version}: This worker; always 1.
    gauge worker_uptime_seconds: Time since the worker was created.
    gauge worker_started: Whether the worker has its tables and stream, and runs: 1 or 0.
    gauge worker_stopping: Whether the worker was asked to stop: 1 or 0.
    gauge workers_wanted: Workers that the application wants, by its leader; a worker that does not lead exports none.
    gauge capacity_drain_seconds: Time until all shards are within `serviceLevelMillis`, by the leader; 0: they are; absent: never, or unknown.
    gauge capacity_speed: Seconds of the stream that are finished in a second, by the leader, for the shard that takes longest to catch up; absent: unknown.
    gauge capacity_bound{bound}: What holds back the shard that takes longest to catch up, by the leader: 1 for what does, 0 for the others.
    gauge shard_idle_seconds{shard_id,stream}: Time since a shard's last progress: a finished batch, a checkpoint, or an answer with no new records.
    gauge shard_waits_seconds{shard_id,stream,cause}: How long a shard has waited for its current cause.
    gauge shard_stalled{shard_id,stream}: Whether a shard makes no progress for longer than allowed, whatever the cause: 1 or 0.
    gauge shard_paused{shard_id,stream}: Whether a shard is given no records because of a pause, of an operator or of its child: 1 or 0.
    gauge shard_uncheckpointed_seconds{shard_id,stream}: The age of the oldest record of a shard that its stored checkpoint does not cover; it would come again. Never less than `kcl_shard_behind_latest_seconds`.
    gauge shard_waiting_records{shard_id,stream}: Records of a shard that were read and are not finished.
    gauge shard_waiting_bytes{shard_id,stream}: Data of the records of a shard that were read and are not finished.
    counter shard_read_records{shard_id,stream}: Records of a shard that were read for its child since its lease was taken, some perhaps twice.
    counter shard_read_bytes{shard_id,stream}: Data of the records of a shard that were read for its child since its lease was taken.
    gauge shard_arrivals_ahead_seconds{shard_id,stream}: How far in the future the last records of a shard arrived, by the clock of this host; none up to two seconds.
    gauge shard_read_behind_seconds{shard_id,stream}: How far the last answer of Kinesis for a shard was behind the tip, whether or not its records are done.
    gauge shard_failures{shard_id,stream}: Children of a shard that failed in a row without progress; from 2 the shard is failing.
    counter child_restarts{shard_id,stream}: Restarts of a shard's child since its lease was taken.
    gauge child_resident_memory_bytes{shard_id,stream}: Resident memory of a shard's child, or of all its children with `shardConcurrency`.
    gauge shard_lanes_started{shard_id,stream}: With `shardConcurrency` above 1: children of a shard that were started.
    gauge shard_checkpoint_held_back_seconds{shard_id,stream}: With `shardConcurrency` above 1: how long the same record of one lane has held back the checkpoint of its shard; 0: none does.
    gauge shard_window_bytes{shard_id,stream}: With `shardConcurrency` above 1: records of a shard kept until its children have checkpointed them.
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
    gauge landing_store_trouble{cause}: Trouble of the landing store: 1 while it takes nothing for this cause; 0 without a cause: it works.
    """,
    from_snapshot=True,
)


def _own(name: str) -> Metric:
    family = _F[name]
    return Metric("", "", family.unit, labels=family.labels, family=family)


LEASE_AGE: Final = _own("lease_age_seconds")
LEADERLESS: Final = _own("leaderless_seconds")
BUFFERED_BYTES: Final = _own("retrieval_held_bytes")
LOOP_LAG: Final = Metric(
    "",
    "",
    MetricUnit.SECONDS,
    family=Family(
        "loop_lag",
        MetricKind.HISTOGRAM,
        "How late a timer of the event loop was; everything in the daemon waits that long.",
        unit=MetricUnit.SECONDS,
        buckets=(0.005, 0.02, 0.1, 0.5, 2.0),
    ),
)
CALLS: Final = _own("aws_calls")
NOT_DELIVERED: Final = _own("records_left_out")
SET_ASIDE: Final = _own("records_set_aside")

WORKERS_WANTED: Final = Metric("ApplicationTracker", "WorkersWanted")
UNFINISHED_AGE: Final = Metric("ApplicationTracker", "UnfinishedAge", MetricUnit.SECONDS)
"""Of the worker's shard that is furthest behind, at each time."""

# Counted as these events are logged.

EVENTS: Final = _own("log_events")
STALLS: Final = _own("shard_stalls")
CHILDREN_STARTED: Final = _own("children_started")
CHILDREN_FAILED: Final = _own("children_failed")
CRASHES: Final = _own("consumer_crashes")
VIOLATIONS: Final = {
    each: Metric(
        "", "", MetricUnit.COUNT, fixed=(("invariant", each.value),), family=_F["invariant_violations"]
    )
    for each in Invariant
}
REFUSED: Final = _own("checkpoints_refused")
MALFORMED_ROWS: Final = _own("lease_rows_malformed")
MALFORMED_AGGREGATES: Final = _own("aggregates_malformed")
TRIMMED: Final = _own("positions_trimmed")
SKIPPED: Final = _own("records_skipped")
DEAD_LETTERS: Final = _own("dead_letters")
STRAY_LINES: Final = _own("child_stray_lines")
CLOUDWATCH_LOST: Final = _own("metrics_not_sent")
OTLP_LOST: Final = _own("otlp_exports_failed")


INFO: Final = FROM_SNAPSHOT["worker"]
UPTIME: Final = FROM_SNAPSHOT["worker_uptime_seconds"]
WORKING: Final = FROM_SNAPSHOT["worker_started"]
STOPPING: Final = FROM_SNAPSHOT["worker_stopping"]
WANTED: Final = FROM_SNAPSHOT["workers_wanted"]
CAPACITY_DRAIN: Final = FROM_SNAPSHOT["capacity_drain_seconds"]
CAPACITY_SPEED: Final = FROM_SNAPSHOT["capacity_speed"]
CAPACITY_BOUND: Final = FROM_SNAPSHOT["capacity_bound"]
SHARD_IDLE: Final = FROM_SNAPSHOT["shard_idle_seconds"]
SHARD_WAITS: Final = FROM_SNAPSHOT["shard_waits_seconds"]
SHARD_STALLED: Final = FROM_SNAPSHOT["shard_stalled"]
SHARD_PAUSED: Final = FROM_SNAPSHOT["shard_paused"]
SHARD_UNCHECKPOINTED: Final = FROM_SNAPSHOT["shard_uncheckpointed_seconds"]
SHARD_WAITING_RECORDS: Final = FROM_SNAPSHOT["shard_waiting_records"]
SHARD_WAITING_BYTES: Final = FROM_SNAPSHOT["shard_waiting_bytes"]
SHARD_READ_RECORDS: Final = FROM_SNAPSHOT["shard_read_records"]
SHARD_READ_BYTES: Final = FROM_SNAPSHOT["shard_read_bytes"]
SHARD_AHEAD: Final = FROM_SNAPSHOT["shard_arrivals_ahead_seconds"]
SHARD_READ_BEHIND: Final = FROM_SNAPSHOT["shard_read_behind_seconds"]
SHARD_FAILURES: Final = FROM_SNAPSHOT["shard_failures"]
SHARD_RESTARTS: Final = FROM_SNAPSHOT["child_restarts"]
CHILD_MEMORY: Final = FROM_SNAPSHOT["child_resident_memory_bytes"]
LANES_STARTED: Final = FROM_SNAPSHOT["shard_lanes_started"]
LANES_HELD_BACK: Final = FROM_SNAPSHOT["shard_checkpoint_held_back_seconds"]
LANES_WINDOW: Final = FROM_SNAPSHOT["shard_window_bytes"]


QUERY_RUNNING: Final = FROM_SNAPSHOT["spark_query_running"]
QUERY_FAILURES: Final = FROM_SNAPSHOT["spark_query_failures"]
QUERY_BATCH: Final = FROM_SNAPSHOT["spark_query_batch"]
QUERY_SINCE_COMMIT: Final = FROM_SNAPSHOT["spark_query_since_commit_seconds"]
QUERY_INPUT: Final = FROM_SNAPSHOT["spark_query_input_rate"]
QUERY_PROCESSED: Final = FROM_SNAPSHOT["spark_query_processed_rate"]
QUERY_DURATION: Final = FROM_SNAPSHOT["spark_query_batch_duration_seconds"]
QUERY_STATE: Final = FROM_SNAPSHOT["spark_query_state_rows"]
QUERY_LATE: Final = FROM_SNAPSHOT["spark_query_late_rows"]
SHARD_ROWS: Final = FROM_SNAPSHOT["spark_shard_rows"]
SHARD_BYTES: Final = FROM_SNAPSHOT["spark_shard_bytes"]
SHARD_COMMITTED: Final = FROM_SNAPSHOT["spark_shard_committed_rows"]
SHARD_REDELIVERED: Final = FROM_SNAPSHOT["spark_shard_redelivered_rows"]
SHARD_WAITING: Final = FROM_SNAPSHOT["spark_shard_waiting_rows"]
SHARD_LAG: Final = FROM_SNAPSHOT["spark_shard_lag_seconds"]
SHARD_SPOOLED: Final = FROM_SNAPSHOT["spark_shard_spooled_bytes"]


LANDING_SEGMENTS: Final = FROM_SNAPSHOT["landing_segments"]
LANDING_BYTES: Final = FROM_SNAPSHOT["landing_bytes"]
LANDING_ROWS: Final = FROM_SNAPSHOT["landing_rows"]
LANDING_REDELIVERED: Final = FROM_SNAPSHOT["landing_redelivered_rows"]
LANDING_WAITING: Final = FROM_SNAPSHOT["landing_waiting_bytes"]
LANDING_LAG: Final = FROM_SNAPSHOT["landing_lag_seconds"]
LANDING_TROUBLE: Final = FROM_SNAPSHOT["landing_store_trouble"]
