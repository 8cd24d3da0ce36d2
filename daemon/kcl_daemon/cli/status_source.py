"""Asks a running daemon for its status, over its status page's port.

Owns where it is asked and with which token. No proxy is used: the daemon is near. Knows nothing of how it is shown.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

import click

from kcl_daemon.admin.document import NoStatus, Status, status_from
from kcl_daemon.admin.serve import url_of
from kcl_daemon.cli.acting import settings_of, with_file

_Command = TypeVar("_Command", bound=Callable[..., object])

WITHIN_S: Final = 10.0
BYTES_MOST: Final = 256 * 2**20
_TOKEN_VARIABLE: Final = "KCL_ADMIN_TOKEN"  # noqa: S105 - the name of the variable
_UNAUTHORIZED: Final = 401
_OK: Final = 200


class NoAnswer(click.ClickException):
    """Raised when the daemon does not tell its status; the message says what to look at."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Source:
    """Where a daemon is asked.

    Args:
        url: of its status page.
        token: to show; None: none.
    """

    url: str
    token: str | None = None


def with_source(command: _Command) -> _Command:
    """The ways to say which daemon: its properties file, or an address; and how to show a token."""
    for option in (
        click.option(
            "--url",
            metavar="URL",
            help="Of the status page, such as http://127.0.0.1:8080; wins over a file.",
        ),
        click.option(
            "--token-file",
            metavar="FILE",
            type=click.Path(path_type=Path, dir_okay=False, exists=True),
            help=f"Holds the token; else {_TOKEN_VARIABLE} of the environment, or what the properties file says.",
        ),
    ):
        command = option(command)
    return with_file(command)


def source_of(
    file: Path | None, properties_file: Path | None, url: str | None, token_file: Path | None, *, command: str
) -> Source:
    """Which daemon is meant.

    Raises:
        click.UsageError: none was named, or it serves no status page.
    """
    token = os.environ.get(_TOKEN_VARIABLE) if token_file is None else token_file.read_text("utf-8").strip()
    if url is not None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise click.BadParameter("not an address such as http://127.0.0.1:8080", param_hint="--url")
        return Source(url, token or None)
    if file is None and properties_file is None:
        raise click.UsageError(f"say which daemon: {command} --properties FILE, or --url URL")
    admin = settings_of(file, properties_file, command=command).admin
    if admin.port is None:
        raise click.UsageError("this file sets no adminPort, so its daemon cannot be asked")
    if admin.port == 0:
        raise click.UsageError("adminPort is 0, so the log of the daemon has the address: use --url")
    if token is None and admin.token_file is not None:
        token = Path(admin.token_file).read_text("utf-8").strip()
    return Source(url_of(admin.address, admin.port), token or admin.token)


def fetch(source: Source) -> Status:
    """What the daemon tells now.

    Raises:
        NoAnswer: it does not answer, wants another token, or is something else.
    """
    status, data = _got(source)
    if status == _UNAUTHORIZED:
        raise NoAnswer(f"{source.url} asks for a token: set {_TOKEN_VARIABLE} or use --token-file")
    if status != _OK:
        raise NoAnswer(f"{source.url} answered with status {status}: is it a kcl-daemon?")
    try:
        return status_from(data)
    except NoStatus as error:
        raise NoAnswer(f"{source.url} answered, but not as this version does: {error}") from None


def _got(source: Source) -> tuple[int, bytes]:
    parts = urlsplit(source.url)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=WITHIN_S)
    headers = {} if source.token is None else {"Authorization": f"Bearer {source.token}"}
    try:
        connection.request("GET", f"{parts.path.rstrip('/')}/status.json", headers=headers)
        response = connection.getresponse()
        return response.status, response.read(BYTES_MOST)
    except (OSError, HTTPException) as error:
        words = str(error) or type(error).__name__
        raise NoAnswer(
            f"{source.url} does not answer ({words}); does the daemon run, with adminPort set?"
        ) from None
    finally:
        connection.close()
