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
        "Whether the child of a lease that moves may finish first. If not, the lease is taken from its owner at once.",
        aliases=(f"{_HANDOFF_BEAN}.isGracefulLeaseHandoffEnabled",),
    ),
    Key(
        "gracefulLeaseHandoffTimeoutMillis",
        MILLISECONDS_OR_NONE,
        "leases.handoff_timeout_ms",
        "How long a graceful hand-off may take before the lease is moved all the same.",
        aliases=(f"{_HANDOFF_BEAN}.gracefulLeaseHandoffTimeoutMillis",),
    ),
)

BALANCE_KEYS: Final[tuple[Key, ...]] = (
    Key(
        "leaseAssignmentStrategy",
        choice({strategy.value: strategy for strategy in AssignmentStrategy}),
        "balance.strategy",
        "Whether leases are shared out by how busy the workers are, or by their number. The leader's counts.",
        extension=True,
    ),
    Key(
        "leaseAssignmentIntervalMillis",
        MILLISECONDS,
        "balance.assignment_interval_ms",
        "Times `varianceBalancingFrequency`, how often load is balanced.",
        default="twice `failoverTimeMillis`",
    ),
    Key(
        "varianceBalancingFrequency",
        whole_number(1, INT_MAX, "intervals"),
        "balance.variance_balancing_frequency",
        "Load is balanced once in so many `leaseAssignmentIntervalMillis`.",
        aliases=(f"{_UTILIZATION_BEAN}.varianceBalancingFrequency",),
    ),
    Key(
        "reBalanceThresholdPercentage",
        _PERCENT,
        "balance.rebalance_threshold_percentage",
        "Leases move when a worker is further than this from its fair share.",
        aliases=(f"{_UTILIZATION_BEAN}.reBalanceThresholdPercentage",),
    ),
    Key(
        "dampeningPercentage",
        _PERCENT,
        "balance.dampening_percentage",
        "How much of what a worker has too much leaves it in one balancing run.",
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
        "Whether the smallest lease of a worker may leave it where each is more than what the worker has too much.",
        aliases=(f"{_UTILIZATION_BEAN}.allowThroughputOvershoot",),
    ),
    Key(
        "maxThroughputPerHostKBps",
        number(above=0, high=inf, unit="KiB per second"),
        "balance.max_throughput_per_host_kbps",
        "A worker that reads more than this is given no further lease.",
        aliases=(f"{_UTILIZATION_BEAN}.maxThroughputPerHostKBps",),
        default="none: no limit",
    ),
    Key(
        "workerMetricsEMAAlpha",
        number(above=0, high=1),
        "balance.worker_metrics_ema_alpha",
        "Weight of the newest value in the moving average of a worker's figures.",
        aliases=(f"{_UTILIZATION_BEAN}.workerMetricsEMAAlpha",),
    ),
    Key(
        "disableWorkerMetrics",
        truth(),
        "balance.disable_worker_metrics",
        "Whether this worker reports no CPU figures; it is then judged by its throughput.",
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
        "How many averages of CPU a worker's row holds; leaders go by their moving average.",
        aliases=(f"{_UTILIZATION_BEAN}.noOfPersistedMetricsPerWorkerMetrics",),
    ),
    Key(
        "staleWorkerMetricsEntryCleanupDuration",
        duration(),
        "balance.stale_worker_s",
        "Rows of workers that have been silent for longer are deleted.",
        aliases=(f"{_UTILIZATION_BEAN}.staleWorkerMetricsEntryCleanupDuration",),
        default="P1D",
    ),
)
