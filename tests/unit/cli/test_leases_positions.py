"""Positions as people write them, and times looked up in a shard."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable

import anyio
import click
import pytest

from kcl_daemon.cli.leases_positions import PositionType, just_before
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import StreamRef
from kcl_daemon.shards.shard import InitialPosition, StartAt
from kcl_local.kinesis.model import KinesisModel
from kcl_protocol.sequence import TRIM_HORIZON, ExtendedSequenceNumber
from tests.simulator.loop import run_virtual
from tests.simulator.memory.kinesis import MemoryKinesis
from tests.unit.fakes import LoopClock

STREAM = StreamRef("words")
SHARD = ShardId("shardId-000000000000")


class Stage:
    """A stream of one shard."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.model = KinesisModel(lambda: self.now_s)
        self.model.handle("CreateStream", {"StreamName": "words", "ShardCount": 1})

    @property
    def now_s(self) -> float:
        return self.clock.wall_ms() / 1000

    def put(self) -> ExtendedSequenceNumber:
        data = base64.b64encode(b"record").decode()
        request = {"StreamName": "words", "PartitionKey": "k", "Data": data}
        return ExtendedSequenceNumber(str(self.model.handle("PutRecord", request)["SequenceNumber"]))

    async def before(self, at_s: float) -> ExtendedSequenceNumber:
        return await just_before(MemoryKinesis(self.model), STREAM, SHARD, at_s, clock=self.clock)


def on_stage(test: Callable[[Stage], Awaitable[None]]) -> None:
    async def run() -> None:
        await test(Stage())

    run_virtual(run)


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("TRIM_HORIZON", InitialPosition(StartAt.TRIM_HORIZON)),
        ("latest", InitialPosition(StartAt.LATEST)),
        ("2026-11-20T12:00:00Z", InitialPosition(StartAt.TIMESTAMP, 1_795_176_000.0)),
        ("2026-11-20 12:00", InitialPosition(StartAt.TIMESTAMP, 1_795_176_000.0)),
        ("2026-11-20T13:00:00+01:00", InitialPosition(StartAt.TIMESTAMP, 1_795_176_000.0)),
        ("1795176000.5", InitialPosition(StartAt.TIMESTAMP, 1_795_176_000.5)),
    ],
)
def test_a_position_is_read(text: str, position: InitialPosition) -> None:
    assert PositionType().convert(text, None, None) == position


@pytest.mark.parametrize("text", ["", "yesterday", "1.2.3", "-5", "2026-13-01"])
def test_what_is_no_position_is_told(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is no position"):
        PositionType().convert(text, None, None)


def test_reading_goes_on_with_the_first_record_at_or_after_the_time() -> None:
    async def scene(stage: Stage) -> None:
        numbers, times = [], []
        for pause_s in (0.0, 1.0, 500.0, 3.0):
            await anyio.sleep(pause_s)
            times.append(stage.now_s)
            numbers.append(stage.put())
        assert await stage.before(times[1]) == numbers[0]
        assert await stage.before(times[2]) == numbers[1]
        assert await stage.before(times[2] - 100.0) == numbers[1]
        assert await stage.before(times[3] + 0.5) == numbers[3]

    on_stage(scene)


def test_a_time_before_all_that_is_kept_is_the_trim_horizon() -> None:
    async def scene(stage: Stage) -> None:
        at_s = stage.now_s
        assert await stage.before(at_s) == TRIM_HORIZON
        await anyio.sleep(5.0)
        stage.put()
        assert await stage.before(at_s) == TRIM_HORIZON

    on_stage(scene)
