"""Snapshots for the tests of the status page: one of everything, many of a kind, and whatever can be."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from kcl_daemon.progress.progress import WaitReason
from kcl_daemon.progress.watchdog import ShardState
from kcl_daemon.telemetry.helper_views import (
    LandingShardView,
    LandingTrouble,
    LandingView,
    SparkQueryView,
    SparkShardView,
    SparkView,
)
from kcl_daemon.telemetry.shards import ChildView, LanesView, LaneView, ShardView
from kcl_daemon.telemetry.snapshot import LeaseView, MoveView, Snapshot, WorkerView

HOSTILE = "</script><script>alert(1)</script>\"'&\x00\x1b[31m"

CHILD = ChildView(
    pid=4242, rss_bytes=48 * 2**20, running_s=3700.0, restarts=2, stderr=("warming up", "ready")
)
READING = ShardView(
    key="shardId-000000000001",
    shard_id="shardId-000000000001",
    stream=None,
    parents=("shardId-000000000000",),
    cause=WaitReason.CHILD,
    waits_s=0.2,
    detail="",
    idle_s=0.2,
    stalled=False,
    behind_ms=90_000,
    checkpoint="49659999000000000000000000000000000000000000000000123456",
    records=12_345,
    data_bytes=9_999_999,
    bytes_per_s=20_480.0,
    child=CHILD,
    lag_s=90.0,
    restarts=2,
    uncheckpointed_s=125.0,
    p50_s=0.25,
    p99_s=93.5,
    waiting_records=12_345,
)
STALLED = replace(
    READING,
    key="shardId-000000000002",
    shard_id="shardId-000000000002",
    cause=WaitReason.KINESIS,
    waits_s=300.0,
    detail="Throttled: slow down",
    stalled=True,
    child=None,
    behind_ms=None,
    lag_s=None,
    uncheckpointed_s=None,
    p50_s=None,
    p99_s=None,
)


def lease(number: int, *, owner: str | None, parents: tuple[str, ...] = (), **more: object) -> LeaseView:
    """A lease of the table."""
    shard_id = f"shardId-{number:012}"
    plain = LeaseView(shard_id, shard_id, None, owner, "TRIM_HORIZON", parents, (), None)
    return replace(plain, **more)  # type: ignore[arg-type] # fields by name


FLEET = (
    lease(
        0,
        owner=None,
        checkpoint="SHARD_END",
        children=("shardId-000000000001", "shardId-000000000002"),
    ),
    lease(1, owner="w-1", parents=("shardId-000000000000",)),
    lease(2, owner="w-1", parents=("shardId-000000000000",)),
    lease(3, owner="w-2", parents=("shardId-000000000001", "shardId-000000000002"), next_owner="w-1"),
    lease(4, owner=None),
    lease(5, owner="w-2"),
)
SNAPSHOT = Snapshot(
    application="billing",
    worker_id="w-1",
    version="1.2.3",
    uptime_s=86_400.0,
    started=True,
    stopping=False,
    leads=True,
    leader="w-1",
    leaderless_s=None,
    renewed_s=1.5,
    shards=(READING, STALLED),
    fleet=FLEET,
    workers=(WorkerView("w-1", 2, 44.4, 3.0), WorkerView("w-2", 2, None, None)),
    moves=(MoveView(12.0, "shardId-000000000003", "shardId-3: w-2 -> w-1, cpu 81 % -> 44 %"),),
    fleet_age_s=2.0,
    place="stream orders in eu-west-1, account 123456789012",
    at_ms=1_795_176_231_000,
)
SPARKING = replace(
    SNAPSHOT,
    spark=SparkView(
        ui="http://127.0.0.1:4040",
        queries=(
            SparkQueryView("counts", True, 0, 12, 0.5, 99.6, 200.4, 1.25, 30, 4),
            SparkQueryView("raw", False, 3, None, 40.0, None, None, None, None, None),
        ),
        shards=(
            SparkShardView("shardId-000000000001", 0, 1000, 64_000, 1000, 0, 0, 0.0, 0),
            SparkShardView("shardId-000000000002", 0, 1000, 64_000, 900, 0, 100, 130.0, 6_400),
        ),
    ),
)
LANES = (
    LaneView(
        number=0,
        records=0,
        kept_bytes=0,
        cause=WaitReason.KINESIS,
        waits_s=0.5,
        detail="",
        stalled=False,
        child=CHILD,
        failures=0,
        restarts=0,
        last_error="",
        stderr_tail=(),
        next_try_s=None,
    ),
    LaneView(
        number=3,
        records=14,
        kept_bytes=3 * 2**20,
        cause=WaitReason.RESTART,
        waits_s=12.0,
        detail="it exited with status 1",
        stalled=False,
        child=None,
        failures=1,
        restarts=2,
        last_error="it exited with status 1",
        stderr_tail=("KeyError: 7",),
        next_try_s=1.0,
    ),
)
LANED = replace(
    SNAPSHOT,
    shards=(
        replace(
            READING,
            child=None,
            cause=WaitReason.LANE,
            waits_s=12.0,
            detail="lane 3, at a record whose key has the hash 00c0ffee",
            lanes=LanesView(8, 3, "00c0ffee", 75.0, 8 * 2**20, LANES),
        ),
        replace(STALLED, restarts=0, lanes=LanesView(4, None, None, None, 0, ())),
    ),
)
READY = replace(SNAPSHOT, shards=(READING,))
FOLLOWER = replace(READY, leads=False, leader="w-2", fleet=(), workers=(), moves=(), fleet_age_s=None)


class Standing:
    """A source whose worker stands still until the test moves it."""

    def __init__(self, snapshot: Snapshot = SNAPSHOT) -> None:
        self.snapshot = snapshot
        self.asked_for = 0

    def now(self) -> Snapshot:
        return self.snapshot

    async def asked(self) -> Snapshot:
        self.asked_for += 1
        return self.snapshot

    async def asked_capacity(self) -> Snapshot:
        return self.snapshot


def many(count: int) -> Snapshot:
    """A worker that holds so many shards, each with a child that has said something."""
    lines = tuple(f"2026-01-01 00:00:0{n} processed a batch of {n} records" for n in range(5))
    shards = tuple(
        replace(
            READING,
            key=f"shardId-{number:012}",
            shard_id=f"shardId-{number:012}",
            parents=(f"shardId-{number - 1:012}",) if number % 2 else (),
            bytes_per_s=1000.0 + number,
            child=replace(CHILD, pid=1000 + number, stderr=lines),
        )
        for number in range(count)
    )
    fleet = tuple(lease(number, owner="w-1", parents=shard.parents) for number, shard in enumerate(shards))
    return replace(SNAPSHOT, shards=shards, fleet=fleet)


_words = st.one_of(
    st.text(max_size=12), st.sampled_from([HOSTILE, "shardId-000000000001", "a\udc80b", "-->", "]]>"])
)
_seconds = st.floats(0, 1e7)
_some = st.lists(_words, max_size=2).map(tuple)
_children = st.builds(
    ChildView,
    pid=st.integers(1, 2**22),
    rss_bytes=st.none() | st.integers(0, 2**40),
    running_s=_seconds,
    restarts=st.integers(0, 1000),
    stderr=_some,
)
_lanes = st.builds(
    LaneView,
    number=st.integers(0, 63),
    records=st.integers(0, 2**50),
    kept_bytes=st.integers(0, 2**40),
    cause=st.sampled_from(WaitReason),
    waits_s=_seconds,
    detail=_words,
    stalled=st.booleans(),
    child=st.none() | _children,
    failures=st.integers(0, 1000),
    restarts=st.integers(0, 1000),
    last_error=_words,
    stderr_tail=_some,
    next_try_s=st.none() | _seconds,
)
_shards = st.builds(
    ShardView,
    key=_words,
    shard_id=_words,
    stream=st.none() | _words,
    parents=_some,
    cause=st.sampled_from(WaitReason),
    waits_s=_seconds,
    detail=_words,
    idle_s=_seconds,
    stalled=st.booleans(),
    behind_ms=st.none() | st.integers(0, 2**40),
    checkpoint=_words | st.just("SHARD_END"),
    records=st.integers(0, 2**50),
    data_bytes=st.integers(0, 2**50),
    bytes_per_s=st.floats(0, 1e12),
    child=st.none() | _children,
    failures=st.integers(0, 1000),
    state=st.none() | st.sampled_from(ShardState),
    lag_s=st.none() | _seconds,
    restarts=st.integers(0, 1000),
    last_error=_words,
    stderr_tail=_some,
    next_try_s=st.none() | _seconds,
    uncheckpointed_s=st.none() | _seconds,
    p50_s=st.none() | _seconds,
    p99_s=st.none() | _seconds,
    speed=st.none() | _seconds,
    waiting_records=st.integers(0, 2**50),
    ahead_s=_seconds,
    lanes=st.none()
    | st.builds(
        LanesView,
        count=st.integers(2, 64),
        slowest=st.none() | st.integers(0, 63),
        key_hash=st.none() | _words,
        held_s=st.none() | _seconds,
        window_bytes=st.integers(0, 2**40),
        lanes=st.lists(_lanes, max_size=3).map(tuple),
    ),
)
_leases = st.builds(
    LeaseView,
    key=_words,
    shard_id=_words,
    stream=st.none() | _words,
    owner=st.none() | _words,
    checkpoint=_words | st.just("SHARD_END"),
    parents=_some,
    children=_some,
    next_owner=st.none() | _words,
)


_landers = st.builds(
    LandingView,
    shards=st.lists(
        st.builds(
            LandingShardView,
            name=_words,
            rows=st.integers(0, 10**9),
            size_bytes=st.integers(0, 10**12),
            segments=st.integers(0, 10**6),
            number=st.none() | st.integers(0, 10**6),
            waiting_rows=st.integers(0, 10**6),
            waiting_bytes=st.integers(0, 10**9),
            lag_s=_seconds,
            landed_ms=st.none() | st.integers(0, 2**42),
            redelivered=st.integers(0, 10**6),
        ),
        max_size=2,
    ).map(tuple),
    trouble=st.none() | st.builds(LandingTrouble, cause=_words, message=_words, since_s=_seconds),
)
_engines = st.builds(
    SparkView,
    ui=st.none() | _words,
    queries=st.lists(
        st.builds(
            SparkQueryView,
            name=_words,
            running=st.booleans(),
            failures=st.integers(0, 1000),
            batch=st.none() | st.integers(0, 2**40),
            since_commit_s=_seconds,
            input_rows_per_s=st.none() | _seconds,
            processed_rows_per_s=st.none() | _seconds,
            batch_s=st.none() | _seconds,
            state_rows=st.none() | st.integers(0, 2**40),
            late_rows=st.none() | st.integers(0, 2**40),
        ),
        max_size=2,
    ).map(tuple),
    shards=st.lists(
        st.builds(
            SparkShardView,
            shard_id=_words,
            behind_ms=st.none() | st.integers(0, 2**40),
            rows=st.integers(0, 2**50),
            data_bytes=st.integers(0, 2**50),
            committed=st.integers(0, 2**50),
            redelivered=st.integers(0, 2**50),
            waiting=st.integers(0, 2**50),
            lag_s=_seconds,
            spooled_bytes=st.integers(0, 2**50),
        ),
        max_size=2,
    ).map(tuple),
)


def _key(view: ShardView | LeaseView) -> str:
    return view.key


snapshots = st.builds(
    Snapshot,
    application=_words,
    worker_id=_words,
    version=_words,
    uptime_s=_seconds,
    started=st.booleans(),
    stopping=st.booleans(),
    leads=st.booleans(),
    leader=st.none() | _words,
    leaderless_s=st.none() | _seconds,
    renewed_s=st.none() | _seconds,
    shards=st.lists(_shards, max_size=3, unique_by=_key).map(tuple),
    fleet=st.lists(_leases, max_size=5, unique_by=_key).map(tuple),
    workers=st.lists(
        st.builds(
            WorkerView,
            worker_id=_words,
            leases=st.integers(0, 1000),
            cpu_percent=st.none() | st.floats(0, 100),
            reported_s=st.none() | _seconds,
        ),
        max_size=2,
    ).map(tuple),
    moves=st.lists(st.builds(MoveView, ago_s=_seconds, key=_words, reason=_words), max_size=2).map(tuple),
    fleet_age_s=st.none() | _seconds,
    spark=st.none() | _engines,
    landing=st.none() | _landers,
)
"""Whatever the types allow, with text that is out for trouble."""

calmly = partial(settings, deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""How examples of these are run: they are large, and this machine may be busy."""
