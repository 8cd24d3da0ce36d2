from __future__ import annotations

import os
import socket
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import anyio
import click
import orjson

from kcl_daemon.config.load import Loaded, load
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import (
    AccessDenied,
    ChildError,
    ChildStartFailed,
    ConfigurationError,
    EnvironmentLacks,
    InvalidRequest,
    KclError,
    LettersUnusable,
    NoCredentials,
    NoRegion,
    StreamNotFound,
    TableNotFound,
    Throttled,
    Unavailable,
    leaves,
)
from kcl_daemon.ports import Log
from kcl_daemon.system import SystemRandomness
from kcl_daemon.text import masked, on_one_line

EXIT_FAILURE: Final = 1
EXIT_CONFIGURATION: Final = 2
_ADVICE: Final[tuple[tuple[type[KclError], str], ...]] = (
    (NoRegion, "set regionName or AWS_REGION; a restart alone does not help"),
    (NoCredentials, "give this host or task a role, or set AWS_PROFILE; a restart alone does not help"),
    (
        AccessDenied,
        "check the credentials of this host and the permissions of its role on the stream and the tables",
    ),
    (
        StreamNotFound,
        "check streamName, streamArn or tableName.source, regionName and the account of the credentials",
    ),
    (TableNotFound, "check applicationName, tableName and regionName; was the table deleted while in use?"),
    (Throttled, "the service throttles; start again later or raise its limits"),
    (Unavailable, "check the network, regionName and the endpoint properties"),
    (InvalidRequest, "check names and positions in the properties file; if they are right, report this"),
    (ChildStartFailed, "check executableName"),
    (
        ChildError,
        "read child_stderr and child_failed; childFailurePolicy = restart would replace such a child",
    ),
    (ConfigurationError, "fix the properties file or the environment; a restart alone does not help"),
)
EXIT_UNREAD: Final = 3
EPILOG: Final = """\b
Exit codes:
  0  done
  1  AWS did not answer, refused, or the tables do not exist
  2  wrong command line, properties file or environment
"""


class NotChanged(KclError):
    """The message says why, and what to do."""


def aligned(headings: Sequence[str], rows: Iterable[Sequence[str]], numbers: Collection[int]) -> list[str]:
    table = [list(headings), *([on_one_line(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if number in numbers else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def report_failure(error: BaseException, log: Log, *, where_environment_lacks: str = "") -> int:
    errors = tuple(leaves(error))
    unexpected = [each for each in errors if not isinstance(each, KclError)]
    if unexpected:
        advice = "a bug in the daemon; report it with this traceback"
        log.error("daemon_failed_unexpectedly", error=describe(unexpected[0]), advice=advice, exc_info=error)
        return EXIT_FAILURE
    first = errors[0]
    others = list(dict.fromkeys(describe(each) for each in errors[1:]))
    more = {"others": others} if others else {}
    advice = advice_for(first)
    if where_environment_lacks and (
        isinstance(first, StreamNotFound) or exit_code(first) == EXIT_CONFIGURATION
    ):
        advice = f"{advice}; {where_environment_lacks}"
    log.error("daemon_failed", error=describe(first), advice=advice, **more)
    return exit_code(first)


def exit_code(error: BaseException) -> int:
    helpless = isinstance(error, ConfigurationError | EnvironmentLacks)
    return EXIT_CONFIGURATION if helpless else EXIT_FAILURE


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def advice_for(error: BaseException) -> str:
    for kind, advice in _ADVICE:
        if isinstance(error, kind):
            return advice
    return "see the error"


_Command = TypeVar("_Command", bound=Callable[..., object])
_Result = TypeVar("_Result")


as_json_option: Final = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document, for scripts."
)

shards_option: Final = click.option(
    "--shard", "shards", metavar="ID", multiple=True, help="Only this shard; can be repeated."
)
yes_option: Final = click.option("--yes", is_flag=True, help="Do not ask for confirmation.")


def ask(question: str, *, yes: bool, always: bool = True) -> None:
    """Abort unless somebody agrees; not `always`: asks at a terminal only."""
    if not yes and (always or sys.stdin.isatty()):
        click.confirm(on_one_line(question), abort=True)


def say(text: str) -> None:
    click.echo(on_one_line(text), err=True)


def json_text(document: object, *, on_one_line: bool = False) -> str:
    """On a terminal, what cannot be printed is written as JSON's escapes."""
    option = None if on_one_line else orjson.OPT_INDENT_2
    text = orjson.dumps(document, option=option, default=str).decode()
    if not sys.stdout.isatty() or text.replace("\n", "").isprintable():
        return text
    return "".join(each if each.isprintable() or each == "\n" else _escape(each) for each in text)


def _escape(character: str) -> str:
    units = character.encode("utf-16-be").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def file_option(help_text: str) -> Callable[[_Command], _Command]:
    return click.option(
        *("-p", "--properties", "--properties-file", "properties_file"),
        metavar="FILE",
        type=click.Path(path_type=Path),
        help=help_text,
    )


def with_file(command: _Command) -> _Command:
    option = file_option("Properties file of the application's workers; overrides [FILE].")
    return click.argument("file", metavar="[FILE]", required=False, type=click.Path(path_type=Path))(
        option(command)
    )


def with_settings(command: Callable[..., object]) -> Callable[..., object]:
    @wraps(command)
    def called(*, file: Path | None, properties_file: Path | None, **others: object) -> object:
        return command(settings_of(file, properties_file), **others)

    return with_file(called)


def command_name() -> str:
    context = click.get_current_context()
    below = context.command_path.removeprefix(context.find_root().command_path).strip()
    return f"kcl-daemon {below or context.info_name}"


def chosen_file(file: Path | None, properties_file: Path | None) -> Path:
    chosen = properties_file or file
    if chosen is None:
        raise click.UsageError(f"no properties file given: {command_name()} --properties FILE")
    if properties_file is not None and file is not None:
        click.echo(f"{on_one_line(str(file))} is ignored; --properties is used", err=True)
    return chosen


def load_file(file: Path, environment: Mapping[str, str] = os.environ) -> Loaded:
    return load(file, randomness=SystemRandomness(), hostname=socket.gethostname(), environment=environment)


def settings_of(
    file: Path | None, properties_file: Path | None, environment: Mapping[str, str] = os.environ
) -> Settings:
    chosen = chosen_file(file, properties_file)
    try:
        return load_file(chosen, environment).settings
    except ConfigurationError as error:
        refuse(error)


def refuse(error: ConfigurationError) -> NoReturn:
    for line in str(error).splitlines():
        click.echo(line, err=True)
    sys.exit(EXIT_CONFIGURATION)


def run(act: Callable[[], Awaitable[_Result]]) -> _Result:
    try:
        return anyio.run(act)
    except Exception as error:  # a task group raises exception groups
        first, *others = leaves(error)
        if not all(isinstance(each, KclError) for each in (first, *others)):
            raise
        said = (
            str(first)
            if isinstance(first, NotChanged | LettersUnusable)
            else f"{describe(first)}; {advice_for(first)}"
        )
        click.echo(masked(on_one_line(f"{command_name()}: {said}")), err=True)
        sys.exit(exit_code(first))


def stream_text(settings: Settings) -> str:
    return ", ".join(settings.streams.texts) or settings.stream_arn or settings.stream_name
