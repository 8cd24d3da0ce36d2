"""The ages that a worker tells, where records are not simply read, given and done: a whole worker in virtual time."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from msgspec.structs import replace as changed

from kcl_daemon.config.children import ConcurrencySettings, LaneCounts
from kcl_daemon.leases.holds import LimitUnit
from tests.unit.consumer.poison_stage import DEAD, STREAM, Ways, perform, until
from tests.unit.consumer.test_consumer_held import PAUSE, hold, put, texts
from tests.unit.consumer.test_consumer_lanes import KEYS, lanes_of
from tests.unit.consumer.test_consumer_shown import Seen, SlowReader

TWO = {"concurrency": ConcurrencySettings(lanes=LaneCounts(2))}
FOUR = {"concurrency": ConcurrencySettings(lanes=LaneCounts(4))}


def test_a_batch_that_is_given_in_parts_is_not_done_before_its_last_part() -> None:
    """Two records a second: between the parts the child has nothing."""
    stage, lags_s, waiting = Seen(), list[float](), list[int]()

    async def scene() -> None:
        await hold(stage, changed(PAUSE, unit=LimitUnit.RECORDS, amount=2.0))
        await anyio.sleep(6.0)
        put(stage, texts(60))
        began_s = anyio.current_time()
        await until(lambda: bool(stage.seen))
        while len(stage.seen) < 55:
            shard = stage.shard
            assert shard.lag_s == pytest.approx(anyio.current_time() - began_s, abs=2.5)
            lags_s.append(shard.lag_s or 0.0)
            waiting.append(shard.waiting_records)
            await anyio.sleep(0.3)
        await until(lambda: len(stage.seen) == 60)
        await anyio.sleep(5.0)
        assert (stage.shard.lag_s, stage.shard.waiting_records) == (0.0, 0)

    perform(stage, scene)
    assert lags_s == sorted(lags_s)
    assert waiting == sorted(waiting, reverse=True)
    assert waiting[-1] >= 5


@pytest.mark.parametrize("searched", [False, True], ids=["under a limit", "in a search"])
def test_a_part_of_a_batch_is_as_old_as_its_own_first_record(searched: bool) -> None:
    """Forty records of as many seconds are read at once, when a child can be started at last."""
    stage, put_s, parts = Seen(Ways(starts=False), DEAD), list[float](), set[int]()
    stage.children.kind = SlowReader
    stage.ways.dies_at = lambda text: searched and text == "r5" and len(stage.children.children) == 1

    async def scene() -> None:
        if not searched:
            await hold(stage, changed(PAUSE, unit=LimitUnit.RECORDS, amount=8.0))
        for text in texts(40):
            put_s.append(anyio.current_time())
            put(stage, [text])
            await anyio.sleep(1.0)
        stage.ways.starts = True
        await until(lambda: stage.shard.records > 0)
        while (done := stage.shard.records) < 40:
            parts.add(done)
            assert stage.shard.lag_s == pytest.approx(anyio.current_time() - put_s[done], abs=2.0)
            await anyio.sleep(0.1)

    perform(stage, scene)
    assert len(parts) > (1 if searched else 10)


def test_after_a_failure_all_that_was_not_checkpointed_is_unfinished_again() -> None:
    stage = Seen(Ways(checkpoints=False))

    async def scene() -> None:
        put(stage, ["first"])
        began_s = anyio.current_time()
        await until(lambda: stage.seen == ["first"])
        await anyio.sleep(100.0)
        assert stage.shard.lag_s == 0.0
        assert stage.shard.uncheckpointed_s == pytest.approx(anyio.current_time() - began_s, abs=2)
        stage.ways.dies_at = bool
        stage.children.children[0].end(1)
        await anyio.sleep(10.0)
        assert stage.shard.lag_s == pytest.approx(anyio.current_time() - began_s, abs=2)
        stage.ways.dies_at = lambda text: False
        await until(lambda: stage.children.seen[-1] == ["first"])
        await anyio.sleep(5.0)
        shard = stage.shard
        assert shard.lag_s == 0.0
        assert shard.uncheckpointed_s == pytest.approx(anyio.current_time() - began_s, abs=2)
        assert (shard.records, shard.waiting_records) == (2, 0)
        assert shard.read_records == len(stage.children.children), "each of them was given it again"

    perform(stage, scene)


@pytest.mark.parametrize("more", [{}, TWO], ids=["one child", "lanes"])
def test_records_that_wait_for_a_slow_child_are_counted(more: dict[str, Any]) -> None:
    """Ten records a second for each child, 100 were put."""
    stage = Seen()
    stage.children.kind = SlowReader

    async def scene() -> None:
        put(stage, texts(100))
        began_s = anyio.current_time()
        await until(lambda: bool(stage.seen))
        await anyio.sleep(1.0)
        shard = stage.shard
        assert shard.read_records == 100
        assert shard.waiting_records == 100 - shard.records
        assert 2 * shard.waiting_records <= shard.waiting_bytes <= 10 * shard.waiting_records
        assert shard.lag_s == pytest.approx(anyio.current_time() - began_s, abs=1.0)
        await until(lambda: stage.shard.records == 100)
        await anyio.sleep(20.0)
        shard = stage.shard
        assert (shard.waiting_records, shard.waiting_bytes) == (0, 0)
        assert (shard.lag_s, shard.uncheckpointed_s) == (0.0, 0.0)
        assert shard.p50_s is not None
        assert 2.0 < shard.p50_s < 12.0

    perform(stage, scene, **more)


def test_at_the_end_of_a_shard_the_record_of_a_lane_that_hangs_is_not_done() -> None:
    stage = Seen(Ways(dies_at=lambda text: text == "slow", hangs=True))

    async def scene() -> None:
        stage.put(["slow"], KEYS[3])
        began_s = anyio.current_time()
        stage.put(["quick"], KEYS[0])
        await until(lambda: stage.seen == ["quick"])
        shard_id = stage.shard.shard_id
        arguments = {"StreamName": STREAM, "ShardToSplit": shard_id, "NewStartingHashKey": str(2**127)}
        stage.model.handle("SplitShard", arguments)
        await anyio.sleep(60.0)
        shown = next(each for each in stage.snapshots.now().shards if each.shard_id == shard_id)
        assert shown.lag_s == pytest.approx(anyio.current_time() - began_s, abs=1)
        assert shown.waiting_records == 1
        assert shown.uncheckpointed_s == pytest.approx(shown.lag_s, abs=1)
        stage.ways.dies_at = lambda text: False
        stage.children.children[lanes_of(stage).index(3)].end(9)
        await until(lambda: "slow" in stage.seen)

    perform(stage, scene, **FOUR)
