"""Checkpoints that a child asks for between two actions, which the Java daemon serves at its next wait."""

from __future__ import annotations

import anyio
import pytest

from kcl_daemon.config.children import FailureSettings
from kcl_daemon.errors import ChildBrokeProtocol
from kcl_protocol.codec import encode
from kcl_protocol.messages import (
    Action,
    CheckpointAnswer,
    CheckpointRequest,
    DaemonMessage,
    LeaseLost,
    ProcessRecords,
    ShardEnded,
    ShutdownRequested,
    Status,
)
from tests.unit.consumer.poison_stage import EarlyReader, Stage, perform, until
from tests.unit.consumer.puppet import obedient
from tests.unit.consumer.test_connection import BATCH, START, Talk, talk

ASKED = CheckpointRequest("17", 0)
INVALID = "InvalidStateException"


@pytest.mark.parametrize("action", [BATCH, ShutdownRequested(), ShardEnded()], ids=lambda each: each.action)
def test_it_is_answered_before_the_child_hears_of_the_next_action(action: Action) -> None:
    async def scene(stage: Talk) -> None:
        await stage.dialogue.perform(START)
        stage.child.say(encode(ASKED) * 2)
        await anyio.sleep(60)
        assert stage.asked == []
        await stage.dialogue.perform(action, before_send=lambda: known.append(len(stage.asked)))

    known: list[int] = []
    stage = talk(obedient, scene)
    answer = CheckpointAnswer("17", 0, None)
    assert stage.child.heard == [START, answer, answer, action]
    assert known == [2]


def test_once_the_lease_is_lost_nothing_is_stored_for_it() -> None:
    async def scene(stage: Talk) -> None:
        await stage.dialogue.perform(START)
        stage.child.say(encode(ASKED))
        await anyio.sleep(1)
        await stage.dialogue.perform(LeaseLost())

    stage = talk(obedient, scene)
    assert stage.asked == []
    assert stage.child.heard == [START, CheckpointAnswer("17", 0, INVALID), LeaseLost()]


def test_a_status_behind_a_checkpoint_between_actions_breaks_the_protocol() -> None:
    async def scene(stage: Talk) -> None:
        await stage.dialogue.perform(START)
        stage.child.say(encode(ASKED) + encode(Status("processRecords")))
        await anyio.sleep(1)
        with pytest.raises(ChildBrokeProtocol, match="before it was given processRecords"):
            await stage.dialogue.perform(BATCH, before_send=lambda: known.append(1))

    known: list[int] = []
    stage = talk(obedient, scene)
    assert stage.asked == [ASKED]
    assert BATCH not in stage.child.heard
    assert known == []


def test_a_flood_of_them_ends_the_conversation_as_some_could_not_be_kept() -> None:
    async def scene(stage: Talk) -> None:
        await stage.dialogue.perform(START)
        stage.child.say(encode(ASKED) * 10_000)
        await anyio.sleep(1)
        with pytest.raises(ChildBrokeProtocol, match="more than 16 messages"):
            await stage.dialogue.perform(BATCH)

    talk(obedient, scene)


def test_a_checkpoint_between_actions_is_stored_at_once_in_a_quiet_stream() -> None:
    """A client that answers before its records are done has no action in which it could ask."""
    stage = Stage(failures=FailureSettings())
    stage.children.kind = EarlyReader

    async def scene() -> None:
        stage.put(["one"])
        await until(lambda: stage.seen == ["one"])
        await until(lambda: stage.row["checkpoint"] == stage.numbers()[0], within_s=1)

    perform(stage, scene)


class Forgetful(EarlyReader):
    """Asks without a position, answers, and hangs at its second batch."""

    def _answer_to(self, message: DaemonMessage) -> bytes | None:
        if isinstance(message, ProcessRecords) and self._seen:
            return None
        answer = super()._answer_to(message)
        if isinstance(message, ProcessRecords):
            return encode(Status(message.action)) + encode(CheckpointRequest())
        return answer


def test_one_without_a_position_covers_what_was_delivered_when_it_was_asked_for() -> None:
    stage = Stage(failures=FailureSettings())
    stage.children.kind = Forgetful

    async def scene() -> None:
        stage.put(["one"])
        await until(lambda: stage.seen == ["one"])
        (first,) = stage.numbers()
        stage.put(["two"])
        await until(lambda: str(stage.row["checkpoint"]).isdigit())
        await anyio.sleep(5)
        assert stage.row["checkpoint"] == first

    perform(stage, scene)
