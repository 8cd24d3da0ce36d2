"""`kcl-daemon leases`: who reads what, and what the leader would do about it.

Owns the command line and the exit codes; `leases_look` reads, `leases_view` and `leases_json` show. Writes to no table.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import anyio
import click

from kcl_daemon.app import strategies
from kcl_daemon.aws.build import build_kinesis, build_tables
from kcl_daemon.aws.session import open_clients
from kcl_daemon.cli.failures import EXIT_CONFIGURATION, EXIT_FAILURE, advice_for, describe, leaves
from kcl_daemon.cli.leases_json import explain_json, list_json
from kcl_daemon.cli.leases_look import Observer, lags, open_existing
from kcl_daemon.cli.leases_seen import Explained, Seen
from kcl_daemon.cli.leases_view import explain_lines, list_lines
from kcl_daemon.config.load import load
from kcl_daemon.config.settings import Settings
from kcl_daemon.coordination.timings import timings
from kcl_daemon.errors import ConfigurationError, KclError
from kcl_daemon.observe.logs import build_log
from kcl_daemon.observe.redact import masked, on_one_line
from kcl_daemon.system import SystemClock, SystemRandomness

_Command = TypeVar("_Command", bound=Callable[..., object])

_WATCH_MOST_S: Final = 3600.0
_EPILOG: Final = """\b
Exit codes:
  0  done
  1  AWS did not answer, refused, or has no such tables
  2  wrong command line, properties file or environment
"""


@dataclass(frozen=True, slots=True)
class Request:
    """How to look.

    Args:
        watch_s: for how long; 0: once.
        with_lag: whether to ask Kinesis for each lease.
    """

    watch_s: float = 0.0
    with_lag: bool = False


def _common(command: _Command) -> _Command:
    """The options of every command of the group."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="One JSON document, for scripts."),
        click.option(
            "-p",
            "--properties",
            "--properties-file",
            "properties_file",
            metavar="FILE",
            type=click.Path(path_type=Path),
            help="The properties file of the application's workers; wins over [FILE].",
        ),
        click.argument("file", metavar="[FILE]", required=False, type=click.Path(path_type=Path)),
    ):
        command = option(command)
    return command


@click.group("leases", help="Show who reads which shard, and what the leader would do. Changes nothing.")
def leases() -> None:
    """The group."""


@leases.command("list", short_help="Leases, workers and the leader.", epilog=_EPILOG)
@_common
@click.option("--all", "with_finished", is_flag=True, help="Show finished leases, too.")
@click.option(
    "--lag",
    "with_lag",
    is_flag=True,
    help="Ask Kinesis how far each checkpoint is behind: one read of each shard, of the five a second it allows.",
)
def list_leases(
    *, file: Path | None, properties_file: Path | None, as_json: bool, with_finished: bool, with_lag: bool
) -> None:
    """Show every lease with its owner and checkpoint, the workers and the leader, as the tables tell now."""
    seen = _run(_settings(file, properties_file), Request(with_lag=with_lag))
    if as_json:
        click.echo(list_json(seen, with_finished=with_finished))
    else:
        click.echo("\n".join(list_lines(seen, with_finished=with_finished)))


@leases.command("explain", short_help="What the leader would do now, and why.", epilog=_EPILOG)
@_common
@click.option(
    "--watch",
    "watch_s",
    metavar="SECONDS",
    type=click.FloatRange(0, _WATCH_MOST_S),
    default=0.0,
    help="Watch for so long before judging; more than failoverTimeMillis shows which owners have gone silent.",
)
def explain_leases(*, file: Path | None, properties_file: Path | None, as_json: bool, watch_s: float) -> None:
    """Show what the leader would do now and why, by the settings of this file, without doing it."""
    settings = _settings(file, properties_file)
    seen = _run(settings, Request(watch_s=watch_s))
    explained = explain_seen(seen, settings)
    click.echo(explain_json(explained) if as_json else "\n".join(explain_lines(explained)))


def explain_seen(seen: Seen, settings: Settings) -> Explained:
    """What a leader with these settings would do; decides as the daemon does."""
    rules = strategies(settings)
    return Explained(
        seen,
        rules.balance(seen.fleet),
        frozenset(move.lease.lease_key for move in rules.place(seen.fleet).moves),
        timings(settings.leases, settings.balance).balance_s,
        settings.balance.worker_metrics_ema_alpha,
    )


def _settings(file: Path | None, properties_file: Path | None) -> Settings:
    """What the file says; leaves the process where it cannot be used."""
    chosen = properties_file or file
    if chosen is None:
        raise click.UsageError("no properties file given: kcl-daemon leases COMMAND --properties FILE")
    if properties_file is not None and file is not None:
        click.echo(f"{on_one_line(str(file))} is not read, --properties wins", err=True)
    try:
        return load(chosen, randomness=SystemRandomness(), hostname=socket.gethostname()).settings
    except ConfigurationError as error:
        for line in str(error).splitlines():
            click.echo(line, err=True)
        sys.exit(EXIT_CONFIGURATION)


def _run(settings: Settings, request: Request) -> Seen:
    try:
        return anyio.run(partial(_see, settings, request))
    except Exception as error:  # the group of a task group may hold errors on purpose
        first, *others = leaves(error)
        if not all(isinstance(each, KclError) for each in (first, *others)):
            raise
        _leave(first)


def _leave(error: BaseException) -> NoReturn:
    """One line that says what happened and what to do."""
    text = masked(on_one_line(f"kcl-daemon leases: {describe(error)}; {advice_for(error)}"))
    click.echo(text, err=True)
    sys.exit(EXIT_CONFIGURATION if isinstance(error, ConfigurationError) else EXIT_FAILURE)


async def _see(settings: Settings, request: Request) -> Seen:
    clock = SystemClock()
    log = build_log(level="error", form="console", stream=sys.stderr, clock=clock)
    async with open_clients(settings.endpoints) as clients:
        opened = await open_existing(build_tables(settings, clients, clock), settings)
        seen = await Observer(opened, settings, clock=clock, log=log).watch(request.watch_s)
        if not request.with_lag:
            return seen
        return replace(seen, lags=await lags(seen.leases, build_kinesis(clients), settings))
