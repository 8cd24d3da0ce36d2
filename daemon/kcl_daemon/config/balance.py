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
    Form,
    InvalidValue,
    ValueKind,
    duration,
    in_any_case,
    java,
    member,
    number,
    ours,
    trimmed,
    truth,
    whole_number,
)

# Java's beans; their properties count under `bean.name`, too.
_HANDOFF: Final = "gracefulLeaseHandoffConfigBean"
_UTILIZATION: Final = "workerUtilizationAwareAssignmentConfigBean"
_CLEANUP: Final = "leaseCleanupConfig"
_PERCENT: Final = whole_number(1, 100, "percent")
_PARENTS_FIRST: Final = re.compile(r"PARENTS_FIRST(?::([0-9]{1,9}))?")


class ClientVersionConfig(StrEnum):
    V2X_PHASE_1 = "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1"
    V2X = "CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X"
    V3X = "CLIENT_VERSION_CONFIG_3X"


@dataclass(frozen=True, slots=True)
class LeaseSettings:
    failover_time_ms: int = java("failoverTimeMillis", MILLISECONDS, 10_000)
    """A lease that is not renewed for this long goes to another worker."""
    max_leases_for_worker: int = java("maxLeasesForWorker", whole_number(1, INT_MAX, "leases"), INT_MAX)
    """Maximum number of leases, and so of children, of this worker."""
    parent_shard_poll_interval_ms: int = java("parentShardPollIntervalMillis", MILLISECONDS, 10_000)
    """How often a shard checks whether its parents are finished."""
    worker_metrics_report_ms: int = java(
        "workerMetricsReporterFreqInMillis", MILLISECONDS, 30_000, bean=_UTILIZATION
    )
    """How often a worker writes its row in the worker metrics table."""
    start_backoff_ms: int = java("schedulerInitializationBackoffTimeMillis", MILLISECONDS_OR_NONE, 1_000)
    """Pause between the 20 attempts to start while a service is busy or does not answer."""
    task_backoff_ms: int = java("taskBackoffTimeMillis", MILLISECONDS_OR_NONE, 500)
    """First pause before a failed step at the end of a shard is retried; doubles up to 10 s. For failed
    children see `childRestartBackoffMillis`."""
    # Written to the lock row, where Java workers read it; `Timings.term` makes it longer in an idle fleet.
    leader_lease_ms: int = ours("leaderLeaseMillis", MILLISECONDS, 12_000)
    """How long a leader may be silent before another worker takes over. In a fleet with no more leases than
    workers, up to two and a half times that, but at most 30 s. Must be the same on all workers."""
    leader_heartbeat_ms: int = ours("leaderHeartbeatMillis", MILLISECONDS, 3_000)
    """How often the leader renews its lock. Must be less than a third of `leaderLeaseMillis`."""
    graceful_handoff: bool = java("isGracefulLeaseHandoffEnabled", truth(), default=True, bean=_HANDOFF)
    """Whether the child may finish before its lease moves. If not, the lease is taken immediately."""
    handoff_timeout_ms: int = java(
        "gracefulLeaseHandoffTimeoutMillis", MILLISECONDS_OR_NONE, 30_000, bean=_HANDOFF
    )
    """How long a graceful handoff may take. Then the lease moves anyway."""
    standby_ms: int = ours("childStandbyMillis", MILLISECONDS_OR_NONE, 40_000)
    """At a graceful handoff the next owner starts its child first, and the old one reads on until the child
    [stands by](concurrency.md#standing-by), at most for this long. Then `gracefulLeaseHandoffTimeoutMillis`
    begins. 0: its child is started when the lease has come."""
    client_version_config: ClientVersionConfig = java(
        "clientVersionConfig", member(ClientVersionConfig), ClientVersionConfig.V3X
    )
    """Whether the application migrates from KCL 2.x: `..._COMPATIBLE_WITH_2X` until all workers are 3.x and
    you have observed the upgrade for a while, then `..._3X`. See `kcl-daemon migrate`."""
    max_leases_to_steal: int = java("maxLeasesToStealAtOneTime", whole_number(1, INT_MAX, "leases"), 1)
    """In a fleet with 2.x workers: maximum number of leases that this worker takes from live workers in one
    run."""
    priority_assignment: bool = java("enablePriorityLeaseAssignment", truth(), default=True)
    """In a fleet with 2.x workers: whether leases that have not been renewed for three failover times are
    taken regardless of a fair share."""


class AssignmentStrategy(Enum):
    WORKER_UTILIZATION_AWARE = "WORKER_UTILIZATION_AWARE"
    LEASE_COUNT_BASED = "LEASE_COUNT_BASED"


@dataclass(frozen=True, slots=True)
class CapacitySettings:
    service_level_ms: int = ours("serviceLevelMillis", MILLISECONDS, 60_000)
    """How old the oldest record that is not finished may be. The number of
    [workers wanted](scaling.md#capacity) is the one that keeps or reaches this. The leader's setting applies."""
    scale_to_zero: bool = ours("scaleToZero", truth(), default=False)
    """Whether 0 workers may be [wanted](scaling.md#capacity) when nothing is left to do. Something must then ask
    `kcl-daemon capacity` whether there are new records: it looks into the stream while no worker runs."""


@dataclass(frozen=True, slots=True)
class BalanceSettings:
    strategy: AssignmentStrategy = ours(
        "leaseAssignmentStrategy", member(AssignmentStrategy), AssignmentStrategy.WORKER_UTILIZATION_AWARE
    )
    """Whether leases are balanced by the load of the workers or by number of leases. The leader's setting
    applies."""
    assignment_interval_ms: int | None = java(
        "leaseAssignmentIntervalMillis", MILLISECONDS, None, shown="twice `failoverTimeMillis`"
    )
    """Load is balanced every `leaseAssignmentIntervalMillis` times `varianceBalancingFrequency`."""
    variance_balancing_frequency: int = java(
        "varianceBalancingFrequency", whole_number(1, INT_MAX, "intervals"), 3, bean=_UTILIZATION
    )
    """Load is balanced once in this many `leaseAssignmentIntervalMillis`."""
    rebalance_threshold_percentage: int = java(
        "reBalanceThresholdPercentage", _PERCENT, 10, bean=_UTILIZATION
    )
    """Leases move when the load of a worker differs from its fair share by more than this."""
    dampening_percentage: int = java(
        "dampeningPercentage",
        _PERCENT,
        60,
        aliases=("dampeningPercentageValue",),  # from a guide of AWS; Java's code does not know it
        bean=_UTILIZATION,
    )
    """How much of a worker's excess load moves away in one balancing run, but at least one lease that fits
    it. A lower value is more gradual. AWS's guide names 80 as the default; KCL's code has 60, as here."""
    allow_throughput_overshoot: bool = java(
        "allowThroughputOvershoot", truth(), default=True, bean=_UTILIZATION
    )
    """Whether the smallest lease of a worker may move if every lease is larger than the worker's excess
    load."""
    max_throughput_per_host_kbps: float = java(
        "maxThroughputPerHostKBps",
        number(above=0, high=inf, unit="KiB per second"),
        inf,
        bean=_UTILIZATION,
        shown="none: no limit",
    )
    """A worker that reads more than this gets no further lease."""
    worker_metrics_ema_alpha: float = java(
        "workerMetricsEMAAlpha", number(above=0, high=1), 0.5, bean=_UTILIZATION
    )
    """Weight of the newest value in the moving average of a worker's metrics."""
    disable_worker_metrics: bool = java("disableWorkerMetrics", truth(), default=False, bean=_UTILIZATION)
    """Whether this worker does not report its CPU. Its throughput is used instead."""
    capture_ms: int = java(
        "inMemoryWorkerMetricsCaptureFrequencyMillis", MILLISECONDS, 1_000, bean=_UTILIZATION
    )
    """How often CPU is measured."""
    persisted_averages: int = java(
        "noOfPersistedMetricsPerWorkerMetrics", whole_number(1, 100, "averages"), 10, bean=_UTILIZATION
    )
    """How many CPU averages the row of a worker holds. Leaders use their moving average."""
    stale_worker_s: float = java(
        "staleWorkerMetricsEntryCleanupDuration", duration(), 86_400.0, bean=_UTILIZATION, shown="P1D"
    )
    """Rows of workers that are silent for longer are deleted."""


class ShardSyncStrategy(Enum):
    SHARD_END = "SHARD_END"
    PERIODIC = "PERIODIC"


def prioritization() -> ValueKind[int | None]:
    def read(text: str) -> int | None:
        word = trimmed(text).upper()
        if word == "NONE":
            return None
        match = _PARENTS_FIRST.fullmatch(word)
        if match is None:
            raise InvalidValue("not an allowed value")
        return int(match[1] or 0)

    form = Form(f"{in_any_case('PARENTS_FIRST')}(:[0-9]{{1,9}})?", ("NONE", "PARENTS_FIRST"))
    return ValueKind(read, "NONE or PARENTS_FIRST or PARENTS_FIRST:GENERATIONS", form=form)


@dataclass(frozen=True, slots=True)
class ShardSettings:
    sync_strategy: ShardSyncStrategy = ours(
        "shardSyncStrategyType", member(ShardSyncStrategy), ShardSyncStrategy.SHARD_END
    )
    """SHARD_END: child shards get their leases when their parents end, and the leader looks for holes.
    PERIODIC: at each audit the leader also compares all shards with all leases, and creates the leases of a
    whole lineage at once."""
    audit_ms: int = ours("leasesRecoveryAuditorExecutionFrequencyMillis", MILLISECONDS, 120_000)
    """How often the leader audits the leases for holes: parts of the hash range without a lease."""
    audit_confidence: int = ours(
        "leasesRecoveryAuditorInconsistencyConfidenceThreshold", whole_number(1, INT_MAX, "audits"), 3
    )
    """A hole is filled after it was seen in this many audits in a row."""
    ignore_unexpected_children: bool = java("ignoreUnexpectedChildShards", truth(), default=False)
    """Whether shards whose parent is still open are ignored. If not, no lease is created while such shards
    exist."""
    cleanup_finished: bool = java("cleanupLeasesUponShardCompletion", truth(), default=True)
    """Whether the leases of finished shards are deleted once their child shards are being read. Java ignores
    `false`."""
    cleanup_ms: int = ours("leaseCleanupIntervalMillis", MILLISECONDS, 60_000, bean=_CLEANUP)
    """How often the leader looks for leases to delete."""
    cleanup_completed_ms: int = ours(
        "completedLeaseCleanupIntervalMillis", MILLISECONDS, 300_000, bean=_CLEANUP
    )
    """Minimum time between two cleanups of finished leases."""
    cleanup_garbage_ms: int = ours(
        "garbageLeaseCleanupIntervalMillis", MILLISECONDS, 1_800_000, bean=_CLEANUP
    )
    """Minimum time between two checks for finished leases whose shards no longer exist in Kinesis."""
    waiting_generations_most: int | None = ours("shardPrioritization", prioritization(), None, shown="NONE")
    """PARENTS_FIRST: leases of parents are assigned first; a lease that waits for more generations of
    unfinished parents than GENERATIONS (default 0) is not assigned. Java refuses any value."""
    only: frozenset[str] = frozenset()
    """Empty: no shard is left out."""
