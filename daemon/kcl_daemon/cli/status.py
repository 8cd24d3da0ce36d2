"""`kcl-daemon status` and `top`: show what a running daemon does, once or repeatedly.

They ask its status page (`adminPort`) without a proxy.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from importlib.util import find_spec
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import anyio
import click

from kcl_daemon.admin.server import token_in, url_of
from kcl_daemon.admin.site import NoStatus, StatusDocument, status_from
from kcl_daemon.admin.view import not_ready, told_by_leader
from kcl_daemon.cli.common import (
    EXIT_CONFIGURATION,
    as_json_option,
    command_name,
    json_text,
    settings_of,
    with_file,
)
from kcl_daemon.cli.status_view import StatusView, build_view, plain_lines, renderable
from kcl_daemon.config.metrics_and_page import FIT_FOR_A_HEADER, is_token
from kcl_daemon.config.properties import given_for, normal, variable_for
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.system import SystemClock

WITHIN_S: Final = 10.0
MAX_BYTES: Final = 256 * 2**20
_TOKEN_VARIABLE: Final = "KCL_ADMIN_TOKEN"  # noqa: S105 - the name of the variable
_FIT_FOR_A_REQUEST: Final = re.compile(r"[!-~]+")
_UNAUTHORIZED: Final = 401
_OK: Final = 200
EXIT_NOT_READY: Final = 3
_EPILOG: Final = """\b
Exit codes:
  0  the worker is ready
  1  the daemon does not answer
  2  wrong command line, properties file or environment
  3  the daemon answers but is not ready: it starts, stops, or a shard makes no progress; or nobody reads a shard,
     as this worker or the leader says
"""
_TOP_EPILOG: Final = """\b
Ctrl-C ends it. Where there are more shards than lines, those that need attention come first.
"""


class UnusableSource(click.ClickException):
    """Raised for a wrong address or token; the message says what to correct."""

    exit_code = EXIT_CONFIGURATION


class NoAnswer(click.ClickException):
    """Raised without a status; the message says what to check."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class StatusSource:
    url: str
    token: str | None = None


def with_source(command: Callable[..., object]) -> Callable[..., object]:
    """Exits with code 2 if no status page is named or its token is wrong."""

    @wraps(command)
    def called(
        *,
        file: Path | None,
        properties_file: Path | None,
        url: str | None,
        token_file: Path | None,
        **others: object,
    ) -> object:
        return command(source_of(file, properties_file, url, token_file), **others)

    url = click.option(
        "--url",
        metavar="URL",
        help="URL of the status page, such as http://127.0.0.1:8080; overrides the file.",
    )
    token_file = click.option(
        "--token-file",
        metavar="FILE",
        type=click.Path(path_type=Path, dir_okay=False, exists=True),
        help=f"File with the token. Default: the environment variable {_TOKEN_VARIABLE}, then the "
        "properties file.",
    )
    return with_file(token_file(url(called)))


def source_of(
    file: Path | None, properties_file: Path | None, url: str | None, token_file: Path | None
) -> StatusSource:
    """click.UsageError if no status page is named, UnusableSource for a wrong token."""
    token = _token_given(token_file)
    if url is not None:
        return StatusSource(_address(url), token)
    if file is None and properties_file is None:
        raise click.UsageError(f"which daemon? Use {command_name()} --properties FILE or --url URL")
    admin = settings_of(file, properties_file, _environment()).admin
    if admin.port is None:
        raise click.UsageError(
            "this file does not set adminPort, so the daemon has no status page: add the line "
            "`adminPort = 8080` and start the daemon again"
        )
    if admin.port == 0:
        raise click.UsageError("adminPort is 0: find the address in the log of the daemon and use --url")
    if token is None and admin.token_file is not None:
        token = _token_in(Path(admin.token_file), "adminTokenFile")
    return StatusSource(url_of(admin.address, admin.port), token or admin.token)


def _address(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in {"http", "https"} and parts.hostname and (parts.port or True)
    except ValueError:
        is_good = False
    if not is_good or not _FIT_FOR_A_REQUEST.fullmatch(url):
        raise click.BadParameter("not an address such as http://127.0.0.1:8080", param_hint="--url")
    return url


def _token_given(token_file: Path | None) -> str | None:
    if token_file is not None:
        return _token_in(token_file, "--token-file")
    variable, value = given_for("adminToken", os.environ) or ("", None)
    if value is not None and not is_token(value := value.strip()):
        raise UnusableSource(f"the environment variable {variable} is not a token: {FIT_FOR_A_HEADER}")
    return value


def _token_in(file: Path, name: str) -> str:
    try:
        return token_in(file, name)
    except ConfigurationError as error:
        raise UnusableSource(f"{error}; correct it, set {_TOKEN_VARIABLE} or use --token-file") from None


def _environment() -> Mapping[str, str]:
    """A token in the environment wins over a token file."""
    if given_for("adminToken", os.environ) is None:
        return os.environ
    background = normal(variable_for("adminTokenFile"))
    return {name: value for name, value in os.environ.items() if normal(name) != background}


def fetch(source: StatusSource) -> StatusDocument:
    """NoAnswer if the daemon does not answer or wants another token."""
    status, data = _got(source)
    if status == _UNAUTHORIZED:
        raise NoAnswer(f"{source.url} needs a token: set {_TOKEN_VARIABLE} or use --token-file")
    if status != _OK:
        raise NoAnswer(f"{source.url} answered with status {status}: is it a kcl-daemon?")
    try:
        return status_from(data)
    except NoStatus as error:
        raise NoAnswer(f"{source.url} sent an answer that this version cannot read: {error}") from None


def _got(source: StatusSource) -> tuple[int, bytes]:
    parts = urlsplit(source.url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=WITHIN_S)
    headers = {} if source.token is None else {"Authorization": f"Bearer {source.token}"}
    try:
        connection.request("GET", f"{parts.path.rstrip('/')}/status.json", headers=headers)
        response = connection.getresponse()
        return response.status, response.read(MAX_BYTES)
    except (OSError, UnicodeError, HTTPException) as error:  # also an invalid host name
        words = str(error) or type(error).__name__
        raise NoAnswer(
            f"{source.url} does not answer ({words}); is the daemon running, with adminPort set?"
        ) from None
    finally:
        connection.close()


@click.command("status", epilog=_EPILOG)
@with_source
@as_json_option
@click.option(
    "-q", "--quiet", is_flag=True, help="Print nothing; the exit code says whether the daemon is ready."
)
def status(source: StatusSource, *, as_json: bool, quiet: bool) -> None:
    """Show what a running daemon does: its fleet, its shards, its children; once.

    It is asked over its status page (adminPort).
    """
    reported = fetch(source)
    if as_json:
        click.echo(json_text(reported))
    elif not quiet:
        _print(build_view(reported))
    is_well = not (not_ready(reported.snapshot) or told_by_leader(reported.snapshot))
    sys.exit(0 if is_well else EXIT_NOT_READY)


def _print(shown: StatusView) -> None:
    if not sys.stdout.isatty() or find_spec("rich") is None:
        click.echo("\n".join(plain_lines(shown)))
        return
    from rich.console import Console  # only where there is a terminal

    console = Console()
    console.print(renderable(shown, width=console.width))


@click.command("top", epilog=_TOP_EPILOG)
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
def top(source: StatusSource, *, every_s: float) -> None:
    """Show what a running daemon does, again and again, until Ctrl-C.

    It is asked over its status page (adminPort).
    """
    try:
        anyio.run(_top, source, every_s)
    except KeyboardInterrupt:
        return


async def _top(source: StatusSource, every_s: float) -> None:
    from rich.console import Console  # `top` alone needs it
    from rich.live import Live  # the same

    console, clock = Console(), SystemClock()
    reported = await _fetched(source)  # only a failure of the first request ends the command
    with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
        note = ""
        while True:
            shown = build_view(reported, max_lines=console.height - bool(note), width=console.width)
            live.update(renderable(shown, width=console.width, note=note), refresh=True)
            await clock.sleep(every_s)
            try:
                reported, note = await _fetched(source), ""
            except NoAnswer as error:
                note = f"{error.message}; the data shown is old"


async def _fetched(source: StatusSource) -> StatusDocument:
    return await anyio.to_thread.run_sync(fetch, source, abandon_on_cancel=True)
