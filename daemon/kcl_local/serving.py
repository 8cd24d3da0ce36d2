"""HTTP for all endpoints, and their control paths for tests.

`GET /_local/calls` counts the calls of each operation. `POST /_local/faults` orders faults: JSON with `operation`,
`fault` (`error`, `drop`, `part` or a ResponseFaultKind) and optional `code`, `seconds`, `event`, `times`. `DELETE
/_local/faults` removes those that have not happened.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from difflib import get_close_matches
from typing import Final, cast

import msgspec
import orjson
from aiohttp import web
from anyio import CancelScope, sleep

from kcl_local.faults import (
    DROP,
    PART,
    Fault,
    FaultyService,
    ResponseFault,
    ResponseFaultKind,
    corrupted,
    half,
)

CALLS: Final = "/_local/calls"
FAULTS: Final = "/_local/faults"
HOST: Final = "127.0.0.1"
# PutRecords: 10 MiB as base64, and keys.
BODY_BYTES_MAX: Final = 32 * 2**20
_CLOSE_S: Final = 1.0


@asynccontextmanager
async def serve(application: web.Application, port: int) -> AsyncGenerator[str, None]:
    """Gives the URL; port 0: any free one. OSError: the port is not available."""
    runner = web.AppRunner(
        application, access_log=None, shutdown_timeout=_CLOSE_S, handler_cancellation=True
    )  # when a reader leaves, its stream is cancelled
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, port).start()
        yield f"http://{HOST}:{runner.addresses[0][1]}"
    finally:
        with CancelScope(shield=True):
            await runner.cleanup()


def drop(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)


async def send_troubled(
    request: web.Request, response: web.Response, trouble: ResponseFault
) -> web.StreamResponse:
    body = cast("bytes", response.body)
    match trouble.kind:
        case ResponseFaultKind.CUT:
            return await _cut_midway(request, response, body)
        case ResponseFaultKind.SHORT:
            response.body = half(body)
        case ResponseFaultKind.CORRUPT:
            response.body = corrupted(body)
        case _:
            await sleep(trouble.seconds)
    return response


def close_after_sending(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.close()


async def _cut_midway(request: web.Request, response: web.Response, body: bytes) -> web.StreamResponse:
    cut = web.StreamResponse(status=response.status)
    cut.headers.update(response.headers)
    cut.content_length = len(body)
    await cut.prepare(request)
    await cut.write(half(body))
    close_after_sending(request)
    return cut


def add_control(application: web.Application, service: FaultyService) -> None:
    async def calls(_request: web.Request) -> web.Response:
        body = orjson.dumps(dict(service.calls)) + b"\n"
        return web.Response(body=body, content_type="application/json")

    async def order(request: web.Request) -> web.Response:
        with refused_as("no such fault"):
            _obey(service, msgspec.json.decode(await request.read(), type=_Order))
        return web.Response(status=204)

    async def clear(_request: web.Request) -> web.Response:
        service.clear_faults()
        return web.Response(status=204)

    application.router.add_get(CALLS, calls)
    application.router.add_post(FAULTS, order)
    application.router.add_delete(FAULTS, clear)


class _Order(msgspec.Struct):
    operation: str
    fault: str
    code: str = ""
    times: int = 1
    event: int = 0
    seconds: float = 0.0


@contextmanager
def refused_as(outcome: str, *more: type[Exception]) -> Generator[None]:
    """Status 400 for a wrong body, and for `more`."""
    wrong: tuple[type[Exception], ...] = (ValueError, msgspec.MsgspecError, *more)
    try:
        yield
    except wrong as error:
        raise web.HTTPBadRequest(text=f"{outcome}: {error}\n") from error


def _obey(service: FaultyService, order: _Order) -> None:
    _check_names(service.operations, order.operation, order.fault)
    if order.fault in {"error", PART}:
        if not order.code:
            raise ValueError("'code' is missing")
        if order.fault == PART:
            service.parts.add(order.operation, Fault(order.code), order.times)
        else:
            service.fail_next(order.operation, order.code, order.times)
    elif order.fault == "drop":
        service.fail_next(order.operation, DROP, order.times)
    else:
        code = order.code or "InternalFailureException"
        trouble = ResponseFault(ResponseFaultKind(order.fault), order.event, order.seconds, code)
        service.troubles.add(order.operation, trouble, order.times)


def _check_names(operations: frozenset[str], operation: str, fault: str) -> None:
    if operation not in operations:
        near = get_close_matches(operation, sorted(operations), n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"{operation} is not an operation of this endpoint{meant}")
    kinds = ("error", "drop", PART, *ResponseFaultKind)
    if fault not in kinds:
        raise ValueError(f"{fault} is none; there are {', '.join(kinds)}")
    if fault in {ResponseFaultKind.EXCEPTION, ResponseFaultKind.END} and operation != "SubscribeToShard":
        raise ValueError(f"{fault} can happen to events of SubscribeToShard only, not to {operation}")
    if fault == PART and operation != "PutRecords":
        raise ValueError(f"{fault} can happen to PutRecords only, not to {operation}")
