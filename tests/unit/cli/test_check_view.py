"""Errors and warnings of `check` with the line of the file: what is marked, what is masked, and where there are colours."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from click import unstyle
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_daemon.cli import main
from kcl_daemon.cli.check_view import Ink, Source, concluded, explained, table
from kcl_daemon.config.load import EffectiveProperty
from kcl_daemon.config.properties import MalformedProperties, parse
from tests.examples import examples
from tests.unit.cli.test_check import GOOD, check

PLAIN = Ink(on=False)
SECRET = "hunter2secretvalue"


def quoted(tmp_path: Path, text: str | bytes, *, more: str = GOOD) -> list[tuple[str, str]]:
    """Line and marks of each problem or notice that has them, for a file that begins so."""
    path = tmp_path / "app.properties"
    path.write_bytes((text if isinstance(text, bytes) else text.encode("iso-8859-1")) + more.encode())
    result = CliRunner().invoke(main, ["check", str(path)])
    lines = result.output.splitlines()
    found = [number for number, line in enumerate(lines) if line.strip("^ ") == "|" and "^" in line]
    return [(lines[number - 1], lines[number]) for number in found]


@pytest.mark.parametrize(
    ("text", "line", "marks"),
    [
        ("maxRecords = many\n", "   1 | maxRecords = many", "     |              ^^^^"),
        ("maxRecords=many\n", "   1 | maxRecords=many", "     |            ^^^^"),
        ("maxRecords many\n", "   1 | maxRecords many", "     |            ^^^^"),
        ("\n\n maxRecords: \n", "   3 |  maxRecords: ", "     |              ^"),
        ("\tmaxRecords\t:\tx\n", "   1 |  maxRecords : x", "     |               ^"),
        ("maxRecord = 5\n", "   1 | maxRecord = ...", "     | ^^^^^^^^^"),
        ("userAgent = x\n", "   1 | userAgent = ...", "     | ^^^^^^^^^"),
        ("childProtocol = KCL_1_0\n", "   1 | childProtocol = KCL_1_0", f"     | {' ' * 16}^^^^^^^"),
        ("maxRecords = 5\nmaxRecords = 6\n", "   2 | maxRecords = 6", "     | ^^^^^^^^^^"),
        ("idleTimeBetweenReadsInMillis = 9\n", "   1 | idleTimeBetweenReadsInMillis = 9", f"     | {' ' * 31}^"),
        ("maxRecords = 1\\\n   2x\n", "   1 | maxRecords = 12x", "     |              ^^^"),
        ("\\\n  maxRecords = x\n", "   2 |   maxRecords = x", "     |                ^"),
        ("max\\u0052ecords = x\n", "   1 | maxRecords = x", "     |              ^"),
        (b"metricsLevel = \xe4\n", "   1 | metricsLevel = \xe4", "     |                ^"),
        (b"\xef\xbb\xbfmaxRecords = x\n", "   1 | maxRecords = x", "     |              ^"),
        ("metricsLevel = \x1b[31m\n", "   1 | metricsLevel = \\x1b[31m", f"     | {' ' * 15}{'^' * 8}"),
        ("maxRecords = x\r\nregionName = !\r", "   1 | maxRecords = x", "     |              ^"),
    ],
)  # fmt: skip
def test_the_wrong_part_of_a_line_is_marked_below_it(
    tmp_path: Path, text: str | bytes, line: str, marks: str
) -> None:
    assert (line, marks) == quoted(tmp_path, text)[0]


def test_a_long_line_is_cut(tmp_path: Path) -> None:
    ((line, marks),) = quoted(tmp_path, f"metricsLevel = {'x' * 5000}\n")
    assert line.endswith("x...")
    assert len(line) == len(marks) + 3 == 130


@pytest.mark.parametrize(
    "text",
    [
        f"adminToken = {SECRET[:9]}\n",
        f"kinesisEndpoint = http://me:{SECRET}@host\n",
        f"kinesisEndpoint = http://me:{SECRET[:6]}\\\n    {SECRET[6:]}@host\n",
        f"admin\\u0054oken = {SECRET[:9]}\n",
        f"dbPwd = {SECRET}\n",
        f"sparkRemote = sc://host/;token={SECRET}\n",
        f"executableName = /no-such --password={SECRET}\n",
    ],
)
def test_no_secret_is_shown(tmp_path: Path, text: str) -> None:
    more = GOOD.replace("executableName = true\n", "") if text.startswith("executableName") else GOOD
    shown = quoted(tmp_path, text, more=more)
    assert shown
    assert SECRET[:6] not in "".join(line for line, _ in shown)


def test_of_a_malformed_entry_nothing_is_quoted_but_of_those_before(tmp_path: Path) -> None:
    path = tmp_path / "app.properties"
    path.write_text("maxRecords = x\nadminToken = s3cret\\u12\n")
    source = Source.of(path, "f")
    assert source.quoted("f:1: maxRecords = x: bad") is not None
    assert source.quoted("f:2: \\u12 is not a character") is None
    assert Source.of(tmp_path / "none", "f").quoted("f:1: x") is None
    assert quoted(tmp_path, "adminToken = s3cret\\u12\n") == []


def test_an_error_of_the_environment_quotes_no_line(tmp_path: Path) -> None:
    assert quoted(tmp_path, "", more="maxRecords = 5\n") == []
    result = check(tmp_path, GOOD, KCL_MAX_RECORDS="many")
    assert "environment, KCL_MAX_RECORDS" in result.stderr
    assert "^" not in result.stderr


@given(data=st.binary(max_size=80), line=st.integers(0, 8))
@settings(max_examples=examples(200))
def test_any_bytes_can_be_quoted(tmp_path_factory: pytest.TempPathFactory, data: bytes, line: int) -> None:
    path = tmp_path_factory.getbasetemp() / "any.properties"
    path.write_bytes(data)
    found = Source.of(path, "f").quoted(f"f:{line}: x")
    try:
        there = {entry.line: entry for entry in parse(data)}
    except MalformedProperties:
        return
    assert (found is None) is (line not in there)
    if found is not None:
        assert all(text.isprintable() for text in found)
        assert len(found[0]) <= 140


def test_json_has_no_quotes(tmp_path: Path) -> None:
    assert "^" not in check(tmp_path, GOOD + "maxRecords = x\n", "--json").stdout


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variables", "stream", "on"),
    [
        ({}, Terminal(), True),
        ({"NO_COLOR": "1"}, Terminal(), False),
        ({"NO_COLOR": ""}, Terminal(), True),
        ({"TERM": "dumb"}, Terminal(), False),
        ({}, io.StringIO(), False),
    ],
)
def test_colours_are_for_terminals_that_want_them(
    variables: dict[str, str], stream: io.StringIO, on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert Ink.of(stream).on is on


def test_colours_change_no_text(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("maxRecords = x\n")
    source = Source.of(path, "f")
    rows = [
        EffectiveProperty("maxRecords", "5", "f:1", is_default=False),
        EffectiveProperty("regionName", "none", "default", is_default=True),
    ]
    for level in ("error", "warning", "info"):
        sentence = f"f:1: {'' if level == 'error' else f'{level}: '}maxRecords = x: bad"
        coloured = list(explained(sentence, level, source, Ink(on=True)))
        assert any("\x1b[" in line for line in coloured)
        assert list(map(unstyle, coloured)) == list(explained(sentence, level, source, PLAIN))
    coloured = list(table(rows, Ink(on=True)))
    assert "\x1b[2m" in coloured[1]
    assert (
        list(map(unstyle, coloured))
        == list(table(rows, PLAIN))
        == ["maxRecords  5     f:1", "regionName  none  default"]
    )
    assert unstyle(concluded("OK", errors=0, warnings=0, ink=Ink(on=True))) == "OK"
