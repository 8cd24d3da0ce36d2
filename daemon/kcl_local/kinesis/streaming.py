"""A subscription over HTTP: frames in chunks until it ends or the reader goes. Knows no shard."""

from __future__ import annotations

from typing import Final

import orjson
from aiohttp import web
from anyio import Event, move_on_after, sleep

from kcl_local.kinesis.errors import ServiceError
from kcl_local.kinesis.frames import CONTENT_TYPE, event_frame, exception_frame
from kcl_local.kinesis.subscribing import Subscription
from kcl_local.serving import close_after_sending
from kcl_local.troubles import Kind, Trouble, corrupted

_EVENT: Final = "SubscribeToShardEvent"


class EventStream:
    """One answer to SubscribeToShard.

    Args:
        request: what is answered.
        subscription: where the events come from; closed at the end, whatever the end is.
        trouble: what happens to one of them.
    """

    def __init__(self, request: web.Request, subscription: Subscription, trouble: Trouble | None) -> None:
        self._request = request
        self._subscription = subscription
        self._trouble = trouble
        self._response = web.StreamResponse()
        self._sent = 0

    async def run(self, request_id: str, *, initial_response: bool) -> web.StreamResponse:
        """Answer, until the end; a reader who is gone ends it too.

        Args:
            request_id: told in the headers.
            initial_response: whether that frame comes first.
        """
        try:
            self._response.headers["Content-Type"] = CONTENT_TYPE
            self._response.headers["x-amzn-RequestId"] = request_id
            self._response.enable_chunked_encoding()
            await self._response.prepare(self._request)
            if initial_response:
                await self._response.write(event_frame("initial-response", b"{}"))
            await self._send_all()
        except ConnectionResetError:
            pass  # the reader went, as readers may at any time
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
        """Send a frame, or what its trouble makes of it; tells whether the stream goes on."""
        trouble = self._trouble if self._trouble and self._trouble.event == self._sent else None
        self._sent += 1
        if trouble is None:
            await self._response.write(frame)
            return True
        match trouble.kind:
            case Kind.DELAY:
                await sleep(trouble.seconds)
                await self._response.write(frame)
                return True
            case Kind.CORRUPT:
                await self._response.write(corrupted(frame))
                return True
            case Kind.CUT:
                await self._response.write(frame[: len(frame) // 2])
                close_after_sending(self._request)
                return False
            case Kind.SHORT:
                await self._response.write(frame[: len(frame) // 2])
            case Kind.EXCEPTION:
                await self._response.write(_exception(trouble.code, "the subscription was told to fail"))
            case Kind.END:
                pass
        await self._response.write_eof()
        return False


def _exception(code: str, message: str) -> bytes:
    return exception_frame(code, orjson.dumps({"message": message}))
