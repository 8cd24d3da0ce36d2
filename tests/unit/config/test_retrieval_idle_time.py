"""What a pause of 0 between reads is: the default, as Java passes on no primitive 0."""

from __future__ import annotations

import pytest

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
