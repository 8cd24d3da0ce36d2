"""Settings and properties of leases: balancing, handoff, shard sync, cleanup, migration from KCL 2.x.

The keys say what the fields mean.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, StrEnum
from math import inf
from typing import Final

from kcl_daemon.config.kinds import (
    INT_MAX,
    MILLISECONDS,
    MILLISECONDS_OR_NONE,
    InvalidValue,
    Key,
    ValueKind,
    choice,
    duration,
    number,
    trimmed,
    truth,
    whole_number,
)


class ClientVersionConfig(StrEnum):
    V2X_PHASE_1 = "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1"
    V2X = "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X"
    V3X = "CLIENT_VERSION_CONFIG_3X"


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    """Leases and the fleet.

    Args:
        failover_time_ms: a lease whose counter has not changed for this long may be taken.
        leader_lease_ms: written to the lock row, where Java workers read it; longer in an idle fleet
            (`Timings.term`).
        graceful_handoff: False: a lease is taken at once.
        max_leases_to_steal: per run, with 2.x workers.
        priority_assignment: with 2.x workers.
    """

    failover_time_ms: int = 10_000
    max_leases_for_worker: int = 2**31 - 1
    parent_shard_poll_interval_ms: int = 10_000
    leader_lease_ms: int = 12_000
    leader_heartbeat_ms: int = 3_000
    worker_metrics_report_ms: int = 30_000
    handoff_timeout_ms: int = 30_000
    graceful_handoff: bool = True
    client_version_config: ClientVersionConfig = ClientVersionConfig.V3X
    max_leases_to_steal: int = 1
    priority_assignment: bool = True
    start_backoff_ms: int = 1_000
    task_backoff_ms: int = 500


class AssignmentStrategy(Enum):
    WORKER_UTILIZATION_AWARE = "WORKER_UTILIZATION_AWARE"
    LEASE_COUNT_BASED = "LEASE_COUNT_BASED"


@dataclass(frozen=True, slots=True)
class BalanceSettings:
    """The leader's settings count for all workers.

    Args:
        max_throughput_per_host_kbps: KiB per second.
        variance_balancing_frequency: balance in every n-th assignment interval.
        worker_metrics_ema_alpha: weight of the newer value.
        assignment_interval_ms: None: twice the failover time.
    """

    strategy: AssignmentStrategy = AssignmentStrategy.WORKER_UTILIZATION_AWARE
    disable_worker_metrics: bool = False
    capture_ms: int = 1_000
    max_throughput_per_host_kbps: float = inf
    dampening_percentage: int = 60
    rebalance_threshold_percentage: int = 10
    allow_throughput_overshoot: bool = True
    variance_balancing_frequency: int = 3
    worker_metrics_ema_alpha: float = 0.5
    assignment_interval_ms: int | None = None
    stale_worker_s: float = 86_400.0
    persisted_averages: int = 10


_HANDOFF_BEAN: Final = "gracefulLeaseHandoffConfigBean"
_UTILIZATION_BEAN: Final = "workerUtilizationAwareAssignmentConfigBean"
_PERCENT: Final = whole_number(1, 100, "percent")

HANDOFF_KEYS: Final[tuple[Key, ...]] = (
    Key(
        "isGracefulLeaseHandoffEnabled",
        truth(),
        "leases.graceful_handoff",
        "Whether the child may finish before its lease moves. If not, the lease is taken immediately.",
        aliases=(f"{_HANDOFF_BEAN}.isGracefulLeaseHandoffEnabled",),
    ),
    Key(
        "gracefulLeaseHandoffTimeoutMillis",
        MILLISECONDS_OR_NONE,
        "leases.handoff_timeout_ms",
        "How long a graceful handoff may take. Then the lease moves anyway.",
        aliases=(f"{_HANDOFF_BEAN}.gracefulLeaseHandoffTimeoutMillis",),
    ),
)

BALANCE_KEYS: Final[tuple[Key, ...]] = (
    Key(
        "leaseAssignmentStrategy",
        choice({strategy.value: strategy for strategy in AssignmentStrategy}),
        "balance.strategy",
        "Whether leases are balanced by the load of the workers or by number of leases. The leader's "
        "setting applies.",
        extension=True,
    ),
    Key(
        "leaseAssignmentIntervalMillis",
        MILLISECONDS,
        "balance.assignment_interval_ms",
        "Load is balanced every `leaseAssignmentIntervalMillis` times `varianceBalancingFrequency`.",
        default="twice `failoverTimeMillis`",
    ),
    Key(
        "varianceBalancingFrequency",
        whole_number(1, INT_MAX, "intervals"),
        "balance.variance_balancing_frequency",
        "Load is balanced once in this many `leaseAssignmentIntervalMillis`.",
        aliases=(f"{_UTILIZATION_BEAN}.varianceBalancingFrequency",),
    ),
    Key(
        "reBalanceThresholdPercentage",
        _PERCENT,
        "balance.rebalance_threshold_percentage",
        "Leases move when the load of a worker differs from its fair share by more than this.",
        aliases=(f"{_UTILIZATION_BEAN}.reBalanceThresholdPercentage",),
    ),
    Key(
        "dampeningPercentage",
        _PERCENT,
        "balance.dampening_percentage",
        "How much of a worker's excess load moves away in one balancing run.",
        aliases=(
            "dampeningPercentageValue",  # from a guide of AWS; Java's code does not know it
            f"{_UTILIZATION_BEAN}.dampeningPercentage",
            f"{_UTILIZATION_BEAN}.dampeningPercentageValue",
        ),
    ),
    Key(
        "allowThroughputOvershoot",
        truth(),
        "balance.allow_throughput_overshoot",
        "Whether the smallest lease of a worker may move if every lease is larger than the worker's "
        "excess load.",
        aliases=(f"{_UTILIZATION_BEAN}.allowThroughputOvershoot",),
    ),
    Key(
        "maxThroughputPerHostKBps",
        number(above=0, high=inf, unit="KiB per second"),
        "balance.max_throughput_per_host_kbps",
        "A worker that reads more than this gets no further lease.",
        aliases=(f"{_UTILIZATION_BEAN}.maxThroughputPerHostKBps",),
        default="none: no limit",
    ),
    Key(
        "workerMetricsEMAAlpha",
        number(above=0, high=1),
        "balance.worker_metrics_ema_alpha",
        "Weight of the newest value in the moving average of a worker's metrics.",
        aliases=(f"{_UTILIZATION_BEAN}.workerMetricsEMAAlpha",),
    ),
    Key(
        "disableWorkerMetrics",
        truth(),
        "balance.disable_worker_metrics",
        "Whether this worker does not report its CPU. Its throughput is used instead.",
        aliases=(f"{_UTILIZATION_BEAN}.disableWorkerMetrics",),
    ),
    Key(
        "inMemoryWorkerMetricsCaptureFrequencyMillis",
        MILLISECONDS,
        "balance.capture_ms",
        "How often CPU is measured.",
        aliases=(f"{_UTILIZATION_BEAN}.inMemoryWorkerMetricsCaptureFrequencyMillis",),
    ),
    Key(
        "noOfPersistedMetricsPerWorkerMetrics",
        whole_number(1, 100, "averages"),
        "balance.persisted_averages",
        "How many CPU averages the row of a worker holds. Leaders use their moving average.",
        aliases=(f"{_UTILIZATION_BEAN}.noOfPersistedMetricsPerWorkerMetrics",),
    ),
    Key(
        "staleWorkerMetricsEntryCleanupDuration",
        duration(),
        "balance.stale_worker_s",
        "Rows of workers that are silent for longer are deleted.",
        aliases=(f"{_UTILIZATION_BEAN}.staleWorkerMetricsEntryCleanupDuration",),
        default="P1D",
    ),
)


VERSION_KEYS: Final[tuple[Key, ...]] = (
    Key(
        "clientVersionConfig",
        choice({config.value: config for config in ClientVersionConfig}),
        "leases.client_version_config",
        "Whether the application migrates from KCL 2.x: `..._COMPATIBLE_WITH_2X` until all workers are "
        "3.x and you have observed the upgrade for a while, then `..._3X`. See `kcl-daemon migrate`.",
    ),
    Key(
        "maxLeasesToStealAtOneTime",
        whole_number(1, INT_MAX, "leases"),
        "leases.max_leases_to_steal",
        "In a fleet with 2.x workers: maximum number of leases that this worker takes from live workers "
        "in one run.",
    ),
    Key(
        "enablePriorityLeaseAssignment",
        truth(),
        "leases.priority_assignment",
        "In a fleet with 2.x workers: whether leases that have not been renewed for three failover "
        "times are taken regardless of a fair share.",
    ),
)


class ShardSyncStrategy(Enum):
    SHARD_END = "SHARD_END"
    PERIODIC = "PERIODIC"


@dataclass(frozen=True, slots=True)
class ShardSettings:
    """Shard sync, audit and cleanup; the leader's settings count.

    Args:
        audit_confidence: audits in a row.
        ignore_unexpected_children: False: create no lease while there are such shards.
        waiting_generations_most: None: assign in any order.
    """

    sync_strategy: ShardSyncStrategy = ShardSyncStrategy.SHARD_END
    audit_ms: int = 120_000
    audit_confidence: int = 3
    ignore_unexpected_children: bool = False
    cleanup_finished: bool = True
    cleanup_ms: int = 60_000
    cleanup_completed_ms: int = 300_000
    cleanup_garbage_ms: int = 1_800_000
    waiting_generations_most: int | None = None


_CLEANUP_BEAN: Final = "leaseCleanupConfig"
_PARENTS_FIRST: Final = re.compile(r"PARENTS_FIRST(?::([0-9]{1,9}))?")


def prioritization() -> ValueKind:
    """`NONE` gives None, `PARENTS_FIRST` a number of generations."""

    def read(text: str) -> int | None:
        word = trimmed(text).upper()
        if word == "NONE":
            return None
        match = _PARENTS_FIRST.fullmatch(word)
        if match is None:
            raise InvalidValue("not an allowed value")
        return int(match[1] or 0)

    return ValueKind(read, "NONE or PARENTS_FIRST or PARENTS_FIRST:GENERATIONS")


SHARD_KEYS: Final[tuple[Key, ...]] = (
    Key(
        "shardSyncStrategyType",
        choice({strategy.value: strategy for strategy in ShardSyncStrategy}),
        "shards.sync_strategy",
        "SHARD_END: child shards get their leases when their parents end, and the leader looks for "
        "holes. PERIODIC: at each audit the leader also compares all shards with all leases, and "
        "creates the leases of a whole lineage at once.",
        extension=True,
    ),
    Key(
        "leasesRecoveryAuditorExecutionFrequencyMillis",
        MILLISECONDS,
        "shards.audit_ms",
        "How often the leader audits the leases for holes: parts of the hash range without a lease.",
        extension=True,
    ),
    Key(
        "leasesRecoveryAuditorInconsistencyConfidenceThreshold",
        whole_number(1, INT_MAX, "audits"),
        "shards.audit_confidence",
        "A hole is filled after it was seen in this many audits in a row.",
        extension=True,
    ),
    Key(
        "ignoreUnexpectedChildShards",
        truth(),
        "shards.ignore_unexpected_children",
        "Whether shards whose parent is still open are ignored. If not, no lease is created while such "
        "shards exist.",
    ),
    Key(
        "cleanupLeasesUponShardCompletion",
        truth(),
        "shards.cleanup_finished",
        "Whether the leases of finished shards are deleted once their child shards are being read. Java "
        "ignores `false`.",
    ),
    Key(
        "leaseCleanupIntervalMillis",
        MILLISECONDS,
        "shards.cleanup_ms",
        "How often the leader looks for leases to delete.",
        aliases=(f"{_CLEANUP_BEAN}.leaseCleanupIntervalMillis",),
        extension=True,
    ),
    Key(
        "completedLeaseCleanupIntervalMillis",
        MILLISECONDS,
        "shards.cleanup_completed_ms",
        "Minimum time between two cleanups of finished leases.",
        aliases=(f"{_CLEANUP_BEAN}.completedLeaseCleanupIntervalMillis",),
        extension=True,
    ),
    Key(
        "garbageLeaseCleanupIntervalMillis",
        MILLISECONDS,
        "shards.cleanup_garbage_ms",
        "Minimum time between two checks for finished leases whose shards no longer exist in Kinesis.",
        aliases=(f"{_CLEANUP_BEAN}.garbageLeaseCleanupIntervalMillis",),
        extension=True,
    ),
    Key(
        "shardPrioritization",
        prioritization(),
        "shards.waiting_generations_most",
        "PARENTS_FIRST: leases of parents are assigned first; a lease that waits for more generations "
        "of unfinished parents than GENERATIONS (default 0) is not assigned. Java refuses any value.",
        default="NONE",
        extension=True,
    ),
)
