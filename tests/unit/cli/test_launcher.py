"""Command lines that were meant for Java, and the helpers of the client libraries."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kcl_daemon import __version__
from kcl_daemon.cli import main
from kcl_daemon.cli import run as run_module
from kcl_daemon.cli.root import MAIN_CLASSES, as_daemon

MAIN = MAIN_CLASSES[0]


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        (["app.properties"], ["app.properties"]),
        (["--properties", "app.properties"], ["--properties", "app.properties"]),
        (["-version"], ["--version"]),
        # amazon_kclpy_helper.py
        (
            ["-cp", "/jars/a.jar:/jars/b.jar:/app", MAIN, "--properties-file", "app.properties"],
            [
                "run",
                "--passed-over=-cp",
                "--passed-over=/jars/a.jar:/jars/b.jar:/app",
                f"--passed-over={MAIN}",
                "--properties-file",
                "app.properties",
            ],
        ),
        # kcl-bootstrap, with a log configuration
        (
            ["-classpath", "x", MAIN, "--properties-file", "f", "--log-configuration", "l.xml"],
            [
                "run",
                "--passed-over=-classpath",
                "--passed-over=x",
                f"--passed-over={MAIN}",
                "--properties-file",
                "f",
                "--log-configuration",
                "l.xml",
            ],
        ),
        # .NET's Bootstrap
        (
            ["-cp", "x", MAIN, "-p", "f", "-l", "l.xml"],
            [
                "run",
                "--passed-over=-cp",
                "--passed-over=x",
                f"--passed-over={MAIN}",
                "-p",
                "f",
                "-l",
                "l.xml",
            ],
        ),
        # rake run of the Ruby samples, with options of the JVM; and the class of KCL 1.x
        (
            ["-Xmx1g", "-Daws.region=x", "-cp", "x", MAIN_CLASSES[1], "f"],
            [
                "run",
                "--passed-over=-Xmx1g",
                "--passed-over=-Daws.region=x",
                "--passed-over=-cp",
                "--passed-over=x",
                f"--passed-over={MAIN_CLASSES[1]}",
                "f",
            ],
        ),
    ],
)
def test_words_for_java_are_words_for_the_daemon(words: list[str], ours: list[str]) -> None:
    assert as_daemon(words) == ours


@pytest.fixture
def request_of(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, run_module.RunRequest]]:
    """The files and requests that reach the daemon, which is not run."""
    requests: list[tuple[Path, run_module.RunRequest]] = []

    def note(file: Path, request: run_module.RunRequest) -> None:
        requests.append((file, request))

    monkeypatch.setattr(run_module, "run_daemon", note)
    return requests


@pytest.mark.parametrize(
    "words",
    [
        ["-cp", "x", MAIN, "--properties-file", "f"],
        ["-cp", "x", MAIN, "f"],
        ["-j", "/usr/bin/java", "--props", "f"],
        ["--prop", "f", "--jar-path", "jars", "-e"],
        ["-p", "f", "--jar-folder", "jars", "--execute"],
    ],
)
def test_the_daemon_is_run_and_what_is_for_java_is_reported(
    request_of: list[tuple[Path, run_module.RunRequest]], words: list[str]
) -> None:
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, result.output) == (0, "")
    ((file, request),) = request_of
    assert file == Path("f")
    assert request.passed_over


def test_a_java_that_is_asked_for_its_version_answers() -> None:
    result = CliRunner().invoke(main, ["-version"])
    assert (result.exit_code, result.output) == (0, f"kcl-daemon {__version__}\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--print_command", "--java", "/usr/bin/java", "--properties", "a.properties"],
            "--properties a.properties",
        ),
        (
            ["--print_command", "-j", "java", "--props", "a b", "-l", "l.xml"],
            "'a b' --log-configuration l.xml",
        ),
        (["--prop", "f", "-c", "x", "--path", "y"], "--properties f"),
    ],
)
def test_the_helper_prints_one_quoted_command(words: list[str], said: str) -> None:
    result = CliRunner().invoke(main, ["helper", *words])
    assert result.exit_code == 0
    (line,) = result.stdout.splitlines()
    assert line.partition(" ")[0].endswith("kcl-daemon")
    assert line.endswith(said)
    assert "not needed" in result.stderr


def test_the_helper_has_no_class_path() -> None:
    result = CliRunner().invoke(main, ["helper", "--print_classpath", "--properties", "f"])
    assert (result.exit_code, result.stdout) == (0, "\n")


@pytest.mark.parametrize(("words", "said"), [([], "no properties file"), (["--sample"], "kcl-daemon demo")])
def test_the_helper_says_what_is_missing(words: list[str], said: str) -> None:
    result = CliRunner().invoke(main, ["helper", *words])
    assert result.exit_code == 2
    assert said in result.stderr


def test_the_helper_becomes_the_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[list[str]] = []

    def execv(program: str, words: list[str]) -> None:
        became.append([program, *words])
        raise SystemExit(0)

    monkeypatch.setattr("kcl_daemon.cli.helper.os.execv", execv)
    CliRunner().invoke(main, ["helper", "-e", "-p", "f"])
    assert became == [[sys.executable, sys.executable, "-m", "kcl_daemon", "--properties", "f"]]
