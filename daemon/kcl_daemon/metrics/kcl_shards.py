"""KCL's metrics of shards: what is read, processed, checkpointed, and how shards begin and end.

Pure data; names, dimensions and levels are KCL's.
"""

from __future__ import annotations

from typing import Final

from kcl_daemon.metrics.metric import SHARD, Level, Metric, Unit, counter, gauge, operation

_D: Final = Level.DETAILED

INITIALIZE_CHILD: Final = operation("InitializeTask", "RecordProcessor.initialize", success=False)

_PROCESS: Final = "ProcessTask"
PROCESS: Final = operation(_PROCESS, labels=SHARD)
PROCESS_CHILD: Final = operation(_PROCESS, "RecordProcessor.processRecords", success=False, labels=SHARD)
PROCESS_READ: Final = operation(_PROCESS, "KinesisDataFetcher.getRecords", level=_D, labels=SHARD)
PROCESS_ITERATOR: Final = operation(_PROCESS, "KinesisDataFetcher.getShardIterator", level=_D, labels=SHARD)
PROCESS_CHECKPOINT: Final = operation(_PROCESS, "UpdateLease", level=_D, labels=SHARD)
PROCESS_RECORDS: Final = Metric(
    _PROCESS,
    "RecordsProcessed",
    labels=SHARD,
    family=counter("processed_records", "Records that children have processed.", SHARD),
)
PROCESS_BYTES: Final = Metric(
    _PROCESS,
    "DataBytesProcessed",
    Unit.BYTES,
    labels=SHARD,
    family=counter("processed", "Data of the records that children have processed.", SHARD, Unit.BYTES),
)
SHARD_BEHIND: Final = gauge(
    "shard_behind_latest",
    "The age of the oldest record of a shard that is not done: not read yet, waiting for the child, or with the child. 0: all are done.",
    SHARD,
    Unit.SECONDS,
    from_snapshot=True,
)
PROCESS_BEHIND: Final = Metric(
    _PROCESS, "MillisBehindLatest", Unit.SECONDS, labels=SHARD, family=SHARD_BEHIND
)
PROCESS_EXPIRED: Final = Metric(
    _PROCESS,
    "ExpiredIterator",
    family=counter("expired_iterators", "Shard iterators that had expired when used."),
)

APPLICATION_BEHIND: Final = Metric("ApplicationTracker", "MillisBehindLatest", Unit.SECONDS)

_SHUTDOWN: Final = "ShutdownTask"
SHUTDOWN_CHILD: Final = operation(_SHUTDOWN, "RecordProcessor.shutdown", success=False)
SHUTDOWN_CREATE: Final = operation(_SHUTDOWN, "CreateLease", level=_D)
SHUTDOWN_CREATE_AT: Final = operation(_SHUTDOWN, "CreateLease_TRIM_HORIZON", level=_D, time=False)
SHUTDOWN_CHILDREN: Final = operation(_SHUTDOWN, "UpdateLease", level=_D, labels=SHARD)
SHUTDOWN_NO_PARENT: Final = Metric(
    _SHUTDOWN,
    "MissingMergeParent",
    family=counter("merge_parents_missing", "Times that Kinesis did not list one of the parents of a merge."),
)
SHUTDOWN_NO_PARENT_LEASE: Final = Metric(
    _SHUTDOWN,
    "MissingMergeParentLease",
    family=counter("merge_parent_leases_missing", "Times that one of the parents of a merge had no lease."),
)
