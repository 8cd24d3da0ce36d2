from __future__ import annotations

from typing import Final

from kcl_daemon.metrics.metric import (
    SHARD,
    Family,
    Metric,
    MetricKind,
    MetricLevel,
    MetricUnit,
    families,
    operation,
)

_D: Final = MetricLevel.DETAILED

_F: Final = families(
    """
    gauge fleet_leases: Leases of the application, as last read by the worker that assigns or takes them.
    gauge fleet_workers: Workers of the application, as last seen by the worker that assigns or takes leases.
    gauge fleet_expired_leases: Leases that nobody renews, as last seen by the worker that assigns or takes them.
    gauge fleet_leases_without_worker: Leases that no worker has room for (`maxLeasesForWorker`).
    gauge leader: Whether this worker is the leader: 1 or 0.
    counter lease_assignments: Leases that this worker, as leader, decided to assign to a worker.
    gauge fleet_workers_unreadable: Worker rows that cannot be read, as last seen by the leader.
    gauge fleet_workers_failing: Workers whose last CPU measurement failed; they get no leases.
    gauge fleet_lease_rows_unreadable: Rows of the lease table that are not a valid lease, as last seen by the leader.
    counter leadership_resignations: Times that this worker gave up leadership because assignment failed several times in a row.
    counter lease_assignments_failed: Lease assignments that could not be written.
    gauge fleet_support_code: The lowest support code of all lease owners; 1: all know the single table.
    counter cpu_capture_failures: CPU measurements that failed.
    counter lease_discovery_errors: Leases that were assigned to this worker but could not be claimed.
    counter leases_discovered: New leases that this worker found in the index by owner.
    counter lease_owner_mismatches: Leases whose index entry was older than their row.
    counter leases_lost: Leases lost: taken by another worker, or not renewed in time.
    gauge leases_held: Leases that this worker holds.
    counter leases_taken: Leases taken by the rules of KCL 2.x.
    counter leases_not_taken: Leases that should have been taken by the rules of KCL 2.x, but were not.
    gauge fleet_very_old_leases: Unowned leases that have not changed for three failover times.
    counter streams_with_holes: Audits that found leases that do not cover all hashes of their stream.
    counter shard_syncs: Audits that requested a shard sync.
    counter shard_syncs_skipped: Audits postponed because the stream did not exist.
    gauge streams_active: Streams that the leader creates leases for.
    gauge streams_former: Streams that are no longer listed but still have leases.
    counter streams_deleted_not_found: Former streams whose leases were deleted because Kinesis does not know them.
    counter streams_deleted: Former streams whose leases were deleted.
    counter migration_faults: Failed steps of the upgrade from KCL 2.x.
    gauge migration_index_ready: Whether the index by owner is ready for the upgrade: 1 or 0.
    gauge migration_workers_ready: Whether all lease owners report, for the upgrade: 1 or 0.
    counter table_migration_faults{step}: Failed steps of the move to one table, by step.
    gauge table_migration_status: State of the move to one table: 0 unknown, 1 to 4 (complete).
    gauge table_migration_workers{phase}: Lease owners, by phase of the move to one table.
    counter processed_records{shard_id,stream}: Records that children have processed.
    counter processed_bytes{shard_id,stream}: Data of the records that children have processed.
    counter expired_iterators: Shard iterators that had expired when used.
    counter merge_parents_missing: Times that Kinesis did not list one of the parents of a merge.
    counter merge_parent_leases_missing: Times that one of the parents of a merge had no lease.
    """
)


INITIALIZE: Final = operation("Scheduler:Initialize", "Initialize", time=False)


IS_LEADER: Final = Metric("LeaderDecider", "LeaderDecider:IsLeader", level=_D, family=_F["leader"])
DECIDER_SHUFFLE: Final = Metric("LeaderDecider", "DeterministicShuffleShardSyncLeaderDecider", level=_D)
DECIDER_LOCK: Final = Metric("LeaderDecider", "DynamoDBLockBasedLeaderDecider", level=_D)


_ASSIGNMENT: Final = "LeaseAssignmentManager"
ASSIGNMENT: Final = operation(_ASSIGNMENT)
ASSIGNMENT_LOAD: Final = operation(_ASSIGNMENT, "LeaseAndWorkerMetricsLoad", level=_D, success=False)
ASSIGNMENT_PLACE: Final = operation(_ASSIGNMENT, "AssignExpiredOrUnassignedLeases", level=_D, success=False)
ASSIGNMENT_BALANCE: Final = operation(_ASSIGNMENT, "BalanceWorkerVariance", level=_D, success=False)
ASSIGNMENT_WRITE: Final = operation(_ASSIGNMENT, "ParallelyAssignLeases", level=_D)
ASSIGNMENT_LEASES: Final = Metric(_ASSIGNMENT, "TotalLeases", family=_F["fleet_leases"])
ASSIGNMENT_WORKERS: Final = Metric(_ASSIGNMENT, "NumWorkers", family=_F["fleet_workers"])
ASSIGNMENT_EXPIRED: Final = Metric(_ASSIGNMENT, "ExpiredLeases", family=_F["fleet_expired_leases"])
ASSIGNMENT_SPILL: Final = Metric(_ASSIGNMENT, "LeaseSpillover", family=_F["fleet_leases_without_worker"])
ASSIGNMENT_MOVES: Final = Metric(_ASSIGNMENT, "NumOfLeasesReassignment", family=_F["lease_assignments"])
ASSIGNMENT_INVALID_WORKERS: Final = Metric(
    _ASSIGNMENT, "NumWorkersWithInvalidEntry", family=_F["fleet_workers_unreadable"]
)
ASSIGNMENT_FAILING_WORKERS: Final = Metric(
    _ASSIGNMENT, "NumWorkersWithFailingWorkerMetric", family=_F["fleet_workers_failing"]
)
ASSIGNMENT_MALFORMED: Final = Metric(
    _ASSIGNMENT, "LeaseDeserializationFailureCount", family=_F["fleet_lease_rows_unreadable"]
)
ASSIGNMENT_RESIGNED: Final = Metric(_ASSIGNMENT, "ForceLeaderRelease", family=_F["leadership_resignations"])
ASSIGNMENT_FAILED: Final = Metric(
    _ASSIGNMENT, "FailedAssignmentCount", level=_D, family=_F["lease_assignments_failed"]
)
FLEET_SUPPORT: Final = Metric(
    "WorkerMetrics", "FleetMinSupportCode", MetricUnit.NONE, family=_F["fleet_support_code"]
)


REPORT: Final = operation("WorkerMetricStatsReporter", by_worker=True)
CAPTURE_FAILED: Final = Metric(
    "WorkerMetricStatsReporter", "InMemoryMetricStatsReporterFailure", family=_F["cpu_capture_failures"]
)


_DISCOVERY: Final = "LeaseDiscovery"
DISCOVERY: Final = operation(_DISCOVERY, by_worker=True)
DISCOVERY_LIST: Final = operation(
    _DISCOVERY, "ListLeaseKeysForWorker", level=_D, success=False, by_worker=True
)
DISCOVERY_FETCH: Final = operation(_DISCOVERY, "FetchNewLeases", level=_D, success=False, by_worker=True)
DISCOVERY_ERRORS: Final = Metric(
    _DISCOVERY, "GetLease:Error", by_worker=True, family=_F["lease_discovery_errors"]
)
DISCOVERY_FOUND: Final = Metric(
    _DISCOVERY, "NewLeasesDiscovered", level=_D, by_worker=True, family=_F["leases_discovered"]
)
DISCOVERY_MISMATCH: Final = Metric(
    _DISCOVERY, "OwnerMismatch", level=_D, by_worker=True, family=_F["lease_owner_mismatches"]
)


_RENEWAL: Final = "RenewAllLeases"
RENEWAL: Final = operation(_RENEWAL, by_worker=True)
RENEWAL_ONE: Final = operation(_RENEWAL, "RenewLease", level=_D, by_worker=True)
RENEWAL_LOST: Final = Metric(_RENEWAL, "LostLeases", by_worker=True, family=_F["leases_lost"])
RENEWAL_HELD: Final = Metric(_RENEWAL, "CurrentLeases", by_worker=True, family=_F["leases_held"])


_TAKING: Final = "TakeLeases"
TAKING: Final = operation(_TAKING, by_worker=True)
TAKING_LIST: Final = operation(_TAKING, "ListLeases", level=_D, by_worker=True)
TAKING_ONE: Final = operation(_TAKING, "TakeLease", level=_D, by_worker=True)
TAKING_TAKEN: Final = Metric(_TAKING, "TakenLeases", by_worker=True, family=_F["leases_taken"])
TAKING_MISSED: Final = Metric(_TAKING, "UntakenLeases", by_worker=True, family=_F["leases_not_taken"])
TAKING_EXPIRED: Final = Metric(_TAKING, "ExpiredLeases", by_worker=True, family=_F["fleet_expired_leases"])
TAKING_SPILL: Final = Metric(
    _TAKING, "LeaseSpillover", by_worker=True, family=_F["fleet_leases_without_worker"]
)
TAKING_WORKERS: Final = Metric(_TAKING, "NumWorkers", by_worker=True, family=_F["fleet_workers"])
TAKING_VERY_OLD: Final = Metric(_TAKING, "VeryOldLeases", by_worker=True, family=_F["fleet_very_old_leases"])
TAKING_WANTED: Final = Metric(_TAKING, "LeasesToTake", level=_D, by_worker=True)
TAKING_NEEDED: Final = Metric(_TAKING, "NeededLeases", level=_D, by_worker=True)
TAKING_LEASES: Final = Metric(_TAKING, "TotalLeases", level=_D, by_worker=True, family=_F["fleet_leases"])


_SYNC: Final = "ShardSyncTask"
SYNC: Final = operation(_SYNC)
SYNC_SHARDS: Final = operation(_SYNC, "SyncShards", level=_D, time=False)
SYNC_CREATE: Final = operation(_SYNC, "CreateLease", level=_D)
SYNC_CREATE_AT: Final = {
    at: operation(_SYNC, f"CreateLease_{at}", level=_D, time=False)
    for at in ("TRIM_HORIZON", "LATEST", "AT_TIMESTAMP")
}
"""By the checkpoint that the lease begins with."""

_AUDIT: Final = "PeriodicShardSyncManager"
AUDIT: Final = operation(_AUDIT)
AUDIT_HOLES: Final = Metric(_AUDIT, "NumStreamsWithPartialLeases", family=_F["streams_with_holes"])
AUDIT_SYNCS: Final = Metric(_AUDIT, "NumStreamsToSync", family=_F["shard_syncs"])
AUDIT_SKIPPED: Final = Metric(_AUDIT, "NumSkippedShardSyncTask", family=_F["shard_syncs_skipped"])


_STREAMS: Final = "MultiStreamTracker"
STREAMS_ACTIVE: Final = Metric(_STREAMS, "ActiveStreams.Count", family=_F["streams_active"])
STREAMS_PENDING: Final = Metric(_STREAMS, "StreamsPendingDeletion.Count", family=_F["streams_former"])
STREAMS_NOT_FOUND: Final = Metric(
    _STREAMS, "NonExistingStreamDelete.Count", family=_F["streams_deleted_not_found"]
)
STREAMS_DELETED: Final = Metric(_STREAMS, "DeletedStreams.Count", family=_F["streams_deleted"])


_MIGRATION: Final = "Migration"
MIGRATION_FAULT: Final = Metric(_MIGRATION, "Fault", family=_F["migration_faults"])
MIGRATION_INDEX: Final = Metric(_MIGRATION, "GsiReadyStatus", family=_F["migration_index_ready"])
MIGRATION_REPORTS: Final = Metric(
    _MIGRATION, "WorkerMetricsReadyStatus", family=_F["migration_workers_ready"]
)
MIGRATION_3X: Final = Metric(_MIGRATION, "CurrentState:3xWorker")
MIGRATION_2X: Final = Metric(_MIGRATION, "CurrentState:2xCompatibleWorker")

_TABLE_INITIALIZE: Final = "TableMigrationInitialize"
TABLE_INITIALIZE: Final = operation(_TABLE_INITIALIZE)
TABLE_INITIALIZE_FAULT: Final = Metric(_TABLE_INITIALIZE, "ReadFault")

_TABLE: Final = "TableMigration"
_TABLE_WORKERS: Final = _F["table_migration_workers"]
_TABLE_FAULTS: Final = _F["table_migration_faults"]
TABLE: Final = operation(_TABLE, success=False)
TABLE_STATUS: Final = Metric(_TABLE, "StatusOrdinal", MetricUnit.NONE, family=_F["table_migration_status"])
TABLE_BEFORE: Final = Metric(_TABLE, "PrePhase1Worker", family=_TABLE_WORKERS, fixed=(("phase", "before"),))
TABLE_PHASE_1: Final = Metric(_TABLE, "Phase1Worker", family=_TABLE_WORKERS, fixed=(("phase", "1"),))
TABLE_PHASE_2: Final = Metric(_TABLE, "Phase2Worker", family=_TABLE_WORKERS, fixed=(("phase", "2"),))
TABLE_READ_FAULT: Final = Metric(_TABLE, "ReadFault", family=_TABLE_FAULTS, fixed=(("step", "read"),))
TABLE_WRITE_FAULT: Final = Metric(_TABLE, "WriteFault", family=_TABLE_FAULTS, fixed=(("step", "write"),))
TABLE_DELETE_FAULT: Final = Metric(_TABLE, "DeleteFault", family=_TABLE_FAULTS, fixed=(("step", "delete"),))
TABLE_COMPLETE_FAULT: Final = Metric(
    _TABLE, "CompletionFault", family=_TABLE_FAULTS, fixed=(("step", "complete"),)
)

_TABLE_MOVE: Final = "TableMigrationAsyncMove"
TABLE_MOVE: Final = operation(_TABLE_MOVE)
TABLE_MOVE_BATCHES: Final = Metric(_TABLE_MOVE, "BatchCount")


INITIALIZE_CHILD: Final = operation("InitializeTask", "RecordProcessor.initialize", success=False)

_PROCESS: Final = "ProcessTask"
PROCESS: Final = operation(_PROCESS, labels=SHARD)
PROCESS_CHILD: Final = operation(_PROCESS, "RecordProcessor.processRecords", success=False, labels=SHARD)
PROCESS_READ: Final = operation(_PROCESS, "KinesisDataFetcher.getRecords", level=_D, labels=SHARD)
PROCESS_ITERATOR: Final = operation(_PROCESS, "KinesisDataFetcher.getShardIterator", level=_D, labels=SHARD)
PROCESS_CHECKPOINT: Final = operation(_PROCESS, "UpdateLease", level=_D, labels=SHARD)
PROCESS_RECORDS: Final = Metric(_PROCESS, "RecordsProcessed", labels=SHARD, family=_F["processed_records"])
PROCESS_BYTES: Final = Metric(
    _PROCESS, "DataBytesProcessed", MetricUnit.BYTES, labels=SHARD, family=_F["processed_bytes"]
)
SHARD_BEHIND: Final = Family(
    "shard_behind_latest",
    MetricKind.GAUGE,
    "The age of the oldest record of a shard that is not done: not read yet, waiting for the child, or with the child. 0: all are done.",
    SHARD,
    MetricUnit.SECONDS,
    from_snapshot=True,
)
PROCESS_BEHIND: Final = Metric(
    _PROCESS, "MillisBehindLatest", MetricUnit.SECONDS, labels=SHARD, family=SHARD_BEHIND
)
PROCESS_EXPIRED: Final = Metric(_PROCESS, "ExpiredIterator", family=_F["expired_iterators"])

APPLICATION_BEHIND: Final = Metric("ApplicationTracker", "MillisBehindLatest", MetricUnit.SECONDS)

_SHUTDOWN: Final = "ShutdownTask"
SHUTDOWN_CHILD: Final = operation(_SHUTDOWN, "RecordProcessor.shutdown", success=False)
SHUTDOWN_CREATE: Final = operation(_SHUTDOWN, "CreateLease", level=_D)
SHUTDOWN_CREATE_AT: Final = operation(_SHUTDOWN, "CreateLease_TRIM_HORIZON", level=_D, time=False)
SHUTDOWN_CHILDREN: Final = operation(_SHUTDOWN, "UpdateLease", level=_D, labels=SHARD)
SHUTDOWN_NO_PARENT: Final = Metric(_SHUTDOWN, "MissingMergeParent", family=_F["merge_parents_missing"])
SHUTDOWN_NO_PARENT_LEASE: Final = Metric(
    _SHUTDOWN, "MissingMergeParentLease", family=_F["merge_parent_leases_missing"]
)
