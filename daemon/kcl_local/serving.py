"""HTTP for all local endpoints: a loopback server, damaged answers, and control paths for tests.

`GET /_local/calls` counts the calls of each operation. `POST /_local/faults` orders faults: JSON with
`operation`, `fault` (`error`, `drop` or a ResponseFaultKind) and optional `code`, `seconds`, `event`,
`times`. `DELETE /_local/faults` removes those that have not happened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from difflib import get_close_matches
from typing import Final, Protocol, cast

import orjson
from aiohttp import web
from anyio import CancelScope, sleep

from kcl_local.faults import DROP, ResponseFault, ResponseFaultKind, ResponseFaults, corrupted

HOST: Final = "127.0.0.1"
# PutRecords: 10 MiB, a third more as base64, and keys.
BODY_BYTES_MAX: Final = 32 * 2**20
_CLOSE_S: Final = 1.0


@asynccontextmanager
async def serve(application: web.Application, port: int) -> AsyncGenerator[str, None]:
    """Serve on loopback and yield the URL; port 0 means any free one. OSError: the port is not available."""
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
    """Damage and send an answer whose body is bytes; not for faults of events."""
    body = cast("bytes", response.body)
    match trouble.kind:
        case ResponseFaultKind.CUT:
            return await _cut_midway(request, response, body)
        case ResponseFaultKind.SHORT:
            response.body = body[: len(body) // 2]
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
    await cut.write(body[: len(body) // 2])
    close_after_sending(request)
    return cut


CALLS: Final = "/_local/calls"
FAULTS: Final = "/_local/faults"


class Controlled(Protocol):
    @property
    def calls(self) -> Counter[str]: ...

    @property
    def operations(self) -> Collection[str]: ...

    @property
    def troubles(self) -> ResponseFaults: ...

    def fail_next(self, operation: str, code: str, times: int = 1) -> None: ...

    def clear_faults(self) -> None: ...


def add_control(application: web.Application, controlled: Controlled) -> None:
    control = _Control(controlled)
    application.router.add_get(CALLS, control.calls)
    application.router.add_post(FAULTS, control.order)
    application.router.add_delete(FAULTS, control.clear)


class _Control:
    def __init__(self, controlled: Controlled) -> None:
        self._controlled = controlled

    async def calls(self, _request: web.Request) -> web.Response:
        body = orjson.dumps(dict(self._controlled.calls)) + b"\n"
        return web.Response(body=body, content_type="application/json")

    async def order(self, request: web.Request) -> web.Response:
        try:
            _order(self._controlled, await read_object(request))
        except KeyError as error:
            raise web.HTTPBadRequest(text=f"no such fault: {error} is missing\n") from error
        except (TypeError, ValueError) as error:
            raise web.HTTPBadRequest(text=f"no such fault: {error}\n") from error
        return web.Response(status=204)

    async def clear(self, _request: web.Request) -> web.Response:
        self._controlled.clear_faults()
        return web.Response(status=204)


async def read_object(request: web.Request) -> dict[str, object]:
    """ValueError or TypeError unless the body is a JSON object."""
    reported = cast("object", orjson.loads(await request.read()))
    if not isinstance(reported, dict):
        raise TypeError("the body is not a JSON object")
    return cast("dict[str, object]", reported)


def _order(controlled: Controlled, reported: dict[str, object]) -> None:
    operation, fault = str(reported["operation"]), str(reported["fault"])
    _check_names(controlled, operation, fault)
    times = _whole(reported.get("times", 1))
    if fault == "error":
        controlled.fail_next(operation, str(reported["code"]), times)
    elif fault == "drop":
        controlled.fail_next(operation, DROP, times)
    else:
        trouble = ResponseFault(
            ResponseFaultKind(fault),
            event=_whole(reported.get("event", 0)),
            seconds=_number(reported.get("seconds", 0)),
            code=str(reported.get("code", "InternalFailureException")),
        )
        controlled.troubles.add(operation, trouble, times)


def _check_names(controlled: Controlled, operation: str, fault: str) -> None:
    if operation not in controlled.operations:
        near = get_close_matches(operation, sorted(controlled.operations), n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(f"{operation} is not an operation of this endpoint{meant}")
    kinds = ("error", "drop", *ResponseFaultKind)
    if fault not in kinds:
        raise ValueError(f"{fault} is none; there are {', '.join(kinds)}")


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _number(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{value!r} is not a number")
    return value
