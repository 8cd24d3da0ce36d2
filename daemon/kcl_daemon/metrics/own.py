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
    gauge shards_unread: By the leader and by `kcl-daemon watch`: open shards that nobody reads.
    gauge shards_unread_by_cause{cause}: By the leader and by `kcl-daemon watch`: open shards that nobody reads, by cause.
    gauge shard_unread_seconds{shard_id,stream}: By the leader and by `kcl-daemon watch`: how long nobody has read a shard, of the hundred unread longest; 0 once it is read again, then absent.
    gauge watch_shards: By `kcl-daemon watch`: open shards.
    gauge watch_workers: By `kcl-daemon watch`: workers that report, of Java too.
    gauge watch_oldest_unread_seconds: By `kcl-daemon watch`: how far behind the tip the checkpoint is that is furthest behind; absent: of no shard it is known.
    gauge watch_unknown_ages: By `kcl-daemon watch`: shards whose oldest unread record has no known age, such as those without a checkpoint.
    gauge watch_still_seconds: By `kcl-daemon watch`: the longest time without a new checkpoint of a shard that has records to read.
    gauge watch_went_back: By `kcl-daemon watch`: shards whose checkpoint went back within 15 minutes.
    gauge watch_workers_wanted: By `kcl-daemon watch`: workers that the application wants, as its leader said last.
    gauge watch_look_age_seconds: By `kcl-daemon watch`: time since the tables were last read, or since it began; the other figures are of then.
    gauge watch_look_failed: By `kcl-daemon watch`: whether something could not be looked at: 1 or 0.
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
    gauge clock_ahead_seconds: How far the clock of this host is ahead of that of AWS, a second more or less; behind if negative; absent: unknown.
    gauge workers_wanted: Workers that the application wants, by its leader; a worker that does not lead exports none.
    gauge capacity_drain_seconds: Time until all shards are within `serviceLevelMillis`, by the leader; 0: they are; absent: never, or unknown.
    gauge capacity_speed: Seconds of the stream that are finished in a second, by the leader, for the shard that takes longest to catch up; absent: unknown.
    gauge capacity_bound{bound}: What holds back the shard that takes longest to catch up, by the leader: 1 for what does, 0 for the others.
    gauge shard_waits_seconds{shard_id,stream,cause}: How long a shard has waited for its current cause.
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


def _watched(name: str, family: str) -> Metric:
    return Metric("Coverage", name, _F[family].unit, labels=_F[family].labels, family=_F[family])


SHARDS_UNREAD: Final = _watched("ShardsUnread", "shards_unread")
SHARDS_UNREAD_BY_CAUSE: Final = _own("shards_unread_by_cause")
SHARD_UNREAD: Final = _own("shard_unread_seconds")
WATCH_SHARDS: Final = _watched("Shards", "watch_shards")
WATCH_WORKERS: Final = _watched("Workers", "watch_workers")
OLDEST_UNREAD: Final = _watched("OldestUnread", "watch_oldest_unread_seconds")
WATCH_UNKNOWN: Final = _watched("UnknownAges", "watch_unknown_ages")
WATCH_STILL: Final = _watched("WithoutCheckpoint", "watch_still_seconds")
WATCH_BACK: Final = _watched("WentBack", "watch_went_back")
WATCH_WANTED: Final = _watched("WorkersWanted", "watch_workers_wanted")
WATCH_AGE: Final = _watched("LookAge", "watch_look_age_seconds")
WATCH_LOOK_FAILED: Final = _watched("LookFailed", "watch_look_failed")

# Counted as these events are logged.

EVENTS: Final = _own("log_events")
STALLS: Final = _own("shard_stalls")
CHILDREN_STARTED: Final = _own("children_started")
CHILDREN_FAILED: Final = _own("children_failed")
CRASHES: Final = _own("consumer_crashes")
VIOLATIONS: Final = {
    each: Metric("", "", fixed=(("invariant", each.value),), family=_F["invariant_violations"])
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
