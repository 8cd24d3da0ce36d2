"""The command line of the demo, as far as it goes without starting anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kcl_local.demo.command import demo


def call(*arguments: str) -> Result:
    return CliRunner().invoke(demo, arguments)


def test_a_directory_with_files_in_it_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    result = call("--keep", str(tmp_path))
    assert result.exit_code == 2
    assert "not empty" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


@pytest.mark.parametrize(
    "arguments",
    [
        ("--input", "/there/is/no/such/file"),
        ("--shards", "0"),
        ("--rate", "0"),
        ("--records", "0"),
        ("--seconds", "0"),
    ],
)
def test_an_invalid_option_is_refused_before_anything_starts(arguments: tuple[str, str]) -> None:
    result = call(*arguments)
    assert result.exit_code == 2
    assert arguments[0] in result.output


def test_the_help_tells_the_exit_codes() -> None:
    text = " ".join(call("--help").output.split())
    assert "130 stopped by Ctrl-C" in text
    assert "no AWS account" in text


@pytest.mark.parametrize("other", ["--spark", "--dynamodb"])
def test_two_demos_at_once_are_refused(other: str) -> None:
    result = call("--landing", other)
    assert result.exit_code == 2
    assert f"--landing and {other} are two demos" in result.output
