"""The samples behind the sparklines: bounded, near each other while somebody looks."""

from __future__ import annotations

from dataclasses import replace

from kcl_daemon.admin.view import (
    MAX_SAMPLES,
    UNWATCHED_EVERY_S,
    WATCHED_EVERY_S,
    WATCHED_FOR_S,
    ThroughputHistory,
)
from tests.unit.admin.stage import READING, READY

KEY = READING.key


def test_samples_are_reported_by_their_age_the_oldest_first() -> None:
    history = ThroughputHistory()
    for at_s in (10.0, 12.0):
        history.remember(replace(READY, shards=(replace(READING, bytes_per_s=at_s),)), at_s)
    assert history.of(KEY, 13.0) == [(3.0, 10.0), (1.0, 12.0)]
    assert history.of("another", 13.0) == []


def test_the_history_keeps_at_most_its_number_of_samples() -> None:
    history = ThroughputHistory()
    for number in range(3 * MAX_SAMPLES):
        history.remember(READY, float(number))
    assert len(history.of(KEY, 0.0)) == MAX_SAMPLES


def test_a_lease_that_is_held_no_more_has_only_what_was_before() -> None:
    history = ThroughputHistory()
    history.remember(READY, 1.0)
    history.remember(replace(READY, shards=()), 2.0)
    assert history.of(KEY, 2.0) == [(1.0, READING.bytes_per_s)]


def test_samples_lie_far_apart_until_somebody_looks() -> None:
    history = ThroughputHistory()
    assert history.is_due(0.0)
    history.remember(READY, 0.0)
    assert not history.is_due(UNWATCHED_EVERY_S - 0.1)
    assert history.is_due(UNWATCHED_EVERY_S)
    history.checked(1.0)
    assert history.is_due(WATCHED_EVERY_S)
    assert history.every_s(1.0 + WATCHED_FOR_S) == UNWATCHED_EVERY_S
