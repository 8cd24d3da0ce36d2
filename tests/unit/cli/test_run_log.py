"""The log that the command line and a logback file ask for."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from kcl_daemon.cli.run_log import LogRequest, open_log
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.observe.levels import Levels

CONSOLE = '<appender name="C" class="ch.qos.logback.core.ConsoleAppender"/>'
FILE = '<appender name="F" class="ch.qos.logback.core.FileAppender"><file>{}</file>{}</appender>'
ROOT = '<root level="ERROR">{}</root>'


def logback(folder: Path, *parts: str) -> Path:
    path = folder / "logback.xml"
    path.write_text(f"<configuration>{''.join(parts)}</configuration>")
    return path


def refs(*names: str) -> str:
    return ROOT.format("".join(f'<appender-ref ref="{name}"/>' for name in names))


def events(text: str) -> list[str]:
    return [json.loads(line)["event"] for line in text.splitlines()]


def test_without_a_file_the_log_is_on_stderr_from_info_on(capsys: pytest.CaptureFixture[str]) -> None:
    log = open_log(LogRequest()).log
    log.debug("one")
    log.info("two")
    out, err = capsys.readouterr()
    assert (out, events(err)) == ("", ["two"])


def test_console_and_file_both_get_every_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "deep" / "kcl.log"
    file = logback(tmp_path, CONSOLE, FILE.format(target, ""), refs("C", "F"))
    opened = open_log(LogRequest(file))
    opened.log.warning("one")
    opened.log.error("two", secret_key="x")
    opened.close()
    out, err = capsys.readouterr()
    assert (events(out), err) == (["two"], "")
    assert target.read_text() == out
    assert '"secret_key":"***"' in out
    assert opened.passed_over == ()


@pytest.mark.parametrize(("append", "left"), [("", ["before", "now"]), ("<append>false</append>", ["now"])])
def test_a_file_is_appended_to_unless_it_says_otherwise(tmp_path: Path, append: str, left: list[str]) -> None:
    target = tmp_path / "kcl.log"
    target.write_text('{"event":"before"}\n')
    file = logback(tmp_path, FILE.format(target, append), refs("F"))
    opened = open_log(LogRequest(file))
    opened.log.error("now")
    opened.close()
    assert events(target.read_text()) == left


@pytest.mark.parametrize("append", ["", "<append>false</append>"])
def test_a_new_file_is_for_its_owner_only_and_an_old_one_keeps_its_mode(tmp_path: Path, append: str) -> None:
    new, old = tmp_path / "new.log", tmp_path / "old.log"
    old.touch()
    old.chmod(0o640)
    before = os.umask(0)
    try:
        for target in (new, old):
            open_log(LogRequest(logback(tmp_path, FILE.format(target, append), refs("F")))).close()
    finally:
        os.umask(before)
    assert (new.stat().st_mode & 0o777, old.stat().st_mode & 0o777) == (0o600, 0o640)


def test_the_command_lines_levels_win_over_the_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = logback(tmp_path, CONSOLE, refs("C"))
    open_log(LogRequest(file, Levels("debug"))).log.debug("one")
    assert events(capsys.readouterr().out) == ["one"]


def test_a_file_without_targets_leaves_the_log_on_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_log(LogRequest(logback(tmp_path, ROOT.format("")))).log.error("one")
    assert events(capsys.readouterr().err) == ["one"]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "No such file"),
        (b"rootLogger = INFO", "not XML"),
        (b"\xff\xfe<\x00", "utf-8"),
        (b"<configuration>" + b" " * 2**20, "larger than 1 MiB"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_with_its_name(
    tmp_path: Path, content: bytes | None, told: str
) -> None:
    path = tmp_path / "logback.xml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=told) as error:
        open_log(LogRequest(path))
    assert str(path) in str(error.value)


def test_a_target_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    file = logback(tmp_path, FILE.format(tmp_path / "taken" / "kcl.log", ""), refs("F"))
    with pytest.raises(ConfigurationError, match="cannot write"):
        open_log(LogRequest(file))
