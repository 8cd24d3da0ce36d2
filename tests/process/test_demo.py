"""The demo and its stage through the real thing: local endpoints, daemons and children as processes, some of them killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import IO, Final

import anyio
import psutil
import pytest

from kcl_local.demo.processes import Processes, RunningProcess, log_tail
from kcl_local.demo.stage import POLL_EVERY_S, Stage, WriteRate, stage
from kcl_local.demo.text import DemoError, library_feed
from tests.process.daemon import processes_in

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]

GONE_WITHIN_S: Final = 60.0
SHORT: Final = ("--records", "3000", "--rate", "1000", "--shards", "3", "--plain")
LONG: Final = ("--seconds", "60", "--rate", "100", "--shards", "1", "--plain")
BUSY: Final = ("--seconds", "60", "--rate", "50000", "--shards", "4", "--plain")
QUICK_FAILOVER: Final = {
    "failoverTimeMillis": "2000",
    "leaderLeaseMillis": "3000",
    "leaderHeartbeatMillis": "500",
    "workerMetricsReporterFreqInMillis": "500",
}


def named(processes: list[psutil.Process], module: str) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for process in processes:
        with suppress(psutil.Error):  # it has ended since
            if f"-m {module}" in " ".join(process.cmdline()):
                found.append(process)
    return found


def assert_nothing_is_left(directory: Path, known: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs([*known, *processes_in(directory)], timeout=GONE_WITHIN_S)
    assert alive == []


@contextmanager
def running_demo(
    *options: str, keep: Path, stdin: IO[bytes] | None = None
) -> Generator[subprocess.Popen[str]]:
    """The command as a user starts it; killed with all that it started if the test leaves it running."""
    command = [sys.executable, "-m", "kcl_daemon", "demo", "--keep", str(keep), *options]
    with subprocess.Popen(
        command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as demo:
        try:
            yield demo
        finally:
            demo.kill()
            for process in processes_in(keep):
                with suppress(psutil.NoSuchProcess):
                    process.kill()


def output_until(demo: subprocess.Popen[str], pattern: str) -> str:
    """What it prints up to and including the first line that matches."""
    assert demo.stdout is not None
    seen = ""
    for line in demo.stdout:
        seen += line
        if re.search(pattern, line):
            return seen
    raise AssertionError(f"{pattern!r} was not printed:\n{seen}")


def output_of(demo: subprocess.Popen[str]) -> str:
    assert demo.stdout is not None
    return demo.stdout.read()


def test_a_short_run_with_a_text_of_the_users_loses_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(b"the cat and the dog\n\nthe \xff end\n" * 1000)
    keep = tmp_path / "keep"
    with text.open("rb") as stdin, running_demo(*SHORT, "--input", "-", keep=keep, stdin=stdin) as demo:
        reported = output_of(demo)
        assert demo.wait() == 0, reported
        lines = reported.splitlines()
        assert lines[-1] == "lost 0"
        assert "delivered       3,000" in lines
        assert "out of order    0" in lines
        assert "before parents  0" in lines
        assert ["3,000", "the"] in [line.split() for line in lines]
        assert any(line.startswith("split shard") for line in lines)
        assert any(line.startswith("merged shards") for line in lines)
        assert_nothing_is_left(keep, [])


@pytest.mark.parametrize(
    ("options", "copies"),
    [
        pytest.param(("--no-spark", "--seconds", "5"), ("Python",), id="by a processor"),
        pytest.param(("--seconds", "20"), ("Python", "Spark"), id="and by Spark", marks=pytest.mark.prove),
    ],
)
def test_copies_of_a_table_are_equal_to_it(
    tmp_path: Path, options: tuple[str, ...], copies: tuple[str, ...]
) -> None:
    with running_demo("--dynamodb", "--plain", *options, keep=tmp_path) as demo:
        reported = output_of(demo)
        assert demo.wait() == 0, reported
        lines = reported.splitlines()
        assert lines[-2:] == ["copies equal", "lost 0"]
        equal = [line.split()[2] for line in lines if line.endswith("items, as the table has them")]
        assert equal == list(copies)
        assert any("the stream's shards split: 2 follow" in line for line in lines)
        assert_nothing_is_left(tmp_path, [])


@pytest.mark.parametrize(
    "load", [pytest.param(LONG, id="at ease"), pytest.param(BUSY, id="busy", marks=pytest.mark.prove)]
)
def test_ctrl_c_ends_everything(tmp_path: Path, load: tuple[str, ...]) -> None:
    with running_demo(*load, keep=tmp_path) as demo:
        output_until(demo, r"delivered [1-9]")
        known = processes_in(tmp_path)
        assert named(known, "kcl_local.demo.wordcount")
        demo.send_signal(signal.SIGINT)
        text = output_of(demo)
        assert demo.wait() == 130, text
        assert text.splitlines()[-1] == "stopped by SIGINT"
        assert_nothing_is_left(tmp_path, known)


def test_a_second_ctrl_c_does_not_wait_for_anything(tmp_path: Path) -> None:
    with running_demo(*LONG, keep=tmp_path) as demo:
        output_until(demo, r"delivered [1-9]")
        known = processes_in(tmp_path)
        for daemon in named(known, "kcl_daemon"):
            daemon.suspend()  # else it might end before the second signal
        demo.send_signal(signal.SIGINT)
        output_until(demo, "SIGINT: stopping")
        demo.send_signal(signal.SIGINT)
        assert output_of(demo).splitlines()[-1] == "stopped by SIGINT"
        assert demo.wait() == 130
        assert_nothing_is_left(tmp_path, known)


def test_a_killed_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    with running_demo(*LONG, keep=tmp_path) as demo:
        output_until(demo, r"delivered [1-9]")
        known = processes_in(tmp_path)
        for module in ("kcl_local", "kcl_daemon", "kcl_local.demo.wordcount"):
            assert named(known, module)
        demo.kill()
        assert_nothing_is_left(tmp_path, known)


def test_a_daemon_that_dies_fails_the_demo(tmp_path: Path) -> None:
    with running_demo(*LONG, keep=tmp_path) as demo:
        output_until(demo, r"delivered [1-9]")
        known = processes_in(tmp_path)
        (daemon,) = named(known, "kcl_daemon")
        daemon.kill()
        text = output_of(demo)
        assert demo.wait() == 1
        assert "the daemon ended with signal 9" in text
        assert_nothing_is_left(tmp_path, known)


@asynccontextmanager
async def loaded_stage(
    directory: Path, *, shards: int, seconds: float
) -> AsyncGenerator[tuple[Stage, anyio.Event]]:
    """A stage on which text is written from now on, for so long; the event comes when all is written."""
    all_written = anyio.Event()
    async with (
        stage(directory, Processes(), shards=shards) as set_up,
        anyio.create_task_group() as tasks,
    ):

        async def write() -> None:
            await set_up.producer().run(library_feed(), WriteRate(rate=600, seconds=seconds))
            all_written.set()

        tasks.start_soon(write)
        yield set_up, all_written


async def assert_everything_delivered(
    set_up: Stage, all_written: anyio.Event, daemon: RunningProcess
) -> None:
    """Wait for the rest, stop the daemon, and settle the account."""
    await all_written.wait()
    assert await set_up.settled(within_s=90), log_tail(daemon.log)
    assert await daemon.stop() == 0, log_tail(daemon.log)
    await set_up.poll()
    verdict = set_up.checker.verdict()
    assert verdict.lost == 0
    assert verdict.is_right


@pytest.mark.prove  # as `test_restart_in_place` shows it every day, here with a split
async def test_a_killed_daemon_started_again_delivers_every_record(tmp_path: Path) -> None:
    async with loaded_stage(tmp_path, shards=2, seconds=8) as (set_up, all_written):
        properties = set_up.write_properties("worker", QUICK_FAILOVER)
        async with set_up.daemon(properties, "the first daemon") as first:
            assert await set_up.delivered(1_000, within_s=90), log_tail(first.log)
            first.signal(signal.SIGKILL)
            assert await first.wait() == -signal.SIGKILL
        async with set_up.daemon(properties, "the second daemon") as second:
            await set_up.stream.split()
            await assert_everything_delivered(set_up, all_written, second)
    assert_nothing_is_left(tmp_path, [])


async def both_at_work(set_up: Stage, *workers: str) -> None:
    """Wait until each of these workers owns a lease."""
    with anyio.fail_after(90):
        while True:
            owners = {lease.owner for lease in (await set_up.leases()).values()}
            if owners == set(workers):
                return
            await anyio.sleep(POLL_EVERY_S)


@pytest.mark.prove  # as `test_fleet` shows it every day, here with more load
async def test_a_daemon_takes_over_from_one_that_was_killed(tmp_path: Path) -> None:
    async with loaded_stage(tmp_path, shards=4, seconds=15) as (set_up, all_written):
        victim_file = set_up.write_properties("victim", QUICK_FAILOVER)
        survivor_file = set_up.write_properties("survivor", QUICK_FAILOVER)
        async with (
            set_up.daemon(victim_file, "the victim") as victim,
            set_up.daemon(survivor_file, "the survivor") as survivor,
        ):
            assert await set_up.delivered(500, within_s=90), log_tail(victim.log)
            await both_at_work(set_up, "victim", "survivor")
            victim.signal(signal.SIGKILL)
            await assert_everything_delivered(set_up, all_written, survivor)
            assert {lease.owner for lease in (await set_up.leases()).values()} <= {"survivor", None}
    assert_nothing_is_left(tmp_path, [])


async def test_endpoints_that_do_not_start_say_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "broken"
    (broken / "kcl_local").mkdir(parents=True)
    (broken / "kcl_local" / "__init__.py").write_text("raise SystemExit('no endpoints today')")
    monkeypatch.setenv("PYTHONPATH", str(broken))
    directory = tmp_path / "run"
    directory.mkdir()
    with pytest.raises(DemoError, match="no endpoints today"):
        async with stage(directory, Processes(), shards=1):
            pass


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_tied_program_ends_with_a_demo_that_is_killed_and_only_then(
    tmp_path: Path, is_killed: bool
) -> None:
    code = (
        "import subprocess, sys\n"
        "from kcl_local.demo.processes import tie\n"
        "program = subprocess.Popen(['cat'], stdin=subprocess.PIPE, start_new_session=True)\n"
        "with tie(program.pid):\n"
        "    print(program.pid, flush=True)\n"
        "    sys.stdin.readline()\n"
        "print(program.poll(), flush=True)\n"
        "program.kill()\n"
        "program.wait()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path
    ) as demo:
        assert demo.stdin is not None
        assert demo.stdout is not None
        program = psutil.Process(int(demo.stdout.readline()))
        os.kill(program.pid, signal.SIGSTOP)  # it sees no end of its stdin
        if is_killed:
            demo.kill()
            _, alive = psutil.wait_procs([program], timeout=GONE_WITHIN_S)
            assert alive == []
        else:
            demo.stdin.write("\n")
            demo.stdin.flush()
            assert demo.stdout.readline() == "None\n", "it runs on"
