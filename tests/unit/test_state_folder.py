"""The state folder on a real file system: who is seen, what is proven, and that nothing in it stops the daemon."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from anyio import to_thread

from kcl_daemon.leases.expiry import FileLockState, ProvenDead, Unproven, judge_process
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.state_folder import HostFolder, default_folders
from tests.unit.fakes import MemoryLog

APPLICATION = "orders\norders\nus-east-1\n"
pytestmark = pytest.mark.anyio

# A daemon that has entered the folder, as a process of its own, with a guard that holds its lock for a while.
PROCESS = """
import anyio, pathlib, subprocess, sys, time
from kcl_daemon.state_folder import HostFolder
from tests.unit.fakes import MemoryLog
async def main():
    folder = HostFolder((pathlib.Path(sys.argv[1]),), sys.argv[2], MemoryLog())
    await folder.enter(sys.argv[3], sys.argv[3] + "-nonce")
    if sys.argv[4] == "guarded":
        subprocess.Popen(["/bin/sh", "-c", "read x"], stdin=sys.stdin, pass_fds=(folder.lock_file,))
    print("in", flush=True)
    time.sleep(600)
anyio.run(main)
"""


def started(tmp_path: Path, name: str, how: str = "alone") -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROCESS, str(tmp_path), APPLICATION, name, how],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"in\n"
    return process


def ended(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.kill()
    process.wait(60)
    process.stdin.close()
    process.stdout.close()


def only(folder: Path) -> Path:
    (entry,) = folder.iterdir()
    return entry


async def newcomer(tmp_path: Path, name: str = "newcomer") -> tuple[HostFolder, MemoryLog]:
    log = MemoryLog()
    folder = HostFolder((tmp_path,), APPLICATION, log)
    await folder.enter(WorkerId(name), f"{name}-nonce")
    return folder, log


async def test_a_process_that_lives_is_seen_and_not_taken_for_dead(tmp_path: Path) -> None:
    other = started(tmp_path, "other")
    folder, _ = await newcomer(tmp_path)
    (found,) = await folder.poll()
    assert found.record.worker_id == "other"
    assert (found.seen.lock, found.seen.running) == (FileLockState.HELD, True)
    assert judge_process(found.record, found.seen) == Unproven(f"process {other.pid} runs")
    ended(other)
    folder.close()


async def test_a_killed_process_is_proven_dead_even_before_it_is_reaped(tmp_path: Path) -> None:
    other = started(tmp_path, "other")
    other.send_signal(signal.SIGKILL)
    await to_thread.run_sync(os.waitid, os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # a zombie from now on
    folder, _ = await newcomer(tmp_path)
    (found,) = await folder.poll()
    assert isinstance(judge_process(found.record, found.seen), ProvenDead)
    assert found.seen.running is False
    ended(other)
    (again,) = await folder.poll()
    assert isinstance(judge_process(again.record, again.seen), ProvenDead)
    await folder.forget(again.name)
    assert await folder.poll() == ()
    folder.close()


async def test_the_lock_is_held_until_the_guard_of_a_killed_process_has_ended(tmp_path: Path) -> None:
    other = started(tmp_path, "other", "guarded")
    other.send_signal(signal.SIGKILL)
    other.wait(60)
    folder, _ = await newcomer(tmp_path)
    (found,) = await folder.poll()
    assert (found.seen.lock, found.seen.running) == (FileLockState.HELD, False)
    assert other.stdin is not None
    other.stdin.close()  # the guard reads its end
    while found.seen.lock is FileLockState.HELD:
        (found,) = await folder.poll()
    assert isinstance(judge_process(found.record, found.seen), ProvenDead)
    ended(other)
    folder.close()


async def test_of_two_newcomers_one_takes_up_what_a_dead_one_left(tmp_path: Path) -> None:
    ended(started(tmp_path, "other"))
    first, _ = await newcomer(tmp_path, "first")
    second, _ = await newcomer(tmp_path, "second")
    of_first = {found.record.worker_id: found for found in await first.poll()}
    of_second = {found.record.worker_id: found for found in await second.poll()}
    assert isinstance(
        judge_process(of_first[WorkerId("other")].record, of_first[WorkerId("other")].seen), ProvenDead
    )
    assert of_second[WorkerId("other")].seen.lock is FileLockState.HELD
    first.close()
    second.close()


async def test_a_copy_of_the_folder_proves_nothing(tmp_path: Path) -> None:
    other = started(tmp_path / "a", "other")
    copied = only(tmp_path / "a")
    (tmp_path / "b" / copied.name).mkdir(parents=True, mode=0o700)
    record = only(copied)
    (tmp_path / "b" / copied.name / record.name).write_bytes(record.read_bytes())
    folder, _ = await newcomer(tmp_path / "b")
    (found,) = await folder.poll()
    assert found.seen.lock is FileLockState.FREE
    assert isinstance(judge_process(found.record, found.seen), Unproven)
    ended(other)
    (found,) = await folder.poll()
    assert isinstance(judge_process(found.record, found.seen), Unproven)
    folder.close()


async def test_whoever_leaves_by_itself_leaves_nothing_behind(tmp_path: Path) -> None:
    folder, log = await newcomer(tmp_path)
    await folder.leave()
    folder.close()
    other, _ = await newcomer(tmp_path, "other")
    assert await other.poll() == ()
    assert log.lines == []
    other.close()


async def test_a_file_that_is_no_worker_record_is_passed_over(tmp_path: Path) -> None:
    ended(started(tmp_path, "other"))
    folder, log = await newcomer(tmp_path)
    own = only(tmp_path)
    (own / "garbage.json").write_bytes(b"\xff{" * 5000)
    (own / "empty.json").touch()
    os.mkfifo(own / "pipe.json")
    (own / "folder.json").mkdir()
    (own / "link.json").symlink_to("/etc/passwd")
    assert [found.record.worker_id for found in await folder.poll()] == ["other"]
    assert log.events() == []
    folder.close()


async def test_a_folder_that_cannot_be_used_is_told_of_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    log = MemoryLog()
    folder = HostFolder((tmp_path / "file" / "below",), APPLICATION, log)
    await folder.enter(WorkerId("me"), "nonce")
    assert await folder.poll() == ()
    await folder.leave()
    folder.close()
    assert log.events() == ["state_folder_unusable"]
    assert folder.lock_file is None


async def test_a_folder_that_others_can_write_to_or_a_link_to_one_is_not_used(tmp_path: Path) -> None:
    folder, _ = await newcomer(tmp_path)
    folder.close()
    own = only(tmp_path)
    own.chmod(0o777)
    _, log = await newcomer(tmp_path)
    assert log.events() == ["state_folder_unusable"]
    own.chmod(0o700)
    own.rename(tmp_path / "elsewhere")
    own.symlink_to(tmp_path / "elsewhere")
    _, log = await newcomer(tmp_path)
    assert log.events() == ["state_folder_unusable"]


def test_the_folder_of_the_service_manager_comes_first() -> None:
    of_systemd = {
        "STATE_DIRECTORY": "/var/lib/a:/var/lib/b",
        "HOME": "/home/me",
        "XDG_STATE_HOME": "/home/me/s",
    }
    assert default_folders(of_systemd)[:2] == (Path("/var/lib/a"), Path("/home/me/s/kcl-daemon"))
    assert default_folders({"HOME": "/home/me"})[0] == Path("/home/me/.local/state/kcl-daemon")
    assert default_folders({"HOME": "/"})[0] == Path("/var/lib/kcl-daemon")


def evidence_in(folder: Path) -> list[Path]:
    return sorted(folder.rglob("invariant-*.jsonl"))


async def test_evidence_is_kept_for_its_owner_and_the_newest_files_stay(tmp_path: Path) -> None:
    folder, log = await newcomer(tmp_path)
    paths = [
        await folder.keep(f"{1_700 + number}-a/b:shardId-1", [{"invariant": "memory"}, {"s": -1.5}])
        for number in range(25)
    ]
    kept = evidence_in(tmp_path)
    assert [str(path) for path in kept] == paths[5:]
    assert kept[-1].name == "invariant-1724-a_b_shardId-1.jsonl"
    assert kept[-1].read_text("ascii") == '{"invariant": "memory"}\n{"s": -1.5}\n'
    assert stat.S_IMODE(kept[-1].stat().st_mode) == 0o600
    assert log.events() == []
    assert await folder.poll() == (), "it is no record of a process"
    await folder.leave()
    folder.close()


async def test_evidence_that_cannot_be_kept_is_told_of(tmp_path: Path) -> None:
    log = MemoryLog()
    (tmp_path / "file").write_text("", "ascii")
    folder = HostFolder((tmp_path / "file" / "below",), APPLICATION, log)
    assert await folder.keep("name", [{}]) is None
    assert log.events() == ["state_folder_unusable"]
