"""What commands that look at or steer an application's tables have in common: the file, the run, the failures.

Owns their exit codes. Knows nothing of what they do.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import anyio
import click

from kcl_daemon.cli.failures import EXIT_CONFIGURATION, advice_for, describe, exit_code, leaves
from kcl_daemon.config.load import load
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import ConfigurationError, KclError
from kcl_daemon.observe.redact import masked, on_one_line
from kcl_daemon.system import SystemRandomness

_Command = TypeVar("_Command", bound=Callable[..., object])
_Result = TypeVar("_Result")

EPILOG: Final = """\b
Exit codes:
  0  done
  1  AWS did not answer, refused, or the tables do not exist
  2  wrong command line, properties file or environment
"""


def with_file(command: _Command) -> _Command:
    """The ways to name the properties file: an argument `file` and an option `properties_file`."""
    for option in (
        click.option(
            "-p",
            "--properties",
            "--properties-file",
            "properties_file",
            metavar="FILE",
            type=click.Path(path_type=Path),
            help="Properties file of the application's workers; overrides [FILE].",
        ),
        click.argument("file", metavar="[FILE]", required=False, type=click.Path(path_type=Path)),
    ):
        command = option(command)
    return command


def chosen_file(file: Path | None, properties_file: Path | None, *, command: str) -> Path:
    """The file to read, of the two ways to name one; tells on stderr where another is passed over.

    Raises:
        click.UsageError: there is none.
    """
    chosen = properties_file or file
    if chosen is None:
        raise click.UsageError(f"no properties file given: {command} --properties FILE")
    if properties_file is not None and file is not None:
        click.echo(f"{on_one_line(str(file))} is ignored; --properties is used", err=True)
    return chosen


def settings_of(
    file: Path | None,
    properties_file: Path | None,
    *,
    command: str,
    environment: Mapping[str, str] = os.environ,
) -> Settings:
    """What the file says; leaves the process with exit code 2 where there is none or it cannot be used."""
    chosen = chosen_file(file, properties_file, command=command)
    try:
        return load(
            chosen, randomness=SystemRandomness(), hostname=socket.gethostname(), environment=environment
        ).settings
    except ConfigurationError as error:
        for line in str(error).splitlines():
            click.echo(line, err=True)
        sys.exit(EXIT_CONFIGURATION)


def run(
    act: Callable[[], Awaitable[_Result]], *, command: str, plain: tuple[type[KclError], ...] = ()
) -> _Result:
    """Act; a failure on purpose is one line on stderr that says what to do, and an exit code.

    Args:
        act: what to do.
        command: whose name the line begins with.
        plain: errors whose own words say what to do.
    """
    try:
        return anyio.run(partial(_awaited, act))
    except Exception as error:  # the group of a task group may hold errors on purpose
        first, *others = leaves(error)
        if not all(isinstance(each, KclError) for each in (first, *others)):
            raise
        said = str(first) if isinstance(first, plain) else f"{describe(first)}; {advice_for(first)}"
        click.echo(masked(on_one_line(f"{command}: {said}")), err=True)
        sys.exit(exit_code(first))


async def _awaited(act: Callable[[], Awaitable[_Result]]) -> _Result:
    return await act()
