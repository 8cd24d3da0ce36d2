"""A whole daemon as a process against local endpoints: how it ends, and with which exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.process.children.support import is_gone
from tests.process.daemon import wait_until
from tests.process.local import Local, kinesis_client

# Answers every action; with `stubborn` it never answers shutdownRequested.
CHILD = """\
import json, sys, time
for line in sys.stdin:
    action = json.loads(line)["action"]
    print("got", action, file=sys.stderr, flush=True)
    if action == "shutdownRequested" and "stubborn" in sys.argv:
        time.sleep(600)
    print(json.dumps({"action": "status", "responseFor": action}), flush=True)
"""
END_SECONDS = 90


@pytest.fixture(scope="module")
def local(local: Local) -> Local:
    """Endpoints with a stream `signals` of one shard."""
    with kinesis_client(local.kinesis_url) as kinesis:
        kinesis.create_stream(StreamName="signals", ShardCount=1)
        waiter = kinesis.get_waiter("stream_exists")
        waiter.wait(StreamName="signals", WaiterConfig={"Delay": 1, "MaxAttempts": 90})
    return local


class Daemon:
    """A running daemon and what it has logged."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.events: list[dict[str, Any]] = []

    def wait_for(self, event: str, **fields: object) -> None:
        """Read the log up to an event."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.events.append(json.loads(line))
            last = self.events[-1]
            if last["event"] == event and fields.items() <= last.items():
                return
        raise AssertionError(f"no {event} before the end: {self.events}")

    def end(self) -> int:
        """Read the rest of the log; the exit code."""
        assert self.process.stderr is not None
        self.events += [json.loads(line) for line in self.process.stderr]
        return self.process.wait(timeout=END_SECONDS)

    def named(self, event: str) -> list[dict[str, Any]]:
        return [each for each in self.events if each["event"] == event]


@contextmanager
def daemon(
    local: Local, directory: Path, *, application: str, more: str = "", argument: str = ""
) -> Generator[Daemon]:
    """A daemon on its own application."""
    (directory / "child.py").write_text(CHILD, encoding="ascii")
    text = (
        f"executableName = {sys.executable} child.py {argument}\napplicationName = {application}\n"
        f"streamName = signals\nregionName = us-east-1\n{more}"
    )
    (directory / "app.properties").write_text(text, encoding="ascii")
    with subprocess.Popen(
        [sys.executable, "-m", "kcl_daemon", "app.properties"],
        cwd=directory,
        env={**os.environ, **local.environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Daemon(process)
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_one_signal_ends_it_gracefully_with_0(local: Local, tmp_path: Path, number: signal.Signals) -> None:
    with daemon(local, tmp_path, application=f"graceful-{number.name}") as running:
        running.wait_for("child_stderr", line="got initialize")
        running.process.send_signal(number)
        assert running.end() == 0
        assert running.process.stdout is not None
        assert running.process.stdout.read() == ""
    assert [event["signal"] for event in running.named("stop_requested")] == [number.name]
    assert [event["line"] for event in running.named("child_stderr")][-2:] == [
        "got shutdownRequested",
        "got leaseLost",
    ]
    assert running.named("daemon_stopped")


def test_a_second_signal_ends_it_at_once_with_its_number(local: Local, tmp_path: Path) -> None:
    with daemon(local, tmp_path, application="stubborn", argument="stubborn") as running:
        running.wait_for("child_stderr", line="got initialize")
        running.process.send_signal(signal.SIGTERM)
        running.wait_for("child_stderr", line="got shutdownRequested")
        running.process.send_signal(signal.SIGINT)
        assert running.end() == 128 + signal.SIGINT
    assert running.named("stopped_at_once")
    for pid in {event["pid"] for event in running.named("child_stderr")}:
        # Whoever inherits it may have to reap it first.
        wait_until(partial(is_gone, pid), "the child is gone")
    assert not running.named("daemon_stopped")


def test_a_stream_that_does_not_exist_is_one_error_with_what_to_do_and_makes_no_table(
    local: Local, tmp_path: Path
) -> None:
    with daemon(local, tmp_path, application="nowhere", more="streamName = nothing\n") as running:
        assert running.end() == 2
    (event,) = running.named("daemon_failed")
    assert event["level"] == "error"
    assert "nothing" in event["error"]
    assert "streamName" in event["error"]
    assert "exception" not in event
    assert not running.named("table_created")


def without_aws(directory: Path, *, more: str = "") -> tuple[int, dict[str, Any]]:
    """Exit code and last event of a daemon that finds nothing about AWS on its host."""
    text = f"executableName = {sys.executable}\napplicationName = app\nstreamName = orders\n{more}"
    (directory / "app.properties").write_text(text, encoding="ascii")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    done = subprocess.run(
        [sys.executable, "-m", "kcl_daemon", "app.properties"],
        cwd=directory,
        env={**environment, "AWS_EC2_METADATA_DISABLED": "true", "HOME": str(directory)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, json.loads(done.stderr.splitlines()[-1])


def test_no_region_is_a_configuration_error(tmp_path: Path) -> None:
    code, event = without_aws(tmp_path)
    assert (code, event["event"]) == (2, "daemon_failed")
    assert "regionName" in event["error"]


def test_no_credentials_are_an_error_with_advice(tmp_path: Path) -> None:
    code, event = without_aws(tmp_path, more="regionName = eu-west-1\n")
    assert (code, event["event"]) == (2, "daemon_failed")
    assert "credentials" in event["error"]
    assert event["advice"]
