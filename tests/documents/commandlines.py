"""Whether a command that is not run could be: its program, options, targets and modules exist."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from functools import cache

import click

from kcl_daemon.cli import main
from tests.documents.blocks import ROOT

# Words of the shell that need no look.
_SHELL = frozenset({".", "cd", "echo", "export", "source", "tee"})


class NotACommand(Exception):
    """Raised when a documented command could not be run; says why."""


def check_script(script: str) -> None:
    """Look at every command of a script.

    The files that it names must be in the current directory.

    Raises:
        NotACommand: the first that could not be run.
    """
    for words in commands_of(script):
        try:
            check_command(words)
        except NotACommand as error:
            raise NotACommand(f"{shlex.join(words)}: {error}") from None


def commands_of(script: str) -> list[list[str]]:
    """The words of each command, without comments, redirections and assignments."""
    found: list[list[str]] = []
    for line in script.replace("\\\n", " ").splitlines():
        words = _words(line)
        command: list[str] = []
        for word in [*words, ";"]:
            if set(word) <= set("|&;"):
                found += [command] if command else []
                command = []
            elif command or not re.fullmatch(r"\w+=.*", word):
                command.append(word)
    return found


def _words(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    skip = False
    for word in lexer:
        if skip or set(word) <= set("<>"):
            skip = not skip  # the file behind a redirection
        else:
            words.append(word)
    return words


def check_command(words: list[str]) -> None:
    """Look at one command.

    Raises:
        NotACommand: it could not be run.
    """
    program = words[0].rpartition("/")[2]
    match program:
        case "kcl-daemon":
            _check_ours(words[1:])
        case "make":
            missing = {word for word in words[1:] if "=" not in word} - _targets()
            _refuse_if(missing, "no such target")
        case "pip":
            _check_pip(words[1:])
        case "python" | "python3":
            _check_python(words[1:])
        case "pytest":
            paths = [word for word in words[1:] if "/" in word and not (ROOT / word).exists()]
            _refuse_if(paths, "no such test")
        case _:
            _refuse_if(
                {program} - _SHELL, "not ours; mark the block <!-- test: not ours -->, or take the line out"
            )


def _refuse_if(wrong: object, why: str) -> None:
    if wrong:
        raise NotACommand(f"{why}: {wrong}")


def _check_ours(words: list[str]) -> None:
    """Parse the words as the program would, without doing anything."""
    command: click.Command = main
    parent: click.Context | None = None
    with ExitStack() as opened, _refusals():
        while True:
            context = opened.enter_context(command.make_context(command.name or "", list(words), parent))
            if not isinstance(command, click.Group):
                return
            # Click keeps the name of the subcommand apart from its words.
            rest = [*context._protected_args, *context.args]
            _, following, words = command.resolve_command(context, rest)
            assert following is not None, "a group resolves to a command or raises"
            command, parent = following, context


@contextmanager
def _refusals() -> Generator[None]:
    """Click's refusals as ours; that it has shown its help is none."""
    try:
        yield
    except click.exceptions.Exit:
        return
    except click.ClickException as error:
        raise NotACommand(error.format_message()) from None


@cache
def _targets() -> set[str]:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    return {
        name for line in re.findall(r"^([a-z][a-z -]*):", makefile, re.MULTILINE) for name in line.split()
    }


def _check_pip(words: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for word in words:
        name, _, extras = word.rstrip("]").partition("[")
        if name in {project["name"], "."} and extras:
            _refuse_if(set(extras.split(",")) - set(project["optional-dependencies"]), "no such extra")


def _check_python(words: list[str]) -> None:
    match words:
        case ["-m", "venv", _] | ["-c", _]:
            return
        case ["-m", module, *arguments]:
            _refuse_if(importlib.util.find_spec(module) is None, f"no module {module}")
            flags = {word.partition("=")[0] for word in arguments if word.startswith("--")}
            _refuse_if(flags - _flags_of(module) if flags else None, "no such option")
        case [script, *_]:
            _refuse_if(not (ROOT / script).is_file(), f"no script {script}")
        case _:
            raise NotACommand("python without anything to run")


@cache
def _flags_of(module: str) -> frozenset[str]:
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return frozenset(re.findall(r"--[\w-]+", done.stdout))
