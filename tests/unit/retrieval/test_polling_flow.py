"""What a polling reader counts: what it read, what waits, and what it had to wait for while its child had nothing."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest

from kcl_daemon.errors import Throttled
from kcl_daemon.retrieval.byte_budget import MAX_BYTES, ByteBudget
from kcl_daemon.retrieval.polling import PollingReader
from kcl_daemon.retrieval.source import DeliveryBatch
from tests.unit.fakes import LoopClock
from tests.unit.retrieval.stage import Stage, play, texts

Begin = Callable[[PollingReader], object]


def test_read_and_waiting_records_are_counted() -> None:
    async def scene(stage: Stage, begin: Begin) -> None:
        stage.put("aaa", "bbb", "ccc")
        reader = stage.reader(reports_empty=False)
        begin(reader)
        await anyio.sleep(10)
        flow = reader._flow
        assert (flow.read_records, flow.read_bytes) == (3, 9)
        assert reader.waiting == (3, flow.read_bytes)
        item = await reader.next()
        assert isinstance(item, DeliveryBatch)
        assert reader.waiting == (0, 0)
        item.release()

    play(scene)


@pytest.mark.parametrize("taken", [True, False])
def test_a_refused_read_counts_while_the_child_has_nothing(*, taken: bool) -> None:
    async def scene(stage: Stage, begin: Begin) -> None:
        stage.put("a")
        reader = stage.reader(reports_empty=False)
        begin(reader)
        await anyio.sleep(10)
        stage.kinesis.refusal = Throttled("slow down")
        async with anyio.create_task_group() as group:
            if taken:
                group.start_soon(texts, reader, 2)
            await anyio.sleep(60)
            stage.kinesis.refusal = None
            stage.put("b")
            await anyio.sleep(30)
        flow = reader._flow
        assert flow.memory_s == 0.0
        if taken:
            assert flow.refused_s == pytest.approx(60.0, abs=11)
        else:
            assert flow.refused_s == 0.0, "there was a record to take all the time"

    play(scene)


def test_a_wait_for_the_memory_of_others_counts() -> None:
    async def scene(stage: Stage, begin: Begin) -> None:
        budget = ByteBudget(LoopClock())
        held = budget.take(2 * MAX_BYTES)
        stage.put("a")
        reader = stage.reader(reports_empty=False, budget=budget)
        begin(reader)
        async with anyio.create_task_group() as group:
            group.start_soon(texts, reader, 1)
            await anyio.sleep(4)
            held.release()
        assert reader._flow.memory_s == pytest.approx(4, abs=0.5)
        assert reader._flow.refused_s == 0.0

    play(scene)


def test_records_from_the_future_are_new_and_it_is_told_how_far_ahead_they_are() -> None:
    async def scene(stage: Stage, begin: Begin) -> None:
        stage.put("a")
        slow = LoopClock()
        behind_ms = 30_000
        now_ms = slow.wall_ms
        slow.wall_ms = lambda: now_ms() - behind_ms  # type: ignore[method-assign] # a clock that is wrong
        reader = stage.reader(reports_empty=False, clock=slow)
        begin(reader)
        await anyio.sleep(1)
        item = await reader.next()
        assert isinstance(item, DeliveryBatch)
        assert item.arrived_s is not None
        assert 0.0 <= anyio.current_time() - item.arrived_s <= 1.5
        assert reader._last_fetch.ahead_s == pytest.approx(30, abs=1)
        item.release()

    play(scene)
