"""The properties of shards: their fields, their other names and their limits."""

from __future__ import annotations

import pytest

from kcl_daemon.config.balance import ShardSettings, ShardSyncStrategy
from tests.unit.config.helpers import read, refusals

CLEANUP_LINES = (
    ("leaseCleanupIntervalMillis", "10000"),
    ("completedLeaseCleanupIntervalMillis", "20000"),
    ("garbageLeaseCleanupIntervalMillis", "30000"),
)


@pytest.mark.parametrize("prefix", ["", "leaseCleanupConfig."], ids=["bare", "dotted"])
def test_each_property_of_the_clean_up_fills_its_field(prefix: str) -> None:
    loaded = read("".join(f"{prefix}{name} = {value}\n" for name, value in CLEANUP_LINES))
    assert loaded.settings.shards == ShardSettings(
        cleanup_ms=10_000, cleanup_completed_ms=20_000, cleanup_garbage_ms=30_000
    )
    assert loaded.warnings == ()


def test_the_auditor_has_the_defaults_of_java_and_can_be_configured() -> None:
    assert read().settings.shards == ShardSettings(audit_ms=120_000, audit_confidence=3)
    lines = (
        "leasesRecoveryAuditorExecutionFrequencyMillis = 500\n"
        "leasesRecoveryAuditorInconsistencyConfidenceThreshold = 1\n"
        "shardSyncStrategyType = periodic\n"
    )
    assert read(lines).settings.shards == ShardSettings(
        sync_strategy=ShardSyncStrategy.PERIODIC, audit_ms=500, audit_confidence=1
    )


def test_clean_up_can_be_switched_off_which_java_cannot() -> None:
    loaded = read("cleanupLeasesUponShardCompletion = false\n")
    assert loaded.settings.shards.cleanup_finished is False
    (notice,) = loaded.warnings
    assert (notice.event, notice.level) == ("property_honoured_unlike_java", "info")
    assert notice.facts == {"value": False, "java_uses": "true"}


@pytest.mark.parametrize(
    ("text", "generations"),
    [("none", None), ("PARENTS_FIRST", 0), ("parents_first:3", 3), (" PARENTS_FIRST:0 ", 0)],
)
def test_prioritization_is_a_word_and_a_number_of_generations(text: str, generations: int | None) -> None:
    assert read(f"shardPrioritization = {text}\n").settings.shards.waiting_generations_most == generations


@pytest.mark.parametrize(
    "line",
    [
        "shardPrioritization = PARENTS_FIRST:",
        "shardPrioritization = PARENTS_FIRST:-1",
        "shardPrioritization = 3",
        "shardSyncStrategyType = NEVER",
        "leasesRecoveryAuditorInconsistencyConfidenceThreshold = 0",
        "leaseCleanupIntervalMillis = 0",
    ],
)
def test_a_wrong_value_of_prioritization_or_shard_sync_is_one_error(line: str) -> None:
    assert len(refusals(f"{line}\n")) == 1
