"""Serving the status page beside a worker: from the settings to a listening port, and its end.

Owns what happens where the port cannot be had: the worker goes on, since work is worth more than its display. Imported
only where a port is set.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import SocketAttribute, SocketStream
from anyio.streams.stapled import MultiListener

from kcl_daemon.admin.access import Access
from kcl_daemon.admin.server import Server
from kcl_daemon.admin.site import Metrics, Site
from kcl_daemon.config.admin_settings import AdminSettings
from kcl_daemon.config.keys_admin import FIT_FOR_A_HEADER, is_token
from kcl_daemon.errors import ConfigurationError
from kcl_daemon.observe.snapshot import SnapshotSource
from kcl_daemon.ports import Clock, Log

RETRY_S: Final = 5.0


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
        group.start_soon(site.sample)
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
    try:
        text = await anyio.to_thread.run_sync(Path(settings.token_file).read_text, "utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise ConfigurationError(f"adminTokenFile {settings.token_file} cannot be read: {reason}") from None
    token = text.strip()
    if not is_token(token):
        raise ConfigurationError(f"adminTokenFile {settings.token_file} holds no token: {FIT_FOR_A_HEADER}")
    return token


async def _listen(settings: AdminSettings, server: Server, clock: Clock, log: Log) -> None:
    """Serve; where the port is taken, as by a worker that is just being replaced, try again and again."""
    told = False
    while True:
        try:
            listener = await anyio.create_tcp_listener(
                local_host=settings.address, local_port=settings.port or 0
            )
        except OSError as error:
            if not told:
                advice = (
                    "another process has this port, or this machine has no such address; the worker goes on"
                )
                log.warning(
                    "status_page_not_served",
                    address=settings.address,
                    port=settings.port,
                    error=error.strerror,
                    advice=advice,
                )
                told = True
            await clock.sleep(RETRY_S)
            continue
        async with listener:
            log.info("status_page_served", url=_url(settings.address, listener))
            await server.serve(listener)


def _url(address: str, listener: MultiListener[SocketStream]) -> str:
    return url_of(address, listener.extra(SocketAttribute.local_port))  # noqa: S610 - of anyio, not of Django


def url_of(address: str, port: int) -> str:
    """Where a page is, for somebody on this machine."""
    where = ip_address(address)
    if where.is_unspecified:
        where = ip_address("127.0.0.1" if where.version == 4 else "::1")
    return f"http://[{where}]:{port}/" if where.version == 6 else f"http://{where}:{port}/"
