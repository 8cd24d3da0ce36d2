"""The installed program as a process: what it prints, where, and with which exit code. Touches no network."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from kcl_daemon import __version__
from tests.process.daemon import run_daemon

PROGRAM = Path(sysconfig.get_path("scripts")) / "kcl-daemon"
GOOD = "executableName = true\nstreamName = orders\napplicationName = billing\nregionName = eu-west-1\n"
BAD = GOOD + "failoverTimeMillis = abc\n"
SAID = (
    "app.properties:5: failoverTimeMillis = abc: not a whole number; "
    "allowed: 1 to 9223372036854775807 milliseconds\n"
)
HELP_SECONDS = 0.25


def daemon(*arguments: str, directory: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the program to its end."""
    return subprocess.run(
        [str(PROGRAM), *arguments],
        cwd=directory,
        env={**os.environ, "AWS_EC2_METADATA_DISABLED": "true"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def write(directory: Path, text: str) -> str:
    (directory / "app.properties").write_text(text, encoding="iso-8859-1")
    return "app.properties"


def test_help_goes_to_stdout() -> None:
    done = daemon("--help")
    assert done.returncode == 0
    assert done.stderr == ""
    for text in ("--properties", "--log-format", "demo", "128+n"):
        assert text in done.stdout


def test_version_goes_to_stdout() -> None:
    done = daemon("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"kcl-daemon {__version__}\n", "")


def test_the_module_is_the_same_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kcl_daemon", "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == f"kcl-daemon {__version__}\n"


def cpu_of_children_s() -> float:
    """Of all children of this process that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_is_there_at_once() -> None:
    def seconds() -> float:
        begin = cpu_of_children_s()
        daemon("--help")
        return cpu_of_children_s() - begin

    # CPU, which is all that it takes, and the best of some: other processes share the machine.
    assert min(seconds() for _ in range(5)) < HELP_SECONDS


def test_a_file_with_an_error_is_one_line(tmp_path: Path) -> None:
    done = daemon(write(tmp_path, BAD), directory=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", SAID)


@pytest.mark.parametrize(
    "words",
    [("-p", "FILE"), ("--properties", "FILE"), ("--properties-file", "FILE"), ("--properties=FILE",)],
)
def test_every_form_of_naming_the_file_reads_it(tmp_path: Path, words: tuple[str, ...]) -> None:
    name = write(tmp_path, BAD)
    given = (word.replace("FILE", name) for word in words)
    with run_daemon(tmp_path, *given, environment={}) as forked:
        assert forked.end() == 2
    assert forked.plain_lines == SAID.splitlines()


def test_several_errors_are_a_line_each(tmp_path: Path) -> None:
    name = write(tmp_path, GOOD + "maxRecords = 0\ntimeoutInSeconds = x\n")
    done = daemon(name, directory=tmp_path)
    assert done.returncode == 2
    assert [line.partition(" = ")[0] for line in done.stderr.splitlines()] == [
        "app.properties:5: maxRecords",
        "app.properties:6: timeoutInSeconds",
    ]


def test_two_files_are_a_usage_error(tmp_path: Path) -> None:
    done = daemon("a.properties", "b.properties", directory=tmp_path)
    assert done.returncode == 2
    assert "Usage: kcl-daemon" in done.stderr
    assert "b.properties" in done.stderr
    assert done.stdout == ""


def test_a_level_that_cannot_be_meant_is_a_usage_error(tmp_path: Path) -> None:
    done = daemon(write(tmp_path, GOOD), "--log-level", "INFO,retreival=DEBUG", directory=tmp_path)
    assert done.returncode == 2
    assert "--log-level: 'retreival': no such component" in done.stderr
