"""Children that fail again and again: the lease goes to another worker, or the daemon ends; in virtual time."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from kcl_daemon.config.children import ChildFailurePolicy, ChildSettings, FailureSettings
from kcl_daemon.errors import ChildExited
from tests.unit.consumer.poison_stage import DEAD, STREAM, LateReader, Stage, Ways, perform, until

RELEASING = FailureSettings(failures_most=4, degraded_ms=120_000)


def test_after_so_many_failures_in_a_row_the_lease_is_released_and_rests_here() -> None:
    stage = Stage(failures=RELEASING)
    times: list[float] = []

    async def scene() -> None:
        stage.put(["poison"])
        await until(lambda: bool(stage.reported("shard_degraded")))
        times.append(anyio.current_time())
        assert len(stage.children.seen) == 4
        # Nobody else is there, so that the leader gives it back; its child starts when the shard has rested.
        await until(lambda: bool(stage.reported("shard_restart_delayed")))
        row = stage.row
        assert (row["leaseOwner"], row["daemonDegraded"]) == ("worker", "worker")
        stage.ways.dies_at = lambda text: False
        await until(lambda: stage.seen == ["poison"])
        times.append(anyio.current_time())
        await until(lambda: "daemonDegraded" not in stage.row, within_s=60)

    perform(stage, scene)
    assert times[1] - times[0] == pytest.approx(120, abs=5)
    assert len(stage.reported("shard_degraded")) == 1


def test_a_lease_released_after_a_failure_is_processed_by_another_worker() -> None:
    stage = Stage(failures=RELEASING)
    other = Stage(Ways(dies_at=lambda text: False), failures=RELEASING)

    async def scene() -> None:
        stage.put(["poison", "fine"])
        other.model, other.tables, other.leases = stage.model, stage.tables, stage.leases
        await until(lambda: len(stage.reported("child_failed")) == 1)
        await other.work(both, worker_id="other")

    async def both() -> None:
        await until(lambda: other.seen == ["poison", "fine"], within_s=30)
        assert stage.row["leaseOwner"] == "other"

    perform(stage, scene)
    assert stage.seen == []
    assert len(stage.reported("shard_degraded")) == 1
    assert stage.reported("shard_restart_delayed") == []


def test_failures_are_counted_anew_after_progress() -> None:
    stage = Stage(failures=RELEASING)

    def dies_at(text: str) -> bool:
        """Once at each record."""
        if text in met:
            return False
        met.add(text)
        return True

    met: set[str] = set()
    stage.ways.dies_at = dies_at

    async def scene() -> None:
        for number in range(12):
            stage.put([f"record {number}"])
            await until(lambda: len(stage.seen) > number)  # noqa: B023 - it is over before the next

    perform(stage, scene)
    assert len(stage.reported("child_failed")) == 12
    assert stage.reported("shard_degraded") == []


def test_the_search_for_a_record_does_not_count_as_failing() -> None:
    stage = Stage(failures=replace(DEAD, failures_most=5))

    async def scene() -> None:
        stage.put(["poison", *(f"record {number}" for number in range(180))])
        await until(lambda: len(stage.seen) == 180)

    perform(stage, scene)
    assert stage.set_aside == ["poison"]
    assert len(stage.reported("child_failed")) > 8
    assert stage.reported("shard_degraded") == []


def test_where_every_record_is_refused_the_lease_goes_before_the_stream_is_emptied() -> None:
    stage = Stage(Ways(dies_at=lambda text: True), replace(DEAD, degraded_ms=600_000))

    async def scene() -> None:
        stage.put(f"record {number}" for number in range(200))
        await until(lambda: bool(stage.reported("shard_degraded")))

    perform(stage, scene)
    assert 0 < len(stage.set_aside) <= 3


def test_with_exit_the_daemon_stops_in_order_and_says_why() -> None:
    stage = Stage(failures=FailureSettings(policy=ChildFailurePolicy.EXIT))

    async def scene() -> None:
        stage.put(["fine", "poison"])
        await until(lambda: "worker_stopped" in stage.log.events())

    with pytest.raises(ExceptionGroup) as caught:
        perform(stage, scene)
    assert caught.group_contains(ChildExited, match="exit code 3 during processRecords")
    assert len(stage.reported("child_failed")) == 1
    assert "leaseOwner" not in stage.row


def test_a_child_that_hangs_after_the_end_of_its_shard_is_stored_is_not_replaced() -> None:
    stage = Stage(failures=FailureSettings())
    stage.children.kind = LateReader

    async def scene() -> None:
        stage.put(["one"])
        await until(lambda: stage.seen == ["one"])
        stage.call(
            "SplitShard", StreamName=STREAM, ShardToSplit="shardId-000000000000", NewStartingHashKey="7"
        )
        await until(lambda: bool(stage.reported("child_stuck")))
        await anyio.sleep(120)

    perform(stage, scene, child=ChildSettings(("child",), stuck_timeout_ms=30_000))
    assert len(stage.reported("shard_finished")) == 1
    assert len(stage.reported("child_started")) == 3  # one for each shard
    assert stage.reported("consumer_crashed") == []
