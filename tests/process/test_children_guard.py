"""What is left of the children of a daemon that was killed: nothing, after the second that they are given."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import psutil
import pytest

from kcl_daemon.children.process import PATIENCE_S, Guard
from kcl_local.demo.check import monotonic_s
from tests.process.children.support import (
    SHARD,
    RecordingLog,
    children_of,
    command,
    descriptors_in_use,
    open_descriptors,
    receive_line,
)
from tests.process.daemon import application, wait_until
from tests.process.local import Local

pytestmark = [pytest.mark.timeout(300)]

AT_ONCE_S = 0.9
TRIES = 5
# Ignores the end of its stdin and every signal that can be ignored, and has a child of its own that does the same.
STUBBORN = f"""#!{sys.executable}
import os, signal
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
    signal.signal(number, signal.SIG_IGN)
os.fork()
while True:
    signal.pause()
"""


def sleeper() -> subprocess.Popen[bytes]:
    """A process that leads a group of its own."""
    return subprocess.Popen(["/bin/sleep", "600"], start_new_session=True)


def guard_of(log: RecordingLog | None = None) -> Guard:
    return Guard(log or RecordingLog())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
def test_nothing_is_left_of_a_daemon_that_was_killed(
    local: Local, tmp_path: Path, number: signal.Signals
) -> None:
    program = tmp_path / "stubborn"
    program.write_text(STUBBORN)
    program.chmod(0o755)
    with (
        application(local, tmp_path, f"killed-{number.name.lower()}", shards=2) as app,
        app.daemon(str(program), {"timeoutInSeconds": 600}) as daemon,
    ):
        daemon.wait_for("child_started", times=2)
        groups = {event["pid"] for event in daemon.named("child_started")}
        wait_until(lambda: len(members(groups)) == 4, "each child has forked")
        (guard,) = guards_of(daemon.process.pid)
        daemon.signal(number)
        assert daemon.end() == -number
        # Without a guard they would stay for ever; how soon they go is its patience, and what else this machine has to do.
        assert PATIENCE_S == 1
        wait_until(lambda: members(groups) == [], lambda: f"{members(groups)} are gone")
        wait_until(lambda: has_ended(guard), "the guard is gone")


def members(groups: set[int]) -> list[psutil.Process]:
    """Every living process of these groups."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) in groups and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, ProcessLookupError):
            continue
    return found


def guards_of(pid: int) -> list[psutil.Process]:
    """The guards of a daemon."""
    return [each for each in psutil.Process(pid).children() if "kcl-daemon-guard" in each.cmdline()]


def has_ended(process: psutil.Process) -> bool:
    """Whether it is gone, or waits for being reaped by whoever inherited it."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.anyio
async def test_a_guard_kills_what_it_watches_when_its_pipe_ends_and_nothing_else() -> None:
    watched, forgotten, other = sleeper(), sleeper(), sleeper()
    guard = guard_of()
    guard.watch(watched.pid)
    guard.watch(forgotten.pid)
    guard.forget(forgotten.pid)
    guard.forget(other.pid)
    try:
        await guard.aclose()
        assert watched.wait(60) == -signal.SIGKILL
        assert forgotten.poll() is None
        assert other.poll() is None
    finally:
        for process in (watched, forgotten, other):
            process.kill()
            process.wait()


@pytest.mark.anyio
async def test_a_guard_of_nobody_ends_at_once_and_leaves_nothing() -> None:
    assert guard_of().pid is None
    # The best of some: one that is patient takes a second each time.
    assert min([await seconds_of_a_guard_of_nobody() for _ in range(TRIES)]) < AT_ONCE_S


async def seconds_of_a_guard_of_nobody() -> float:
    """How long the end takes of one whose only group has ended; nothing else is ended by it."""
    before = descriptors_in_use()
    guard = guard_of()
    process = sleeper()
    guard.watch(process.pid)
    pid = guard.pid
    assert pid is not None
    guard.forget(process.pid)
    began_s = monotonic_s()
    await guard.aclose()
    took_s = monotonic_s() - began_s
    assert not psutil.pid_exists(pid)
    assert open_descriptors() == before
    assert process.poll() is None
    process.kill()
    process.wait()
    return took_s


@pytest.mark.anyio
async def test_a_guard_that_was_killed_is_replaced_by_one_that_knows_everything() -> None:
    log = RecordingLog()
    guard = guard_of(log)
    first, second = sleeper(), sleeper()
    guard.watch(first.pid)
    killed = guard.pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: psutil.Process(killed).status() == psutil.STATUS_ZOMBIE, "it has ended")
    guard.watch(second.pid)
    assert guard.pid not in {None, killed}
    assert [event for _, event, _ in log.recorded.last] == ["guard_replaced"]
    await guard.aclose()
    assert (first.wait(60), second.wait(60)) == (-signal.SIGKILL, -signal.SIGKILL)


@pytest.mark.anyio
async def test_without_a_shell_children_run_unguarded_with_one_warning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = RecordingLog()
    monkeypatch.setattr("kcl_daemon.children.process._SHELL", "/no/sh")
    guard = guard_of(log)
    guard.watch(4_000_000)
    guard.watch(4_000_001)
    guard.forget(4_000_000)
    await guard.aclose()
    assert [event for _, event, _ in log.recorded.last] == ["children_not_guarded"]


@pytest.mark.anyio
@pytest.mark.parametrize("missing", ["os.pipe", "subprocess.Popen"])
async def test_where_descriptors_were_short_for_a_moment_the_next_child_brings_a_guard_for_all(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    log = RecordingLog()
    guard = guard_of(log)
    first, second = sleeper(), sleeper()
    before = descriptors_in_use()
    with monkeypatch.context() as short:
        short.setattr(f"kcl_daemon.children.process.{missing}", no_descriptors)
        guard.watch(first.pid)
    assert guard.pid is None
    assert open_descriptors() == before
    guard.watch(second.pid)
    await guard.aclose()
    assert (first.wait(60), second.wait(60)) == (-signal.SIGKILL, -signal.SIGKILL)
    assert [event for _, event, _ in log.recorded.last] == ["children_not_guarded"]


def no_descriptors(*_: object, **__: object) -> NoReturn:
    """What the system says to a process that has opened too many files."""
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.anyio
async def test_there_is_one_guard_for_all_children_and_it_ignores_what_stops_daemons() -> None:
    async with children_of(command("report")) as children:
        for _ in range(3):
            await receive_line(await children.start(SHARD))
        guard = children._guard
        pid = guard.pid
        assert pid is not None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(pid, number)
        await children.start(SHARD)
        assert guard.pid == pid
        assert psutil.Process(pid).cwd() == "/"
        assert os.getsid(pid) == pid
    assert not psutil.pid_exists(pid)
