"""The HTTP face of the Kinesis model: JSON 1.1 over POST. Knows no operation; signatures are not checked."""

from __future__ import annotations

from itertools import count
from typing import Final, cast

import orjson
from aiohttp import web

from kcl_local.faults import DROP, http_status
from kcl_local.kinesis.errors import ServiceError
from kcl_local.kinesis.model import KinesisModel
from kcl_local.serving import BODY_BYTES_MAX, drop

_TARGET_PREFIX: Final = "Kinesis_20131202."
_CONTENT_TYPE: Final = "application/x-amz-json-1.1"


def application(model: KinesisModel) -> web.Application:
    """A web application that answers every call from the model, one at a time.

    The model may be called from the same event loop meanwhile, from no other thread.
    """
    served = web.Application(client_max_size=BODY_BYTES_MAX)
    served.router.add_post("/", _Answers(model).answer)
    return served


class _Answers:
    def __init__(self, model: KinesisModel) -> None:
        self._model = model
        self._request_numbers = count(1)

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.read()
        request_id = f"00000000-0000-4000-8000-{next(self._request_numbers):012x}"
        try:
            return _respond(200, _call(self._model, request, body), request_id)
        except ServiceError as error:
            if error.code == DROP:
                return drop(request)
            explained = orjson.dumps({"__type": error.code, "message": error.message})
            return _respond(http_status(error.code), explained, request_id)


def _call(model: KinesisModel, request: web.Request, body: bytes) -> bytes:
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
    answer = model.handle(target.removeprefix(_TARGET_PREFIX), cast("dict[str, object]", arguments))
    return orjson.dumps(answer) if answer else b""


def _respond(status: int, body: bytes, request_id: str) -> web.Response:
    headers = {"Content-Type": _CONTENT_TYPE, "x-amzn-RequestId": request_id}
    return web.Response(status=status, body=body, headers=headers)
