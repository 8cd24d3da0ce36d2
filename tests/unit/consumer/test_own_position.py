"""Children that say in their answer to `initialize` how far they have come; in virtual time."""

from __future__ import annotations

from dataclasses import dataclass

import anyio
import pytest

from kcl_daemon.config.children import ConcurrencySettings, LaneCounts
from kcl_daemon.consumer.lane import PositionRefused, own_position
from kcl_daemon.leases.lease import CheckpointWindow
from kcl_daemon.leases.row import lease_from_row, reposition
from kcl_protocol.codec import encode
from kcl_protocol.errors import CheckpointIllegalArgument
from kcl_protocol.messages import DaemonMessage, Initialize, Status
from kcl_protocol.sequence import ExtendedSequenceNumber
from tests.unit.consumer.poison_stage import Reader, Stage, Ways, perform, until


@dataclass
class Knows(Ways):
    """`position`: what a child answers, as its place among the records of the stage or as a text."""

    position: str | None = None


class Remembering(Reader):
    def _answer_to(self, message: DaemonMessage) -> bytes | None:
        answer = super()._answer_to(message)
        assert isinstance(self._ways, Knows)
        if isinstance(message, Initialize) and self._ways.position is not None:
            return encode(Status(message.action, sequence_number=self._ways.position, sub_sequence_number=0))
        return answer


def knowing_stage(*, position: str | None = None, checkpoints: bool = True) -> Stage:
    stage = Stage(Knows(dies_at=lambda text: False, checkpoints=checkpoints, position=position))
    stage.children.kind = Remembering
    return stage


def name(stage: Stage, position: str | None) -> None:
    """From now on children name it."""
    assert isinstance(stage.ways, Knows)
    stage.ways.position = position


def at(number: int, sub_number: int = 0) -> ExtendedSequenceNumber:
    return ExtendedSequenceNumber(str(number), sub_number)


def test_the_answer_to_initialize_may_name_a_record() -> None:
    assert own_position(Status("initialize"), has_lanes=False) is None
    named = Status("initialize", sequence_number="7", sub_sequence_number=3)
    assert own_position(named, has_lanes=False) == at(7, 3)


@pytest.mark.parametrize("wrong", ["", "seven", "-3", "SHARD_END", "TRIM_HORIZON", "LATEST"])
def test_an_own_position_that_is_no_sequence_number_is_refused(wrong: str) -> None:
    with pytest.raises(PositionRefused, match="initialize"):
        own_position(Status("initialize", sequence_number=wrong), has_lanes=False)


def test_a_child_of_a_shard_with_several_is_told_what_to_set() -> None:
    with pytest.raises(PositionRefused, match="shardConcurrency = 1"):
        own_position(Status("initialize", sequence_number="7"), has_lanes=True)


def test_a_child_that_began_before_the_stored_checkpoint_may_checkpoint_what_it_gets_again() -> None:
    window = CheckpointWindow(at(9), at(6), began=at(5))
    assert window.position("6", 0) == at(6)
    assert window.position(None, None) == at(6)
    for refused in ("4", "7"):
        with pytest.raises(CheckpointIllegalArgument):
            window.position(refused, 0)


def test_reading_begins_above_the_lease_and_the_lease_follows() -> None:
    stage = knowing_stage(checkpoints=False)

    async def scene() -> None:
        await until(lambda: len(stage.children.children) == 1)
        stage.put(["a", "b", "c"])
        await until(lambda: stage.seen == ["a", "b", "c"])
        name(stage, stage.numbers()[1])
        stage.children.children[0].end(1)
        await until(lambda: len(stage.children.seen) > 1 and stage.children.seen[1] == ["c"])
        assert stage.row["checkpoint"] == stage.numbers()[1]

    perform(stage, scene)
    assert len(stage.reported("child_begins_by_itself")) == 1


def test_reading_begins_below_the_lease_and_the_lease_stays() -> None:
    stage = knowing_stage()

    async def scene() -> None:
        stage.put(["a", "b", "c"])
        await until(lambda: stage.seen == ["a", "b", "c"])
        last = stage.numbers()[2]
        await until(lambda: stage.row["checkpoint"] == last)
        name(stage, stage.numbers()[0])
        stage.children.children[0].end(1)
        await until(lambda: len(stage.children.seen) > 1 and stage.children.seen[1] == ["b", "c"])
        assert stage.row["checkpoint"] == last
        stage.put(["d"])
        await until(lambda: stage.children.seen[1] == ["b", "c", "d"])
        await until(lambda: stage.row["checkpoint"] == stage.numbers()[3])

    perform(stage, scene)
    assert stage.reported("checkpoint_refused") == []


def test_a_record_that_was_set_aside_does_not_come_again_because_the_child_is_behind_it() -> None:
    stage = Stage(Knows())
    stage.children.kind = Remembering

    async def scene() -> None:
        stage.put(["a", "poison"])
        await until(lambda: stage.seen == ["a"])
        name(stage, stage.numbers()[0])
        await until(lambda: stage.set_aside == ["poison"])
        children = len(stage.children.children)
        await anyio.sleep(60)
        assert len(stage.children.children) <= children + 1
        stage.put(["b"])
        await until(lambda: stage.seen == ["a", "b"])

    perform(stage, scene)
    assert stage.set_aside == ["poison"]


def test_neighbours_that_are_set_aside_one_after_the_other_stay_so_while_the_child_is_behind_them() -> None:
    """Each comes in a batch of its own; the child's own position stays before the first one."""
    stage = Stage(Knows())
    stage.children.kind = Remembering

    async def scene() -> None:
        stage.put(["a", "poison"])
        await until(lambda: stage.seen == ["a"])
        name(stage, stage.numbers()[0])
        await until(lambda: stage.set_aside == ["poison"])
        await anyio.sleep(60)
        stage.put(["poison too"])
        await until(lambda: len(stage.set_aside) > 1)
        stage.put(["b"])
        await until(lambda: stage.seen == ["a", "b"])

    perform(stage, scene)
    assert stage.set_aside == ["poison", "poison too"]


def test_a_position_that_kinesis_refuses_stops_the_child_until_it_is_corrected() -> None:
    stage = knowing_stage(position="4965")

    async def scene() -> None:
        stage.put(["a"])
        await until(lambda: len(stage.reported("child_position_refused")) == 2)
        assert stage.seen == []
        name(stage, None)
        await until(lambda: stage.seen == ["a"])

    perform(stage, scene)
    assert "'4965'" in stage.reported("child_position_refused")[0]["error"]


def test_children_of_lanes_are_given_the_token_and_may_name_no_position() -> None:
    stage = knowing_stage(position="4965")

    async def scene() -> None:
        stage.put(["a"])
        await until(lambda: bool(stage.reported("child_position_refused")))
        name(stage, None)
        await until(lambda: stage.seen == ["a"])

    perform(stage, scene, concurrency=ConcurrencySettings(lanes=LaneCounts(2)))
    assert given_tokens(stage) == {stage.row["daemonFence"]}


def given_tokens(stage: Stage) -> set[object]:
    return {
        message.extra.get("fencingToken")
        for child in stage.children.children
        for message in child.heard
        if isinstance(message, Initialize)
    }


def test_all_children_of_one_holding_get_its_token_and_the_next_holding_has_a_larger_one() -> None:
    stage = knowing_stage()

    async def scene() -> None:
        stage.put(["a"])
        await until(lambda: stage.seen == ["a"])
        stage.children.children[0].end(1)
        await until(lambda: len(stage.children.children) == 2 and bool(stage.children.children[1].heard))
        first = given_tokens(stage)
        assert first == {stage.row["daemonFence"]}
        lease = lease_from_row(stage.row)
        await stage.leases.update(reposition(lease, lease.checkpoint))
        await until(lambda: given_tokens(stage) != first)
        assert max(map(int, map(str, given_tokens(stage)))) == stage.row["daemonFence"]

    perform(stage, scene)
    assert len(given_tokens(stage)) == 2
