"""How the words of a command line find their command."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from kcl_daemon import __version__
from kcl_daemon.cli import main
from kcl_daemon.cli.commands import CommandGroup, LaterCommand


@click.command("eat", help="Eat it.")
@click.argument("food", required=False)
@click.option("--salt", is_flag=True)
def eat(*, food: str | None, salt: bool) -> None:
    click.echo(f"eat {food} {salt}")


def group() -> CommandGroup:
    later = {
        "nap": LaterCommand("tests.unit.cli.test_commands:nap", "Sleep a little."),
        "fly": LaterCommand("no.such:thing", "Fly.", extra="wings", modules=("json", "feathers_and_wax")),
    }
    return CommandGroup(
        name="animal", default=eat, later=later, help="An animal.", epilog="The end.", params=[]
    )


@click.command("nap")
@click.option("--long", is_flag=True)
def nap(*, long: bool) -> None:
    click.echo(f"nap {long}")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["hay"], "eat hay False"),
        (["hay", "--salt"], "eat hay True"),
        (["--salt", "hay"], "eat hay True"),
        (["--salt"], "eat None True"),
        ([], "eat None False"),
        (["eat", "nap"], "eat nap False"),
        (["--", "nap"], "eat nap False"),
        (["--salt", "nap"], "eat nap True"),
        (["nap", "--long"], "nap True"),
    ],
)
def test_words_that_name_no_command_belong_to_the_default_one(words: list[str], said: str) -> None:
    result = CliRunner().invoke(group(), words)
    assert (result.output, result.exit_code) == (f"{said}\n", 0)


def test_a_command_without_its_extra_says_how_to_get_it() -> None:
    result = CliRunner().invoke(group(), ["fly"])
    assert result.exit_code == 2
    assert "feathers_and_wax" in result.output
    assert 'pip install "kcl-daemon[wings]"' in result.output
    assert "json" not in result.output


def test_help_shows_the_default_commands_options_and_imports_no_other() -> None:
    result = CliRunner().invoke(group(), ["--help"])
    assert result.exit_code == 0
    for text in ("Usage: animal [OPTIONS] [FOOD]", "--salt", "nap", "Sleep a little.", "fly", "The end."):
        assert text in result.output


@pytest.mark.parametrize("option", ["--properties", "-p", "--log-level", "--log-format", "-l", "Exit codes"])
def test_the_help_of_the_daemon_names(option: str) -> None:
    assert option in CliRunner().invoke(main, ["--help"]).output


def test_the_version_is_told() -> None:
    assert CliRunner().invoke(main, ["--version"]).output == f"kcl-daemon {__version__}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no properties file given"),
        (["a.properties", "b.properties"], "unexpected extra argument"),
        (["--no-such-option"], "No such option"),
        (["-p"], "requires an argument"),
        (["a.properties", "--log-level", "loud"], "Invalid value"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(words: list[str], said: str) -> None:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert said in result.output


@pytest.mark.parametrize("name", ["demo", "local"])
def test_every_later_command_exists(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    assert command.name == name


@pytest.mark.parametrize("name", ["demo", "local"])
def test_the_local_extra_is_named_where_it_is_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec

    def without_moto(module: str) -> object:
        return None if module == "moto" else find(module)

    monkeypatch.setattr(importlib.util, "find_spec", without_moto)
    result = CliRunner().invoke(main, [name])
    assert result.exit_code == 2
    (line,) = result.output.splitlines()
    assert 'pip install "kcl-daemon[local]"' in line
    assert "(moto)" in line


def test_the_command_line_alone_imports_nothing_heavy() -> None:
    heavy = ("anyio", "asyncio", "boto3", "botocore", "structlog", "orjson", "javaproperties", "kcl_local")
    code = f"import sys, kcl_daemon.cli; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "[]\n"
    assert importlib.import_module("kcl_daemon.cli").main is main
