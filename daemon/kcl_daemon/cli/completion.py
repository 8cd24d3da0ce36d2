"""`kcl-daemon completion`: the script with which a shell completes this program's commands and options."""

from __future__ import annotations

from typing import Final, Literal

import click
from click.shell_completion import get_completion_class

_PROGRAM: Final = "kcl-daemon"
VARIABLE: Final = "_KCL_DAEMON_COMPLETE"
"""The script sets it, and the program answers with completions in place of its work."""


@click.command("completion", short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(*, shell: Literal["bash", "zsh", "fish"]) -> None:
    """Print the script that lets a shell complete commands, options and files.

    Evaluate it in the start file of the shell: ~/.bashrc (bash 4.4 or newer), ~/.zshrc after `compinit`.
    """
    found = get_completion_class(shell)
    assert found is not None, f"click knows {shell}"
    root = click.get_current_context().find_root().command
    click.echo(found(root, {}, _PROGRAM, VARIABLE).source())
