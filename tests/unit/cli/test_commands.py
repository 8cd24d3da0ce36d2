"""How the words of a command line find their command."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from kcl_daemon import __version__
from kcl_daemon.cli import main
from kcl_daemon.cli.commands import EXAMPLES
from kcl_daemon.cli.root import CommandGroup
from kcl_daemon.wings import LaterCommand
from tests.documents.commandlines import check_command


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
        name="animal",
        default=eat,
        later=later,
        groups={"Day": ("eat", "fly"), "Night": ("nap",)},
        help="An animal.",
        epilog="The end.",
        params=[],
    )


@click.command("nap")
@click.option("--long", is_flag=True)
def nap(*, long: bool) -> None:
    click.echo(f"nap {long}")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["hay.txt"], "eat hay.txt False"),
        (["./hay"], "eat ./hay False"),
        (["hay.txt", "--salt"], "eat hay.txt True"),
        (["--salt", "hay"], "eat hay True"),
        (["--salt"], "eat None True"),
        (["eat", "nap"], "eat nap False"),
        (["--", "nap"], "eat nap False"),
        (["--salt", "nap"], "eat nap True"),
        (["nap", "--long"], "nap True"),
    ],
)
def test_words_that_name_no_command_belong_to_the_default_one(words: list[str], said: str) -> None:
    result = CliRunner().invoke(group(), words)
    assert (result.output, result.exit_code) == (f"{said}\n", 0)


def test_a_plain_word_is_a_file_only_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(group(), ["nop"]).exit_code == 2
    (tmp_path / "nop").touch()
    assert CliRunner().invoke(group(), ["nop"]).output == "eat nop False\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["chekc"], "no such command, and no such file: chekc; did you mean `main check`?"),
        (["lease", "list"], "no such command, and no such file: lease; did you mean `main leases`?"),
        (["help"], "did you mean `main --help`?"),
        (["version"], "did you mean `main --version`?"),
        (["grow"], "no such file: grow; `main --help` lists the commands"),
        (["run_child"], "did you mean `main run-child`?"),
    ],
)
def test_a_mistyped_command_is_told_what_was_meant(words: list[str], said: str) -> None:
    result = CliRunner().invoke(main, words, prog_name="main")
    assert result.exit_code == 2
    assert said in result.output


def test_the_command_without_arguments_shows_the_help() -> None:
    result = CliRunner().invoke(main, [])
    assert result.exit_code == 2
    assert "Exit codes:" in result.output


@pytest.mark.parametrize("words", [["-h"], ["leases", "-h"], ["run", "-h"]])
def test_h_is_help(words: list[str]) -> None:
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, result.output.partition(":")[0]) == (0, "Usage")


def commands() -> Iterator[tuple[str, click.Command]]:
    """All, with the words that they are called by."""
    context = click.Context(main)
    yield "", main
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {each}", found) for each, found in command.commands.items())


def test_every_help_has_an_example_that_could_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("app.properties", "records.jsonl", "records.txt", "lines.txt", "session.jsonl"):
        (tmp_path / file).touch()
    paths = dict(commands())
    assert set(EXAMPLES) == set(paths)
    for path, command in paths.items():
        text = command.get_help(click.Context(command))
        assert f"{EXAMPLES[path][0]}\n" in f"{text}\n", path
        for line in EXAMPLES[path]:
            check_command(shlex.split(line.removeprefix('eval "$(').removesuffix(')"').partition(" > ")[0]))


def completions(words: str, incomplete: str) -> list[str]:
    found = ShellComplete(main, {}, "kcl-daemon", "_KCL_DAEMON_COMPLETE")
    return [f"{each.type}:{each.value}" for each in found.get_completions(shlex.split(words), incomplete)]


@pytest.mark.parametrize(
    ("words", "incomplete", "found"),
    [
        ("", "le", ["plain:leases", "plain:letters"]),
        (
            "",
            "r",
            ["plain:replay", "plain:replay-transcript", "plain:resume", "plain:run", "plain:run-child"],
        ),
        ("", "app.prop", ["file:app.prop"]),
        ("", "--ver", ["plain:--version"]),
        ("", "--log-f", ["plain:--log-format"]),
        ("leases", "re", ["plain:release", "plain:reset"]),
        ("completion", "b", ["plain:bash"]),
        ("--log-level info", "app", ["file:app"]),
        ("app.properties", "--log-f", ["plain:--log-format"]),
    ],
)
def test_a_shell_completes(words: str, incomplete: str, found: list[str]) -> None:
    assert completions(words, incomplete) == found


def test_completing_commands_imports_none_of_them_and_needs_no_extra() -> None:
    code = (
        "import sys; from kcl_daemon.cli import main; from click.shell_completion import ShellComplete as S;"
        "sys.modules['moto'] = None; found = S(main, {}, 'kcl-daemon', 'X').get_completions;"
        "print(len(found([], '')), found(['local'], '--'), 'kcl_daemon.cli.leases.command' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    count, _, rest = done.stdout.partition(" ")
    assert int(count) > 10
    assert rest.endswith("False\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_of_a_shell_is_printed(shell: str) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert f"_KCL_DAEMON_COMPLETE={shell}_complete" in result.stdout
    assert "kcl-daemon" in result.stdout


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


def test_help_lists_the_default_command_first_and_each_command_in_one_group() -> None:
    text = CliRunner().invoke(main, ["--help"]).output
    _, _, listed = text.partition("\nStart")
    named = re.findall(r"^  ([a-z-]+) ", listed.partition("Examples:")[0], re.MULTILINE)
    assert named[0] == "run"
    assert sorted(named) == main.list_commands(click.Context(main))


@pytest.mark.parametrize("option", ["--properties", "-p", "--log-level", "--log-format", "-l", "Exit codes"])
def test_the_help_of_the_daemon_names(option: str) -> None:
    assert option in CliRunner().invoke(main, ["--help"]).output


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version_is_reported(option: str) -> None:
    assert CliRunner().invoke(main, [option]).output == f"kcl-daemon {__version__}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run"], "no properties file given"),
        (["a.properties", "b.properties"], "b.properties is not MODULE:FUNCTION"),
        (["orders", "consumer:handle", "c"], "unexpected extra argument"),
        (["orders", "consumer"], "no such command, and no such file: orders"),
        (["run", "orders", "consumer:handle", "c"], "unexpected extra argument"),
        (["run", "orders", "consumer:handle", "-p", "f"], "a function has no properties file"),
        (["run", "f", "--local"], "--local is for a function"),
        (["run", "arn:aws:kinesis:x", "consumer:handle", "--local"], "give its name, not an ARN"),
        (["run", "orders", "consumer:handle", "--shards", "2"], "--shards is for the stream"),
        (["run", "orders", "consumer:handle", "--reload", "--print-properties"], "has no effect"),
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
