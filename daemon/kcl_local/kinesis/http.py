"""The HTTP face of the Kinesis model: JSON 1.1 over POST, event streams. Knows no operation but the one that streams.

Signatures are not checked. Beside it the paths of `kcl_local.control`, and `POST /_local/trim`.
"""

from __future__ import annotations

from itertools import count
from typing import Final, cast

import orjson
from aiohttp import web
from anyio import CancelScope

from kcl_local.control import add_control, read_object
from kcl_local.faults import DROP, http_status
from kcl_local.kinesis.errors import ServiceError
from kcl_local.kinesis.model import SUBSCRIBE, KinesisModel
from kcl_local.kinesis.streaming import EventStream
from kcl_local.serving import BODY_BYTES_MAX, drop, send_troubled

TRIM: Final = "/_local/trim"
_TARGET_PREFIX: Final = "Kinesis_20131202."
_CONTENT_TYPE: Final = "application/x-amz-json-1.1"


def application(model: KinesisModel) -> web.Application:
    """A web application that answers every call from the model, one at a time.

    The model may be called from the same event loop meanwhile, from no other thread.
    """
    served = web.Application(client_max_size=BODY_BYTES_MAX)
    answers = _Answers(model)
    served.router.add_post("/", answers.answer)
    served.router.add_post(TRIM, answers.trim)
    add_control(served, model)
    served.on_shutdown.append(answers.end_streams)
    return served


class _Answers:
    def __init__(self, model: KinesisModel) -> None:
        self._model = model
        self._request_numbers = count(1)
        self._streams: set[CancelScope] = set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        request_id = f"00000000-0000-4000-8000-{next(self._request_numbers):012x}"
        try:
            operation, arguments = _read(request, body)
            if operation == SUBSCRIBE:
                return await self._stream(request, arguments, request_id)
            answer = self._model.handle(operation, arguments)
        except ServiceError as error:
            if error.code == DROP:
                return drop(request)
            explained = orjson.dumps({"__type": error.code, "message": error.message})
            return _response(http_status(error.code), explained, request_id)
        response = _response(200, orjson.dumps(answer) if answer else b"", request_id)
        trouble = self._model.troubles.take(operation)
        return response if trouble is None else await send_troubled(request, response, trouble)

    async def trim(self, request: web.Request) -> web.Response:
        """Forget what is older than `before` (epoch seconds) in `stream`."""
        try:
            told = await read_object(request)
            self._model.trim(str(told["stream"]), float(cast("float", told["before"])))
        except KeyError as error:
            raise web.HTTPBadRequest(text=f"nothing is trimmed: {error} is missing\n") from error
        except (TypeError, ValueError, ServiceError) as error:
            raise web.HTTPBadRequest(text=f"nothing is trimmed: {error}\n") from error
        return web.Response(status=204)

    async def end_streams(self, _application: web.Application) -> None:
        """Cut the subscriptions, so that the server need not wait for them."""
        for scope in self._streams:
            scope.cancel()

    async def _stream(
        self, request: web.Request, arguments: dict[str, object], request_id: str
    ) -> web.StreamResponse:
        subscription = self._model.subscribe(arguments)
        stream = EventStream(request, subscription, self._model.troubles.take(SUBSCRIBE))
        with CancelScope() as scope:
            self._streams.add(scope)
            try:
                return await stream.run(
                    request_id, initial_response=self._model.options.fan_out.initial_response
                )
            finally:
                self._streams.discard(scope)
        return drop(request)


def _read(request: web.Request, body: bytes) -> tuple[str, dict[str, object]]:
    target = request.headers.get("X-Amz-Target", "")
    if not target.startswith(_TARGET_PREFIX):
        raise ServiceError(
            "UnknownOperationException", f"X-Amz-Target is {target!r:.80}, not {_TARGET_PREFIX}..."
        )
    try:
        arguments = cast("object", orjson.loads(body or b"{}"))
    except orjson.JSONDecodeError as error:
        raise ServiceError("SerializationException", f"the body is not JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise ServiceError("SerializationException", "the body is not a JSON object")
    return target.removeprefix(_TARGET_PREFIX), cast("dict[str, object]", arguments)


def _response(status: int, body: bytes, request_id: str) -> web.Response:
    headers = {"Content-Type": _CONTENT_TYPE, "x-amzn-RequestId": request_id}
    return web.Response(status=status, body=body, headers=headers)
