"""The pause between reads: 0 is the default, as Java passes on no primitive 0; `auto` is ours."""

from __future__ import annotations

import pytest

from kcl_daemon.app import stall_limits_of
from kcl_daemon.config.load import as_properties, effective
from kcl_daemon.context import timings
from kcl_daemon.errors import ConfigurationError
from tests.unit.config.helpers import read


@pytest.mark.parametrize(
    "key", ["idleTimeBetweenReadsInMillis", "pollingConfig.idleTimeBetweenReadsInMillis"]
)
def test_a_pause_of_0_is_the_default_as_in_java(key: str) -> None:
    loaded = read(f"{key} = 0\nmaxRecords = 5\n")
    assert loaded.settings.retrieval.idle_time_between_reads_ms == 1_500
    (notice,) = loaded.warnings
    assert (notice.event, notice.level, notice.line) == ("property_raised", "warning", 4)
    assert notice.facts == {"given": 0, "used": 1_500, "why": "0 means the default, as in Java"}


def test_the_shortest_pause_that_is_meant_is_what_kinesis_allows() -> None:
    loaded = read("idleTimeBetweenReadsInMillis = 1\n")
    assert loaded.settings.retrieval.idle_time_between_reads_ms == 200
    (notice,) = loaded.warnings
    assert notice.facts["why"] == "Kinesis allows five reads per second and shard"


@pytest.mark.parametrize("value", ["auto", "Auto", " AUTO "])
def test_auto_is_kept_shown_and_written_as_auto(value: str) -> None:
    loaded = read(f"idleTimeBetweenReadsInMillis = {value}\n")
    assert loaded.settings.retrieval.idle_time_between_reads_ms is None
    assert not loaded.warnings
    (shown,) = [each for each in effective(loaded) if each.key == "idleTimeBetweenReadsInMillis"]
    assert (shown.value, shown.is_default) == ("auto", False)
    assert read(as_properties(loaded)).settings.retrieval == loaded.settings.retrieval


def test_auto_and_another_rule_for_the_pace_do_not_go_together() -> None:
    reduced = "millisBehindLatestThresholdForReducedTps"
    with pytest.raises(ConfigurationError, match=f"{reduced}.*remove one of both lines"):
        read(f"idleTimeBetweenReadsInMillis = auto\n{reduced} = 3000\n")
    assert (
        read(f"idleTimeBetweenReadsInMillis = auto\n{reduced} = 0\n").settings.retrieval.reduced_tps_within_ms
        == 0
    )


def test_a_shard_that_is_read_rarely_with_auto_does_not_count_as_stalled() -> None:
    def answer_s(value: str) -> float:
        settings = read(f"idleTimeBetweenReadsInMillis = {value}\n").settings
        return stall_limits_of(settings, timings(settings.leases, settings.balance)).answer_s

    assert answer_s("auto") == answer_s("2000")
