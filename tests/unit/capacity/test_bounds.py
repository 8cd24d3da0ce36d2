from __future__ import annotations

from dataclasses import replace

import pytest

from kcl_daemon.capacity.figures import Bound, ShardObservation, bound_of

LATE = ShardObservation(600.0, busy=0.5, refused=0.0, memory=0.0, host_cpu=0.5)
BUSY = replace(LATE, busy=0.97)


@pytest.mark.parametrize(
    ("seen", "bound"),
    [
        (replace(BUSY, behind_s=2.0, host_cpu=0.99), Bound.NOTHING),
        (BUSY, Bound.CHILD),
        (replace(LATE, refused=0.6), Bound.READ_QUOTA),
        (replace(LATE, refused=0.6, host_cpu=0.95), Bound.READ_QUOTA),
        (replace(BUSY, hot_lane=True), Bound.HOT_KEY),
        (replace(BUSY, hot_lane=True, host_cpu=0.95), Bound.HOST_CPU),
        (replace(BUSY, host_cpu=0.95), Bound.HOST_CPU),
        (replace(LATE, host_cpu=0.95), Bound.HOST_CPU),
        (replace(LATE, memory=0.6), Bound.MEMORY),
        (replace(LATE, memory=0.6, refused=0.4), Bound.MEMORY),
        (replace(BUSY, host_cpu=0.95, paused=True), Bound.PAUSE),
        (replace(BUSY, host_cpu=0.95, limited=True), Bound.LIMIT),
        (replace(BUSY, host_cpu=0.95, downstream=True), Bound.DOWNSTREAM),
        (replace(BUSY, host_cpu=0.95, failing=True), Bound.FAILING),
        (replace(BUSY, host_cpu=0.95, hanging=True), Bound.HANGING),
        (replace(LATE, host_cpu=0.95, behind_s=None, not_read=True), Bound.REFUSED),
        (replace(LATE, failing=True, hanging=True), Bound.FAILING),
        (replace(LATE, paused=True, not_read=True), Bound.PAUSE),
        (replace(LATE, behind_s=None, paused=True, failing=True), Bound.PAUSE),
        (replace(BUSY, behind_s=None), Bound.UNKNOWN),
        (replace(BUSY, host_cpu=None), Bound.UNKNOWN),
        (LATE, Bound.UNKNOWN),
    ],
)
def test_the_bound_of_a_shard_follows_from_its_figures(seen: ShardObservation, bound: Bound) -> None:
    assert bound_of(seen) is bound


def test_a_shard_that_keeps_up_is_held_by_a_pause_all_the_same() -> None:
    assert bound_of(replace(LATE, behind_s=0.0, paused=True)) is Bound.PAUSE
