"""`log` messages of a child: to the log where they are allowed, stray output where they are not, never in the way."""

from __future__ import annotations

import anyio
import pytest

from kcl_daemon.config.children import ChildSettings
from kcl_daemon.consumer.connection import ChildConnection, ChildMetrics
from kcl_daemon.ports import NO_METERS
from kcl_protocol.codec import LogLine, encode, encode_log_line
from kcl_protocol.messages import CheckpointAnswer, CheckpointRequest, Initialize, Status
from tests.simulator.loop import run_virtual
from tests.unit.consumer.puppet import Puppet, saying
from tests.unit.fakes import LoopClock, MemoryLog

START = Initialize("shardId-1", "TRIM_HORIZON", 0)
DONE = encode(Status("initialize"))


def initialized(*lines: bytes, accepts_logs: bool = True) -> MemoryLog:
    """The log after a child has answered `initialize` with these lines."""
    log = MemoryLog()

    async def never(request: CheckpointRequest) -> CheckpointAnswer:
        raise AssertionError(f"asked for {request}")

    async def play() -> None:
        dialogue = ChildConnection(
            Puppet(saying(b"".join(lines))),
            ChildSettings(("child",), timeout_s=5.0, log_messages=accepts_logs),
            clock=LoopClock(),
            log=log,
            metrics=ChildMetrics(NO_METERS, LoopClock(), {}),
            on_checkpoint=never,
        )
        async with anyio.create_task_group() as background:
            background.start_soon(dialogue.pump)
            await dialogue.perform(START)
            background.cancel_scope.cancel()

    run_virtual(play)
    return log


@pytest.mark.parametrize(
    ("word", "level"),
    [("debug", "debug"), ("INFO", "info"), ("warn", "warning"), ("CRITICAL", "error"), ("loud", "info")],
)
def test_a_log_message_is_logged_at_its_level_and_answers_nothing(word: str, level: str) -> None:
    log = initialized(encode_log_line(LogLine(word, "hello")), DONE)
    assert log.lines == [(level, "child_log", {"message": "hello"})]


def test_a_log_line_of_a_child_without_leave_is_stray_output() -> None:
    log = initialized(encode_log_line(LogLine("error", "hello")), DONE, accepts_logs=False)
    assert log.events() == ["child_stray_output"]
    assert log.lines[0][2]["reason"] == "unknown action 'log'"


def test_with_leave_other_noise_is_stray_output_as_ever() -> None:
    assert initialized(b"hello\n", DONE).events() == ["child_stray_output"]


def test_a_flood_gives_way_to_others_and_a_long_message_is_cut() -> None:
    flood = [encode_log_line(LogLine("info", "x" * 20_000)) for _ in range(300)]
    log = initialized(*flood, DONE)
    assert len(log.lines) == 300
    assert {len(str(fields["message"])) for _, _, fields in log.lines} == {16 * 1024}
