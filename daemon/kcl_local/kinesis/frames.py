"""Frames of `application/vnd.amazon.eventstream` as the service sends them. Knows no subscription."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from typing import Final

CONTENT_TYPE: Final = "application/vnd.amazon.eventstream"
_JSON: Final = "application/x-amz-json-1.1"
_TEXT: Final = 7  # the type of a header's value
_LENGTHS: Final = struct.Struct("!II")
_CHECKSUM: Final = struct.Struct("!I")


def event_frame(event_type: str, payload: bytes) -> bytes:
    """A frame with an event.

    Args:
        event_type: such as `SubscribeToShardEvent`.
        payload: JSON.
    """
    return _frame({":message-type": "event", ":event-type": event_type, ":content-type": _JSON}, payload)


def exception_frame(exception_type: str, payload: bytes) -> bytes:
    """A frame with an exception, after which the stream ends.

    Args:
        exception_type: such as `ResourceInUseException`.
        payload: JSON with a `message`.
    """
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
