"""Whatever a whole daemon is given that is wrong: a clear word about it, and in the end every record delivered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from tests.ports import free_port
from tests.process.daemon import PROCESSORS, Application, Daemon, application, run_daemon, wait_until
from tests.process.local import Local, local_process
from tests.process.processors.misbehaving import BAD_SHARD, HEALED, LONG_LINE_BYTES

pytestmark = pytest.mark.timeout(300)

CAREFUL: Final = f"{PROCESSORS}.careful"
MISBEHAVING: Final = f"{PROCESSORS}.misbehaving"
GOOD_SHARDS: Final = ("shardId-000000000000", "shardId-000000000002")
# One incarnation soon follows the other. The graces hold for good children too, which may have to wait for a processor.
QUICK: Final[Mapping[str, object]] = {
    "idleTimeBetweenReadsInMillis": 200,
    "childRestartBackoffMillis": 20,
    "childRestartBackoffMaxMillis": 200,
    "childExitGraceMillis": 2000,
}
# For every answer of every child, also of the good ones to `initialize`, while an interpreter starts for each shard.
TIMED: Final = {"timeoutInSeconds": 3}
MIB: Final = 1024 * 1024


def peak_bytes(pid: int) -> int:
    """The most memory that a process has ever had resident."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel does not tell VmHWM")


@dataclass(frozen=True)
class Case:
    """How a bad child is met.

    Args:
        event: what the log says about it.
        says: parts of the event's text.
        replaced: whether the child is taken for failed and another one started.
        times: how often the event is awaited; what takes a timeout, once.
        more: keys of the properties file.
    """

    event: str
    says: tuple[str, ...]
    replaced: bool = True
    times: int = 1
    more: Mapping[str, object] = field(default_factory=dict[str, object])


CHILDREN: Final[Mapping[str, Case]] = {
    "garbage": Case("child_stray_output", ("no JSON",), replaced=False),
    "long_line": Case("child_stray_output", (f"a line of {LONG_LINE_BYTES} bytes",), replaced=False),
    "half_line": Case("child_failed", ("did not answer processRecords within 3 s",), more=TIMED),
    "half_line_and_exit": Case("child_failed", ("exit code 4", "during processRecords"), times=2),
    "wrong_answer": Case("child_failed", ("'shutdownRequested'", "expected", "'processRecords'"), times=2),
    "answer_twice": Case("child_failed", ("before it was given processRecords",), times=2),
    "exit_at_once": Case("child_failed", ("exit code 3", "during initialize"), times=2),
    "silence": Case("child_failed", ("did not answer processRecords within 3 s",), more=TIMED),
    "silence_at_start": Case("child_failed", ("did not answer initialize within 3 s",), more=TIMED),
    "deafness": Case("child_ignores_sigterm", (), more=TIMED),
    "closed_stdout": Case("child_failed", ("closed its stdout", "during processRecords"), times=2),
    "foreign_checkpoint": Case("checkpoint_refused", ("IllegalArgumentException",), replaced=False),
}
# Of the others, tests below and those of single children (`test_children`) show every day what is met and how.
OFTEN: Final = ("half_line", "half_line_and_exit", "wrong_answer", "closed_stdout")
EVERY_DAY: Final = [
    pytest.param(behaviour, marks=[] if behaviour in OFTEN else [pytest.mark.prove]) for behaviour in CHILDREN
]


def bad_events(daemon: Daemon) -> list[dict[str, Any]]:
    """What was said about children of the shards that are not bad."""
    names = (
        "child_failed",
        "child_stray_output",
        "child_ignores_eof",
        "child_ignores_sigterm",
        "checkpoint_refused",
    )
    return [event for name in names for event in daemon.named(name) if event["shard_id"] != BAD_SHARD]


@pytest.mark.parametrize("behaviour", EVERY_DAY)
def test_a_bad_child_hurts_its_own_shard_only_and_loses_nothing(
    local: Local, tmp_path: Path, behaviour: str
) -> None:
    case = CHILDREN[behaviour]
    name = f"child-{behaviour}"
    with application(local, tmp_path, name, shards=3) as app:
        app.put(20)
        with app.daemon(f"{MISBEHAVING} {behaviour}", {**QUICK, **case.more}) as daemon:
            event = daemon.wait_for(case.event, times=case.times, shard_id=BAD_SHARD, level="warning")
            for text in case.says:
                assert text in str(event)
            app.put(20, but=BAD_SHARD)
            app.wait_done(GOOD_SHARDS)
            if case.replaced:
                assert not app.delivered([BAD_SHARD])
                assert app.rows()[BAD_SHARD]["checkpoint"].get("S") == "TRIM_HORIZON"
            (tmp_path / HEALED).touch()
            app.put(20)
            app.wait_done()
            assert [app.incarnations(shard_id) for shard_id in GOOD_SHARDS] == [1, 1]
            assert (app.incarnations(BAD_SHARD) > case.times) is case.replaced
            assert bool(daemon.named("child_failed")) is case.replaced
            daemon.stop()
        assert bad_events(daemon) == []
        app.assert_account(repeated=0)


def test_a_child_that_chatters_is_told_of_once(local: Local, tmp_path: Path) -> None:
    with application(local, tmp_path, "chatter", shards=2) as app:
        app.put(1)
        with app.daemon(f"{MISBEHAVING} garbage", QUICK) as daemon:
            for _ in range(3):
                app.wait_done()
                app.put(1)
            app.wait_done()
            daemon.stop()
        assert len(daemon.named("child_stray_output")) == 1


def test_a_line_without_end_takes_no_memory(local: Local, tmp_path: Path) -> None:
    with application(local, tmp_path, "memory", shards=2) as app:
        with app.daemon(f"{MISBEHAVING} long_line", QUICK) as daemon:
            daemon.wait_for("child_started", times=2)
            before_bytes = peak_bytes(daemon.process.pid)
            app.put(1)
            app.wait_done()
            assert daemon.named("child_stray_output", shard_id=BAD_SHARD)
            grown_bytes = peak_bytes(daemon.process.pid) - before_bytes
            daemon.stop()
        print(f"a line of 100 MiB: peak RSS grew by {grown_bytes / MIB:.1f} MiB")  # noqa: T201
        assert grown_bytes < 16 * MIB


def test_a_refused_checkpoint_is_answered_with_its_name_and_stores_nothing(
    local: Local, tmp_path: Path
) -> None:
    with application(local, tmp_path, "refused", shards=2) as app:
        app.put(1)
        with app.daemon(f"{MISBEHAVING} foreign_checkpoint", QUICK) as daemon:
            daemon.wait_for("child_stderr", times=2, line="refused with IllegalArgumentException")
            beyond, no_number = daemon.named("checkpoint_refused")
            assert "beyond" in beyond["reason"]
            assert "twelve" in no_number["reason"]
            assert app.rows()[BAD_SHARD]["checkpoint"].get("S") == "TRIM_HORIZON"
            daemon.stop()


def test_a_child_that_nothing_ends_but_sigkill_is_gone_with_the_daemon(local: Local, tmp_path: Path) -> None:
    """It neither answers the stop nor heeds SIGTERM; the daemon ends in its time all the same, and well."""
    with application(local, tmp_path, "unkillable", shards=2) as app:
        app.put(1)
        with app.daemon(f"{MISBEHAVING} deafness", {**QUICK, "shutdownGraceMillis": 2000}) as daemon:
            pid = daemon.wait_for("child_started", shard_id=BAD_SHARD)["pid"]
            app.wait_done(["shardId-000000000000"])
            child = psutil.Process(pid)
            wait_until(lambda: ignores_sigterm(child), "the child is deaf")
            daemon.stop()
            assert not child.is_running()
        for event in ("child_overran", "child_ignores_sigterm"):
            assert [each["shard_id"] for each in daemon.named(event)] == [BAD_SHARD]
        assert app.owners() == {"shardId-000000000000": None, BAD_SHARD: None}


def ignores_sigterm(process: psutil.Process) -> bool:
    """Whether it has set SIGTERM to be ignored."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    (ignored,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigIgn"))
    return bool(int(ignored, 16) & 1 << 14)


def test_a_program_that_vanishes_is_an_error_and_its_return_delivers_the_rest(
    local: Local, tmp_path: Path
) -> None:
    program = tmp_path / "processor"
    program.write_text(f"#!/bin/sh\nexec {CAREFUL}\n")
    program.chmod(0o755)
    with application(local, tmp_path, "vanished", shards=2) as app:
        with app.daemon("./processor", QUICK) as daemon:
            pid = daemon.wait_for("child_started", shard_id=BAD_SHARD)["pid"]
            app.put(5)
            app.wait_done()
            program.rename(tmp_path / "elsewhere")
            psutil.Process(pid).kill()
            failed = daemon.wait_for("child_failed", times=2, level="error", shard_id=BAD_SHARD)
            assert "no such file" in failed["error"]
            assert "executableName" in failed["error"]
            app.put(5)
            app.wait_done(["shardId-000000000000"])
            (tmp_path / "elsewhere").rename(program)
            app.wait_done()
            daemon.stop()
        app.assert_account(repeated=0)


def break_executable(kind: str, directory: Path) -> str:
    """An `executableName` that cannot be run."""
    path = directory / "program"
    match kind:
        case "empty":
            return " "
        case "absent":
            return "./absent"
        case "not executable":
            path.write_text("#!/bin/sh\n")
        case "a directory":
            path.mkdir()
        case _:
            raise AssertionError(kind)
    return "./program"


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("empty", "executableName"),
        ("absent", "no such file"),
        ("not executable", "chmod +x"),
        ("a directory", "it is a directory"),
    ],
)
def test_a_program_that_cannot_be_run_is_one_line_and_touches_nothing(
    local: Local, tmp_path: Path, kind: str, says: str
) -> None:
    with application(local, tmp_path, f"no-program-{len(kind)}", shards=1) as app:
        refused(
            app, executable=break_executable(kind, tmp_path), line_number=1, key="executableName", says=says
        )


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("failoverTimeMillis", "soon", "whole number"),
        ("maxRecords", "10001", "allowed: 1 to 10000"),
        ("initialPositionInStream", "MIDDLE", "LATEST or TRIM_HORIZON"),
        ("kinesisEndpoint", "localhost", "http"),
    ],
)
def test_a_bad_value_is_one_line_and_touches_nothing(
    local: Local, tmp_path: Path, key: str, value: str, says: str
) -> None:
    with application(local, tmp_path, f"bad-{key}", shards=1) as app:
        refused(app, executable=CAREFUL, more={key: value}, key=key, says=says)


def refused(
    app: Application,
    *,
    executable: str,
    key: str,
    says: str,
    line_number: int | None = None,
    more: Mapping[str, object] | None = None,
) -> None:
    """Such a daemon ends with 2 and one line for a person, before any table is there."""
    with app.daemon(executable, more) as daemon:
        assert daemon.end() == 2
    (line,) = daemon.plain_lines
    assert line.startswith(
        "worker.properties:" if line_number is None else f"worker.properties:{line_number}: "
    )
    assert key in line
    assert says in line
    assert [table for table in app.all_tables() if table.startswith(app.name)] == []


def break_properties(kind: str, path: Path) -> None:
    """A properties file that cannot be read, not by root either."""
    match kind:
        case "missing":
            pass
        case "a directory":
            path.mkdir()
        case "a dead link":
            path.symlink_to("nowhere")
        case "opened but not read":
            path.symlink_to("/proc/self/mem")  # no process has anything at its address 0
        case _:
            raise AssertionError(kind)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("missing", "No such file or directory"),
        ("a directory", "Is a directory"),
        ("a dead link", "No such file or directory"),
        ("opened but not read", "Input/output error"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, kind: str, reason: str) -> None:
    path = tmp_path / "app.properties"
    break_properties(kind, path)
    with run_daemon(tmp_path, "--properties", path.name, environment={}) as daemon:
        assert daemon.end() == 2
    assert daemon.plain_lines == [f"app.properties: the properties file cannot be read: {reason}"]


def test_a_stream_that_is_not_there_yet_is_named_and_found_later(local: Local, tmp_path: Path) -> None:
    with application(local, tmp_path, "late-stream", shards=0) as app:
        with app.daemon(CAREFUL, QUICK) as daemon:
            assert daemon.end() == 2
        (event,) = daemon.named("daemon_failed")
        assert "late-stream" in event["error"]
        assert "streamName" in event["error"]
        app.create_stream(2)
        app.put(5)
        with app.daemon(CAREFUL, QUICK) as daemon:
            app.wait_done()
            daemon.stop()
        app.assert_account(repeated=0)


def test_an_endpoint_that_refuses_is_named_and_waited_for(local: Local, tmp_path: Path) -> None:
    port = free_port()
    late = {**QUICK, "kinesisEndpoint": f"http://127.0.0.1:{port}"}
    with application(local, tmp_path, "late-endpoint", shards=0) as app:
        with app.daemon(CAREFUL, late) as daemon:
            event = daemon.wait_for("start_delayed")  # again by the minute
            assert event["level"] == "warning"
            assert f"127.0.0.1:{port}" in event["error"]
            with (
                local_process("--kinesis-port", str(port), "--stream", f"{app.name}:2") as other,
                application(other, tmp_path / "other", app.name, shards=0) as writer,
            ):
                writer.put(5)
                app.checker, app.last_written = writer.checker, writer.last_written
                app.wait_done()
                daemon.stop()
        app.assert_account(repeated=0)


@pytest.mark.parametrize("key", ["kinesisEndpoint", "dynamoDBEndpoint"])
def test_a_daemon_that_waits_for_an_endpoint_heeds_the_first_signal(
    local: Local, tmp_path: Path, key: str
) -> None:
    with (
        application(local, tmp_path, f"refused-{key}", shards=1) as app,
        app.daemon(CAREFUL, {key: f"http://127.0.0.1:{free_port()}"}) as daemon,
    ):
        daemon.wait_for("start_delayed")
        daemon.stop()


@pytest.mark.prove
def test_an_endpoint_that_goes_on_refusing_ends_the_daemon_with_1(local: Local, tmp_path: Path) -> None:
    """It tries for 20 s; too long for every day."""
    port = free_port()
    with application(local, tmp_path, "no-endpoint", shards=1) as app:
        with app.daemon(CAREFUL, {"dynamoDBEndpoint": f"http://127.0.0.1:{port}"}) as daemon:
            assert daemon.end(within_s=60) == 1
        (event,) = daemon.named("daemon_failed")
        assert f"127.0.0.1:{port}" in event["error"]
        assert "endpoint" in event["advice"]
