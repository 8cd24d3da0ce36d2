"""The conversation with one child, above all with one that does not keep to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from kcl_daemon.config.children import ChildSettings
from kcl_daemon.consumer.connection import ChildConnection, ChildMetrics
from kcl_daemon.errors import ChildBrokeProtocol, ChildError, ChildExited, ChildTimedOut
from kcl_daemon.ports import NO_METERS
from kcl_daemon.records.batch_text import LINES
from kcl_protocol.codec import encode
from kcl_protocol.messages import (
    CheckpointAnswer,
    CheckpointRequest,
    Initialize,
    LeaseLost,
    ProcessRecords,
    Record,
    ShardEnded,
    Status,
)
from tests.simulator.loop import run_virtual
from tests.unit.consumer.puppet import Answer, Puppet, checkpoint_then_status, obedient, saying
from tests.unit.fakes import LoopClock, MemoryLog

START = Initialize("shardId-1", "TRIM_HORIZON", 0)
BATCH = ProcessRecords([Record("YQ==", "key", "17")], 0)


class Talk:
    """A dialogue with a puppet, and what was asked of the checkpointer."""

    def __init__(self, answer: Answer, timeout_s: float | None, warn_after_s: float | None) -> None:
        self.child = Puppet(answer)
        self.log = MemoryLog()
        self.asked: list[CheckpointRequest] = []
        self.silences = 0
        warn_after_ms = None if warn_after_s is None else round(1000 * warn_after_s)
        self.dialogue = ChildConnection(
            self.child,
            ChildSettings(("child",), timeout_s=timeout_s, warn_after_ms=warn_after_ms),
            clock=LoopClock(),
            log=self.log,
            metrics=ChildMetrics(NO_METERS, LoopClock(), {}),
            on_checkpoint=self._checkpoint,
        )

    async def _checkpoint(self, request: CheckpointRequest) -> CheckpointAnswer:
        self.asked.append(request)
        return CheckpointAnswer(request.sequence_number, request.sub_sequence_number, None)

    async def pump(self) -> None:
        await self.dialogue.pump()
        self.silences += 1


def talk(
    answer: Answer,
    scene: Callable[[Talk], Awaitable[object]],
    *,
    timeout_s: float | None = None,
    warn_after_s: float | None = None,
) -> Talk:
    """Play a scene with a child; gives what is left on the stage."""

    async def play() -> Talk:
        stage = Talk(answer, timeout_s, warn_after_s)
        async with anyio.create_task_group() as background:
            background.start_soon(stage.pump)
            await scene(stage)
            background.cancel_scope.cancel()
        return stage

    return run_virtual(play)


def failure(
    answer: Answer, *, timeout_s: float | None = 5.0, before: Callable[[Talk], None] | None = None
) -> ChildError:
    """What `initialize` ends in."""
    caught: list[ChildError] = []

    async def scene(stage: Talk) -> None:
        if before is not None:
            before(stage)
        with pytest.raises(ChildError) as error:
            await stage.dialogue.perform(START)
        caught.append(error.value)

    talk(answer, scene, timeout_s=timeout_s)
    return caught[0]


async def whole_life(stage: Talk) -> None:
    for action in (START, BATCH, ShardEnded()):
        await stage.dialogue.perform(action)


def test_actions_are_given_one_after_another() -> None:
    stage = talk(obedient, whole_life)
    assert stage.child.heard == [START, BATCH, ShardEnded()]
    assert stage.log.lines == []


def test_a_checkpoint_is_answered_inside_the_action() -> None:
    stage = talk(checkpoint_then_status("17", 0), whole_life)
    asked = CheckpointRequest("17", 0)
    assert stage.asked == [asked, asked]  # not the one during initialize
    answers = [message for message in stage.child.heard if isinstance(message, CheckpointAnswer)]
    assert [answer.error for answer in answers] == ["InvalidStateException", None, None]


def test_no_checkpoint_is_possible_once_the_lease_is_lost() -> None:
    async def scene(stage: Talk) -> None:
        await stage.dialogue.perform(START)
        stage.child.answer = checkpoint_then_status()
        await stage.dialogue.perform(LeaseLost())

    stage = talk(obedient, scene)
    assert stage.asked == []
    assert CheckpointAnswer(None, None, "InvalidStateException") in stage.child.heard


def test_the_wrong_status_is_a_broken_protocol() -> None:
    error = failure(saying(encode(Status("processRecords"))))
    assert isinstance(error, ChildBrokeProtocol)
    assert "processRecords" in str(error)


def test_a_child_that_ends_is_noticed_with_its_exit_code() -> None:
    def before(stage: Talk) -> None:
        stage.child.end(3)

    error = failure(saying(), before=before)
    assert error == ChildExited("initialize", 3)
    assert "exit code 3" in str(error)


def test_a_child_that_only_closes_its_stdout_is_noticed_too() -> None:
    assert failure(saying(), before=lambda stage: stage.child.close_stdout()) == ChildExited(
        "initialize", None
    )


def test_a_child_that_never_answers_runs_out_of_time() -> None:
    assert failure(saying()) == ChildTimedOut("initialize", 5.0)


def test_garbage_does_not_keep_a_silent_child_alive() -> None:
    assert failure(saying(b'hello\nworld\n{"action":')) == ChildTimedOut("initialize", 5.0)


def test_a_checkpoint_starts_the_time_anew() -> None:
    async def scene(stage: Talk) -> None:
        async with anyio.create_task_group() as child:
            child.start_soon(slowly, stage)
            await stage.dialogue.perform(START)

    async def slowly(stage: Talk) -> None:
        for line in (encode(CheckpointRequest()), encode(CheckpointRequest()), encode(Status("initialize"))):
            await anyio.sleep(4.0)
            stage.child.say(line)

    stage = talk(saying(), scene, timeout_s=5.0)
    assert len(stage.child.heard) == 3


def test_a_slow_child_is_told_of_once_for_each_answer_and_goes_on() -> None:
    async def scene(stage: Talk) -> None:
        async with anyio.create_task_group() as child:
            child.start_soon(slowly, stage)
            await stage.dialogue.perform(START)

    async def slowly(stage: Talk) -> None:
        for line, pause_s in ((encode(CheckpointRequest()), 20.0), (encode(Status("initialize")), 9.0)):
            await anyio.sleep(pause_s)
            stage.child.say(line)

    stage = talk(saying(), scene, warn_after_s=10.0)
    assert [(event, fields) for _, event, fields in stage.log.lines if event == "child_is_slow"] == [
        ("child_is_slow", {"action": "initialize", "waited_s": 10.0})
    ]


def test_without_a_time_out_a_slow_child_may_take_a_day() -> None:
    async def scene(stage: Talk) -> None:
        async with anyio.create_task_group() as child:
            child.start_soon(tomorrow, stage)
            await stage.dialogue.perform(START)
            assert anyio.current_time() >= 86_400

    async def tomorrow(stage: Talk) -> None:
        await anyio.sleep(86_400)
        stage.child.say(encode(Status("initialize")))

    talk(saying(), scene)


@pytest.mark.parametrize(
    ("noise", "said"),
    [
        (b"starting up\n", ["child_stray_output"]),
        (b"\n\n   \n", []),  # nobody could do anything about it
        (b'["action"]\n', ["child_stray_output"]),
        (b"\xff\xfe\x00garbage\r\n", ["child_stray_output"]),
        (b'{"action":"status","responseFor":\n', ["child_stray_output"]),
        (b"x" * 100_000_000 + b"\n", ["child_stray_output"]),
        (b'{"action":"initialize","shardId":"s"}\n', ["child_stray_output"]),
    ],
    ids=["words", "blank lines", "a list", "no text", "half a message", "a long line", "an echo"],
)
def test_noise_before_the_answer_does_no_harm(noise: bytes, said: list[str]) -> None:
    stage = talk(saying(noise + encode(Status("initialize"))), lambda stage: stage.dialogue.perform(START))
    assert stage.log.events() == said
    for _, _, fields in stage.log.lines:
        assert len(str(fields)) < 2000


def test_only_the_first_stray_line_is_loud() -> None:
    answer = saying(b"one\ntwo\nthree\n" + encode(Status("initialize")))
    stage = talk(answer, lambda stage: stage.dialogue.perform(START))
    assert stage.log.events("warning") == ["child_stray_output"]
    assert stage.log.events("debug") == ["child_stray_output"] * 2


def test_an_answer_without_a_line_end_at_the_end_of_stdout_counts() -> None:
    async def scene(stage: Talk) -> None:
        stage.child.say(encode(Status("initialize")).rstrip())
        stage.child.close_stdout()
        await stage.dialogue.perform(START)

    assert talk(saying(), scene).silences == 1


def test_a_flood_of_messages_that_nobody_asked_for_ends_in_an_error_not_in_a_stall() -> None:
    error = failure(saying(encode(Status("shardEnded")) * 10_000))
    assert isinstance(error, ChildBrokeProtocol)


def test_a_second_status_is_the_wrong_answer_to_the_next_action() -> None:
    async def scene(stage: Talk) -> None:
        await stage.dialogue.perform(START)
        with pytest.raises(ChildBrokeProtocol):
            await stage.dialogue.perform(BATCH)

    talk(saying(encode(Status("initialize")) * 2), scene)


def test_a_second_status_for_a_batch_is_not_taken_for_the_answer_to_the_next_one() -> None:
    async def scene(stage: Talk) -> None:
        await stage.dialogue.perform(START)
        stage.child.answer = saying(encode(Status("processRecords")) * 2)
        await stage.dialogue.perform(BATCH)
        with pytest.raises(ChildBrokeProtocol, match="before it was given processRecords"):
            await stage.dialogue.perform(BATCH)

    talk(obedient, scene)


def test_an_idle_childs_death_is_reported() -> None:
    async def scene(stage: Talk) -> None:
        await stage.dialogue.perform(START)
        assert stage.silences == 0
        stage.child.end(-9)
        await anyio.sleep(0.1)
        assert stage.silences == 1
        assert await stage.dialogue.exited("idle") == ChildExited("idle", -9)

    assert talk(obedient, scene).silences == 1


@pytest.mark.parametrize(("version", "takes"), [(None, False), (1, True), (2, False)])
def test_a_child_takes_frames_if_it_announces_a_version_that_is_known(
    version: int | None, takes: bool
) -> None:
    async def scene(stage: Talk) -> None:
        await stage.dialogue.perform(START)

    stage = talk(saying(encode(Status("initialize", version))), scene)
    assert (stage.dialogue.encoder.framing is not LINES) is takes
    told = [fields for _, event, fields in stage.log.lines if event == "child_frames_unknown"]
    assert [fields["version"] for fields in told] == ([2] if version == 2 else [])


def test_frames_are_announced_in_initialize_only() -> None:
    async def scene(stage: Talk) -> None:
        await stage.dialogue.perform(START)
        await stage.dialogue.perform(BATCH)

    answers = saying(encode(Status("initialize")), encode(Status("processRecords", 1)))
    assert talk(answers, scene).dialogue.encoder.framing is LINES
