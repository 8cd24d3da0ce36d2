from __future__ import annotations

import struct
import zlib
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final, TypedDict, cast

import msgspec
from msgspec import Raw, Struct
from msgspec.json import Decoder

from kcl_daemon.errors import (
    AwsError,
    ConsumerLimitReached,
    StreamNotFound,
    SubscriptionTaken,
    Throttled,
    Unavailable,
)
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import (
    ConsumerName,
    ConsumerStatus,
    PushedRecords,
    ReadFrom,
    StreamConsumer,
    StreamRef,
    Subscription,
)
from kcl_daemon.records.payload import NULL
from kcl_daemon.transport import service_answers
from kcl_daemon.transport.caller import AwsJsonClient, ErrorResponse, ResponseStream
from kcl_daemon.transport.kinesis import WireRecord, child_shards, decode_leniently, parsed, payload
from kcl_daemon.transport.service_answers import service_error

# Length of the frame, length of the headers, checksum of both.
_PRELUDE: Final = struct.Struct("!III")
_PRELUDE_CHECKED_BYTES: Final = 8
_CHECKSUM: Final = struct.Struct("!I")
_MIN_FRAME_BYTES: Final = _PRELUDE.size + _CHECKSUM.size
MAX_FRAME_BYTES: Final = 24 * 2**20
MAX_HEADER_BYTES: Final = 128 * 1024

# Size of a value by type; the others begin with a two-byte length.
_VALUE_BYTES: Final[Mapping[int, int]] = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
_BYTES_TYPE: Final = 6
_TEXT_TYPE: Final = 7
_INITIAL_RESPONSE: Final = "initial-response"
EVENT: Final = "SubscribeToShardEvent"
OPERATION: Final = "SubscribeToShard"
# An event comes about every five seconds, even without records.
_SILENCE_S: Final = 30.0
_IN_USE: Final = "ResourceInUseException"
_LIMIT: Final = "LimitExceededException"
_DESCRIBE: Final = "DescribeStreamConsumer"
_REGISTER: Final = "RegisterStreamConsumer"


class MalformedFrame(Exception):
    """The rest of the stream cannot be read."""


@dataclass(frozen=True, slots=True)
class StreamEvent:
    kind: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class StreamFailure:
    code: str
    message: str


class FrameReader:
    """Takes pieces of any size. Unusable after it has raised."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._needed = _PRELUDE.size
        self._is_whole = False
        self._raw_headers: bytes | None = None
        self._headers: Mapping[str, str] = {}

    def feed(self, data: bytes) -> list[StreamEvent | StreamFailure]:
        """The messages that this piece completes, without `initial-response`.

        MalformedFrame loses those before it in the piece, until the next subscription delivers them.
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
        if self._buffer:
            raise MalformedFrame(f"the stream ended {len(self._buffer)} bytes into a frame")

    def _message(self, frame: memoryview) -> StreamEvent | StreamFailure | None:
        end = len(frame) - _CHECKSUM.size
        if zlib.crc32(frame[:end]) != _CHECKSUM.unpack_from(frame, end)[0]:
            raise MalformedFrame("the checksum of a frame does not fit")
        headers_end = _PRELUDE.size + _PRELUDE.unpack_from(frame)[1]
        raw = bytes(frame[_PRELUDE.size : headers_end])
        if raw != self._raw_headers:
            self._raw_headers, self._headers = raw, _headers(raw)
        return _decoded(self._headers, frame[headers_end:end])


def _frame_bytes(prelude: memoryview) -> int:
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
    message: str | None = None
    Message: str | None = None


def _message_of(payload: memoryview) -> str:
    try:
        fields = msgspec.json.decode(payload, type=_ExceptionBody)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return bytes(payload[:200]).decode("latin-1")
    return fields.message or fields.Message or ""


def _headers(data: bytes) -> dict[str, str]:
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


class _Event(Struct, gc=False, rename="pascal"):
    records: list[WireRecord]
    continuation_sequence_number: str | None = None
    millis_behind_latest: int | None = None
    child_shards: Raw = NULL


_events: Final = Decoder(_Event)


def decode_event(body: bytes) -> PushedRecords:
    """Unavailable if it is malformed. Its records keep the body in memory."""
    with service_answers.parsing_answer(OPERATION):
        try:
            event = _events.decode(body)
        except msgspec.DecodeError:
            return event_of_shape(cast("dict[str, object]", decode_leniently(body)))
        return PushedRecords(
            payload=payload(event.records, len(body)),
            continuation=event.continuation_sequence_number or None,
            millis_behind_latest=event.millis_behind_latest,
            child_shards=child_shards(event.child_shards),
        )


def event_of_shape(entries: dict[str, object]) -> PushedRecords:
    fetched = service_answers.fetched(cast("service_answers.RecordsShape", entries))
    return PushedRecords(
        payload=fetched.payload,
        continuation=service_answers.text(entries.get("ContinuationSequenceNumber") or "") or None,
        millis_behind_latest=fetched.millis_behind_latest,
        child_shards=fetched.child_shards,
    )


class ConsumerShape(TypedDict):
    ConsumerARN: str
    ConsumerStatus: str


class HttpSubscription:
    def __init__(self, stream: ResponseStream) -> None:
        self._pieces = stream.pieces
        self._reader = FrameReader()
        self._messages: deque[StreamEvent | StreamFailure] = deque()

    async def next(self) -> PushedRecords | None:
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
    def __init__(self, client: AwsJsonClient) -> None:
        self._client = client

    async def describe_consumer(self, consumer: ConsumerName | str) -> StreamConsumer | None:
        request = {"ConsumerARN": consumer} if isinstance(consumer, str) else _named(consumer)
        try:
            return await self._client.call(
                _DESCRIBE, request, lambda body: parsed(_DESCRIBE, described_consumer, body)
            )
        except StreamNotFound:
            return None

    async def register_consumer(self, consumer: ConsumerName) -> StreamConsumer:
        try:
            return await self._client.call(
                _REGISTER,
                _named(consumer),
                lambda body: parsed(_REGISTER, registered_consumer, body),
                once=True,
            )
        except Throttled as error:
            if _has_code(error, _LIMIT):
                raise ConsumerLimitReached(str(error)) from error
            raise

    @asynccontextmanager
    async def subscribe(
        self,
        stream: StreamRef,  # noqa: ARG002 - of the port
        consumer_arn: str,
        shard_id: ShardId,
        read_from: ReadFrom,
    ) -> AsyncGenerator[Subscription, None]:
        position: dict[str, object] = {"Type": read_from.kind.value}
        if read_from.sequence_number is not None:
            position["SequenceNumber"] = read_from.sequence_number
        if read_from.timestamp_s is not None:
            position["Timestamp"] = read_from.timestamp_s
        request = {"ConsumerARN": consumer_arn, "ShardId": shard_id, "StartingPosition": position}
        async with AsyncExitStack() as stack:
            try:
                answer = await stack.enter_async_context(
                    self._client.open_stream(OPERATION, request, silence_s=_SILENCE_S)
                )
            except Unavailable as error:
                if _has_code(error, _IN_USE):
                    raise SubscriptionTaken(str(error)) from error
                raise
            yield HttpSubscription(answer)


def described_consumer(shape: Mapping[str, ConsumerShape]) -> StreamConsumer:
    return _consumer(shape["ConsumerDescription"])


def registered_consumer(shape: Mapping[str, ConsumerShape]) -> StreamConsumer:
    return _consumer(shape["Consumer"])


def _consumer(shape: ConsumerShape) -> StreamConsumer:
    return StreamConsumer(shape["ConsumerARN"], ConsumerStatus(shape["ConsumerStatus"]))


def _named(consumer: ConsumerName) -> dict[str, str]:
    return {"StreamARN": consumer.stream_arn, "ConsumerName": consumer.name}


def _has_code(error: AwsError, code: str) -> bool:
    return isinstance(error.__cause__, ErrorResponse) and error.__cause__.code == code


def _error(code: str, message: str) -> AwsError:
    if code == _IN_USE:
        return SubscriptionTaken(f"{code}: {message}", operation=OPERATION)
    return service_error(code, message, operation=OPERATION, not_found=StreamNotFound)
