"""`kcl-daemon status` and `kcl-daemon top`: what a running daemon does, in a terminal; once, or again and again.

Owns their options and exit codes. `status_source` asks, `status_view` shows.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import anyio
import click
import orjson

from kcl_daemon.admin.document import Status
from kcl_daemon.admin.summary import not_ready
from kcl_daemon.cli.status_source import NoAnswer, Source, fetch, source_of, with_source
from kcl_daemon.cli.status_view import View, plain_lines, view
from kcl_daemon.system import SystemClock

EXIT_NOT_READY: Final = 3
_EPILOG: Final = """\b
Exit codes:
  0  the worker is ready
  1  the daemon does not answer
  2  wrong command line, properties file or environment
  3  the daemon answers but is not ready: it starts, stops, or a shard makes no progress
"""
_TOP_EPILOG: Final = """\b
Ctrl-C ends it. Where there are more shards than lines, those that need attention come first.
"""


@click.command("status", short_help="Show the state of a running daemon.", epilog=_EPILOG)
@with_source
@click.option("--json", "as_json", is_flag=True, help="Print the daemon's JSON document, for scripts.")
@click.option(
    "-q", "--quiet", is_flag=True, help="Print nothing; the exit code says whether the daemon is ready."
)
def status(
    *,
    file: Path | None,
    properties_file: Path | None,
    url: str | None,
    token_file: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Show what a running daemon does: its fleet, its shards, its children; once.

    It is asked over its status page (adminPort).
    """
    source = source_of(file, properties_file, url, token_file, command="kcl-daemon status")
    told = fetch(source)
    if as_json:
        click.echo(orjson.dumps(told, option=orjson.OPT_INDENT_2))
    elif not quiet:
        _print(view(told))
    sys.exit(EXIT_NOT_READY if not_ready(told.snapshot) else 0)


def _print(shown: View) -> None:
    if not sys.stdout.isatty() or find_spec("rich") is None:
        click.echo("\n".join(plain_lines(shown)))
        return
    from rich.console import Console  # noqa: PLC0415 - only where there is a terminal

    from kcl_daemon.cli.status_rich import renderable  # noqa: PLC0415 - the same

    console = Console()
    console.print(renderable(shown, width=console.width))


@click.command("top", short_help="Show the same, live.", epilog=_TOP_EPILOG)
@with_source
@click.option(
    "--every",
    "every_s",
    metavar="SECONDS",
    type=click.FloatRange(0.5, 3600),
    default=2.0,
    show_default=True,
    help="Refresh interval.",
)
def top(
    *,
    file: Path | None,
    properties_file: Path | None,
    url: str | None,
    token_file: Path | None,
    every_s: float,
) -> None:
    """Show what a running daemon does, again and again, until Ctrl-C.

    It is asked over its status page (adminPort).
    """
    source = source_of(file, properties_file, url, token_file, command="kcl-daemon top")
    try:
        anyio.run(_top, source, every_s)
    except KeyboardInterrupt:
        return


async def _top(source: Source, every_s: float) -> None:
    from rich.console import Console  # noqa: PLC0415 - `top` alone needs it
    from rich.live import Live  # noqa: PLC0415 - the same

    from kcl_daemon.cli.status_rich import renderable  # noqa: PLC0415 - the same

    console, clock = Console(), SystemClock()
    told = await _fetched(source)  # a first failure ends it, with its words
    with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
        note = ""
        while True:
            shown = view(told, lines_most=console.height - bool(note))
            live.update(renderable(shown, width=console.width, note=note), refresh=True)
            await clock.sleep(every_s)
            try:
                told, note = await _fetched(source), ""
            except NoAnswer as error:
                note = f"{error.message}; the data shown is old"


async def _fetched(source: Source) -> Status:
    return await anyio.to_thread.run_sync(fetch, source, abandon_on_cancel=True)
