"""The properties of balance: how the leader shares out leases, and how a lease changes hands.

Pure data, part of the table in `keys`. Java's beans for them can be written out as a prefix.
"""

from __future__ import annotations

from math import inf
from typing import Final

from kcl_daemon.config.key import MILLISECONDS, MILLISECONDS_OR_NONE, Key
from kcl_daemon.config.kinds import INT_MAX, choice, duration, number, truth, whole_number
from kcl_daemon.config.settings import AssignmentStrategy

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
            "dampeningPercentageValue",  # so called in a guide of AWS; Java's code does not know it
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
