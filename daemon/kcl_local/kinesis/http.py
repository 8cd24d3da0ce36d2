"""HTTP server of the Kinesis model: JSON 1.1 over POST, and event streams. Signatures are not checked.

It also serves the control paths of `kcl_local.serving`, and `POST /_local/trim`.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from itertools import count
from typing import Final, cast

import orjson
from aiohttp import web
from anyio import CancelScope, Event, move_on_after, sleep

from kcl_local.faults import DROP, ResponseFault, ResponseFaultKind, corrupted, http_status
from kcl_local.kinesis.arguments import ServiceError
from kcl_local.kinesis.model import SUBSCRIBE, KinesisModel
from kcl_local.kinesis.read_write import Subscription
from kcl_local.serving import (
    BODY_BYTES_MAX,
    add_control,
    close_after_sending,
    drop,
    read_object,
    send_troubled,
)

CONTENT_TYPE: Final = "application/vnd.amazon.eventstream"
_JSON: Final = "application/x-amz-json-1.1"
_TEXT: Final = 7  # header value type: string
_LENGTHS: Final = struct.Struct("!II")
_CHECKSUM: Final = struct.Struct("!I")


def event_frame(event_type: str, payload: bytes) -> bytes:
    """A frame of `application/vnd.amazon.eventstream`; the payload is JSON."""
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
    name_bytes, value_bytes = name.encode(), value.encode()
    return (
        struct.pack("!B", len(name_bytes))
        + name_bytes
        + struct.pack("!BH", _TEXT, len(value_bytes))
        + value_bytes
    )


_EVENT: Final = "SubscribeToShardEvent"


class EventStream:
    """One answer to SubscribeToShard; `trouble` happens to one of its events."""

    def __init__(
        self, request: web.Request, subscription: Subscription, trouble: ResponseFault | None
    ) -> None:
        self._request = request
        self._subscription = subscription
        self._trouble = trouble
        self._response = web.StreamResponse()
        self._sent = 0

    async def run(self, request_id: str, *, initial_response: bool) -> web.StreamResponse:
        try:
            self._response.headers["Content-Type"] = CONTENT_TYPE
            self._response.headers["x-amzn-RequestId"] = request_id
            self._response.enable_chunked_encoding()
            await self._response.prepare(self._request)
            if initial_response:
                await self._response.write(event_frame("initial-response", b"{}"))
            await self._send_all()
        except ConnectionResetError:
            pass  # readers may leave at any time
        finally:
            self._subscription.close()
        return self._response

    async def _send_all(self) -> None:
        while True:
            bell = Event()
            self._subscription.ring(bell.set)
            try:
                event = self._subscription.next_event()
            except ServiceError as error:
                await self._response.write(_exception(error.code, error.message))
                break
            if event is not None:
                if not await self._send(event_frame(_EVENT, orjson.dumps(event))):
                    return
            elif self._subscription.ended:
                break
            else:
                with move_on_after(self._subscription.due_in_s()):
                    await bell.wait()
        await self._response.write_eof()

    async def _send(self, frame: bytes) -> bool:
        """Returns whether the stream continues."""
        trouble = self._trouble if self._trouble and self._trouble.event == self._sent else None
        self._sent += 1
        if trouble is None:
            await self._response.write(frame)
            return True
        match trouble.kind:
            case ResponseFaultKind.DELAY:
                await sleep(trouble.seconds)
                await self._response.write(frame)
                return True
            case ResponseFaultKind.CORRUPT:
                await self._response.write(corrupted(frame))
                return True
            case ResponseFaultKind.CUT:
                await self._response.write(frame[: len(frame) // 2])
                close_after_sending(self._request)
                return False
            case ResponseFaultKind.SHORT:
                await self._response.write(frame[: len(frame) // 2])
            case ResponseFaultKind.EXCEPTION:
                await self._response.write(_exception(trouble.code, "the subscription was told to fail"))
            case ResponseFaultKind.END:
                pass
        await self._response.write_eof()
        return False


def _exception(code: str, message: str) -> bytes:
    return exception_frame(code, orjson.dumps({"message": message}))


TRIM: Final = "/_local/trim"
_TARGET_PREFIX: Final = "Kinesis_20131202."
_CONTENT_TYPE: Final = "application/x-amz-json-1.1"


def application(model: KinesisModel) -> web.Application:
    """Call the model from the same event loop only."""
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
        """Drop what is older than `before` (epoch seconds) in `stream`."""
        try:
            reported = await read_object(request)
            self._model.trim(str(reported["stream"]), float(cast("float", reported["before"])))
        except KeyError as error:
            raise web.HTTPBadRequest(text=f"nothing is trimmed: {error} is missing\n") from error
        except (TypeError, ValueError, ServiceError) as error:
            raise web.HTTPBadRequest(text=f"nothing is trimmed: {error}\n") from error
        return web.Response(status=204)

    async def end_streams(self, _application: web.Application) -> None:
        """So that the server need not wait for them."""
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
