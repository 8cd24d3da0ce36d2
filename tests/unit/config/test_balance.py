"""The properties of balance and of the hand-off: their fields, their other names and their limits."""

from __future__ import annotations

import pytest

from kcl_daemon.config.balance import AssignmentStrategy, BalanceSettings
from kcl_daemon.config.settings import BY_NAME
from tests.unit.config.helpers import read, refusals

UTILIZATION = "workerUtilizationAwareAssignmentConfigBean"
HANDOFF = "gracefulLeaseHandoffConfigBean"
UTILIZATION_LINES = (
    ("disableWorkerMetrics", "true"),
    ("inMemoryWorkerMetricsCaptureFrequencyMillis", "2000"),
    ("maxThroughputPerHostKBps", "1e3"),
    ("dampeningPercentage", "80"),
    ("reBalanceThresholdPercentage", "20"),
    ("allowThroughputOvershoot", "false"),
    ("varianceBalancingFrequency", "1"),
    ("workerMetricsEMAAlpha", "1"),
    ("staleWorkerMetricsEntryCleanupDuration", "PT15M"),
)
UTILIZATION_SETTINGS = BalanceSettings(
    disable_worker_metrics=True,
    capture_ms=2_000,
    max_throughput_per_host_kbps=1_000.0,
    dampening_percentage=80,
    rebalance_threshold_percentage=20,
    allow_throughput_overshoot=False,
    variance_balancing_frequency=1,
    worker_metrics_ema_alpha=1.0,
    stale_worker_s=900.0,
)


@pytest.mark.parametrize("prefix", ["", f"{UTILIZATION}."], ids=["bare", "dotted"])
def test_each_property_of_utilization_fills_its_field(prefix: str) -> None:
    loaded = read("".join(f"{prefix}{name} = {value}\n" for name, value in UTILIZATION_LINES))
    assert loaded.settings.balance == UTILIZATION_SETTINGS
    assert loaded.warnings == ()


@pytest.mark.parametrize("name", ["dampeningPercentageValue", f"{UTILIZATION}.dampeningPercentageValue"])
def test_dampening_has_the_name_of_the_guide_too(name: str) -> None:
    assert read(f"{name} = 100\n").settings.balance.dampening_percentage == 100


@pytest.mark.parametrize("prefix", ["", f"{HANDOFF}."], ids=["bare", "dotted"])
def test_a_hand_off_can_be_switched_off_and_its_time_be_none(prefix: str) -> None:
    loaded = read(
        f"{prefix}isGracefulLeaseHandoffEnabled = false\n{prefix}gracefulLeaseHandoffTimeoutMillis = 0\n"
    )
    assert loaded.settings.leases.graceful_handoff is False
    assert loaded.settings.leases.handoff_timeout_ms == 0
    assert loaded.warnings == ()


@pytest.mark.parametrize("strategy", list(AssignmentStrategy), ids=lambda strategy: strategy.value)
def test_a_strategy_is_a_word_in_any_case(strategy: AssignmentStrategy) -> None:
    for word in (strategy.value, strategy.value.lower(), f"{strategy.value.title()} "):
        assert read(f"leaseAssignmentStrategy = {word}\n").settings.balance.strategy is strategy


def test_the_interval_of_assignment_is_none_until_it_is_given() -> None:
    assert read().settings.balance.assignment_interval_ms is None
    settings = read("leaseAssignmentIntervalMillis = 20000\n").settings
    assert settings.balance.assignment_interval_ms == 20_000


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("leaseAssignmentStrategy", "RANDOM", "allowed: WORKER_UTILIZATION_AWARE or LEASE_COUNT_BASED"),
        ("leaseAssignmentIntervalMillis", "0", "out of range"),
        ("varianceBalancingFrequency", "0", "out of range; allowed: 1 to"),
        ("reBalanceThresholdPercentage", "0", "out of range; allowed: 1 to 100 percent"),
        ("reBalanceThresholdPercentage", "101", "out of range"),
        ("dampeningPercentageValue", "0", "out of range; allowed: 1 to 100 percent"),
        ("dampeningPercentage", "101", "out of range"),
        ("dampeningPercentage", "60.5", "not a whole number"),
        ("allowThroughputOvershoot", "maybe", "neither true nor false"),
        ("maxThroughputPerHostKBps", "0", "out of range; allowed: more than 0 KiB per second"),
        ("maxThroughputPerHostKBps", "lots", "not a number"),
        ("workerMetricsEMAAlpha", "0", "out of range; allowed: more than 0, at most 1"),
        ("workerMetricsEMAAlpha", "1.01", "out of range"),
        ("disableWorkerMetrics", "", "empty"),
        ("inMemoryWorkerMetricsCaptureFrequencyMillis", "0", "out of range"),
        (
            "staleWorkerMetricsEntryCleanupDuration",
            "1 day",
            "not a duration; allowed: more than 0, in ISO 8601 form",
        ),
        ("isGracefulLeaseHandoffEnabled", "", "empty"),
        ("gracefulLeaseHandoffTimeoutMillis", "-1", "out of range"),
    ],
)
def test_a_bad_value_is_refused_with_its_name(name: str, value: str, reason: str) -> None:
    (line,) = refusals(f"{name} = {value}\n")
    assert line.startswith(f"app.properties:4: {name} = {value}")
    assert reason in line


def test_the_default_that_the_reference_tells_in_words_is_that_of_the_settings() -> None:
    key = BY_NAME["staleWorkerMetricsEntryCleanupDuration"]
    assert key.default is not None
    assert key.kind.read(key.default) == BalanceSettings().stale_worker_s
