"""A shard with a batch window, from outside: what its child is given when, and what a stop or a failure does; in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from kcl_daemon.config.children import ConcurrencySettings, LaneCounts
from kcl_daemon.config.retrieval import DeliverySettings
from kcl_daemon.progress.progress import LeaseProgress, WaitReason
from kcl_daemon.progress.watchdog import StallLimits, stall_status
from kcl_daemon.records.record_filter import RecordFilter
from kcl_protocol.messages import ProcessRecords
from tests.unit.config.helpers import refusals
from tests.unit.consumer.poison_stage import POISON, STREAM, Stage, Ways, perform, until

Scene = Callable[[], Awaitable[None]]
MINUTE = DeliverySettings(batch_window_ms=60_000)


def play(stage: Stage, scene: Scene, delivery: DeliverySettings = MINUTE, **changes: Any) -> None:
    async def begun() -> None:
        await anyio.sleep(20)
        await scene()

    perform(stage, begun, delivery=delivery, **changes)


def sizes(stage: Stage) -> list[int]:
    """How many records each batch had."""
    heard = (each for child in stage.children.children for each in child.heard)
    return [len(each.records) for each in heard if isinstance(each, ProcessRecords)]


@pytest.mark.parametrize("frames", [None, 1])
def test_a_batch_is_what_was_read_in_a_minute(frames: int | None) -> None:
    stage = Stage(Ways(frames=frames))

    async def scene() -> None:
        for number in range(120):
            stage.put([f"word {number}"])
            await anyio.sleep(1)
        await until(lambda: len(stage.seen) == 120)

    play(stage, scene)
    assert len(sizes(stage)) == 2
    assert sum(sizes(stage)) == 120


def test_or_so_many_records() -> None:
    stage = Stage()

    async def scene() -> None:
        for number in range(10):
            stage.put(f"word {number} {at}" for at in range(7))
            await anyio.sleep(1)
        await until(lambda: len(stage.seen) == 70)

    play(stage, scene, DeliverySettings(batch_window_ms=60_000, batch_max_records=20))
    assert sizes(stage) == [20, 20, 20, 10]


def test_a_stop_gives_what_was_gathered_before_the_child_is_asked_to_stop() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.put(["one", "two"])
        await anyio.sleep(5)
        assert stage.seen == []

    play(stage, scene)
    assert stage.seen == ["one", "two"]
    heard = [type(each).__name__ for each in stage.children.children[0].heard]
    assert heard.index("ProcessRecords") < heard.index("ShutdownRequested")
    assert stage.ended_s < 40


def test_the_end_of_the_shard_does_not_wait() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.put(["one", "two"])
        stage.call(
            "SplitShard",
            StreamName=STREAM,
            ShardToSplit="shardId-000000000000",
            NewStartingHashKey=str(2**127),
        )
        await until(lambda: bool(stage.reported("shard_finished")), within_s=20)

    play(stage, scene)
    assert stage.seen == ["one", "two"]


def test_records_gathered_for_a_child_that_ended_are_given_to_the_next() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.put(["one"])
        await anyio.sleep(5)
        stage.children.children[0].end(9)
        await until(lambda: stage.seen == ["one"])

    play(stage, scene)
    assert len(stage.children.children) == 2


def test_a_record_that_kills_is_found_in_a_large_batch() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.put(f"word {number}" for number in range(40))
        stage.put([POISON])
        stage.put(["last"])
        await until(lambda: stage.set_aside == [POISON] and "last" in stage.seen)

    play(stage, scene, DeliverySettings(batch_window_ms=2_000))


def test_each_lane_has_a_window_of_its_own() -> None:
    stage = Stage()

    async def scene() -> None:
        for number in range(60):
            stage.put([f"word {number}"], f"key {number % 7}")
            await anyio.sleep(1)
        await until(lambda: len(stage.seen) == 60)

    play(stage, scene, concurrency=ConcurrencySettings(lanes=LaneCounts(3)))
    assert len(sizes(stage)) <= 6


def test_lanes_give_what_they_have_gathered_when_the_window_of_their_shard_is_full() -> None:
    stage = Stage()

    async def scene() -> None:
        for number in range(30):
            stage.put([f"word {number}"], f"key {number % 7}")
        await until(lambda: len(stage.seen) == 30, within_s=100)

    lanes = ConcurrencySettings(lanes=LaneCounts(3), window_bytes=2_000)
    play(stage, scene, DeliverySettings(batch_window_ms=600_000), concurrency=lanes)
    assert sorted(stage.seen) == sorted(f"word {number}" for number in range(30))


def test_to_wait_for_the_window_is_no_stall() -> None:
    stage = Stage()

    async def scene() -> None:
        for _ in range(300):
            stage.put(["word"] * 3)
            await anyio.sleep(2)

    play(stage, scene, DeliverySettings(batch_window_ms=590_000))
    assert not stage.reported("shard_stalled")


def test_the_cause_is_told_while_kinesis_answers() -> None:
    progress = LeaseProgress(lambda: 0.0)
    progress.waits_for_records()
    progress.last_fetch.answer(behind_ms=600_000, empty=False, now_s=95.0)
    progress.window_until_s = 130.0
    status = stall_status(progress, StallLimits(), 100.0)
    assert (status.cause, status.detail, status.stalled_by) == (WaitReason.WINDOW, "30 s are left", None)
    progress.last_fetch.trouble = "no network"
    assert stall_status(progress, StallLimits(), 100.0).stalled_by is WaitReason.KINESIS


def test_a_filter_and_a_window_together() -> None:
    stage = Stage()
    kept = RecordFilter.of('{"data": [{"prefix": "yes"}]}')

    async def scene() -> None:
        stage.put(["no"])
        await until(lambda: stage.row["checkpoint"] == stage.numbers()[0], within_s=40)
        stage.put(["yes 1", "no"])
        await anyio.sleep(50)
        assert stage.row["checkpoint"] == stage.numbers()[0], "not above what is gathered"
        stage.put(["yes 2", "no"])
        await until(lambda: stage.seen == ["yes 1", "yes 2"])
        await until(lambda: stage.row["checkpoint"] == stage.numbers()[-1], within_s=70)

    play(stage, scene, DeliverySettings(record_filter=kept, batch_window_ms=60_000))
    assert sizes(stage) == [2]


def test_a_stop_that_takes_too_long_ends_the_child() -> None:
    stage = Stage(Ways(dies_at=lambda text: text == "slow", hangs=True))

    async def scene() -> None:
        stage.put(["slow"])
        await anyio.sleep(5)

    play(stage, scene)
    assert stage.seen == []
    assert stage.reported("child_overran")


def test_pipelines_on_spark_make_their_own_batches() -> None:
    base = "streamName = orders\napplicationName = billing\nsparkPipeline = p:main\n"
    (refusal,) = refusals("batchWindowMillis = 1000\n", base=base)
    assert "a sparkPipeline makes its own batches, see sparkTrigger" in refusal
