"""`kcl-daemon leases list`, `explain` and `tree`: show leases, workers and the leader's plan.

They write nothing; `steer` writes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import click

from kcl_daemon.app import streams_of
from kcl_daemon.aws.build import build_kinesis, build_tables
from kcl_daemon.aws.session import open_clients
from kcl_daemon.cli.common import (
    EPILOG,
    is_named,
    is_of,
    leases_of,
    run,
    settings_of,
    stream_option,
    stream_text,
    with_file,
)
from kcl_daemon.cli.leases.look import ExplainedPlan, FleetObserver, ObservedFleet, lags
from kcl_daemon.cli.leases.show import explain_json, explain_lines, list_json, list_lines, tree_lines
from kcl_daemon.cli.leases.steer import delete, release, reset, skip
from kcl_daemon.config.settings import Settings
from kcl_daemon.fleet.assigner import assignment_strategies
from kcl_daemon.fleet.context import timings
from kcl_daemon.migrations.tables import open_existing
from kcl_daemon.system import SystemClock
from kcl_daemon.telemetry.logs import build_log
from kcl_daemon.text import on_one_line

_Command = TypeVar("_Command", bound=Callable[..., object])

_WATCH_MOST_S: Final = 3600.0
_COMMAND: Final = "kcl-daemon leases COMMAND"


@dataclass(frozen=True, slots=True)
class LeasesRequest:
    """With `watch_s` 0 the tables are read once."""

    watch_s: float = 0.0
    with_lag: bool = False
    stream: str | None = None


def _common(command: _Command) -> _Command:
    return with_file(
        click.option("--json", "as_json", is_flag=True, help="Print one JSON document, for scripts.")(command)
    )


@click.group("leases", help="Show which worker reads which shard and why; move, reset and delete leases.")
def leases() -> None:
    """The group."""


for _steering in (reset, skip, release, delete):
    leases.add_command(_steering)


@leases.command("list", short_help="Show leases, workers and the leader.", epilog=EPILOG)
@_common
@click.option("--all", "with_finished", is_flag=True, help="Show finished leases too.")
@click.option(
    "--lag",
    "with_lag",
    is_flag=True,
    help="Also show the lag of each checkpoint. Costs one read per shard, of the five per second that "
    "Kinesis allows.",
)
@stream_option
def list_leases(
    *,
    file: Path | None,
    properties_file: Path | None,
    as_json: bool,
    with_finished: bool,
    with_lag: bool,
    stream: str | None,
) -> None:
    """Show every lease with its owner and checkpoint, the workers and the leader, as stored in the tables now."""
    settings = settings_of(file, properties_file, command=_COMMAND)
    seen = of_stream(_run(settings, LeasesRequest(with_lag=with_lag, stream=stream)), settings, stream)
    if as_json:
        click.echo(list_json(seen, with_finished=with_finished))
    else:
        click.echo("\n".join(list_lines(seen, with_finished=with_finished)))


@leases.command("explain", short_help="Show what the leader would do now, and why.", epilog=EPILOG)
@_common
@click.option(
    "--watch",
    "watch_s",
    metavar="SECONDS",
    type=click.FloatRange(0, _WATCH_MOST_S),
    default=0.0,
    help="Watch this long before deciding. More than failoverTimeMillis shows which owners are silent.",
)
@stream_option
def explain_leases(
    *, file: Path | None, properties_file: Path | None, as_json: bool, watch_s: float, stream: str | None
) -> None:
    """Show what the leader would do now with the settings of this file, and why. Changes nothing."""
    settings = settings_of(file, properties_file, command=_COMMAND)
    seen = _run(settings, LeasesRequest(watch_s=watch_s))
    # The leader plans for all leases.
    explained = explain_seen(seen, settings)
    moves = tuple(move for move in explained.plan.moves if is_of(move.lease, stream, settings))
    explained = replace(
        explained, seen=of_stream(seen, settings, stream), plan=replace(explained.plan, moves=moves)
    )
    click.echo(explain_json(explained) if as_json else "\n".join(explain_lines(explained)))


@leases.command("tree", short_help="Show the lineage of the shards, with state and lag.", epilog=EPILOG)
@with_file
@click.option("--lag", "with_lag", is_flag=True, help="Also show the lag of each checkpoint.")
@stream_option
def tree(*, file: Path | None, properties_file: Path | None, with_lag: bool, stream: str | None) -> None:
    """Draw the parents and children of all shards that have leases, with the state of each."""
    settings = settings_of(file, properties_file, command=_COMMAND)
    seen = _run(settings, LeasesRequest(with_lag=with_lag, stream=stream))
    click.echo("\n".join(tree_lines(of_stream(seen, settings, stream))))


def explain_seen(seen: ObservedFleet, settings: Settings) -> ExplainedPlan:
    rules = assignment_strategies(settings)
    return ExplainedPlan(
        seen,
        rules.balance(seen.fleet),
        frozenset(move.lease.lease_key for move in rules.place(seen.fleet).moves),
        timings(settings.leases, settings.balance).balance_s,
        settings.balance.worker_metrics_ema_alpha,
    )


def of_stream(seen: ObservedFleet, settings: Settings, stream: str | None) -> ObservedFleet:
    """Exits with code 2 if the application does not read the stream."""
    chosen = leases_of(seen.leases, stream, settings)
    if stream is not None and not chosen and not is_named(stream, settings):
        raise click.BadParameter(
            f"this application has no stream {on_one_line(stream)}; it reads {stream_text(settings)}",
            param_hint="--stream",
        )
    return replace(seen, fleet=replace(seen.fleet, leases=list(chosen)))


def _run(settings: Settings, request: LeasesRequest) -> ObservedFleet:
    return run(partial(_see, settings, request), command="kcl-daemon leases")


async def _see(settings: Settings, request: LeasesRequest) -> ObservedFleet:
    clock = SystemClock()
    log = build_log(level="error", form="console", stream=sys.stderr, clock=clock)
    async with open_clients(settings.endpoints) as clients:
        opened = await open_existing(build_tables(settings, clients, clock), settings)
        seen = await FleetObserver(opened, settings, clock=clock, log=log).watch(request.watch_s)
        if not request.with_lag:
            return seen
        kinesis = build_kinesis(clients)
        chosen = leases_of(seen.leases, request.stream, settings)
        streams = streams_of(settings, kinesis, clock, log, table=opened.tables.leases)
        return replace(seen, lags=await lags(chosen, kinesis, streams))
