"""What both endpoints share about HTTP: a loopback server that ends cleanly, and cutting a connection.

Knows neither Kinesis nor DynamoDB.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final

from aiohttp import web
from anyio import CancelScope

HOST: Final = "127.0.0.1"
# PutRecords may have 10 MiB, a third more as base64, and keys.
BODY_BYTES_MAX: Final = 32 * 2**20
_CLOSE_S: Final = 1.0


@asynccontextmanager
async def serve(application: web.Application, port: int) -> AsyncGenerator[str, None]:
    """Serve on loopback while the context is open; gives the URL.

    Args:
        application: what is served.
        port: 0: any free one.

    Raises:
        OSError: the port cannot be had.
    """
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=_CLOSE_S)
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, port).start()
        yield f"http://{HOST}:{runner.addresses[0][1]}"
    finally:
        with CancelScope(shield=True):
            await runner.cleanup()


def drop(request: web.Request) -> web.Response:
    """Cut the connection; the response is what aiohttp wants to have returned, nobody gets it."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)
