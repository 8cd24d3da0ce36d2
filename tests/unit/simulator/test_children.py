"""Scripted children: they keep the protocol, and break it as told."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from kcl_daemon.errors import ChildExited, ChildStartFailed
from kcl_protocol.codec import Echo, Stray, encode
from kcl_protocol.messages import (
    Action,
    CheckpointAnswer,
    CheckpointRequest,
    ChildMessage,
    Initialize,
    LeaseLost,
    ProcessRecords,
    Record,
    ShardEnded,
    ShutdownRequested,
    Status,
)
from kcl_protocol.sequence import SHARD_END, ExtendedSequenceNumber
from tests.simulator.faults.behaviour import Behaviour, ChildrenPlan, Mischief, When
from tests.simulator.faults.life import WorkerKilled
from tests.simulator.loop import now
from tests.simulator.violation import Violation
from tests.unit.simulator.home import (
    INITIALIZE,
    NUMBERS,
    SHARD,
    Home,
    Talk,
    at_home,
    initialized,
    naughty,
    records,
    well,
    with_child,
)


def test_a_child_answers_each_action_and_ends_at_the_end_of_its_input() -> None:
    async def run(home: Home, talk: Talk) -> None:
        await initialized(talk)
        await talk.say(LeaseLost())
        assert await talk.hear() == Status("leaseLost")
        await talk.child.close_stdin()
        assert await talk.child.wait() == 0
        assert await talk.child.receive() == b""
        assert home.children.running == []

    with_child(well(), run)


@pytest.mark.parametrize(
    ("children_plan", "asked"),
    [
        (well(), [None]),
        (well(explicit=True), ["12"]),
        (well(When.MIDDLE_OF_BATCH), ["12"]),
        (well(When.TWICE_A_BATCH), ["12", None]),
        (well(When.AT_END_ONLY), []),
    ],
)
def test_a_child_checkpoints_as_its_behaviour_says(
    children_plan: ChildrenPlan, asked: list[str | None]
) -> None:
    async def run(home: Home, talk: Talk) -> None:
        await initialized(talk)
        await talk.say(records("11", "12"))
        home.stored = ExtendedSequenceNumber("12")
        for number in asked:
            request = await talk.hear()
            assert isinstance(request, CheckpointRequest)
            assert request.sequence_number == number
            await talk.say(CheckpointAnswer(number, request.sub_sequence_number, None))
        assert await talk.hear() == Status("processRecords")
        assert home.truth.shards[SHARD].deliveries == [1, 1, 0, 0]
        assert home.deliveries.accepted == len(asked)

    with_child(children_plan, run)


def test_a_child_that_may_asks_again_after_throttling_and_not_after_losing_the_lease() -> None:
    async def run(home: Home, talk: Talk) -> None:
        await initialized(talk)
        await talk.say(records("11"))
        assert await talk.hear() == CheckpointRequest()
        await talk.say(CheckpointAnswer(None, None, "ThrottlingException"))
        assert await talk.hear() == CheckpointRequest()
        await talk.say(CheckpointAnswer(None, None, "ShutdownException"))
        assert await talk.hear() == Status("processRecords")
        assert home.deliveries.refused == {"ThrottlingException": 1, "ShutdownException": 1}

    with_child(well(), run)


def test_a_child_checkpoints_when_asked_to_stop_and_at_the_end_of_its_shard() -> None:
    async def run(home: Home, talk: Talk) -> None:
        await initialized(talk)
        await talk.say(records(*NUMBERS))
        assert await talk.hear() == Status("processRecords")
        await talk.say(ShutdownRequested())
        assert await talk.hear() == CheckpointRequest()
        home.stored = ExtendedSequenceNumber("14")
        await talk.say(CheckpointAnswer(None, None, None))
        assert await talk.hear() == Status("shutdownRequested")
        home.truth.shard_closed(SHARD)
        await talk.say(ShardEnded())
        assert await talk.hear() == CheckpointRequest()
        home.stored = SHARD_END
        await talk.say(CheckpointAnswer(None, None, None))
        assert await talk.hear() == Status("shardEnded")
        assert home.deliveries.was_asked(SHARD, "worker", SHARD_END)

    with_child(well(When.AT_END_ONLY), run)


@pytest.mark.parametrize(
    ("mischief", "status"), [(Mischief.EXIT, 3), (Mischief.EXIT_LATER, 1), (Mischief.HALF_LINE_AND_EXIT, 3)]
)
def test_children_that_exit(mischief: Mischief, status: int) -> None:
    async def run(home: Home, talk: Talk) -> None:
        await talk.say(INITIALIZE)
        assert await talk.child.wait() == status
        with pytest.raises(ChildExited):
            await talk.say(INITIALIZE)

    with_child(naughty(mischief), run)


def test_a_child_that_hangs_answers_nothing_and_ends_only_by_a_signal() -> None:
    async def run(home: Home, talk: Talk) -> None:
        await talk.say(INITIALIZE)
        await talk.child.close_stdin()
        with anyio.move_on_after(1000) as scope:
            await talk.hear()
        assert scope.cancelled_caught
        talk.child.terminate()
        assert await talk.child.wait() == -15

    with_child(naughty(Mischief.HANG), run)


def test_a_child_that_closes_its_stdout_lives_on() -> None:
    async def run(home: Home, talk: Talk) -> None:
        await talk.say(INITIALIZE)
        with pytest.raises(EOFError):
            await talk.hear()
        assert talk.child.is_running

    with_child(naughty(Mischief.CLOSE_STDOUT), run)


@pytest.mark.parametrize(
    ("mischief", "answers"),
    [
        (Mischief.WRONG_STATUS, [Status("initialise")]),
        (Mischief.SECOND_STATUS, [Status("initialize"), Status("initialize")]),
        (Mischief.HALF_LINE, [Status("initialize")]),
        (Mischief.ECHO, [Echo("leaseLost"), Echo("processRecords"), Status("initialize")]),
        (Mischief.FOREIGN_CHECKPOINT, [CheckpointRequest("9" * 56), Status("initialize")]),
        (Mischief.MALFORMED_CHECKPOINT, [CheckpointRequest("not-a-number", 0), Status("initialize")]),
    ],
)
def test_children_that_say_the_wrong_thing(
    mischief: Mischief, answers: list[ChildMessage | Echo | Stray]
) -> None:
    async def run(home: Home, talk: Talk) -> None:
        await talk.say(INITIALIZE)
        for answer in answers:
            assert await talk.hear() == answer
            if isinstance(answer, CheckpointRequest):
                await talk.say(CheckpointAnswer(answer.sequence_number, None, "IllegalArgumentException"))

    with_child(naughty(mischief), run)


def test_a_child_that_prints_garbage_still_answers() -> None:
    async def run(home: Home, talk: Talk) -> None:
        await talk.say(INITIALIZE)
        answers = [await talk.hear()]
        while isinstance(answers[-1], Stray | Echo):
            answers.append(await talk.hear())
        assert len(answers) > 1
        assert answers[-1] == Status("initialize")

    with_child(naughty(Mischief.GARBAGE), run)


def test_a_child_that_finishes_its_shard_without_a_checkpoint() -> None:
    async def run(home: Home, talk: Talk) -> None:
        await initialized(talk)
        await talk.say(records(*NUMBERS))
        assert await talk.hear() == Status("processRecords")
        home.truth.shard_closed(SHARD)
        await talk.say(ShardEnded())
        assert await talk.hear() == Status("shardEnded")

    children_plan = ChildrenPlan(Behaviour(When.AT_END_ONLY), mischief={Mischief.NO_CHECKPOINT_AT_END: 1.0})
    with_child(children_plan, run)


def test_a_stubborn_child_ends_only_by_sigkill() -> None:
    async def run(home: Home, talk: Talk) -> None:
        await initialized(talk)
        await talk.child.close_stdin()
        await anyio.sleep(10)
        talk.child.terminate()
        await anyio.sleep(10)
        assert talk.child.is_running
        talk.child.kill()
        assert await talk.child.wait() == -9

    with_child(ChildrenPlan(Behaviour(ignores_eof=True, ignores_term=True)), run)


def test_closing_a_child_ends_it_and_may_be_repeated() -> None:
    async def run(home: Home, talk: Talk) -> None:
        await talk.child.aclose()
        assert not talk.child.is_running
        await talk.child.aclose()

    with_child(well(), run)


def test_writing_waits_while_the_pipe_is_full() -> None:
    async def run(home: Home, talk: Talk) -> None:
        await talk.say(INITIALIZE)
        with anyio.move_on_after(5) as scope:
            await talk.child.send(encode(ProcessRecords([Record("A" * 100_000, "key", "11")], 0)))
        assert scope.cancelled_caught

    with_child(naughty(Mischief.HANG), run)


def test_the_children_of_a_killed_worker_die_with_it() -> None:
    async def run(home: Home, talk: Talk) -> None:
        await initialized(talk)
        home.life.kill()
        with pytest.raises(WorkerKilled):
            await talk.say(LeaseLost())
        await talk.child.close_stdin()
        talk.child.terminate()
        talk.child.kill()
        await talk.child.aclose()
        assert talk.child.is_running
        await anyio.sleep(0.1)
        assert talk.child.status == -9

    with_child(well(), run)


def test_a_child_may_fail_to_start() -> None:
    async def run(home: Home) -> None:
        with pytest.raises(ChildStartFailed):
            await home.children.start(SHARD)
        assert now() > 0

    at_home(ChildrenPlan(start_fails=1.0), run)


def test_two_children_of_one_worker_for_one_shard_are_a_violation() -> None:
    async def run(home: Home) -> None:
        await home.children.start(SHARD)
        await home.children.start(SHARD)
        await anyio.sleep(1)

    with pytest.raises(Violation, match="second_child"):
        at_home(well(), run)


@pytest.mark.parametrize(
    ("messages", "violation"),
    [
        ([records("11")], "daemon_broke_protocol"),
        ([INITIALIZE, INITIALIZE], "daemon_broke_protocol"),
        ([Initialize("other", "TRIM_HORIZON", 0)], "wrong_shard"),
        ([INITIALIZE, records("12")], "record_skipped"),
        ([INITIALIZE, records("11", "13")], "record_skipped"),
        ([INITIALIZE, records("11", "11")], "out_of_order"),
        ([INITIALIZE, records("15")], "unknown_record"),
        ([INITIALIZE, ShardEnded()], "ended_too_early"),
        ([replace(INITIALIZE, sequence_number="12")], "started_ahead"),
    ],
)
def test_a_wrong_action_to_a_child_is_a_violation(messages: list[Action], violation: str) -> None:
    async def run(home: Home, talk: Talk) -> None:
        for message in messages:
            await talk.say(message)
            await anyio.sleep(1)

    with pytest.raises(Violation, match=violation):
        with_child(well(When.AT_END_ONLY), run)


def test_a_legal_checkpoint_that_is_refused_is_a_violation() -> None:
    async def run(home: Home, talk: Talk) -> None:
        await initialized(talk)
        await talk.say(records("11"))
        await talk.hear()
        await talk.say(CheckpointAnswer(None, None, "IllegalArgumentException"))
        await anyio.sleep(1)

    with pytest.raises(Violation, match="legal_checkpoint_refused"):
        with_child(well(), run)


def test_an_accepted_checkpoint_that_the_table_does_not_have_is_a_violation() -> None:
    async def run(home: Home, talk: Talk) -> None:
        await initialized(talk)
        await talk.say(records("11"))
        await talk.hear()
        await talk.say(CheckpointAnswer(None, None, None))
        await anyio.sleep(1)

    with pytest.raises(Violation, match="checkpoint_not_stored"):
        with_child(well(), run)


@pytest.mark.parametrize("mischief", [Mischief.FOREIGN_CHECKPOINT, Mischief.MALFORMED_CHECKPOINT])
def test_an_illegal_checkpoint_that_is_accepted_is_a_violation(mischief: Mischief) -> None:
    async def run(home: Home, talk: Talk) -> None:
        await talk.say(INITIALIZE)
        await talk.hear()
        await talk.say(CheckpointAnswer(None, None, None))
        await anyio.sleep(1)

    with pytest.raises(Violation, match="foreign_checkpoint_accepted"):
        with_child(naughty(mischief), run)
