"""What `kcl-daemon init` writes runs as it is: its test, and the daemon with it on local endpoints, in every language."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from pytest import param

from kcl_daemon.cli.init import LANGUAGES
from tests.process.daemon import Daemon, application, run_daemon, wait_until
from tests.process.local import Local

pytestmark = pytest.mark.timeout(600)

PATH: Final = os.pathsep.join((sysconfig.get_path("scripts"), os.environ["PATH"]))
ALONE: Final = {"GOTOOLCHAIN": "local", "GOPROXY": "off", "GOFLAGS": "-mod=mod"}
NEEDED: Final = {"node": ("node",), "go": ("go",), "shell": ("jq",)}
WITHIN_S: Final = 400
SPARK_WITHIN_S: Final = 300


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder as a user would, with this installation on the path."""
    environment = {**os.environ, **ALONE, "PATH": PATH}
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=WITHIN_S
    )


def made(folder: Path, language: str, stream: str) -> Path:
    for program in NEEDED.get(language, ()):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: the project in {language} WAS NOT RUN")
    project = folder / "project"
    done = run(folder, "kcl-daemon", "init", str(project), "--language", language, "--stream", stream)
    assert (done.returncode, done.stderr) == (0, "")
    return project


def own_test(project: Path, language: str) -> None:
    words = LANGUAGES[language].test.split()
    done = run(project, sys.executable if words[0] == "python3" else words[0], *words[1:])
    assert done.returncode == 0, done.stdout + done.stderr


def written(project: Path) -> Iterator[str]:
    """What the samples have appended."""
    for file in (project / "out").glob("shardId-*.jsonl"):
        for line in file.read_text("utf-8").splitlines():
            yield json.loads(line)["text"]


def printed(daemon: Daemon, event: str) -> list[str]:
    return [each["line"] for each in daemon.named(event)]


def are_written(_daemon: Daemon, project: Path, lines: list[str]) -> bool:
    return sorted(written(project)) == lines


def are_printed(daemon: Daemon, _project: Path, _lines: list[str]) -> bool:
    orders = [line for line in printed(daemon, "child_stderr") if line.startswith("order-")]
    return sorted(orders) == [
        "order-1: two apples for 2.50",
        "order-2: a pear for 0.80",
        "order-3: a plum for 0.40",
    ]


def are_summed(daemon: Daemon, _project: Path, lines: list[str]) -> bool:
    """The console sink has shown a row of each key."""
    table = "\n".join(printed(daemon, "spark_output"))
    return all(f"|{json.loads(line)['id']}" in table.replace(" ", "") for line in lines)


@pytest.mark.parametrize(
    ("language", "arrived"),
    [
        ("python", are_printed),
        ("node", are_written),
        ("go", are_written),
        ("shell", are_written),
        param("spark", are_summed, marks=pytest.mark.prove),
    ],
)
def test_a_new_project_runs(
    local: Local, tmp_path: Path, language: str, arrived: Callable[[Daemon, Path, list[str]], bool]
) -> None:
    stream = f"init-{language}"
    project = made(tmp_path, language, stream)
    own_test(project, language)
    lines = (project / "records.txt").read_text("utf-8").splitlines()
    with application(local, project, stream, shards=2) as app:
        for line in lines:
            key = json.loads(line)["id"]
            app.kinesis.put_record(StreamName=stream, PartitionKey=key, Data=line.encode())
        with run_daemon(project, "app.properties", environment={**local.environment, "PATH": PATH}) as daemon:
            within_s = SPARK_WITHIN_S if language == "spark" else 60
            wait_until(lambda: arrived(daemon, project, sorted(lines)), "the records", within_s=within_s)
            daemon.stop()
        assert [each["event"] for each in daemon.loud() if each["level"] != "warning"] == []
        assert not daemon.named("unknown_property")


def test_a_python_record_that_is_no_order_is_a_dead_letter(local: Local, tmp_path: Path) -> None:
    project = made(tmp_path, "python", "init-letters")
    with application(local, project, "init-letters", shards=1) as app:
        app.kinesis.put_record(StreamName="init-letters", PartitionKey="k", Data=b'{"id": 5}')
        with run_daemon(project, "app.properties", environment={**local.environment, "PATH": PATH}) as daemon:
            letters = project / "out" / "dead.jsonl"
            wait_until(lambda: letters.exists() and bool(letters.read_text()), "the letter")
            daemon.stop()
        assert json.loads(letters.read_text())["applicationName"] == "init-letters-consumer"
