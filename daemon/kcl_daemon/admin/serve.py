"""Serving the status page beside a worker: from the settings to a listening port, and its end.

Owns what happens where the port cannot be had: the worker goes on, since work is worth more than its display. Imported
only where a port is set.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import SocketAttribute, SocketStream
from anyio.streams.stapled import MultiListener

from kcl_daemon.admin.access import Access
from kcl_daemon.admin.server import Server
from kcl_daemon.admin.site import Metrics, Site
from kcl_daemon.config.admin_settings import AdminSettings, asked_at
from kcl_daemon.config.keys_admin import ADMIN_TOKEN_FILE, FIT_FOR_A_HEADER, is_token
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.observe.snapshot import SnapshotSource
from kcl_daemon.ports import Clock, Log

RETRY_S: Final = 5.0
_ALL_OF_IPV4: Final = str(IPv4Address(0))
_ALL_OF_IPV6: Final = str(IPv6Address(0))


@asynccontextmanager
async def served(
    settings: AdminSettings, source: SnapshotSource, *, clock: Clock, log: Log, metrics: Metrics | None = None
) -> AsyncGenerator[None, None]:
    """The page is served while the context is open, if a port is set; the port is free again at its end.

    Args:
        settings: port, address, token.
        source: of snapshots.
        clock: for deadlines and samples.
        log: tells the address.
        metrics: what `/metrics` answers with; None: nothing.

    Raises:
        ConfigurationError: the file of the token cannot be read, or holds none.
    """
    if settings.port is None:
        yield
        return
    access = Access(settings.address, await token_of(settings))
    site = Site(source, access=access, clock=clock, metrics=metrics)
    async with anyio.create_task_group() as group:
        group.start_soon(_sampled, site, log)
        group.start_soon(_listen, settings, Server(site.answer, clock=clock, log=log), clock, log)
        yield
        group.cancel_scope.cancel()


async def token_of(settings: AdminSettings) -> str | None:
    """The token that callers must show; None: nobody is asked.

    Raises:
        ConfigurationError: the file of the token cannot be read, or holds none.
    """
    if settings.token_file is None:
        return settings.token
    return await anyio.to_thread.run_sync(token_in, Path(settings.token_file), ADMIN_TOKEN_FILE.name)


def token_in(file: Path, name: str) -> str:
    """The token that a file holds.

    Args:
        file: may be a pipe.
        name: what names the file, for the message.

    Raises:
        ConfigurationError: it cannot be read, or holds none.
    """
    try:
        token = file.read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise ConfigurationError(f"{name} {file} cannot be read: {reason}") from None
    if not is_token(token):
        raise ConfigurationError(f"{name} {file} contains no valid token: {FIT_FOR_A_HEADER}")
    return token


async def _sampled(site: Site, log: Log) -> None:
    """Sample for ever; what is only shown must not end a daemon by a fault."""
    try:
        await site.sample()
    except Exception:
        advice = "a bug in the daemon; it continues without sparklines; report it with this traceback"
        log.error("status_page_not_sampled", exc_info=True, advice=advice)  # noqa: G201 - the port has no such method


async def _listen(settings: AdminSettings, server: Server, clock: Clock, log: Log) -> None:
    """Serve for ever; where the port is taken, as by a worker that is just being replaced, try again and again."""
    told: str | None = None
    while True:
        failed: list[BaseException] = []
        try:
            await _serve(settings, server, log)
        except* OSError as errors:
            # Of the listening: what happens to a connection ends with that.
            failed += _leaves(errors)
        error = str(failed[0]) if failed else "it ended"
        if error != told:
            told = error
            advice = (
                "the port is in use, the address does not exist, or too many files are open; the worker "
                "continues"
            )
            address, port = settings.address, settings.port
            log.warning("status_page_not_served", address=address, port=port, error=error, advice=advice)
        await clock.sleep(RETRY_S)


async def _serve(settings: AdminSettings, server: Server, log: Log) -> None:
    async with _listening(settings.address, settings.port or 0) as listener:
        log.info("status_page_served", url=_url(settings.address, listener))
        await server.serve(listener)


@asynccontextmanager
async def _listening(address: str, port: int) -> AsyncGenerator[MultiListener[SocketStream], None]:
    """Listen on an address; on all of IPv4 as well where that is all of IPv6, as anyio keeps the two apart.

    Raises:
        OSError: the port is taken, or there is no such address.
    """
    # Closes each, also when it is cancelled; a listener of several stops at the first then.
    async with AsyncExitStack() as held:
        given = await held.enter_async_context(
            await anyio.create_tcp_listener(local_host=address, local_port=port)
        )
        if address != _ALL_OF_IPV6:
            yield given
            return
        bound: int = given.extra_attributes[SocketAttribute.local_port]()
        more = await held.enter_async_context(
            await anyio.create_tcp_listener(local_host=_ALL_OF_IPV4, local_port=bound)
        )
        yield MultiListener([*given.listeners, *more.listeners])


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """The single errors of a group of groups."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


def _url(address: str, listener: MultiListener[SocketStream]) -> str:
    port: int = listener.extra_attributes[SocketAttribute.local_port]()
    return url_of(address, port)


def url_of(address: str, port: int) -> str:
    """Where a page is, for somebody on this machine."""
    where = asked_at(address)
    return f"http://[{where}]:{port}/" if ":" in where else f"http://{where}:{port}/"
