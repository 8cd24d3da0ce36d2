"""What commands that look at or steer an application's tables have in common: the file, the run, the failures.

Owns their exit codes. Knows nothing of what they do.

The end of a daemon that failed, in words: what happened and what a person can do about it.

Pure but for the log. An error on purpose (`KclError`) gives one line with advice; anything else is our fault and
shows where it came from.

Choosing one of many streams on the command line, and how streams are called in what is shown.

Owns `--stream`. Knows nothing of what a command does with it.

What `kcl-daemon check --with-aws` has found, and how a call is tried for it.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import anyio
import click

from kcl_daemon.app import streams_of
from kcl_daemon.cli.leases.change import NotChanged
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
    """One ERROR event for whatever ended the daemon, groups taken apart; the exit code."""
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
    """With what a process ends for it: no region, no credentials, a table of another shape; trying again does not help."""
    helpless = isinstance(error, ConfigurationError | EnvironmentLacks)
    return EXIT_CONFIGURATION if helpless else EXIT_FAILURE


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The single errors of a group of groups, in their order."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from leaves(each)
    else:
        yield error


def describe(error: BaseException) -> str:
    """Its kind and its words."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def advice_for(error: BaseException) -> str:
    """What a person can do."""
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


stream_option: Final = click.option(
    "--stream",
    "stream",
    metavar="NAME",
    help="With many streams: only this one, by name or ACCOUNT:NAME:CREATION_EPOCH.",
)


def stream_text(settings: Settings) -> str:
    """What is read, in words: an ARN, a name, or several."""
    return ", ".join(settings.streams.texts) or settings.stream_arn or settings.stream_name


def is_of(lease: Lease, stream: str | None, settings: Settings) -> bool:
    """Whether a lease is of the stream that was asked for; None: any will do."""
    if stream is None:
        return True
    if lease.stream is None:
        return stream in (settings.stream_name, settings.stream_arn)
    return stream in (lease.stream.name, str(lease.stream))


def is_named(stream: str, settings: Settings) -> bool:
    """Whether the file names that stream, which may have no leases yet."""
    return stream in (settings.stream_name, settings.stream_arn, *settings.streams.texts)


def leases_of(leases: Iterable[Lease], stream: str | None, settings: Settings) -> tuple[Lease, ...]:
    """The leases of the stream that was asked for."""
    return tuple(lease for lease in leases if is_of(lease, stream, settings))


@dataclass(frozen=True, slots=True)
class ChosenStream:
    """The stream to act on; `ref.identity` is None where there is one only."""

    ref: StreamRef

    def owns(self, lease: Lease) -> bool:
        """Whether a lease is of it."""
        return lease.stream == self.ref.identity


async def chosen_stream(
    settings: Settings, stream: str | None, kinesis: Kinesis, *, table: Table, clock: Clock, log: Log
) -> ChosenStream:
    """The one stream that a command acts on.

    Raises:
        NotChanged: there are many and none was named, or there is none such.
        AwsError: Kinesis does not tell of it.
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
"""Whether it is good, and one line about it."""
NOT_TRIED: Final = ": NOT TRIED, as "


async def try_check(findings: list[Finding], what: str, attempt: Callable[[], Awaitable[_T]]) -> _T | None:
    """What it gives; None, and a finding, where AWS refuses it."""
    try:
        return await attempt()
    except (AwsError, ConfigurationError) as error:
        findings.append((False, masked(on_one_line(f"{what}: {describe(error)}; {advice_for(error)}"))))
        return None


def not_checked(what: str, why: str) -> Finding:
    """What is not known must not look as if it were; it is no reason to call the check failed either."""
    return True, masked(on_one_line(f"{what}{NOT_TRIED}{why}"))
