"""A program that cannot be run is told of before anything is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from kcl_daemon.children.room import ChildRoom
from kcl_daemon.cli.check import sentence
from kcl_daemon.cli.run import check_program, check_room
from kcl_daemon.config.load import Loaded, interpret
from kcl_daemon.errors import ConfigurationError


def loaded(command: str, more: str = "") -> Loaded:
    text = f"streamName = s\nexecutableName = {command}\napplicationName = app\n{more}"
    return interpret(text.encode(), file="app.properties", default_worker_id="w")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with one program; PATH has one empty directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    program = tmp_path / "consumer"
    program.write_text("#!/bin/sh\n", encoding="ascii")
    program.chmod(0o755)
    (tmp_path / "notes.txt").touch(0o644)
    return tmp_path


def test_a_path_with_a_slash_is_taken_from_the_working_directory(here: Path) -> None:
    check_program(loaded("./consumer --fast"))
    check_program(loaded(f"{here}/consumer"))


def test_a_name_is_looked_for_in_path(here: Path) -> None:
    (here / "consumer").rename(here / "bin" / "consumer")
    check_program(loaded("consumer --fast"))


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("consumer", "a name without a slash is looked for in PATH only: write ./consumer"),
        ("./missing.py", "no such file"),
        ("./notes.txt", "not executable"),
        ("./bin", "directory"),
    ],
)
def test_a_program_that_cannot_be_run_is_named_with_file_line_and_reason(
    here: Path, command: str, reason: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_program(loaded(command))
    message = str(caught.value)
    assert message.startswith("app.properties:2: ")
    assert "executableName" in message
    assert command in message
    assert reason in message
    assert message.isprintable()


@pytest.mark.parametrize(
    ("command", "advice"),
    [
        (
            "consumer",
            "it is in {here}, but a name without a slash is looked for in PATH only: write ./consumer",
        ),
        (
            "notes.txt",
            (
                "it is in {here}, but a name without a slash is looked for in PATH only: write ./notes.txt, and make it "
                "executable (chmod +x)"
            ),
        ),
        (
            "consumer:handle",
            (
                "a function is run by kcl-daemon run STREAM consumer:handle; with --print-properties it "
                "prints the file for it"
            ),
        ),
        (
            "shop.orders.handle",
            (
                "no such program; give it a path with a slash, or add its directory to PATH; "
                "a function is run by kcl-daemon run STREAM shop.orders:handle; with --print-properties it prints the file "
                "for it"
            ),
        ),
        ("kcl.sh", "no such program; give it a path with a slash, or add its directory to PATH"),
        ("dotnet", "no such program; give it a path with a slash, or add its directory to PATH"),
    ],
)
def test_advice_comes_before_the_value_of_path(here: Path, command: str, advice: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_program(loaded(command))
    said = str(caught.value).removeprefix(f"app.properties:2: cannot start {command!r} of executableName: ")
    assert said == f"{advice.format(here=here)} (PATH is {here}/bin)"


ROOM = ChildRoom(24, "196 open files (ulimit -n)")


def test_more_children_for_a_shard_than_the_system_allows_are_refused_with_the_key() -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_room(loaded("x", "shardConcurrency = 25\n"), lambda: ROOM)
    message = str(caught.value)
    assert message.startswith("app.properties:4: shardConcurrency: 25 children for each shard are too many")
    assert "196 open files" in message


def test_a_worker_with_room_for_few_shards_starts_with_a_warning() -> None:
    (notice,) = check_room(
        loaded("x", "shardConcurrency = 12\nmaxLeasesForWorker = 3\n"), lambda: ROOM
    ).warnings
    assert (notice.event, notice.key, notice.line) == ("lanes_limited", "shardConcurrency", 4)
    assert sentence(notice, "app.properties") == (
        "app.properties:4: warning: shardConcurrency = 12 leaves room for the children of 2 of the shards in "
        "196 open files (ulimit -n); raise that limit, lower shardConcurrency, or set maxLeasesForWorker to 2 at most"
    )


def test_with_room_enough_or_one_child_for_each_shard_nothing_is_said() -> None:
    for more in ("shardConcurrency = 12\nmaxLeasesForWorker = 2\n", "maxLeasesForWorker = 500\n"):
        assert check_room(loaded("x", more), lambda: ROOM).warnings == ()
    assert check_room(loaded("x", "shardConcurrency = 64\n"), lambda: None).warnings == ()
