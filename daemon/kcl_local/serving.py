"""What all endpoints share about HTTP: a loopback server that ends cleanly, and answers that go wrong on their way.

Knows neither Kinesis nor DynamoDB.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Final, cast

from aiohttp import web
from anyio import CancelScope, sleep

from kcl_local.troubles import Kind, Trouble, corrupted

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
    runner = web.AppRunner(
        application, access_log=None, shutdown_timeout=_CLOSE_S, handler_cancellation=True
    )  # cancelled: a reader who goes ends the answer that streams to it
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


async def send_troubled(request: web.Request, response: web.Response, trouble: Trouble) -> web.StreamResponse:
    """Send what a trouble makes of an answer; the result is what aiohttp wants to have returned.

    Args:
        request: what is answered.
        response: as it would be, with a body of bytes.
        trouble: not one of events.
    """
    body = cast("bytes", response.body)
    match trouble.kind:
        case Kind.CUT:
            return await _cut_midway(request, response, body)
        case Kind.SHORT:
            response.body = body[: len(body) // 2]
        case Kind.CORRUPT:
            response.body = corrupted(body)
        case _:
            await sleep(trouble.seconds)
    return response


def close_after_sending(request: web.Request) -> None:
    """Cut the connection once what was written has gone out."""
    if request.transport is not None:
        request.transport.close()


async def _cut_midway(request: web.Request, response: web.Response, body: bytes) -> web.StreamResponse:
    """Announce a whole body, send half of it and cut the connection."""
    cut = web.StreamResponse(status=response.status)
    cut.headers.update(response.headers)
    cut.content_length = len(body)
    await cut.prepare(request)
    await cut.write(body[: len(body) // 2])
    close_after_sending(request)
    return cut
