"""The life of real child processes: how they start, end, are signalled and leave nothing behind."""

from __future__ import annotations

import ast
import gc
import os
import signal
import warnings
from contextlib import suppress
from pathlib import Path

import pytest
from anyio import CancelScope, create_task_group, fail_after, sleep, wait_all_tasks_blocked

from kcl_daemon.children import platform
from kcl_daemon.errors import ChildExited
from tests.process.children.support import (
    GUARD_DESCRIPTORS,
    SHARD,
    RecordingLog,
    children_of,
    command,
    descriptors_in_use,
    drained,
    ended,
    is_gone,
    open_descriptors,
    receive_line,
)

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]


def reap(pid: int) -> None:
    """As somebody else in this process would."""
    os.waitpid(pid, 0)


def no_news(kind: int, pid: int, options: int) -> None:
    """In place of os.waitid: a child of ours that runs."""


def no_signal(pid: int, number: int) -> None:
    """In place of os.killpg."""


async def test_a_child_leads_its_own_session_and_inherits_directory_and_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KCL_TEST_MARK", "inherited")
    inheritable = os.open("/", os.O_RDONLY)
    os.set_inheritable(inheritable, True)
    async with children_of(command("report")) as children:
        await children.start(SHARD)  # its descriptors must not be seen in the next one
        child = await children.start(SHARD)
        os.close(inheritable)
        facts = ast.literal_eval((await receive_line(child)).decode())
        assert facts == {
            "session": True,
            "group": True,
            "cwd": str(tmp_path),
            "mark": "inherited",
            "fds": [0, 1, 2],
            "blocking": True,
        }


async def test_a_child_dies_of_a_broken_pipe_as_programs_expect() -> None:
    async with children_of(("/bin/grep", "SigIgn", "/proc/self/status")) as children:
        ignored = int((await receive_line(await children.start(SHARD))).split()[1], 16)
    assert not ignored & 1 << signal.SIGPIPE - 1


async def test_a_child_killed_by_a_signal_tells_which() -> None:
    async with children_of(command("deaf")) as children:
        child = await children.start(SHARD)
        os.kill(child.pid, signal.SIGHUP)
        assert await child.wait() == -signal.SIGHUP


async def test_an_ended_child_is_reaped_though_nobody_waits_for_it() -> None:
    async with children_of(command("exit_with", "0")) as children:
        child = await children.start(SHARD)
        with fail_after(30):
            while not is_gone(child.pid):  # noqa: ASYNC110 - nobody is told of it
                await sleep(0.01)


@pytest.mark.parametrize("way", ["kill", "terminate"])
async def test_signals_take_what_the_child_started(way: str) -> None:
    async with children_of(command("parent", "same")) as children:
        child = await children.start(SHARD)
        grandchild = int(await receive_line(child))
        getattr(child, way)()
        await child.wait()
        await ended(grandchild)


async def test_processes_that_a_child_started_end_when_the_child_ends_by_itself() -> None:
    async with children_of(command("parent", "same")) as children:
        child = await children.start(SHARD)
        grandchild = int(await receive_line(child))
        await child.close_stdin()
        assert await child.wait() == 0
        await ended(grandchild)
        assert await child.receive() == b""


async def test_a_process_that_moved_away_and_holds_all_pipes_holds_nothing_up() -> None:
    async with children_of(command("last_words", "kept")) as children:
        child = await children.start(SHARD)
        stranger = int(await receive_line(child))
        try:
            await child.send(b"go\n")
            assert await child.wait() == 4
            assert child.stderr_tail == ("err kept",)
            assert await drained(child) == b"out kept\n"
            await child.aclose()
        finally:
            os.kill(stranger, signal.SIGKILL)


async def test_a_send_that_waits_ends_with_the_child_though_others_hold_its_stdin() -> None:
    async with children_of(command("last_words", "none")) as children:
        child = await children.start(SHARD)
        stranger = int(await receive_line(child))
        try:
            with pytest.raises(ChildExited) as raised:
                await child.send(b"go\n" + b"x" * 4_000_000)
            assert raised.value.status == 4
        finally:
            os.kill(stranger, signal.SIGKILL)


async def test_a_receive_that_waits_ends_with_the_child_though_others_hold_its_stdout() -> None:
    async with children_of(command("parent", "away")) as children:
        child = await children.start(SHARD)
        stranger = int(await receive_line(child))
        received: list[bytes] = []

        async def receive() -> None:
            received.append(await child.receive())

        try:
            async with create_task_group() as tasks:
                tasks.start_soon(receive)
                await wait_all_tasks_blocked()
                child.kill()
            assert received == [b""]
        finally:
            os.kill(stranger, signal.SIGKILL)


async def test_no_signal_goes_to_the_group_number_of_a_reaped_child(monkeypatch: pytest.MonkeyPatch) -> None:
    signalled: list[tuple[int, int]] = []
    async with children_of(command("exit_with", "0")) as children:
        child = await children.start(SHARD)
        await child.wait()

        def record(pid: int, number: int) -> None:
            signalled.append((pid, number))

        monkeypatch.setattr(os, "killpg", record)
        monkeypatch.setattr(os, "waitid", no_news)  # as if the number were a new child's by now
        child.terminate()
        child.kill()
        await child.aclose()
    assert signalled == []


async def test_a_child_reaped_by_somebody_else_has_an_unknown_status_and_gets_no_signal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    signalled: list[tuple[int, int]] = []

    def record(pid: int, number: int) -> None:
        signalled.append((pid, number))

    async with children_of(command("deaf")) as children:
        child = await children.start(SHARD)
        os.kill(child.pid, signal.SIGKILL)
        reap(child.pid)
        monkeypatch.setattr(os, "killpg", record)
        child.kill()
        assert await child.wait() == 255
    assert signalled == []


async def test_a_cancelled_aclose_returns_only_when_all_is_done() -> None:
    before = descriptors_in_use()
    async with children_of(command("stubborn")) as children:
        child = await children.start(SHARD)
        with CancelScope() as scope:
            scope.cancel()
            await child.aclose()
        assert is_gone(child.pid)
        assert open_descriptors() == before + GUARD_DESCRIPTORS


async def test_a_child_that_cannot_be_signalled_is_reported() -> None:
    def refuse(pid: int, number: int) -> None:
        raise PermissionError

    log = RecordingLog()
    async with children_of(command("echo"), log) as children:
        child = await children.start(SHARD)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "killpg", refuse)
            child.terminate()
        fields = {
            "signal": "SIGTERM",
            "reason": "it runs as another user",
            "shard_id": SHARD,
            "pid": child.pid,
        }
        assert list(log.recorded.last) == [("warning", "child_not_signalled", fields)]
        await child.close_stdin()
        assert await child.wait() == 0


async def test_a_stopped_child_can_be_closed() -> None:
    async with children_of(command("echo")) as children:
        child = await children.start(SHARD)
        os.kill(child.pid, signal.SIGSTOP)
        await child.aclose()
        assert await child.wait() == -signal.SIGKILL


async def test_a_cancelled_start_starts_nothing() -> None:
    before = descriptors_in_use()
    async with children_of(command("echo")) as children:
        with CancelScope() as scope:
            scope.cancel()
            await children.start(SHARD)
        assert scope.cancelled_caught
        assert open_descriptors() == before


async def test_cancelling_everything_right_after_a_start_leaves_nothing() -> None:
    before = descriptors_in_use()
    pid = 0
    with CancelScope() as scope:
        async with children_of(command("stubborn")) as children:
            pid = (await children.start(SHARD)).pid
            scope.cancel()
    assert is_gone(pid)
    assert open_descriptors() == before


async def test_cancelling_everything_while_all_wait_leaves_nothing() -> None:
    before = descriptors_in_use()
    pid = 0
    async with create_task_group() as tasks:

        async def run() -> None:
            nonlocal pid
            async with children_of(command("stubborn")) as children:
                child = await children.start(SHARD)
                await receive_line(child)
                pid = child.pid
                await child.wait()

        tasks.start_soon(run)
        while not pid:
            await wait_all_tasks_blocked()
        tasks.cancel_scope.cancel()
    assert is_gone(pid)
    assert open_descriptors() == before


async def test_fifty_children_leave_no_zombie_and_no_descriptor() -> None:
    before = descriptors_in_use()
    async with children_of(("/bin/cat",)) as children:
        started = [await children.start(SHARD) for _ in range(50)]
        for number, child in enumerate(started):
            await child.send(b"%d\n" % number)
            assert await receive_line(child) == b"%d\n" % number
        assert open_descriptors() >= before + (4 if platform.LINUX else 3) * 50
        async with create_task_group() as tasks:
            for child in started:
                tasks.start_soon(child.aclose)
        assert open_descriptors() == before + GUARD_DESCRIPTORS
        assert all(is_gone(child.pid) for child in started)


async def test_children_nobody_closed_are_closed_with_the_context() -> None:
    before = descriptors_in_use()
    async with children_of(command("stubborn")) as children:
        started = [await children.start(SHARD) for _ in range(5)]
        await started[0].aclose()
    assert all(is_gone(child.pid) for child in started)
    assert open_descriptors() == before


async def test_an_error_of_the_body_ends_the_children_and_passes_as_it_is() -> None:
    child = None
    with pytest.raises(LookupError, match="of the body"):
        async with children_of(command("stubborn")) as children:
            child = await children.start(SHARD)
            raise LookupError("of the body")
    assert child is not None
    assert is_gone(child.pid)


async def test_a_process_that_survives_kill_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kcl_daemon.children.process._KILL_PATIENCE_S", 0.05)
    log = RecordingLog()
    before = descriptors_in_use()
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        # Of a process that is not reaped; the guard, which is told to let go, may end it before that is noticed.
        warnings.simplefilter("ignore", ResourceWarning)
        async with children_of(command("deaf"), log) as children:
            child = await children.start(SHARD)
            patch.setattr(os, "killpg", no_signal)  # as one that hangs in the kernel
            pid = child.pid
        del child, children
        gc.collect()  # while it is ignored that nobody reaped it
        assert [event for _, event, _ in log.recorded.last] == ["child_survives_kill"]
        assert open_descriptors() == before
    with suppress(ProcessLookupError, ChildProcessError):  # the guard was faster
        os.kill(pid, signal.SIGKILL)
        reap(pid)
