"""The samples of the client libraries, byte for byte, by their own commands, on the streams that they name."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil
import pytest

from tests.dropin.obtain import kclpy, node_repository
from tests.dropin.resharding import is_finished, split
from tests.dropin.test_samples import PROGRAM, packages_of_java
from tests.process.daemon import ROOT, Application, Daemon, application, wait_until
from tests.process.local import Local

pytestmark = pytest.mark.timeout(300)

RECORDS: Final = 10


def running_daemon(launcher: int) -> int:
    """The process that runs our program: what the launcher has become, or a child of it.

    A child of the daemon looks like it, too, between its fork and its exec: so the launcher is asked first.
    """
    if str(PROGRAM) in psutil.Process(launcher).cmdline()[:2]:
        return launcher
    for child in psutil.Process(launcher).children():
        with suppress(psutil.NoSuchProcess):  # it ended meanwhile, or has ended and is not waited for yet
            if str(PROGRAM) in child.cmdline():
                return child.pid
    return launcher


@contextmanager
def launched(
    app: Application, command: list[str], folder: Path, more: Mapping[str, str]
) -> Generator[Daemon]:
    """Run a launcher of a library; at the end of the block the daemon under it is stopped, and must end well."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment = {
        **kept,
        "PYTHONPATH": str(ROOT),
        **app.local.environment,
        "AWS_ENDPOINT_URL_KINESIS": app.local.kinesis_url,
        "AWS_ENDPOINT_URL_DYNAMODB": app.local.dynamodb_url,
        "AWS_ENDPOINT_URL_CLOUDWATCH": app.local.cloudwatch_url,
        **more,
    }
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        daemon = Daemon(process, 0.0)
        try:
            yield daemon
            # Launchers pass no signal on: it goes to the daemon itself.
            os.kill(running_daemon(process.pid), signal.SIGTERM)
            assert daemon.end() == 0, daemon.tail()
        finally:
            daemon.close()
    assert daemon.named("daemon_stopped")
    assert not daemon.named("child_failed")


def test_the_sample_of_amazon_kclpy_runs_as_it_is_by_its_own_command(local: Local, tmp_path: Path) -> None:
    """Its file has an ARN of another region and of account 000000000000, beside the stream's name and a region."""
    folder = kclpy()
    samples = tmp_path / "samples"
    shutil.copytree(folder / "samples", samples)
    python = sysconfig.get_path("scripts")  # for `#!/usr/bin/env python`
    path = os.pathsep.join((str(samples), python, os.environ["PATH"]))
    around = {"PATH": path, "PYTHONPATH": str(folder)}
    helper = [sys.executable, str(samples / "amazon_kclpy_helper.py"), "--print_command"]
    printed = subprocess.run(
        [*helper, "--java", str(PROGRAM), "--properties", "samples/sample.properties"],
        cwd=tmp_path,
        env=around,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.strip()
    with application(local, tmp_path, "kclpysample", shards=1) as app:
        app.put(RECORDS)
        with launched(app, ["sh", "-c", f"exec {printed}"], tmp_path, around) as daemon:
            daemon.wait_for("child_started")
            # The sample ends no line, so that what it says is seen when it ends: with its shard.
            (shard,) = app.shards()
            split(app, shard["ShardId"], open_then=2)
            rows = replace(app, name="PythonKCLSample")
            wait_until(lambda: is_finished(rows, shard["ShardId"]), daemon.tail)
    assert told_by_python(daemon) == RECORDS
    (notice,) = daemon.named("stream_arn_counts_by_name")
    assert (notice["used"], notice["level"]) == ("kclpysample", "warning")
    assert not daemon.named("property_contradicts_stream_arn")


def told_by_python(daemon: Daemon) -> int:
    """How many records the sample has told of."""
    return sum(event["line"].count("Record (Partition Key") for event in daemon.named("child_stderr"))


def test_the_sample_of_the_repository_for_node_runs_as_it_is_by_its_own_command(
    local: Local, tmp_path: Path
) -> None:
    """The jars that its launcher would download are there, empty."""
    repository = tmp_path / "repository"
    shutil.copytree(node_repository(), repository, symlinks=True)
    jars = repository / "lib" / "jars"
    jars.mkdir()
    for name, version in packages_of_java(repository / "pom.xml"):
        (jars / f"{name}-{version}.jar").touch()
    consumer = repository / "samples" / "basic_sample" / "consumer"
    command = ["../../../bin/kcl-bootstrap", "--java", str(PROGRAM), "-e", "-p", "./sample.properties"]
    with application(local, tmp_path, "kclnodejssample", shards=1) as app:
        app.put(RECORDS)
        with launched(app, command, consumer, {}) as daemon:
            log = consumer / "application.log"
            wait_until(lambda: told_by_node(log) >= RECORDS, daemon.tail)
    assert told_by_node(log) == RECORDS


def told_by_node(log: Path) -> int:
    """How many records the sample has told of."""
    return log.read_text("utf-8").count("Record: a record") if log.exists() else 0
