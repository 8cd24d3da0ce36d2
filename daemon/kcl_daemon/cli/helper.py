"""`helper` replaces `amazon_kclpy_helper.py`, Node's `kcl-bootstrap` and .NET's `Bootstrap`."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Final, Literal, NoReturn

import click
from click.shell_completion import get_completion_class

from kcl_daemon.cli.root import CLASS_PATH

_PROGRAM: Final = "kcl-daemon"
_VARIABLE: Final = "_KCL_DAEMON_COMPLETE"
_NO_SAMPLE: Final = (
    "this package has no sample file; `kcl-daemon demo` shows everything without an AWS account"
)


@click.command("helper")
@click.option(
    "--print_command", "--print-command", "print_command", is_flag=True, help="Print the command (default)."
)
@click.option(
    "--print_classpath",
    "--print-classpath",
    "print_classpath",
    is_flag=True,
    help="Print an empty line: no Java, no class path.",
)
@click.option("-e", "--execute", is_flag=True, help="Run the daemon instead of printing the command.")
@click.option(
    "-p",
    "--properties",
    "--props",
    "--prop",
    "properties",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The properties file.",
)
@click.option("-l", "--log-configuration", metavar="FILE", help="Passed to the daemon.")
@click.option("--sample", "--sample-props", "--use-sample-properties", "sample", is_flag=True, hidden=True)
@click.option("-j", "--java", metavar="PATH", help="Accepted and ignored.")
@click.option(*CLASS_PATH, metavar="PATH", multiple=True, help="Accepted and ignored.")
def helper(
    *,
    print_command: bool,
    print_classpath: bool,
    execute: bool,
    properties: Path | None,
    log_configuration: str | None,
    sample: bool,
    java: str | None,
    class_path: tuple[str, ...],
) -> None:
    """Print the command that starts the daemon, quoted for a shell; with --execute, run it.

    Accepts the flags of the client libraries' helpers, so it can replace them.
    """
    if sample:
        raise click.UsageError(_NO_SAMPLE)
    if print_classpath:
        click.echo("")
        if not print_command:
            return
    if properties is None:
        raise click.UsageError(
            "no properties file given: kcl-daemon helper --print_command --properties FILE"
        )
    if java is not None or class_path:
        click.echo("java and class path are not needed and are ignored", err=True)
    words = ["--properties", str(properties)]
    if log_configuration is not None:
        words += ["--log-configuration", log_configuration]
    if execute:
        _become(words)
    click.echo(shlex.join([program(), *words]))


def program() -> str:
    started = Path(sys.argv[0])
    found = shutil.which(_PROGRAM)
    if found is None and started.name == _PROGRAM:
        return str(started.resolve())
    return _PROGRAM


def _become(words: list[str]) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "kcl_daemon", *words])  # noqa: S606 - ourselves


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(*, shell: Literal["bash", "zsh", "fish"]) -> None:
    """Print the script that lets a shell complete commands, options and files.

    Evaluate it in the start file of the shell: ~/.bashrc (bash 4.4 or newer), ~/.zshrc after `compinit`.
    """
    found = get_completion_class(shell)
    assert found is not None, f"click knows {shell}"
    root = click.get_current_context().find_root().command
    click.echo(found(root, {}, _PROGRAM, _VARIABLE).source())
