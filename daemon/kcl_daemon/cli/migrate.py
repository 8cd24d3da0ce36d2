"""`kcl-daemon migrate`: where an application is on its way from KCL 2.x to 3.x, and into one table; and how it is steered.

Owns the command line, the questions and the exit codes; `migrate_steps` reads and writes, `migrate_view` shows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import click

from kcl_daemon.aws.build import build_tables
from kcl_daemon.aws.session import open_clients
from kcl_daemon.cli.acting import run, settings_of, with_file
from kcl_daemon.cli.leases_look import open_existing
from kcl_daemon.cli.migrate_steps import Direction, NotSteered, decide, remove_index, status, steer
from kcl_daemon.cli.migrate_view import status_json, status_lines
from kcl_daemon.config.settings import Settings
from kcl_daemon.observe.redact import on_one_line
from kcl_daemon.ports import Tables
from kcl_daemon.system import SystemClock

_Result = TypeVar("_Result")

_COMMAND: Final = "kcl-daemon migrate COMMAND"
_EPILOG: Final = """\b
Exit codes:
  0  done
  1  not allowed in this state, not confirmed, or AWS did not answer or refused
  2  wrong command line, properties file or environment
"""


@click.group("migrate", help="Show and control the migration of an application from KCL 2.x to 3.x.")
def migrate() -> None:
    """The group."""


@migrate.command(
    "status", short_help="Show the state, its history, and what the upgrade waits for.", epilog=_EPILOG
)
@with_file
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, for scripts.")
def show(*, file: Path | None, properties_file: Path | None, as_json: bool) -> None:
    """Show the client version of the application, its history, and what the upgrade waits for. Writes nothing.

    Also shows the state of the migration from three tables to one.
    """
    settings = settings_of(file, properties_file, command=_COMMAND)
    report_s = settings.leases.worker_metrics_report_ms / 1000
    seen = _run(settings, lambda tables: status(tables, clock=SystemClock(), report_s=report_s))
    click.echo(status_json(seen) if as_json else "\n".join(status_lines(seen)))


@migrate.command("rollback", short_help="Roll the fleet back to KCL 2.x mode.", epilog=_EPILOG)
@with_file
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--no-index-deletion", is_flag=True, help="Keep the index by owner, and do not wait two minutes."
)
def roll_back(*, file: Path | None, properties_file: Path | None, yes: bool, no_index_deletion: bool) -> None:
    """Roll the whole fleet back to KCL 2.x mode, wait until all workers follow, then delete the index by owner.

    Workers keep running. When it is done, you can deploy 2.x workers.
    """
    _steer(
        settings_of(file, properties_file, command=_COMMAND),
        Direction.ROLLBACK,
        yes=yes,
        keep_index=no_index_deletion,
    )


@migrate.command("rollforward", short_help="Resume an upgrade that was rolled back.", epilog=_EPILOG)
@with_file
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def roll_forward(*, file: Path | None, properties_file: Path | None, yes: bool) -> None:
    """Resume an upgrade that was rolled back. All workers must be 3.x again."""
    _steer(
        settings_of(file, properties_file, command=_COMMAND), Direction.ROLLFORWARD, yes=yes, keep_index=True
    )


def _steer(settings: Settings, direction: Direction, *, yes: bool, keep_index: bool) -> None:
    clock = SystemClock()
    planned = _run(settings, lambda tables: decide(tables, direction, clock=clock))
    if not yes:
        deletes = planned.remove_index_after_s is not None and not keep_index
        also = " and delete the index by owner two minutes later" if deletes else ""
        question = f"{direction.value} of {settings.application_name} ({planned.reason}){also}?"
        click.confirm(on_one_line(question), abort=True)

    async def carry_out(tables: Tables) -> None:
        """The write, then the index."""
        done = await steer(tables, direction, clock=clock)
        click.echo(f"{direction.value} written ({on_one_line(done.reason)}); workers follow within 90 s")
        if done.remove_index_after_s is not None and not keep_index:
            await remove_index(tables, done.remove_index_after_s, clock=clock, say=click.echo)

    _run(settings, carry_out)


def _run(settings: Settings, act: Callable[[Tables], Awaitable[_Result]]) -> _Result:
    """Act on the application's tables."""
    return run(partial(_act, settings, act), command="kcl-daemon migrate", plain=(NotSteered,))


async def _act(settings: Settings, act: Callable[[Tables], Awaitable[_Result]]) -> _Result:
    async with open_clients(settings.endpoints) as clients:
        opened = await open_existing(build_tables(settings, clients, SystemClock()), settings)
        return await act(opened.tables)
