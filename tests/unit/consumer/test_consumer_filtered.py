"""A shard with a `recordFilter`, from outside: who is given what, and where its checkpoint stands; in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import anyio
import pytest

from kcl_daemon.config.children import ChildSettings, ConcurrencySettings, LaneCounts
from kcl_daemon.config.retrieval import DeliverySettings, RetrievalMode, RetrievalSettings
from kcl_daemon.records.record_filter import RecordFilter
from kcl_daemon.shards.lineage import InitialPosition, StartAt
from kcl_protocol.codec import encode
from kcl_protocol.messages import (
    CheckpointAnswer,
    CheckpointRequest,
    DaemonMessage,
    Initialize,
    ProcessRecords,
    ShardEnded,
    ShutdownRequested,
)
from tests.unit.consumer.poison_stage import POISON, STREAM, Reader, Stage, Ways, perform, until

KEPT = DeliverySettings(record_filter=RecordFilter.of('{"data": [{"prefix": "yes"}, {"prefix": "poison"}]}'))
Scene = Callable[[], Awaitable[None]]


def play(stage: Stage, scene: Scene, **changes: Any) -> list[str]:
    """Give the sequence numbers of all records."""
    numbers: list[str] = []

    async def begun() -> None:
        await anyio.sleep(20)
        await scene()
        numbers.extend(stage.numbers())

    perform(stage, begun, delivery=KEPT, **changes)
    return numbers


def batches(stage: Stage) -> int:
    return sum(
        isinstance(heard, ProcessRecords) for child in stage.children.children for heard in child.heard
    )


def test_only_what_matches_is_given_and_the_checkpoint_goes_on_without_the_rest() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.put(["yes 1", "no 1", "yes 2", "no 2"])
        await until(lambda: len(stage.seen) == 2)
        given = batches(stage)
        for number in range(20):
            stage.put([f"no {number}"])
            await anyio.sleep(5)
        await anyio.sleep(32)
        assert stage.row["checkpoint"] == stage.numbers()[-1]
        assert batches(stage) == given == 1

    numbers = play(stage, scene)
    assert stage.seen == ["yes 1", "yes 2"]
    assert stage.row["checkpoint"] == numbers[-1]


def test_the_checkpoint_of_a_shard_without_a_match_is_never_older_than_a_minute() -> None:
    stage = Stage()

    async def scene() -> None:
        written: dict[str, float] = {}
        for number in range(300):
            stage.put([f"no {number}"])
            written[stage.numbers()[-1]] = anyio.current_time()
            await anyio.sleep(1)
            if number > 60:
                assert anyio.current_time() - written[stage.row["checkpoint"]] < 35
        assert len(stage.reported("checkpoint_stored")) < 12, "a write each half minute, not more"

    play(stage, scene)
    assert len(stage.children.children) == 1
    assert batches(stage) == 0


def test_nothing_is_stored_above_a_record_that_the_child_has_not_checkpointed() -> None:
    stage = Stage(Ways(checkpoints=False))

    async def scene() -> None:
        stage.put(["no", "yes", "no", "no"])
        await anyio.sleep(120)
        assert stage.seen == ["yes"]
        assert stage.row["checkpoint"] in {"TRIM_HORIZON", stage.numbers()[0]}

    numbers = play(stage, scene)
    assert stage.row["checkpoint"] == numbers[-1], "asked for without a number at its end"


class Repeating(Reader):
    """Checkpoints its last record by number, again and again: at its stop and at the end of its shard, too."""

    last = ""

    def _answer_to(self, message: DaemonMessage) -> bytes | None:
        answer = super()._answer_to(message)
        if isinstance(message, ProcessRecords):
            self.last = message.records[-1].sequence_number
        if isinstance(message, ShutdownRequested | ShardEnded):
            return encode(CheckpointRequest(self.last or None, 0 if self.last else None))
        return answer


@pytest.mark.parametrize("split", [False, True])
def test_a_child_may_checkpoint_its_last_record_again_after_more_was_passed(split: bool) -> None:
    stage = Stage()
    stage.children.kind = Repeating

    async def scene() -> None:
        stage.put(["yes", "no", "no"])
        await until(lambda: stage.row["checkpoint"] == stage.numbers()[-1])
        if split:
            stage.call(
                "SplitShard",
                StreamName=STREAM,
                ShardToSplit="shardId-000000000000",
                NewStartingHashKey=str(2**127),
            )
            await until(lambda: bool(stage.reported("shard_finished")))

    play(stage, scene)
    heard = [
        each
        for child in stage.children.children
        for each in child.heard
        if isinstance(each, CheckpointAnswer)
    ]
    assert len(heard) >= 2
    assert [each.error for each in heard] == [None] * len(heard)


def test_at_a_stop_what_was_passed_is_stored_at_once() -> None:
    stage = Stage()
    stage.children.kind = Repeating

    async def scene() -> None:
        stage.put(["yes"])
        await until(lambda: stage.seen == ["yes"])
        stage.put(["no"] * 5)
        await anyio.sleep(3)
        assert stage.row["checkpoint"] == stage.numbers()[0]

    numbers = play(stage, scene)
    assert stage.row["checkpoint"] == numbers[-1]


def test_a_start_at_latest_where_nothing_matched_yet_loses_nothing_when_the_child_is_replaced() -> None:
    stage = Stage()

    async def scene() -> None:
        await anyio.sleep(20)
        stage.put(["no 1", "no 2"])
        await anyio.sleep(3)
        stage.children.children[0].end(9)
        stage.put(["yes"])
        await until(lambda: stage.seen == ["yes"])
        assert len(stage.children.children) == 2

    play(stage, scene, initial_position=InitialPosition(StartAt.LATEST))


def test_the_record_that_kills_is_found_among_those_that_do_not_match() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.put(text for number in range(30) for text in (f"no {number}", f"yes {number}"))
        stage.put([POISON, "no"])
        await until(lambda: stage.set_aside == [POISON])
        await until(lambda: stage.row["checkpoint"] == stage.numbers()[-1])

    play(stage, scene, failures=replace(stage.failures, poison_tries=2))
    assert stage.seen == [f"yes {number}" for number in range(30)]


def test_lanes_pass_over_what_does_not_match() -> None:
    stage = Stage()

    async def scene() -> None:
        for number in range(20):
            stage.put([f"no {number}", f"yes {number}", f"no again {number}"], f"key {number}")
        await until(lambda: len(stage.seen) == 20)
        stage.put(["no"] * 3)
        await until(lambda: stage.row["checkpoint"] == stage.numbers()[-1], within_s=45)

    play(stage, scene, concurrency=ConcurrencySettings(lanes=LaneCounts(3)))
    assert sorted(stage.seen) == sorted(f"yes {number}" for number in range(20))


def test_a_shard_where_nothing_matches_is_told_to_be_caught_up_and_not_stalled() -> None:
    stage = Stage()

    async def scene() -> None:
        for _ in range(300):
            stage.put(["no"] * 3)
            await anyio.sleep(2)

    play(stage, scene)
    assert not stage.reported("shard_stalled")


def test_children_that_want_empty_batches_get_them() -> None:
    stage = Stage()

    class Patient(Reader):
        def _answer_to(self, message: DaemonMessage) -> bytes | None:
            if isinstance(message, ProcessRecords) and not message.records:
                self._doing = message.action
                return encode(CheckpointRequest(None, None))
            return super()._answer_to(message)

    stage.children.kind = Patient

    async def scene() -> None:
        stage.put(["no", "no"])
        await until(lambda: stage.row["checkpoint"] == stage.numbers()[-1], within_s=10)

    play(stage, scene, child=ChildSettings(("child",), call_for_empty=True))
    assert batches(stage) > 1


def test_a_new_child_begins_where_the_daemon_stored() -> None:
    stage = Stage()

    async def scene() -> None:
        stage.put(["no"] * 4)
        await until(lambda: stage.row["checkpoint"] == stage.numbers()[-1])
        stage.children.children[0].end(9)
        await until(lambda: len(stage.children.children) == 2 and bool(stage.children.children[1].heard))
        (told,) = (each for each in stage.children.children[1].heard if isinstance(each, Initialize))
        assert told.sequence_number == stage.numbers()[-1]

    play(stage, scene, retrieval=RetrievalSettings(mode=RetrievalMode.POLLING))
