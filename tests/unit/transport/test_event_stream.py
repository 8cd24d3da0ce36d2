"""Frames of event streams: read from pieces of any size, damaged ones refused; botocore's reader as the reference."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from botocore.eventstream import EventStreamBuffer, ParserError
from hypothesis import given
from hypothesis import strategies as some

from kcl_daemon.transport.event_stream import (
    MAX_FRAME_BYTES,
    FrameReader,
    MalformedFrame,
    StreamEvent,
    StreamFailure,
)
from kcl_local.kinesis.http import event_frame, exception_frame

PAYLOADS = some.lists(some.binary(max_size=3000), max_size=6)


def pieces(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """Data, cut at these places."""
    places = sorted({cut % (len(data) + 1) for cut in cuts})
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


def read(data: bytes, cuts: Sequence[int] = ()) -> list[StreamEvent | StreamFailure]:
    """All messages, and the end of the stream."""
    reader = FrameReader()
    found = [message for piece in pieces(data, cuts) for message in reader.feed(piece)]
    reader.close()
    return found


def frame(
    headers: bytes, payload: bytes = b"", *, length: int | None = None, header_length: int | None = None
) -> bytes:
    """A frame with such headers, and with good checksums whatever lengths it claims."""
    length = 16 + len(headers) + len(payload) if length is None else length
    prelude = struct.pack("!II", length, len(headers) if header_length is None else header_length)
    prelude += struct.pack("!I", zlib.crc32(prelude))
    whole = prelude + headers + payload
    return whole + struct.pack("!I", zlib.crc32(whole))


def header(name: str, kind: int, value: bytes) -> bytes:
    return bytes([len(name)]) + name.encode() + bytes([kind]) + value


def text(value: str) -> bytes:
    return struct.pack("!H", len(value.encode())) + value.encode()


def headers_of(values: Mapping[str, str]) -> bytes:
    return b"".join(header(name, 7, text(value)) for name, value in values.items())


@given(payloads=PAYLOADS, begins=some.booleans(), cuts=some.lists(some.integers(0, 20_000), max_size=12))
def test_events_are_read_whatever_the_pieces(payloads: list[bytes], begins: bool, cuts: list[int]) -> None:
    data = event_frame("initial-response", b"{}") * begins
    data += b"".join(event_frame("SubscribeToShardEvent", payload) for payload in payloads)
    assert read(data, cuts) == [StreamEvent("SubscribeToShardEvent", payload) for payload in payloads]


@given(PAYLOADS)
def test_the_reference_reads_the_same(payloads: list[bytes]) -> None:
    data = b"".join(event_frame(f"Kind{number}", payload) for number, payload in enumerate(payloads))
    buffer = EventStreamBuffer()
    buffer.add_data(data)
    messages: list[Any] = list(buffer)
    assert read(data) == [
        StreamEvent(message.headers[":event-type"], message.payload) for message in messages
    ]


@given(some.data())
def test_a_damaged_frame_is_refused_as_the_reference_refuses_it(data: some.DataObject) -> None:
    good = event_frame("SubscribeToShardEvent", data.draw(some.binary(max_size=200)))
    at = data.draw(some.integers(0, len(good) - 1))
    damaged = bytearray(good)
    damaged[at] ^= data.draw(some.integers(1, 255))
    buffer = EventStreamBuffer()
    buffer.add_data(bytes(damaged))
    with pytest.raises(ParserError):
        list(buffer)
    with pytest.raises(MalformedFrame):
        read(bytes(damaged), data.draw(some.lists(some.integers(0, 300), max_size=3)))


@given(data=some.binary(max_size=400), cuts=some.lists(some.integers(0, 400), max_size=4))
def test_any_bytes_are_read_or_refused(data: bytes, cuts: list[int]) -> None:
    try:
        read(data, cuts)
    except MalformedFrame:
        return
    assert data == b""  # sixteen bytes with two good checksums are not drawn by chance


@given(headers=some.binary(max_size=200), payload=some.binary(max_size=100))
def test_any_headers_are_read_or_refused(headers: bytes, payload: bytes) -> None:
    try:
        found = read(frame(headers, payload))
    except MalformedFrame:
        return
    assert all(isinstance(each, StreamEvent | StreamFailure) for each in found)


@given(some.integers(1, 200))
def test_a_stream_that_ends_inside_a_frame_is_reported(left_out: int) -> None:
    whole = event_frame("SubscribeToShardEvent", b"x" * 100)
    reader = FrameReader()
    assert reader.feed(whole[: -min(left_out, len(whole) - 1)]) == []
    with pytest.raises(MalformedFrame, match="ended"):
        reader.close()


def test_headers_of_every_type_are_read_over() -> None:
    others = [(0, b""), (1, b""), (2, b"x"), (3, b"xx"), (4, b"xxxx"), (5, bytes(8)), (6, text("abc")), (8, bytes(8)), (9, bytes(16))]  # fmt: skip
    headers = b"".join(header(f"h{kind}", kind, value) for kind, value in others)
    headers += headers_of({":message-type": "event", ":event-type": "E"})
    buffer = EventStreamBuffer()
    buffer.add_data(frame(headers, b"p"))
    messages: list[Any] = list(buffer)
    (reference,) = messages
    assert read(frame(headers, b"p")) == [StreamEvent(reference.headers[":event-type"], reference.payload)]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (exception_frame("ResourceInUseException", b'{"message":"taken"}'), StreamFailure("ResourceInUseException", "taken")),
        (exception_frame("KMSDisabledException", b'{"Message":"off"}'), StreamFailure("KMSDisabledException", "off")),
        (exception_frame("X", b"\xffno JSON"), StreamFailure("X", "\xffno JSON")),
        (exception_frame("X", b"{}"), StreamFailure("X", "")),
        (frame(headers_of({":message-type": "error", ":error-code": "InternalFailure", ":error-message": "oh"})), StreamFailure("InternalFailure", "oh")),
        (frame(headers_of({":message-type": "error"})), StreamFailure("Unknown", "")),
    ],
)  # fmt: skip
def test_exceptions_and_errors_are_reported(data: bytes, expected: StreamFailure) -> None:
    assert read(data) == [expected]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (frame(b"", length=MAX_FRAME_BYTES + 1), "bytes"),
        (frame(b"", length=15), "bytes"),
        (frame(b"", header_length=1), "headers"),
        (frame(b"", length=2**20, header_length=128 * 1024 + 1), "headers"),
        (frame(headers_of({":message-type": "gossip"})), "gossip"),
        (frame(b""), "None"),
        (frame(header("h", 10, b"")), "headers that cannot be read"),
        (frame(header("h", 7, b"\x00\x05ab")), "cut off"),
        (frame(header("h", 7, b"\x00\x01\xff")), "headers that cannot be read"),
        (frame(header("h", 7, b"\x00")), "headers that cannot be read"),
    ],
)
def test_a_malformed_frame_is_refused_before_more_is_awaited(data: bytes, why: str) -> None:
    with pytest.raises(MalformedFrame, match=why):
        FrameReader().feed(data)


def test_a_large_event_is_read_piece_by_piece() -> None:
    payload = json.dumps({"Records": ["x" * (14 * 2**20)]}).encode()
    assert read(event_frame("E", payload), range(0, len(payload), 64 * 1024)) == [StreamEvent("E", payload)]
