"""PURE: frames of `application/vnd.amazon.eventstream`, read while they come.

Owns the format: lengths, checksums, headers, kinds of messages. Must not know what the events mean.

PURE: events of SubscribeToShard, read as far as the daemon needs them; records stay undecoded.

Owns the names and types of the wire. What is no such event is Unavailable: the subscription is made anew.

The port `FanOut`: subscriptions over this transport's streams, consumers by the SDK.

Owns the request and the errors inside a stream. Knows nothing of when to subscribe again.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol, cast

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder

from kcl_daemon.errors import AwsError, StreamNotFound, SubscriptionTaken, Unavailable
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import ConsumerName, PushedRecords, ReadFrom, StreamConsumer, StreamRef, Subscription
from kcl_daemon.transport import service_answers
from kcl_daemon.transport.caller import AwsJsonClient, ErrorResponse, ResponseStream
from kcl_daemon.transport.kinesis import WireRecord, child_shards, payload
from kcl_daemon.transport.service_answers import service_error

# Lengths of the whole and of the headers, and the checksum of these two.
_PRELUDE: Final = struct.Struct("!III")
_PRELUDE_CHECKED_BYTES: Final = 8
_CHECKSUM: Final = struct.Struct("!I")
_MIN_FRAME_BYTES: Final = _PRELUDE.size + _CHECKSUM.size
# What the format allows. An event of Kinesis with the largest record, of 10 MiB, is a third above that in base64.
MAX_FRAME_BYTES: Final = 24 * 2**20
MAX_HEADER_BYTES: Final = 128 * 1024

# Bytes of a header's value by its type; the others begin with their length in two bytes.
_VALUE_BYTES: Final[Mapping[int, int]] = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
_BYTES_TYPE: Final = 6
_TEXT_TYPE: Final = 7
_INITIAL_RESPONSE: Final = "initial-response"


class MalformedFrame(Exception):
    """Raised when what came is no frame, or a damaged one; nothing that follows on the stream can be read."""


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event.

    Args:
        kind: `:event-type`, such as `SubscribeToShardEvent`.
        payload: JSON.
    """

    kind: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class StreamFailure:
    """The stream ends with an error.

    Args:
        code: the service's, such as `ResourceInUseException`.
        message: its words.
    """

    code: str
    message: str


class FrameReader:
    """Takes pieces of any size, gives the messages that are complete. Of no further use once it has raised."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._needed = _PRELUDE.size
        self._is_whole = False  # whether `_needed` is the length of a frame whose prelude has been checked
        self._raw_headers: bytes | None = None
        self._headers: Mapping[str, str] = {}

    def feed(self, data: bytes) -> list[StreamEvent | StreamFailure]:
        """The messages that this piece completes, without the `initial-response`, which need not come.

        Raises:
            MalformedFrame: a checksum does not fit, a length cannot be, a message is of no known kind. The messages
                before it in the same piece are lost with it; they come again with the next subscription.
        """
        self._buffer += data
        found: list[StreamEvent | StreamFailure] = []
        if len(self._buffer) < self._needed:
            return found
        at = 0
        with memoryview(self._buffer) as view:
            while len(view) - at >= self._needed:
                if not self._is_whole:
                    self._needed = _frame_bytes(view[at : at + _PRELUDE.size])
                    self._is_whole = True
                    continue
                message = self._message(view[at : at + self._needed])
                if message is not None:
                    found.append(message)
                at += self._needed
                self._needed, self._is_whole = _PRELUDE.size, False
        del self._buffer[:at]
        return found

    def close(self) -> None:
        """The stream is at its end; MalformedFrame where that is in the middle of a frame."""
        if self._buffer:
            raise MalformedFrame(f"the stream ended {len(self._buffer)} bytes into a frame")

    def _message(self, frame: memoryview) -> StreamEvent | StreamFailure | None:
        """What a whole frame says."""
        end = len(frame) - _CHECKSUM.size
        if zlib.crc32(frame[:end]) != _CHECKSUM.unpack_from(frame, end)[0]:
            raise MalformedFrame("the checksum of a frame does not fit")
        headers_end = _PRELUDE.size + _PRELUDE.unpack_from(frame)[1]
        raw = bytes(frame[_PRELUDE.size : headers_end])
        if raw != self._raw_headers:  # one event has the same as the one before
            self._raw_headers, self._headers = raw, _headers(raw)
        return _decoded(self._headers, frame[headers_end:end])


def _frame_bytes(prelude: memoryview) -> int:
    """Length of the frame that begins so."""
    length, headers_length, checksum = _PRELUDE.unpack(prelude)
    if zlib.crc32(prelude[:_PRELUDE_CHECKED_BYTES]) != checksum:
        raise MalformedFrame("the checksum of a frame's lengths does not fit")
    if (
        not _MIN_FRAME_BYTES + headers_length <= length <= MAX_FRAME_BYTES
        or headers_length > MAX_HEADER_BYTES
    ):
        raise MalformedFrame(f"a frame of {length} bytes, {headers_length} of them headers")
    return int(length)


def _decoded(headers: Mapping[str, str], payload: memoryview) -> StreamEvent | StreamFailure | None:
    match headers.get(":message-type"):
        case "event":
            kind = headers.get(":event-type", "")
            return None if kind == _INITIAL_RESPONSE else StreamEvent(kind, bytes(payload))
        case "exception":
            return StreamFailure(headers.get(":exception-type", "Unknown"), _message_of(payload))
        case "error":
            return StreamFailure(headers.get(":error-code", "Unknown"), headers.get(":error-message", ""))
        case other:
            raise MalformedFrame(f"a message of type {other!r:.80}")


class _ExceptionBody(msgspec.Struct):
    """The payload of an exception."""

    message: str | None = None
    Message: str | None = None


def _message_of(payload: memoryview) -> str:
    """The service's words; a payload that nobody understands is shown in part."""
    try:
        fields = msgspec.json.decode(payload, type=_ExceptionBody)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return bytes(payload[:200]).decode("latin-1")
    return fields.message or fields.Message or ""


def _headers(data: bytes) -> dict[str, str]:
    """Those whose values are texts; the others are read over."""
    found: dict[str, str] = {}
    at = 0
    try:
        while at < len(data):
            name_end = at + 1 + data[at]
            name, kind = data[at + 1 : name_end], data[name_end]
            at = name_end + 1
            if kind in {_BYTES_TYPE, _TEXT_TYPE}:
                length = data[at] << 8 | data[at + 1]
                at += 2
            else:
                length = _VALUE_BYTES[kind]
            if kind == _TEXT_TYPE:
                found[name.decode()] = data[at : at + length].decode()
            at += length
    except (IndexError, KeyError, UnicodeDecodeError) as error:
        raise MalformedFrame(f"headers that cannot be read: {error!r:.80}") from None
    if at != len(data):
        raise MalformedFrame("headers that are cut off")
    return found


EVENT: Final = "SubscribeToShardEvent"
OPERATION: Final = "SubscribeToShard"
_NULL: Final = Raw(b"null")


class _Event(Struct, gc=False, rename="pascal"):
    """SubscribeToShardEvent."""

    records: list[WireRecord]
    continuation_sequence_number: str | None = None
    millis_behind_latest: int | None = None
    child_shards: Raw = _NULL


_events: Final = Decoder(_Event)


def decode_event(body: bytes) -> PushedRecords:
    """The event; Unavailable where it is none. Its records keep hold of the body."""
    with service_answers.parsing_answer(OPERATION):
        try:
            event = _events.decode(body)
        except msgspec.DecodeError:
            return _decode_leniently(body)
        return PushedRecords(
            payload=payload(event.records, len(body)),
            continuation=event.continuation_sequence_number or None,
            millis_behind_latest=event.millis_behind_latest,
            child_shards=child_shards(event.child_shards),
        )


def event_of_shape(entries: dict[str, object]) -> PushedRecords:
    """An event that has been decoded already, as those of a Kinesis in memory."""
    fetched = service_answers.fetched(cast("service_answers.RecordsShape", entries))
    return PushedRecords(
        payload=fetched.payload,
        continuation=service_answers.text(entries.get("ContinuationSequenceNumber") or "") or None,
        millis_behind_latest=fetched.millis_behind_latest,
        child_shards=fetched.child_shards,
    )


def _decode_leniently(body: bytes) -> PushedRecords:
    """What the strict reader refused, with what is no UTF-8 replaced: one odd key must not stop a shard."""
    return event_of_shape(cast("dict[str, object]", json.loads(body.decode("utf-8", "replace"))))


# Something comes every five seconds or so, were it only an event without records.
_SILENCE_S: Final = 30.0
_IN_USE: Final = "ResourceInUseException"


class FanOutConsumers(Protocol):
    """The part of the port that the SDK does."""

    async def describe_consumer(self, consumer: ConsumerName | str) -> StreamConsumer | None:
        """As the port says."""
        ...

    async def register_consumer(self, consumer: ConsumerName) -> StreamConsumer:
        """As the port says."""
        ...


class HttpSubscription:
    """One subscription; its stream is open for as long as the context that it came from.

    Args:
        stream: the answer.
    """

    def __init__(self, stream: ResponseStream) -> None:
        self._pieces = stream.pieces
        self._reader = FrameReader()
        self._messages: deque[StreamEvent | StreamFailure] = deque()

    async def next(self) -> PushedRecords | None:
        """As the port says."""
        while True:
            while not self._messages:
                if not await self._read():
                    return None
            match self._messages.popleft():
                case StreamFailure(code, message):
                    raise _error(code, message)
                case StreamEvent(kind, payload):
                    if kind == EVENT:
                        return decode_event(payload)

    async def _read(self) -> bool:
        """One piece more; False at the end."""
        try:
            piece = await anext(self._pieces, None)
            if piece is None:
                self._reader.close()
                return False
            self._messages.extend(self._reader.feed(piece))
        except MalformedFrame as broken:
            raise Unavailable(str(broken), operation=OPERATION) from broken
        return True


class HttpFanOut:
    """Enhanced fan-out of Kinesis Data Streams.

    Args:
        caller: for subscriptions.
        consumers: for the rest.
    """

    def __init__(self, caller: AwsJsonClient, consumers: FanOutConsumers) -> None:
        self._caller = caller
        self._consumers = consumers

    async def describe_consumer(self, consumer: ConsumerName | str) -> StreamConsumer | None:
        """As the port says."""
        return await self._consumers.describe_consumer(consumer)

    async def register_consumer(self, consumer: ConsumerName) -> StreamConsumer:
        """As the port says."""
        return await self._consumers.register_consumer(consumer)

    @asynccontextmanager
    async def subscribe(
        self,
        stream: StreamRef,  # noqa: ARG002 - of the port
        consumer_arn: str,
        shard_id: ShardId,
        read_from: ReadFrom,
    ) -> AsyncGenerator[Subscription, None]:
        """As the port says."""
        position: dict[str, object] = {"Type": read_from.kind.value}
        if read_from.sequence_number is not None:
            position["SequenceNumber"] = read_from.sequence_number
        if read_from.timestamp_s is not None:
            position["Timestamp"] = read_from.timestamp_s
        request = {"ConsumerARN": consumer_arn, "ShardId": shard_id, "StartingPosition": position}
        async with AsyncExitStack() as stack:
            try:
                answer = await stack.enter_async_context(
                    self._caller.open_stream(OPERATION, request, silence_s=_SILENCE_S)
                )
            except Unavailable as error:
                cause = error.__cause__
                if isinstance(cause, ErrorResponse) and cause.code == _IN_USE:
                    raise SubscriptionTaken(str(error)) from error
                raise
            yield HttpSubscription(answer)


def _error(code: str, message: str) -> AwsError:
    if code == _IN_USE:
        return SubscriptionTaken(f"{code}: {message}", operation=OPERATION)
    return service_error(code, message, operation=OPERATION, not_found=StreamNotFound)
