"""The list of metrics: KCL's are all there, names follow the rules of Prometheus, and the page is what the list says."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from kcl_daemon.metrics import kcl
from kcl_daemon.metrics.metric import MetricKind, MetricLevel, MetricUnit, Operation
from kcl_daemon.telemetry.recorder import CLOUDWATCH_METRICS, OWN
from tools.metrics_reference import FAMILIES, JAVA_ONLY, reference

ROOT = Path(__file__).parents[3]
SHARD_METRICS = {"ProcessTask", "ShutdownTask"}

# KCL 3.5.1, operation by operation; `*` stands for Success and Time, (D) begins those of level DETAILED.
KCL = """
Scheduler:Initialize: Initialize.Success
LeaderDecider: (D) LeaderDecider:IsLeader DeterministicShuffleShardSyncLeaderDecider DynamoDBLockBasedLeaderDecider
LeaseAssignmentManager: * TotalLeases NumWorkers ExpiredLeases LeaseSpillover NumOfLeasesReassignment
  NumWorkersWithInvalidEntry NumWorkersWithFailingWorkerMetric LeaseDeserializationFailureCount ForceLeaderRelease
  (D) LeaseAndWorkerMetricsLoad.Time AssignExpiredOrUnassignedLeases.Time BalanceWorkerVariance.Time
  ParallelyAssignLeases.* FailedAssignmentCount
WorkerMetrics: FleetMinSupportCode
WorkerMetricStatsReporter: * InMemoryMetricStatsReporterFailure
LeaseDiscovery: * GetLease:Error (D) ListLeaseKeysForWorker.Time FetchNewLeases.Time NewLeasesDiscovered OwnerMismatch
RenewAllLeases: * LostLeases CurrentLeases (D) RenewLease.*
LeaseRenewerInitialize: (D) Fault
TakeLeases: * TakenLeases UntakenLeases ExpiredLeases LeaseSpillover NumWorkers VeryOldLeases
  (D) ListLeases.* TakeLease.* LeasesToTake NeededLeases TotalLeases
ShardSyncTask: * (D) SyncShards.Success CreateLease.* CreateLease_TRIM_HORIZON.Success CreateLease_LATEST.Success
  CreateLease_AT_TIMESTAMP.Success CreateLease_SEQUENCE_NUMBER.Success
PeriodicShardSyncManager: * NumStreamsWithPartialLeases NumStreamsToSync NumSkippedShardSyncTask
MultiStreamTracker: ActiveStreams.Count StreamsPendingDeletion.Count NonExistingStreamDelete.Count DeletedStreams.Count
InitializeTask: RecordProcessor.initialize.Time
ProcessTask: RecordsProcessed DataBytesProcessed MillisBehindLatest * RecordProcessor.processRecords.Time ExpiredIterator
  (D) KinesisDataFetcher.getRecords.* KinesisDataFetcher.getShardIterator.* UpdateLease.*
ApplicationTracker: MillisBehindLatest
ShutdownTask: RecordProcessor.shutdown.Time MissingMergeParent MissingMergeParentLease
  (D) CreateLease.* CreateLease_TRIM_HORIZON.Success CreateLease_LATEST.Success CreateLease_AT_TIMESTAMP.Success
  CreateLease_SEQUENCE_NUMBER.Success UpdateLease.*
Migration: Fault GsiReadyStatus WorkerMetricsReadyStatus CurrentState:3xWorker CurrentState:2xCompatibleWorker
TableMigrationInitialize: * ReadFault
TableMigration: StatusOrdinal Phase1Worker Phase2Worker PrePhase1Worker ReadFault WriteFault DeleteFault CompletionFault Time
TableMigrationAsyncMove: BatchCount *
StreamIdFetch: Success QueueSize
"""


def of_kcl() -> dict[tuple[str, str], MetricLevel]:
    found: dict[tuple[str, str], MetricLevel] = {}
    for line in KCL.replace("\n  ", " ").strip().splitlines():
        operation, names = line.split(": ", 1)
        level = MetricLevel.SUMMARY
        for name in names.split():
            if name == "(D)":
                level = MetricLevel.DETAILED
                continue
            for ending in ("Success", "Time") if name.endswith("*") else ("",):
                found[operation, name.replace("*", "") + ending] = level
    return found


def test_all_of_kcl_is_listed_with_its_level_and_nothing_else() -> None:
    metrics = (*CLOUDWATCH_METRICS, *(metric for metric, _ in JAVA_ONLY))
    listed = {(metric.operation, metric.name): metric.level for metric in metrics}
    assert listed == of_kcl()
    assert len(metrics) == len(listed)


def test_dimensions_and_units_are_those_of_kcl() -> None:
    by_worker = {metric.operation for metric in CLOUDWATCH_METRICS if metric.by_worker}
    assert by_worker == {"WorkerMetricStatsReporter", "LeaseDiscovery", "RenewAllLeases", "TakeLeases"}
    assert {metric.operation for metric in CLOUDWATCH_METRICS if metric.labels} == SHARD_METRICS
    units = Counter(metric.unit for metric in CLOUDWATCH_METRICS)
    assert {metric.name for metric in CLOUDWATCH_METRICS if metric.unit is MetricUnit.BYTES} == {
        "DataBytesProcessed"
    }
    assert {metric.name for metric in CLOUDWATCH_METRICS if metric.unit is MetricUnit.NONE} == {
        "FleetMinSupportCode",
        "StatusOrdinal",
    }
    assert all(
        metric.unit is MetricUnit.SECONDS
        for metric in CLOUDWATCH_METRICS
        if metric.name.endswith((".Time", "Latest"))
    )
    assert units[MetricUnit.SECONDS] > 20


def test_names_of_families_follow_the_rules_of_prometheus() -> None:
    names = [family.name for family in FAMILIES]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    for family in FAMILIES:
        assert re.fullmatch(r"kcl_[a-z][a-z0-9_]*", family.name), family.name
        assert re.fullmatch(r"[A-Z].*\.", family.help), family.name
        assert not re.search(r"_(total|count|sum|bucket|info|created|ms|milliseconds)$", family.name), (
            family.name
        )
        # A name that ends in a unit is of that unit, and no other unit hides behind a name.
        assert family.name.endswith("_seconds") == (family.unit is MetricUnit.SECONDS), family.name
        assert family.name.endswith("_bytes") == (family.unit is MetricUnit.BYTES), family.name
        assert bool(family.buckets) == (family.kind is MetricKind.HISTOGRAM), family.name
        assert list(family.buckets) == sorted(family.buckets)
        assert all(re.fullmatch(r"[a-z][a-z0-9_]*", label) for label in family.labels)


def test_names_over_otlp_come_to_the_same_in_a_collector() -> None:
    units = {"s": "_seconds", "By": "_bytes", "": ""}
    for family in FAMILIES:
        collected = family.otlp_name.replace(".", "_") + units[family.otlp_unit]
        assert collected == family.name


def test_fixed_labels_are_labels_of_the_family() -> None:
    for metric in (*CLOUDWATCH_METRICS, *OWN):
        if metric.family is not None:
            assert {name for name, _ in metric.fixed} <= set(metric.family.labels)


def operations() -> list[Operation]:
    """All that KCL measures as a whole: whether it went well, and how long it took."""
    declared = [value for module in (kcl, kcl) for value in vars(module).values()]
    several = [each for value in declared if isinstance(value, dict) for each in value.values()]
    return [each for each in (*declared, *several) if isinstance(each, Operation)]


def test_everything_that_kcl_counts_can_be_seen_on_prometheus_or_is_a_part_of_it() -> None:
    timed = {part for operation in operations() for part in (operation.success, operation.time)}
    unseen = {metric.name for metric in CLOUDWATCH_METRICS if metric.family is None and metric not in timed}
    assert unseen == {
        "DeterministicShuffleShardSyncLeaderDecider",
        "DynamoDBLockBasedLeaderDecider",
        "LeasesToTake",
        "NeededLeases",
        "CurrentState:3xWorker",
        "CurrentState:2xCompatibleWorker",
        "ReadFault",  # of the start, which fails with an error of its own
        "MillisBehindLatest",  # of the application: the largest of its shards
        "BatchCount",
    }


def test_the_committed_page_is_what_the_list_says() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    assert page == reference(), "run: python -m tools.metrics_reference > docs/metrics.md"
