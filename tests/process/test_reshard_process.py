"""Whole daemons on a stream that is split and merged under them; finished leases are cleared away meanwhile."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from kcl_local.demo.check import monotonic_s
from tests.process.daemon import FAILOVER_MS, PROCESSORS, Application, Daemon, application, wait_until
from tests.process.local import Local

if TYPE_CHECKING:
    from mypy_boto3_kinesis.type_defs import ShardTypeDef

pytestmark = pytest.mark.timeout(300)

CAREFUL: Final = f"{PROCESSORS}.careful"
RESHARD: Final = {
    "failoverTimeMillis": FAILOVER_MS,
    "leaderLeaseMillis": 3000,
    "leaderHeartbeatMillis": 500,
    "workerMetricsReporterFreqInMillis": 500,
    "idleTimeBetweenReadsInMillis": 200,
    "leaseAssignmentStrategy": "LEASE_COUNT_BASED",
    "leaseCleanupIntervalMillis": 200,
    "completedLeaseCleanupIntervalMillis": 200,
    "garbageLeaseCleanupIntervalMillis": 2000,
    "leasesRecoveryAuditorExecutionFrequencyMillis": 500,
}
THROUGH_WITHIN_S: Final = 90.0


def open_shards(app: Application) -> list[ShardTypeDef]:
    """By hash."""
    shards = [each for each in app.shards() if "EndingSequenceNumber" not in each["SequenceNumberRange"]]
    return sorted(shards, key=lambda each: int(each["HashKeyRange"]["StartingHashKey"]))


def split(app: Application, place: int) -> None:
    """Split an open shard in the middle, with records right before and after."""
    app.put(3)
    shard = open_shards(app)[place]
    low, high = (int(shard["HashKeyRange"][end]) for end in ("StartingHashKey", "EndingHashKey"))
    app.kinesis.split_shard(
        StreamName=app.name, ShardToSplit=shard["ShardId"], NewStartingHashKey=str((low + high) // 2)
    )
    wait_active(app)
    app.put(3)


def merge(app: Application, place: int) -> None:
    """Merge an open shard with its neighbour."""
    app.put(3)
    left, right = open_shards(app)[place : place + 2]
    app.kinesis.merge_shards(
        StreamName=app.name, ShardToMerge=left["ShardId"], AdjacentShardToMerge=right["ShardId"]
    )
    wait_active(app)
    app.put(3)


def wait_active(app: Application) -> None:
    """Wait until the stream has taken a change in."""

    def is_active() -> bool:
        reported = app.kinesis.describe_stream_summary(StreamName=app.name)
        return reported["StreamDescriptionSummary"]["StreamStatus"] == "ACTIVE"

    wait_until(is_active, "the stream is ACTIVE")


def generations(app: Application) -> None:
    """Four generations, the stream as many shards wide as before."""
    split(app, 0)
    merge(app, 1)
    split(app, 1)
    merge(app, 0)


def wait_through(app: Application) -> float:
    """Wait until everything has arrived and only the open shards have leases; the seconds that took."""
    began_s = monotonic_s()
    wait_until(lambda: app.delivered(app.last_written), "everything is delivered", THROUGH_WITHIN_S)
    wanted = {shard["ShardId"] for shard in open_shards(app)}
    wait_until(
        lambda: app.rows().keys() == wanted,
        lambda: f"only {sorted(wanted)} have leases: {sorted(app.rows())}",
        THROUGH_WITHIN_S,
    )
    return monotonic_s() - began_s


def finish(app: Application, *daemons: Daemon) -> None:
    """What is written to the last shards arrives too; then all stop well, and nobody had to act."""
    app.put(2)
    app.wait_done(shard["ShardId"] for shard in open_shards(app))
    for daemon in daemons:
        daemon.stop()
        assert daemon.loud() == []


def test_two_daemons_follow_four_generations_and_repeat_nothing(local: Local, tmp_path: Path) -> None:
    with (
        application(local, tmp_path, "reshard", shards=3) as app,
        app.daemon(CAREFUL, RESHARD, worker="alpha") as alpha,
        app.daemon(CAREFUL, RESHARD, worker="beta") as beta,
    ):
        app.put(5)
        wait_until(
            lambda: None not in app.owners().values() and len(app.owners()) == 3, "all shards are read"
        )
        generations(app)
        took_s = wait_through(app)
        finish(app, alpha, beta)
        app.assert_account(repeated=0)
        reported = alpha.named("lease_deleted") + beta.named("lease_deleted")
        assert len(reported) == len(app.shards()) - 3
    print(f"four generations are through {took_s:.1f} s after the last reshard")  # noqa: T201


@pytest.mark.prove  # every day the simulator kills workers of ours there, in `reshard_killed`
def test_a_daemon_killed_during_a_reshard_loses_nothing(local: Local, tmp_path: Path) -> None:
    with (
        application(local, tmp_path, "reshard-kill", shards=3) as app,
        app.daemon(CAREFUL, RESHARD, worker="alpha") as alpha,
        app.daemon(CAREFUL, RESHARD, worker="beta") as beta,
    ):
        app.put(5)
        wait_until(
            lambda: None not in app.owners().values() and len(app.owners()) == 3, "all shards are read"
        )
        split(app, 0)
        merge(app, 1)
        alpha.signal(signal.SIGKILL)
        assert alpha.end() == -signal.SIGKILL
        split(app, 1)
        wait_through(app)
        app.put(2)
        app.wait_done(shard["ShardId"] for shard in open_shards(app))
        beta.stop()
        app.assert_account()


def test_a_stream_that_was_resharded_while_nobody_ran_is_read_in_order(local: Local, tmp_path: Path) -> None:
    with application(local, tmp_path, "reshard-unseen", shards=2) as app:
        app.put(5)
        with app.daemon(CAREFUL, RESHARD, worker="alpha") as alpha:
            app.wait_done()
            alpha.stop()
        generations(app)
        with app.daemon(CAREFUL, RESHARD, worker="beta") as beta:
            wait_through(app)
            finish(app, beta)
        app.assert_account(repeated=0)
