"""Shared by the commands: properties file, `--stream`, exit codes and error reports.

A `KclError` becomes one line with advice; any other exception is a bug.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import anyio
import click

from kcl_daemon.app import streams_of
from kcl_daemon.config.load import load
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import (
    AccessDenied,
    AwsError,
    ChildError,
    ChildStartFailed,
    ConfigurationError,
    EnvironmentLacks,
    InvalidRequest,
    KclError,
    NoCredentials,
    NoRegion,
    StreamNotFound,
    TableNotFound,
    Throttled,
    Unavailable,
)
from kcl_daemon.fleet.streams import MultiStreamTracker
from kcl_daemon.leases.lease import Lease, StreamIdentity
from kcl_daemon.ports import Clock, Kinesis, Log, StreamRef, Table
from kcl_daemon.system import SystemRandomness
from kcl_daemon.text import masked, on_one_line


class NotChanged(KclError):
    """Raised when a change is not possible; the message says why."""


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


EXIT_FAILURE: Final = 1
EXIT_CONFIGURATION: Final = 2

_ADVICE: Final[tuple[tuple[type[KclError], str], ...]] = (
    (NoRegion, "set regionName or AWS_REGION; a restart alone does not help"),
    (
        NoCredentials,
        "give this host or task a role, or set AWS_PROFILE; a restart alone does not help",
    ),
    (
        AccessDenied,
        "check the credentials of this host and the permissions of its role on the stream and the tables",
    ),
    (StreamNotFound, "check streamName or streamArn, regionName and the account of the credentials"),
    (TableNotFound, "check applicationName, tableName and regionName; was the table deleted while in use?"),
    (Throttled, "the service throttles; start again later or raise its limits"),
    (Unavailable, "check the network, regionName and the endpoint properties"),
    (InvalidRequest, "check names and positions in the properties file; if they are right, report this"),
    (ChildStartFailed, "check executableName"),
    (
        ChildError,
        "read child_stderr and child_failed; childFailurePolicy = restart would replace such a child",
    ),
    (
        ConfigurationError,
        "fix the properties file or the environment; a restart alone does not help",
    ),
)


def report_failure(error: BaseException, log: Log) -> int:
    """Log one ERROR event; returns the exit code."""
    errors = tuple(leaves(error))
    unexpected = [each for each in errors if not isinstance(each, KclError)]
    if unexpected:
        advice = "a bug in the daemon; report it with this traceback"
        log.error("daemon_failed_unexpectedly", error=describe(unexpected[0]), advice=advice, exc_info=error)
        return EXIT_FAILURE
    first = errors[0]
    others = list(dict.fromkeys(describe(each) for each in errors[1:]))
    more = {"others": others} if others else {}
    log.error("daemon_failed", error=describe(first), advice=advice_for(first), **more)
    return exit_code(first)


def exit_code(error: BaseException) -> int:
    """EXIT_CONFIGURATION means that a retry does not help."""
    helpless = isinstance(error, ConfigurationError | EnvironmentLacks)
    return EXIT_CONFIGURATION if helpless else EXIT_FAILURE


def leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from leaves(each)
    else:
        yield error


def describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def advice_for(error: BaseException) -> str:
    for kind, advice in _ADVICE:
        if isinstance(error, kind):
            return advice
    return "see the error"


_Command = TypeVar("_Command", bound=Callable[..., object])
_Result = TypeVar("_Result")

EPILOG: Final = """\b
Exit codes:
  0  done
  1  AWS did not answer, refused, or the tables do not exist
  2  wrong command line, properties file or environment
"""


def with_file(command: _Command) -> _Command:
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
    """The option wins over the argument.

    Raises:
        click.UsageError: neither is given.
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
    """Exits with code 2 if there is no usable file."""
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
    """Run `act`; a `KclError` ends the process with one line on stderr and an exit code.

    Errors of the kinds in `plain` bring their own advice.
    """
    try:
        return anyio.run(partial(_awaited, act))
    except Exception as error:  # a task group raises exception groups
        first, *others = leaves(error)
        if not all(isinstance(each, KclError) for each in (first, *others)):
            raise
        said = str(first) if isinstance(first, plain) else f"{describe(first)}; {advice_for(first)}"
        click.echo(masked(on_one_line(f"{command}: {said}")), err=True)
        sys.exit(exit_code(first))


async def _awaited(act: Callable[[], Awaitable[_Result]]) -> _Result:
    return await act()


stream_option: Final = click.option(
    "--stream",
    "stream",
    metavar="NAME",
    help="With many streams: only this one, by name or ACCOUNT:NAME:CREATION_EPOCH.",
)


def stream_text(settings: Settings) -> str:
    return ", ".join(settings.streams.texts) or settings.stream_arn or settings.stream_name


def is_of(lease: Lease, stream: str | None, settings: Settings) -> bool:
    if stream is None:
        return True
    if lease.stream is None:
        return stream in (settings.stream_name, settings.stream_arn)
    return stream in (lease.stream.name, str(lease.stream))


def is_named(stream: str, settings: Settings) -> bool:
    """Whether the file names the stream, even without leases."""
    return stream in (settings.stream_name, settings.stream_arn, *settings.streams.texts)


def leases_of(leases: Iterable[Lease], stream: str | None, settings: Settings) -> tuple[Lease, ...]:
    return tuple(lease for lease in leases if is_of(lease, stream, settings))


@dataclass(frozen=True, slots=True)
class ChosenStream:
    """`ref.identity` is None in single-stream mode."""

    ref: StreamRef

    def owns(self, lease: Lease) -> bool:
        return lease.stream == self.ref.identity


async def chosen_stream(
    settings: Settings, stream: str | None, kinesis: Kinesis, *, table: Table, clock: Clock, log: Log
) -> ChosenStream:
    """Find the one stream that a command acts on.

    Raises NotChanged if the choice is missing or wrong.
    """
    streams = streams_of(settings, kinesis, clock, log, table=table)
    if not isinstance(streams, MultiStreamTracker):
        if stream is not None and stream not in (settings.stream_name, settings.stream_arn):
            raise NotChanged(f"this application reads {stream_text(settings)}, not {stream}")
        return ChosenStream(streams.stream.ref)
    if stream is None:
        raise NotChanged(
            f"this application reads many streams; add --stream with one of {stream_text(settings)}"
        )
    await streams.prepare()
    found = [
        each.ref
        for each in streams.current
        if stream in (each.ref.name, each.ref.arn, _text(each.ref.identity))
    ]
    if len(found) != 1:
        how_many = "none" if not found else "several"
        raise NotChanged(
            f"--stream {stream}: {how_many} of {stream_text(settings)} "
            f"{'has' if len(found) == 0 else 'have'} this name"
        )
    return ChosenStream(found[0])


def _text(identity: StreamIdentity | None) -> str:
    return str(identity)


_T = TypeVar("_T")

Finding = tuple[bool, str]
"""Whether it is good, and its text."""
NOT_TRIED: Final = ": NOT TRIED, as "


async def try_check(findings: list[Finding], what: str, attempt: Callable[[], Awaitable[_T]]) -> _T | None:
    """Returns None, and adds a finding, if AWS refuses."""
    try:
        return await attempt()
    except (AwsError, ConfigurationError) as error:
        findings.append((False, masked(on_one_line(f"{what}: {describe(error)}; {advice_for(error)}"))))
        return None


def not_checked(what: str, why: str) -> Finding:
    """A finding that counts as good, but says that it was not tried."""
    return True, masked(on_one_line(f"{what}{NOT_TRIED}{why}"))
