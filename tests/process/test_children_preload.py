"""Children that are forked from a template: what happens to them, and what happens when there is none."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from kcl_client import EXIT_USER_ERROR
from kcl_daemon.children import platform
from kcl_daemon.children.start import ChildAccount, ChildOptions
from kcl_daemon.errors import ChildStartFailed
from kcl_daemon.ports import Child, StreamRef
from kcl_protocol.codec import encode
from kcl_protocol.messages import Initialize, LeaseLost, ProcessRecords
from tests.process.children.support import (
    SHARD,
    RecordingLog,
    children_of,
    command,
    descriptors_in_use,
    drained,
    ended,
    is_gone,
    open_descriptors,
    preloaded,
    receive_line,
)
from tests.process.daemon import application, wait_until
from tests.process.local import Local
from tests.process.test_children_guard import has_ended, members

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

PRELOAD = ChildOptions(preload=True)
EXECUTABLE = os.path.realpath(sys.executable)
SYSTEM_PYTHON = "/usr/bin/python3"
# The start protocol as docs/protocol.md has it, in a program of somebody else.
OTHER = """
import json, os, socket
peer = socket.socket(fileno=int(os.environ.pop("KCL_PRELOAD_FD")))
def say(**message):
    peer.send(json.dumps(message).encode())
say(action="preloaded")
while True:
    packet, descriptors, *_ = socket.recv_fds(peer, 65536, 3)
    request = json.loads(packet)
    if request["action"] == "reap":
        say(status=os.waitstatus_to_exitcode(os.waitpid(request["pid"], 0)[1]))
    elif not os.fork():
        os.setsid()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        os.environ.update(request["env"])
        say(pid=os.getpid())
        break
    for descriptor in descriptors:
        os.close(descriptor)
peer.close()
print(os.getuid(), os.getgid(), flush=True)
input()
"""
PROCESSOR = """
import os, sys
from kcl_client import *
class Program({kind}):
    {word}def initialize(self, shard):
        print(os.environ.get("KCL_STREAM_NAME"), os.environ.get("KCL_SHARD_ID"), "KCL_PRELOAD_FD" in os.environ)
    {word}def process_records(self, batch, checkpointer):
        raise ValueError("no record pleases it")
print("imported")
run(Program())
"""


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code)


async def served(child: Child) -> None:
    """It echoes a line and ends well."""
    await child.send(b"hello\n")
    assert await receive_line(child) == b"hello\n"
    await child.close_stdin()
    assert await child.wait() == 0


def template_pids(log: RecordingLog) -> list[int]:
    started = [fields for _, event, fields in log.recorded.last if event == "child_template_started"]
    return [int(str(fields["pid"])) for fields in started]


def loud(log: RecordingLog) -> list[tuple[str, str]]:
    return [(level, event) for level, event, _ in log.recorded.last if level in {"warning", "error"}]


async def test_forked_children_lead_sessions_and_have_three_descriptors_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KCL_TEST_MARK", "inherited")
    log, before = RecordingLog(), descriptors_in_use()
    async with children_of(preloaded("report"), log, PRELOAD) as children:
        first, second = await children.start(SHARD), await children.start(SHARD)
        (template,) = template_pids(log)
        for child in (first, second):
            assert ast.literal_eval((await receive_line(child)).decode()) == {
                "session": True,
                "group": True,
                "cwd": str(Path.cwd()),
                "mark": "inherited",
                "fds": [0, 1, 2],
                "blocking": True,
            }
            assert await child.wait() == 0
    assert is_gone(template)
    assert open_descriptors() == before
    assert loud(log) == []


@pytest.mark.parametrize(("kind", "word"), [("RecordProcessor", ""), ("AsyncRecordProcessor", "async ")])
async def test_a_processor_runs_in_its_fork_as_it_would_alone(tmp_path: Path, kind: str, word: str) -> None:
    program, log = tmp_path / "program.py", RecordingLog()
    program.write_text(PROCESSOR.format(kind=kind, word=word))
    async with children_of((sys.executable, str(program)), log, PRELOAD) as children:
        one = await children.start(SHARD, StreamRef("orders"))
        other = await children.start(SHARD)
        for child in (one, other):
            await child.send(encode(Initialize("shardId-0", "TRIM_HORIZON", 0)))
            assert b"initialize" in await receive_line(child)
        await one.send(encode(ProcessRecords([], 0)))
        assert await one.wait() == EXIT_USER_ERROR
        assert "ValueError: no record pleases it" in one.stderr_tail
        await other.send(encode(LeaseLost()))
        assert b"leaseLost" in await receive_line(other)
        await other.close_stdin()
        assert await other.wait() == 0
    assert one.stderr_tail[0] == f"orders {SHARD} False"
    assert other.stderr_tail == ("None None False",)
    assert log.recorded.lines().count("imported") == 1
    assert loud(log) == []


async def test_a_killed_child_tells_which_signal_and_the_others_live() -> None:
    log = RecordingLog()
    async with children_of(preloaded("echo"), log, PRELOAD) as children:
        one, other = await children.start(SHARD), await children.start(SHARD)
        os.kill(one.pid, signal.SIGKILL)
        assert await one.wait() == -signal.SIGKILL
        assert is_gone(one.pid)
        await served(await children.start(SHARD))
        await served(other)
    assert len(template_pids(log)) == 1


async def test_processes_that_a_forked_child_started_end_with_it() -> None:
    async with children_of(preloaded("parent", "same"), options=PRELOAD) as children:
        child = await children.start(SHARD)
        grandchild = int(await receive_line(child))
        await child.close_stdin()
        assert await child.wait() == 0
        await ended(grandchild)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_template_that_is_lost_is_replaced_and_its_children_live_on(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr("kcl_daemon.children.preload._ANSWER_S", 0.5)
    monkeypatch.setattr("kcl_daemon.children.preload._END_S", 0.5)
    log = RecordingLog()
    async with children_of(preloaded("echo"), log, PRELOAD) as children:
        orphan = await children.start(SHARD)
        (killed,) = template_pids(log)
        os.kill(killed, number)
        child = await children.start(SHARD)
        assert is_gone(killed)
        await orphan.send(b"alive\n")
        assert await receive_line(orphan) == b"alive\n"
        await orphan.close_stdin()
        assert await orphan.wait() == 255  # whoever inherited it has its exit code
        orphan.kill()
        await served(child)
    assert len(template_pids(log)) == 2
    assert loud(log) == [("warning", "child_template_lost")]


@pytest.mark.parametrize(
    ("program", "error"),
    [
        (command("echo"), "it has ended: exit code 0"),
        (python("import sys; sys.exit(3)"), "it has ended: exit code 3"),
        (python("import time; time.sleep(600)"), "did not answer within"),
        (python(OTHER.replace('say(action="preloaded")', "peer.send(b'[]')")), "no JSON object: b'[]'"),
        (python(OTHER.replace('action="preloaded"', 'action="hello"')), "instead of preloaded"),
        (python(OTHER.replace("os.setsid()", "pass")), "must lead a process group of its own"),
        (python(OTHER.replace("say(pid=os.getpid())", "say(error='not today')")), "not today"),
    ],
)
async def test_without_a_usable_template_children_start_one_by_one_and_one_error_says_so(
    monkeypatch: pytest.MonkeyPatch, program: tuple[str, ...], error: str
) -> None:
    monkeypatch.setattr("kcl_daemon.children.preload._PRELOAD_S", 2.0)
    monkeypatch.setattr("kcl_daemon.children.preload._END_S", 0.5)
    log = RecordingLog()
    async with children_of(program, log, PRELOAD) as children:
        for _ in range(3):
            await (await children.start(SHARD)).aclose()
    (failed,) = [fields for level, _, fields in log.recorded.last if level == "error"]
    assert error in str(failed["error"])
    assert "childPreload" in str(failed["advice"])
    assert loud(log) == [("error", "child_template_failed")]


@pytest.mark.parametrize(
    ("start", "name"),
    [
        ("threading.Thread(target=time.sleep, args=(600,), daemon=True, name='poller').start()", "poller"),
        ("_thread.start_new_thread(time.sleep, (600,))", "python"),
    ],
)
async def test_a_template_with_threads_is_not_forked(start: str, name: str) -> None:
    program = f"""
import os, sys, threading, time, _thread
{start}
if "KCL_PRELOAD_FD" in os.environ:
    from kcl_client import _preload
    _preload.serve(int(os.environ.pop("KCL_PRELOAD_FD")))
for line in sys.stdin.buffer:
    os.write(1, line)
os._exit(0)
"""
    log = RecordingLog()
    async with children_of(python(program), log, PRELOAD) as children:
        await served(await children.start(SHARD))
        await served(await children.start(SHARD))
    if not platform.LINUX and start.startswith("_thread"):
        assert loud(log) == [], "only Linux tells of threads that Python does not know"
        return
    (error,) = [fields["error"] for level, _, fields in log.recorded.last if level == "error"]
    assert str(error).startswith("it has threads, which a fork would lose (")
    assert name in str(error)
    assert "start them in `initialize`" in str(error)


def test_threads_that_end_at_a_fork_are_none() -> None:
    """OpenBLAS starts its threads when numpy is imported."""
    code = (
        "import os, numpy; from kcl_client import _preload; before = len(os.listdir('/proc/self/task'));"
        "print(before > 1 or os.cpu_count() == 1, _preload._threads())"
    )
    done = subprocess.run(python(code), capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "True []\n"


async def test_a_template_that_cannot_be_started_is_a_child_that_cannot() -> None:
    log = RecordingLog()
    async with children_of(("/nowhere/program",), log, PRELOAD) as children:
        with pytest.raises(ChildStartFailed, match="no such file"):
            await children.start(SHARD)
    assert log.recorded.count == 0


def another_user_may_start(program: str) -> bool:
    """A Python in somebody's home is for that user alone."""
    path = Path(program)
    return path.exists() and all(each.stat().st_mode & 0o001 for each in (path, *path.resolve().parents))


async def test_a_program_that_speaks_the_start_protocol_itself_needs_no_client_of_ours() -> None:
    program = next(filter(another_user_may_start, (EXECUTABLE, SYSTEM_PYTHON)), None)
    account = ChildAccount(65534, 65534, (65534,)) if program and os.geteuid() == 0 else None
    me = f"{os.getuid()} {os.getgid()}"
    options = ChildOptions(account, preload=True)
    log = RecordingLog()
    async with children_of((program or EXECUTABLE, "-I", "-S", "-c", OTHER), log, options) as children:
        child = await children.start(SHARD)
        assert (await receive_line(child)).decode().strip() == ("65534 65534" if account else me)
        await child.send(b"\n")
        assert await child.wait() == 0
        assert await drained(child) == b""
    assert loud(log) == []


def test_nothing_is_left_of_a_daemon_that_was_killed(local: Local, tmp_path: Path) -> None:
    with (
        application(local, tmp_path, "killed-preload", shards=2) as app,
        app.daemon(" ".join(preloaded("stubborn", "x")), {"childPreload": True}) as daemon,
    ):
        daemon.wait_for("child_started", times=2)
        (template,) = (psutil.Process(each["pid"]) for each in daemon.named("child_template_started"))
        groups = {event["pid"] for event in daemon.named("child_started")}
        assert {psutil.Process(pid).ppid() for pid in groups} == {template.pid}
        daemon.signal(signal.SIGKILL)
        assert daemon.end() == -signal.SIGKILL
        wait_until(lambda: members(groups) == [], lambda: f"{members(groups)} are gone")
        wait_until(lambda: has_ended(template), "the template is gone")
