"""PURE: frames of `application/vnd.amazon.eventstream`, read while they come.

Owns the format: lengths, checksums, headers, kinds of messages. Must not know what the events mean.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

# Lengths of the whole and of the headers, and the checksum of these two.
_PRELUDE: Final = struct.Struct("!III")
_PRELUDE_CHECKED_BYTES: Final = 8
_CHECKSUM: Final = struct.Struct("!I")
_LEAST_BYTES: Final = _PRELUDE.size + _CHECKSUM.size
# What the format allows. An event of Kinesis with the largest record, of 10 MiB, is a third above that in base64.
FRAME_BYTES_MOST: Final = 24 * 2**20
HEADER_BYTES_MOST: Final = 128 * 1024

# Bytes of a header's value by its type; the others begin with their length in two bytes.
_VALUE_BYTES: Final[Mapping[int, int]] = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
_BYTES_TYPE: Final = 6
_TEXT_TYPE: Final = 7
_INITIAL_RESPONSE: Final = "initial-response"


class MalformedFrame(Exception):
    """Raised when what came is no frame, or a damaged one; nothing that follows on the stream can be read."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event.

    Args:
        kind: `:event-type`, such as `SubscribeToShardEvent`.
        payload: JSON.
    """

    kind: str
    payload: bytes


@dataclass(frozen=True, slots=True)
class Failure:
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

    def feed(self, data: bytes) -> list[Event | Failure]:
        """The messages that this piece completes, without the `initial-response`, which need not come.

        Raises:
            MalformedFrame: a checksum does not fit, a length cannot be, a message is of no known kind. The messages
                before it in the same piece are lost with it; they come again with the next subscription.
        """
        self._buffer += data
        found: list[Event | Failure] = []
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

    def _message(self, frame: memoryview) -> Event | Failure | None:
        """What a whole frame says."""
        end = len(frame) - _CHECKSUM.size
        if zlib.crc32(frame[:end]) != _CHECKSUM.unpack_from(frame, end)[0]:
            raise MalformedFrame("the checksum of a frame does not fit")
        headers_end = _PRELUDE.size + _PRELUDE.unpack_from(frame)[1]
        raw = bytes(frame[_PRELUDE.size : headers_end])
        if raw != self._raw_headers:  # one event has the same as the one before
            self._raw_headers, self._headers = raw, _headers(raw)
        return _understood(self._headers, frame[headers_end:end])


def _frame_bytes(prelude: memoryview) -> int:
    """Length of the frame that begins so."""
    length, headers_length, checksum = _PRELUDE.unpack(prelude)
    if zlib.crc32(prelude[:_PRELUDE_CHECKED_BYTES]) != checksum:
        raise MalformedFrame("the checksum of a frame's lengths does not fit")
    if not _LEAST_BYTES + headers_length <= length <= FRAME_BYTES_MOST or headers_length > HEADER_BYTES_MOST:
        raise MalformedFrame(f"a frame of {length} bytes, {headers_length} of them headers")
    return int(length)


def _understood(headers: Mapping[str, str], payload: memoryview) -> Event | Failure | None:
    match headers.get(":message-type"):
        case "event":
            kind = headers.get(":event-type", "")
            return None if kind == _INITIAL_RESPONSE else Event(kind, bytes(payload))
        case "exception":
            return Failure(headers.get(":exception-type", "Unknown"), _message_of(payload))
        case "error":
            return Failure(headers.get(":error-code", "Unknown"), headers.get(":error-message", ""))
        case other:
            raise MalformedFrame(f"a message of type {other!r:.80}")


class _Told(msgspec.Struct):
    """The payload of an exception."""

    message: str | None = None
    Message: str | None = None


def _message_of(payload: memoryview) -> str:
    """The service's words; a payload that nobody understands is shown in part."""
    try:
        told = msgspec.json.decode(payload, type=_Told)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return bytes(payload[:200]).decode("latin-1")
    return told.message or told.Message or ""


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
