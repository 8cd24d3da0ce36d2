from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from itertools import count
from typing import Final, cast

import msgspec
import orjson
from aiohttp import web
from anyio import CancelScope, Event, move_on_after, sleep

from kcl_local.faults import DROP, ResponseFault, ResponseFaultKind, corrupted, half, http_status
from kcl_local.kinesis.arguments import ServiceError
from kcl_local.kinesis.model import SUBSCRIBE, KinesisModel
from kcl_local.kinesis.read_write import Subscription
from kcl_local.serving import (
    BODY_BYTES_MAX,
    add_control,
    close_after_sending,
    drop,
    refused_as,
    send_troubled,
)

TRIM: Final = "/_local/trim"
CONTENT_TYPE: Final = "application/vnd.amazon.eventstream"
_JSON: Final = "application/x-amz-json-1.1"
_TARGET_PREFIX: Final = "Kinesis_20131202."
_TEXT: Final = 7
_LENGTHS: Final = struct.Struct("!II")
_CHECKSUM: Final = struct.Struct("!I")


def event_frame(event_type: str, payload: bytes) -> bytes:
    return _frame({":message-type": "event", ":event-type": event_type, ":content-type": _JSON}, payload)


def exception_frame(exception_type: str, payload: bytes) -> bytes:
    headers = {":message-type": "exception", ":exception-type": exception_type, ":content-type": _JSON}
    return _frame(headers, payload)


def _frame(headers: Mapping[str, str], payload: bytes) -> bytes:
    head = b"".join(_header(name, value) for name, value in headers.items())
    lengths = _LENGTHS.pack(_LENGTHS.size + _CHECKSUM.size * 2 + len(head) + len(payload), len(head))
    message = lengths + _CHECKSUM.pack(zlib.crc32(lengths)) + head + payload
    return message + _CHECKSUM.pack(zlib.crc32(message))


def _header(name: str, value: str) -> bytes:
    head = struct.pack("!B", len(name)) + name.encode("ascii")
    return head + struct.pack("!BH", _TEXT, len(value)) + value.encode("ascii")


async def _send_events(
    request: web.Request,
    response: web.StreamResponse,
    subscription: Subscription,
    trouble: ResponseFault | None,
) -> None:
    numbers = count()
    while True:
        bell = Event()
        subscription.ring(bell.set)
        try:
            event = subscription.next_event()
        except ServiceError as error:
            await response.write(_exception(error.code, error.message))
            break
        if event is not None:
            frame = event_frame("SubscribeToShardEvent", orjson.dumps(event))
            if trouble is None or next(numbers) != trouble.event:
                await response.write(frame)
            elif not await _send_damaged(request, response, frame, trouble):
                return
        elif subscription.ended:
            break
        else:
            with move_on_after(subscription.due_in_s()):
                await bell.wait()
    await response.write_eof()


async def _send_damaged(
    request: web.Request, response: web.StreamResponse, frame: bytes, trouble: ResponseFault
) -> bool:
    match trouble.kind:
        case ResponseFaultKind.DELAY:
            await sleep(trouble.seconds)
        case ResponseFaultKind.CORRUPT:
            frame = corrupted(frame)
        case ResponseFaultKind.CUT | ResponseFaultKind.SHORT:
            frame = half(frame)
        case ResponseFaultKind.EXCEPTION:
            frame = _exception(trouble.code, "the subscription was told to fail")
        case ResponseFaultKind.END:
            await response.write_eof()
            return False
    await response.write(frame)
    if trouble.kind in {ResponseFaultKind.DELAY, ResponseFaultKind.CORRUPT}:
        return True
    if trouble.kind is ResponseFaultKind.CUT:
        close_after_sending(request)
    else:
        await response.write_eof()
    return False


def _exception(code: str, message: str) -> bytes:
    return exception_frame(code, orjson.dumps({"message": message}))


def application(model: KinesisModel) -> web.Application:
    """Call the model from the same event loop only."""
    served = web.Application(client_max_size=BODY_BYTES_MAX)
    answers = _Answers(model)
    served.router.add_post("/", answers.answer)
    served.router.add_post(TRIM, answers.trim)
    add_control(served, model)
    served.on_shutdown.append(answers.end_streams)
    return served


class _Trim(msgspec.Struct):
    stream: str
    before: float


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
        """Drops what is older than `before` (epoch seconds) in `stream`."""
        with refused_as("nothing is trimmed", ServiceError):
            trim = msgspec.json.decode(await request.read(), type=_Trim)
            self._model.trim(trim.stream, trim.before)
        return web.Response(status=204)

    async def end_streams(self, _application: web.Application) -> None:
        for scope in self._streams:
            scope.cancel()

    async def _stream(
        self, request: web.Request, arguments: dict[str, object], request_id: str
    ) -> web.StreamResponse:
        subscription = self._model.subscribe(arguments)
        trouble = self._model.troubles.take(SUBSCRIBE)
        response = web.StreamResponse(headers=_headers(CONTENT_TYPE, request_id))
        response.enable_chunked_encoding()
        with CancelScope() as scope:
            self._streams.add(scope)
            try:
                await response.prepare(request)
                if self._model.options.fan_out.initial_response:
                    await response.write(event_frame("initial-response", b"{}"))
                await _send_events(request, response, subscription, trouble)
            except ConnectionResetError:
                pass  # readers may leave at any time
            finally:
                subscription.close()
                self._streams.discard(scope)
            return response
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
    return web.Response(status=status, body=body, headers=_headers(_JSON, request_id))


def _headers(content_type: str, request_id: str) -> dict[str, str]:
    return {"Content-Type": content_type, "x-amzn-RequestId": request_id}
