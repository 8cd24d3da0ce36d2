"""A shard with several children, from outside: who gets what, and what a child is told; in virtual time."""

from __future__ import annotations

from base64 import b64decode
from dataclasses import replace
from typing import Any
from zlib import crc32

import anyio
import pytest

from kcl_daemon.config.children import ConcurrencySettings, LaneCounts
from kcl_daemon.ports import ChildLane
from kcl_daemon.retrieval.byte_budget import ByteBudget
from kcl_daemon.shards.lineage import InitialPosition, StartAt
from kcl_local.kinesis.model import KinesisModel
from kcl_protocol.codec import encode
from kcl_protocol.messages import (
    CheckpointAnswer,
    CheckpointRequest,
    DaemonMessage,
    Initialize,
    ProcessRecords,
)
from tests.simulator.loop import run_virtual
from tests.unit.consumer.poison_stage import STREAM, Reader, Stage, Ways, perform, until

FOUR = ConcurrencySettings(lanes=LaneCounts(4))
# By hand: the hash of each modulo 4 is its lane.
KEYS = {0: "d", 1: "b", 2: "e", 3: "a"}


def test_the_keys_are_of_these_lanes() -> None:
    assert {crc32(key.encode()) % 4: key for key in KEYS.values()} == KEYS


def lanes_of(stage: Stage) -> list[int]:
    """The lane of each child, in the order of their start."""
    return [lane.number for lane in stage.children.lanes if lane is not None]


def test_a_lane_starts_with_its_first_record_and_its_child_is_told_which_it_is() -> None:
    stage = Stage()

    async def scene() -> None:
        await anyio.sleep(30)
        assert stage.children.lanes == []
        stage.put(["one", "two"], KEYS[2])
        stage.put(["three"], KEYS[0])
        await until(lambda: set(stage.seen) == {"one", "two", "three"})
        assert sorted(lanes_of(stage)) == [0, 2]
        await until(lambda: stage.row["checkpoint"] == stage.numbers()[-1])

    perform(stage, scene, concurrency=FOUR)
    assert set(stage.children.lanes) == {ChildLane(0, 4), ChildLane(2, 4)}
    for child, lane in zip(stage.children.children, stage.children.lanes, strict=True):
        (told,) = (heard for heard in child.heard if isinstance(heard, Initialize))
        assert lane is not None
        assert (told.extra["lane"], told.extra["lanes"]) == (lane.number, 4)


def test_the_checkpoint_waits_for_the_slowest_lane_and_others_go_on() -> None:
    stage = Stage(Ways(dies_at=lambda text: text == "slow", hangs=True))

    async def scene() -> None:
        stage.put(["first"], KEYS[1])
        await until(lambda: stage.seen == ["first"])
        stage.put(["slow"], KEYS[3])
        for number in range(20):
            stage.put([f"quick {number}"], KEYS[number % 3])
        await until(lambda: len(stage.seen) == 21)
        await anyio.sleep(20)
        assert stage.row["checkpoint"] == stage.numbers()[0], "the one before the slow one"
        stage.ways.dies_at = lambda text: False
        stage.children.children[lanes_of(stage).index(3)].end(9)
        await until(lambda: stage.row["checkpoint"] == stage.numbers()[-1])

    perform(stage, scene, concurrency=FOUR)
    assert len(stage.children.children) == 5, "one lane was replaced, nobody else"
    assert len(stage.seen) == sum(map(len, stage.children.seen)) == 22


class Greedy(Reader):
    """Asks for a checkpoint at the record after its own, which another lane has."""

    errors: list[str | None]

    def _answer_to(self, message: DaemonMessage) -> bytes | None:
        self.errors = getattr(self, "errors", [])
        if isinstance(message, CheckpointAnswer):
            self.errors.append(message.error)
            return encode(CheckpointRequest(None, None)) if message.error else super()._answer_to(message)
        if isinstance(message, ProcessRecords) and b64decode(message.records[-1].data) == b"mine":
            super()._answer_to(message)
            first = int(message.records[0].sequence_number)
            return encode(CheckpointRequest(str(first + 1), 0))
        return super()._answer_to(message)


def test_a_checkpoint_at_a_record_of_another_lane_is_refused() -> None:
    stage = Stage()
    stage.children.kind = Greedy

    async def scene() -> None:
        stage.put(["mine"], KEYS[1])
        stage.put(["theirs"], KEYS[2])
        stage.put(["mine"], KEYS[1])
        await until(lambda: set(stage.seen) == {"mine", "theirs"})
        await until(lambda: stage.row["checkpoint"] == stage.numbers()[-1])

    perform(stage, scene, concurrency=FOUR)
    errors = [
        error for child in stage.children.children if isinstance(child, Greedy) for error in child.errors
    ]
    assert "InvalidStateException" in errors


def test_a_lane_that_never_checkpoints_is_named() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.ways.checkpoints = False
        stage.put(["held"], KEYS[1])
        await until(lambda: stage.seen == ["held"])
        stage.ways.checkpoints = True
        for number in range(70):
            stage.put([f"done {number}"], KEYS[2])
            await anyio.sleep(10)
        told = stage.reported("lane_holds_checkpoint")
        assert [each["lane"] for each in told] == [1]
        assert stage.row["checkpoint"] == "TRIM_HORIZON"
        last.extend(stage.numbers()[-1:])

    last: list[str] = []
    perform(stage, scene, concurrency=FOUR)
    assert stage.row["checkpoint"] == last[0], "each checkpoints before it ends"


def test_a_full_window_is_a_cause_with_the_lane_and_its_key() -> None:
    stage = Stage(Ways(dies_at=lambda text: text.startswith("x"), hangs=True))

    async def scene() -> None:
        stage.put(["x" * 700] * 9, KEYS[3])
        await until(lambda: bool(stage.reported("shard_stalled")))
        key_hash = f"{crc32(KEYS[3].encode()):08x}"
        assert any(
            each["cause"] == "lane" and "lane 3" in each["detail"] and key_hash in each["detail"]
            for each in stage.reported("shard_stalled")
        )
        stage.ways.dies_at = lambda text: False
        stage.children.children[-1].end(9)
        await until(lambda: stage.row["checkpoint"] == stage.numbers()[-1])

    perform(stage, scene, concurrency=ConcurrencySettings(lanes=LaneCounts(4), window_bytes=4_000))


def test_a_lost_lease_ends_all_lanes_and_nothing_more_is_stored() -> None:
    stage = Stage()

    async def scene() -> None:
        for lane, key in KEYS.items():
            stage.put([f"of {lane}"], key)
        await until(lambda: len(stage.seen) == 4)
        await until(lambda: stage.row["checkpoint"] == stage.numbers()[-1])
        before = stage.row["checkpoint"]
        row = {**stage.row, "leaseOwner": "other", "leaseCounter": stage.row["leaseCounter"] + 5}
        await stage.leases.put(row)
        await until(lambda: all(child.status is not None for child in stage.children.children))
        assert stage.row["checkpoint"] == before

    perform(stage, scene, concurrency=FOUR)
    for child in stage.children.children:
        assert [heard.action for heard in child.heard if not isinstance(heard, CheckpointAnswer)][
            -1
        ] == "leaseLost"


def test_a_child_that_hangs_at_the_end_is_ended_and_the_others_end_well() -> None:
    stage = Stage(Ways(dies_at=lambda text: text == "hangs", hangs=True))

    async def scene() -> None:
        for lane in (0, 1, 2):
            stage.put([f"of {lane}"], KEYS[lane])
        stage.put(["hangs"], KEYS[3])
        await until(lambda: len(stage.seen) == 3)
        numbers.extend(stage.numbers())
        times.append(anyio.current_time())

    numbers: list[str] = []
    times: list[float] = []
    perform(stage, scene, concurrency=FOUR)
    hung = lanes_of(stage).index(3)
    for place, child in enumerate(stage.children.children):
        said = [heard.action for heard in child.heard if not isinstance(heard, CheckpointAnswer)]
        assert said[-1] == ("processRecords" if place == hung else "leaseLost")
    assert stage.reported("child_overran") == []
    assert "leaseOwner" not in stage.row
    assert stage.row["checkpoint"] == numbers[2], "the mark before the record of the child that hung"
    grace_s = stage.settings.child.shutdown_grace_ms / 1000
    assert stage.ended_s - times[0] < grace_s + 2 * stage.settings.child.exit_grace_ms / 1000 + 5


def test_windows_give_up_what_is_processed_where_other_shards_need_the_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All windows together are twice the room that there is; the children checkpoint at their end only."""
    monkeypatch.setattr(ByteBudget.__init__, "__defaults__", (400_000,))
    stage = Stage(Ways(checkpoints=False))
    took_s: list[float] = []

    async def scene() -> None:
        began_s = anyio.current_time()
        await until(lambda: len(stage.seen) == 2_000, within_s=300)
        took_s.append(anyio.current_time() - began_s)

    async def main() -> None:
        stage.model = KinesisModel(lambda: 1_770_000_000.0 + anyio.current_time())
        stage.call("CreateStream", StreamName=STREAM, ShardCount=10)
        for number in range(2_000):
            stage.put([f"{number} " + 1_500 * "x"], f"key-{number}")
        stage.settings = replace(stage.settings, retrieval=replace(stage.settings.retrieval, max_records=20))
        await stage.work(scene, concurrency=ConcurrencySettings(lanes=LaneCounts(4), window_bytes=80_000))

    run_virtual(main)
    assert took_s[0] < 5, "not one shard after the other, each some seconds late"


def test_a_lane_that_has_finished_its_shard_is_not_reported_for_one_that_has_not() -> None:
    stage = Stage(Ways(dies_at=lambda text: text == "slow", hangs=True))

    async def scene() -> None:
        stage.put(["one"], KEYS[2])
        stage.put(["slow"], KEYS[0])
        stage.call(
            "SplitShard",
            StreamName=STREAM,
            ShardToSplit="shardId-000000000000",
            NewStartingHashKey=str(2**127),
        )
        await until(lambda: stage.seen == ["one"])
        await anyio.sleep(700.0)
        assert {told.get("lane") for told in stage.reported("shard_stalled")} == {0, None}
        stage.ways.dies_at = lambda text: False
        stage.children.children[lanes_of(stage).index(0)].end(9)
        await until(lambda: bool(stage.reported("shard_finished")))

    perform(stage, scene, concurrency=FOUR)
    assert {told["cause"] for told in stage.reported("shard_stalled")} == {"child", "lane"}


@pytest.mark.parametrize("next_lanes", [4, 1])
def test_with_latest_nothing_after_a_checkpoint_is_lost_while_the_first_record_is_open(
    next_lanes: int,
) -> None:
    stage, crashed = Stage(Ways(dies_at=lambda text: text == "slow", hangs=True)), dict[str, Any]()
    stage.settings = replace(stage.settings, initial_position=InitialPosition(StartAt.LATEST))

    async def before() -> None:
        await anyio.sleep(30)
        stage.put(["slow"], KEYS[3])
        await anyio.sleep(5)
        stage.put(["quick"], KEYS[0])
        await until(lambda: stage.seen == ["quick"])
        await until(lambda: answers() == [None])
        crashed.update(stage.row)
        await stage.leases.put({**crashed, "leaseOwner": "other", "leaseCounter": 10**6})
        await until(lambda: all(child.status is not None for child in stage.children.children))

    def answers() -> list[str | None]:
        heard = (each for child in stage.children.children for each in child.heard)
        return [each.error for each in heard if isinstance(each, CheckpointAnswer)]

    async def after() -> None:
        await until(lambda: set(stage.seen) == {"slow", "quick", "meanwhile"})
        await until(lambda: stage.row["checkpoint"] == stage.numbers()[-1])
        assert "daemonLanes" not in stage.row, "it has done its duty"

    async def main() -> None:
        stage.model = KinesisModel(lambda: 1_770_000_000.0 + anyio.current_time())
        stage.call("CreateStream", StreamName=STREAM, ShardCount=1)
        await stage.work(before, concurrency=FOUR)
        assert crashed["checkpoint"] == "LATEST"
        stage.ways.dies_at = lambda text: False
        await stage.leases.put({name: value for name, value in crashed.items() if name != "leaseOwner"})
        stage.put(["meanwhile"], KEYS[1])
        await anyio.sleep(5)
        await stage.work(after, concurrency=ConcurrencySettings(lanes=LaneCounts(next_lanes)))

    run_virtual(main)
    assert stage.seen == ["quick", "slow", "meanwhile"] or next_lanes > 1
