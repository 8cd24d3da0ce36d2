"""Snapshots as a worker might give them."""

from __future__ import annotations

from dataclasses import replace

from kcl_daemon.capacity.figures import Bound, Capacity, StreamCapacity
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.progress.flow import LatencyHistogram
from kcl_daemon.progress.progress import WaitReason
from kcl_daemon.telemetry.helper_views import (
    LandingShardView,
    LandingTrouble,
    LandingView,
    SparkQueryView,
    SparkShardView,
    SparkView,
)
from kcl_daemon.telemetry.shards import ChildView, LanesView, LaneView, ShardView
from kcl_daemon.telemetry.snapshot import LatencyView, Snapshot

ENGINE = SparkView(
    ui=None,
    queries=(
        SparkQueryView("counts", True, 1, 12, 0.5, 100.0, 200.0, 1.25, 30, 4),
        SparkQueryView("raw", False, 6, None, 40.0, None, None, None, None, None),
    ),
    shards=(SparkShardView("shardId-000000000001", 0, 1000, 64_000, 900, 3, 100, 2.5, 6_400),),
)
LANDER = LandingView(
    shards=(
        LandingShardView("shardId-000000000001", 900, 64_000, 7, 6, 100, 6_400, 2.5, 1_700_000_000_000, 3),
    ),
    trouble=LandingTrouble("full", "no space left", 90.0),
)


def shard(
    number: int, *, stream_id: str | None = None, child: bool = True, behind_ms: int | None = 1500
) -> ShardView:
    return ShardView(
        key=f"shardId-{number:012d}",
        shard_id=f"shardId-{number:012d}",
        stream=None if stream_id is None else stream_id.split(":")[1],
        parents=(),
        cause=WaitReason.CHILD,
        waits_s=2.25,
        detail="",
        idle_s=3.5,
        stalled=number == 1,
        behind_ms=behind_ms,
        checkpoint="TRIM_HORIZON",
        records=10,
        data_bytes=1000,
        bytes_per_s=1.0,
        lag_s=None if behind_ms is None else 2 * behind_ms / 1000,
        restarts=3,
        uncheckpointed_s=None if behind_ms is None else 4.0,
        ahead_s=0.0 if behind_ms is None else 1.5,
        failures=number - 1,
        child=ChildView(pid=7, rss_bytes=2**20, running_s=1.0, restarts=3) if child else None,
        stream_id=stream_id,
    )


def lane(number: int, rss_bytes: int | None) -> LaneView:
    return LaneView(
        number=number,
        records=5,
        kept_bytes=700,
        cause=WaitReason.CHILD,
        waits_s=1.0,
        detail="",
        stalled=False,
        child=ChildView(pid=8 + number, rss_bytes=rss_bytes, running_s=1.0, restarts=0),
        failures=0,
        restarts=0,
        last_error="",
        stderr_tail=(),
        next_try_s=None,
    )


def with_lanes(number: int) -> ShardView:
    """Three of 16 children were started; the memory of one is not known yet."""
    lanes = (lane(1, 2**20), lane(2, 2**21), lane(5, None))
    return replace(shard(number, child=False), lanes=LanesView(16, 2, "00c0ffee", 12.5, 4096, lanes))


BEHIND = StreamCapacity(None, 2, 90.0, 2.5, 20.0, Bound.CHILD, "it works all the time", 10.0, 25.0)


def snapshot(
    *shards: ShardView, spark: SparkView | None = None, landing: LandingView | None = None
) -> Snapshot:
    return Snapshot(
        application='the "app"',
        worker_id="w-1",
        version="1.2.3",
        uptime_s=60.0,
        started=True,
        stopping=False,
        leads=True,
        leader="w-1",
        leaderless_s=None,
        renewed_s=1.0,
        shards=shards,
        clock_ahead_s=-0.4,
        spark=spark,
        landing=landing,
        latencies=latencies(*shards),
        capacity=Capacity(0, WorkerId("w-1"), 2, 0, 3, "a reason", "a sentence", "", BEHIND),
    )


def latencies(*shards: ShardView) -> tuple[LatencyView, ...]:
    """Each shard has finished two records after a second, and three within the next seven."""
    found = list[LatencyView]()
    of_all = LatencyHistogram()
    for each in shards:
        histogram = LatencyHistogram(of_all)
        histogram.finished(101.0, 100.0, 0.0, 2)
        histogram.finished(110.0, 102.0, 7.0, 3)
        found.append(LatencyView(each.shard_id, each.stream_id, histogram))
    return (LatencyView(None, None, of_all), *found) if found else ()
