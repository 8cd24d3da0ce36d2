"""Positions as people write them, and times looked up in a shard."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from itertools import pairwise

import anyio
import click
import pytest

from kcl_daemon.cli.common import NotChanged
from kcl_daemon.cli.leases.change import SkippedRange, just_before, next_records, position_of, record_of
from kcl_daemon.leases.lease import MAX_HASH, HashRange, Lease, LeaseKey, ShardId
from kcl_daemon.ports import StreamRef
from kcl_daemon.shards.lineage import InitialPosition, StartAt
from kcl_daemon.system import SystemClock
from kcl_local.kinesis.model import KinesisModel
from kcl_local.kinesis.stream import stream_arn
from kcl_protocol.sequence import LATEST, SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber
from tests.simulator.loop import run_virtual
from tests.simulator.memory.kinesis import MemoryKinesis
from tests.unit.fakes import LoopClock
from tests.unit.records.aggregates import aggregate

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

    def put(self, raw: bytes = b"record") -> ExtendedSequenceNumber:
        data = base64.b64encode(raw).decode()
        request = {"StreamName": "words", "PartitionKey": "k", "Data": data}
        return ExtendedSequenceNumber(str(self.model.handle("PutRecord", request)["SequenceNumber"]))

    async def before(self, at_s: float) -> ExtendedSequenceNumber:
        return await just_before(MemoryKinesis(self.model), STREAM, SHARD, at_s, clock=self.clock)

    async def skipped(self, checkpoint: ExtendedSequenceNumber, record: str | None = None) -> SkippedRange:
        """What `leases skip` would go past."""
        wanted = None if record is None else record_of(record)
        lease = Lease(LeaseKey(SHARD), 1, checkpoint, hash_range=HashRange(0, MAX_HASH))
        kinesis = MemoryKinesis(self.model)
        return await next_records(kinesis, STREAM, lease, wanted, start_s=None, clock=self.clock)


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
    assert position_of(text) == position


@pytest.mark.parametrize(
    ("text", "ago_s"), [("1h", 3600.0), ("90s", 90.0), ("1h30m", 5400.0), ("1.5h", 5400.0), ("2d", 172_800.0)]
)
def test_a_position_may_be_how_long_ago(text: str, ago_s: float) -> None:
    position = position_of(text)
    assert position.at is StartAt.TIMESTAMP
    assert position.timestamp_s == pytest.approx(SystemClock().wall_ms() / 1000 - ago_s, abs=60.0)


@pytest.mark.parametrize("text", ["", "yesterday", "h", "1x", "1h30", "1.2.3", "-5", "2026-13-01"])
def test_a_text_that_is_no_position_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is not a position"):
        position_of(text)


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


def _users(count: int) -> bytes:
    return aggregate(("key", f"user {number}".encode(), None) for number in range(count))


def test_nothing_of_an_aggregate_from_before_the_time_comes_again() -> None:
    async def scene(stage: Stage) -> None:
        whole = stage.put(_users(10))
        await anyio.sleep(2.5)
        assert await stage.before(stage.now_s) == ExtendedSequenceNumber(whole.sequence_number, 9)
        plain = stage.put()
        await anyio.sleep(2.5)
        assert await stage.before(stage.now_s) == plain

    on_stage(scene)


def test_the_record_after_the_checkpoint_is_skipped_also_inside_an_aggregate() -> None:
    async def scene(stage: Stage) -> None:
        first, whole, last = stage.put(), stage.put(_users(10)), stage.put()
        inside = [ExtendedSequenceNumber(whole.sequence_number, number) for number in range(10)]
        steps = [TRIM_HORIZON, first, *inside, last]
        for before, after in pairwise(steps):
            found = await stage.skipped(before)
            assert (found.last.position, found.count) == (after, 1)
        with pytest.raises(NotChanged, match="no record after the checkpoint"):
            await stage.skipped(last)

    on_stage(scene)


def test_a_named_record_is_skipped_with_what_is_before_it() -> None:
    async def scene(stage: Stage) -> None:
        first, whole, last = stage.put(), stage.put(_users(10)), stage.put()
        number = whole.sequence_number
        for record, position, count in (
            (f"{number}/5", ExtendedSequenceNumber(number, 5), 6),
            (f"{number}/0", ExtendedSequenceNumber(number, 0), 1),
            (number, ExtendedSequenceNumber(number, 9), 10),
            (last.sequence_number, last, 11),
        ):
            found = await stage.skipped(first, record)
            assert (found.last.position, found.count) == (position, count)
        for checkpoint, record in (
            (last, f"{number}/5"),
            (last, number),
            (first, "1"),
            (whole, f"{number}/0"),
        ):
            with pytest.raises(NotChanged, match="already past the record"):
                await stage.skipped(checkpoint, record)
        for record in (f"{number}/10", str(int(number) + 1), str(int(last.sequence_number) + 1)):
            with pytest.raises(NotChanged, match="has no record"):
                await stage.skipped(first, record)

    on_stage(scene)


def test_a_lease_without_a_place_in_the_shard_has_nothing_to_skip() -> None:
    async def scene(stage: Stage) -> None:
        stage.put()
        for checkpoint in (LATEST, SHARD_END):
            with pytest.raises(NotChanged):
                await stage.skipped(checkpoint)

    on_stage(scene)


@pytest.mark.parametrize("text", ["", "x", "12/", "12/x", "-1", "TRIM_HORIZON"])
def test_a_text_that_is_no_sequence_number_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="not a sequence number"):
        record_of(text)


@pytest.mark.parametrize(("strategy", "next_one"), [("AUTO", 0), (None, 1)])
def test_the_next_record_of_an_aggregate_is_the_one_that_a_child_would_get(
    strategy: str | None, next_one: int
) -> None:
    async def test(stage: Stage) -> None:
        if strategy is not None:
            arn = {"StreamARN": stream_arn("words")}
            stage.model.handle("UpdateStreamMode", {**arn, "StreamModeDetails": {"StreamMode": "ON_DEMAND"}})
            now = {"RecordDistributionStrategy": strategy}
            stage.model.handle("UpdateStreamRecordDistributionStrategy", {**arn, **now})
        at = stage.put(aggregate([("a", b"elsewhere", str(MAX_HASH)), ("b", b"here", "0")]))
        lease = Lease(LeaseKey(SHARD), 1, TRIM_HORIZON, hash_range=HashRange(0, MAX_HASH // 2))
        kinesis = MemoryKinesis(stage.model)
        found = await next_records(kinesis, STREAM, lease, None, start_s=None, clock=stage.clock)
        assert found.last.position == ExtendedSequenceNumber(at.sequence_number, next_one)

    on_stage(test)
