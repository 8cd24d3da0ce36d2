"""The command line of `kcl-daemon leases`; nothing here reaches a network."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from kcl_daemon.cli import main


def invoke(*words: str) -> Result:
    return CliRunner().invoke(main, ["leases", *words])


def test_the_group_is_a_command_of_the_program() -> None:
    command = main.get_command(click.Context(main), "leases")
    assert isinstance(command, click.Group)
    known = ["adopt", "delete", "explain", "list", "release", "reset", "skip", "tree"]
    assert sorted(command.commands) == known


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["adopt", "--help"], "--dry-run"),
        (["list", "--help"], "--lag"),
        (["explain", "--help"], "--watch"),
        (["--help"], "which worker"),
        (["reset", "--help"], "--dry-run"),
        (["release", "--help"], "--worker"),
        (["delete", "--help"], "--shard"),
        (["tree", "--help"], "--lag"),
    ],
)
def test_help_needs_no_file(words: list[str], said: str) -> None:
    result = invoke(*words)
    assert result.exit_code == 0
    assert said in result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["list"], "no properties file given"),
        (["explain", "a.properties", "--watch", "-1"], "Invalid value"),
        (["explain", "a.properties", "--lag"], "No such option"),
        (["move"], "No such command"),
        (["reset", "a.properties"], "Missing option '--to'"),
        (["reset", "a.properties", "--to", "noon"], "is not a position"),
        (["release", "a.properties"], "either --shard"),
        (["release", "a.properties", "--shard", "s", "--worker", "w"], "either --shard"),
        (["delete", "a.properties"], "Missing option '--shard'"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(words: list[str], said: str) -> None:
    result = invoke(*words)
    assert result.exit_code == 2
    assert said in result.output


@pytest.mark.parametrize("command", ["list", "explain"])
def test_a_file_that_cannot_be_used_is_reported_with_exit_code_2(here: Path, command: str) -> None:
    (here / "bad.properties").write_text("streamName = orders\n", "ascii")
    for file, said in (("missing.properties", "cannot be read"), ("bad.properties", "applicationName")):
        result = invoke(command, "-p", file)
        assert result.exit_code == 2
        assert said in result.stderr
        assert result.stdout == ""


@pytest.mark.parametrize("words", [["list"], ["list", "--json"], ["explain"]])
def test_a_service_that_does_not_answer_is_one_line_with_exit_code_1(here: Path, words: list[str]) -> None:
    result = invoke(*words, "app.properties")
    assert result.exit_code == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"kcl-daemon leases {words[0]}: Unavailable: ")
    assert "endpoint properties" in line


def test_a_second_file_is_told_not_to_be_read(here: Path) -> None:
    result = invoke("list", "other.properties", "--properties-file", "app.properties")
    assert "other.properties is ignored" in result.stderr
    assert result.exit_code == 1
