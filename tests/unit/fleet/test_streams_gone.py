"""A stream that is deleted, comes back, or is created again under its name: told once, whoever asks how often."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from kcl_daemon.errors import Unavailable
from kcl_daemon.fleet.streams import StreamMonitor, StreamState
from kcl_daemon.ports import StreamRef
from kcl_local.kinesis.model import KinesisModel
from tests.simulator.loop import run_virtual
from tests.simulator.memory.kinesis import MemoryKinesis
from tests.unit.fakes import LoopClock, MemoryLog

LATER_S = 10.0


class Stage:
    """A stream and somebody who watches it."""

    def __init__(self) -> None:
        clock = LoopClock()
        self.model = KinesisModel(lambda: clock.wall_ms() / 1000)
        self.log = MemoryLog()
        self.watch = StreamMonitor(
            kinesis=MemoryKinesis(self.model), stream=StreamRef("words"), clock=clock, log=self.log
        )

    def create(self) -> None:
        self.model.handle("CreateStream", {"StreamName": "words", "ShardCount": 1})

    def delete(self) -> None:
        self.model.handle("DeleteStream", {"StreamName": "words"})


def play(scene: Callable[[Stage], Awaitable[None]]) -> Stage:
    async def main() -> Stage:
        stage = Stage()
        await scene(stage)
        return stage

    return run_virtual(main)


def test_a_stream_that_is_there_is_no_news() -> None:
    async def scene(stage: Stage) -> None:
        stage.create()
        assert await stage.watch.is_there()
        await anyio.sleep(LATER_S)
        assert await stage.watch.is_there()

    assert play(scene).log.events() == []


def test_a_stream_that_is_gone_is_reported_once_with_what_to_do() -> None:
    async def scene(stage: Stage) -> None:
        stage.create()
        await stage.watch.poll()
        stage.delete()
        for _ in range(5):
            await anyio.sleep(LATER_S)
            assert not await stage.watch.is_there()

    log = play(scene).log
    assert log.events() == ["stream_gone"]
    assert log.lines[0][0] == "error"
    assert "advice" in log.lines[0][2]


def test_all_shards_ask_at_once_and_kinesis_is_asked_once() -> None:
    async def scene(stage: Stage) -> None:
        async with anyio.create_task_group() as shards:
            for _ in range(100):
                shards.start_soon(stage.watch.poll)

    stage = play(scene)
    assert stage.model.calls["DescribeStreamSummary"] == 1
    assert stage.log.events("error") == ["stream_gone"]


def test_a_stream_that_was_not_seen_before_may_come_back() -> None:
    async def scene(stage: Stage) -> None:
        await stage.watch.poll()
        stage.create()
        await anyio.sleep(LATER_S)
        assert await stage.watch.is_there()

    assert play(scene).log.events() == ["stream_gone", "stream_found_again"]


@pytest.mark.parametrize("seen_gone", [True, False])
def test_a_stream_created_again_under_its_name_is_another_and_stays_it(seen_gone: bool) -> None:
    async def scene(stage: Stage) -> None:
        stage.create()
        await stage.watch.poll()
        stage.delete()
        await anyio.sleep(LATER_S)
        if seen_gone:
            await stage.watch.poll()
            await anyio.sleep(LATER_S)
        stage.create()
        for _ in range(3):
            assert await stage.watch.poll() is StreamState.ANOTHER
            await anyio.sleep(LATER_S)

    errors = play(scene).log.events("error")
    assert errors == (["stream_gone"] if seen_gone else []) + ["stream_recreated"]


def test_that_kinesis_does_not_tell_is_no_news() -> None:
    async def scene(stage: Stage) -> None:
        stage.create()
        stage.model.fail_next("DescribeStreamSummary", "InternalFailure")
        with pytest.raises(Unavailable):
            await stage.watch.poll()
        assert await stage.watch.is_there()

    assert play(scene).log.events() == []


def test_a_stream_whose_positions_show_that_it_is_new_is_reported_once() -> None:
    async def scene(stage: Stage) -> None:
        stage.create()
        stage.watch.is_replacement("a number is too small")
        stage.watch.is_replacement("a number is too small")
        assert await stage.watch.poll() is StreamState.ANOTHER

    assert play(scene).log.events() == ["stream_recreated"]
