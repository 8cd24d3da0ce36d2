"""What people see of a record: its data unpacked, and as JSON or text."""

from __future__ import annotations

import zlib
from base64 import b64encode
from dataclasses import dataclass
from typing import Any, Final

import orjson

from kcl_daemon.records.schema_header import MAX_UNPACKED_BYTES

_GZIP: Final = b"\x1f\x8b"
_ZLIB_METHOD: Final = 0x78  # deflate with a window of 32 KiB, what every library writes
_ZLIB_CHECK: Final = 31
_OF_GZIP: Final = 16 + zlib.MAX_WBITS
_LINE_FEEDS: Final = bytes.maketrans(b"\r\n", b"  ")


@dataclass(frozen=True, slots=True)
class SeenSchema:
    name: str
    version_id: str
    data_format: str


@dataclass(frozen=True, slots=True)
class SeenRecord:
    shard_id: str
    sequence_number: str
    sub_sequence_number: int
    partition_key: str | None
    arrival_ms: int | None
    data: bytes
    compression: str | None = None
    schema: SeenSchema | None = None


def uncompressed(data: bytes) -> tuple[bytes, str | None]:
    """And with what: `gzip` or `zlib`; None: it is not wholly one of both, or too large."""
    if data.startswith(_GZIP):
        kind, window = "gzip", _OF_GZIP
    elif len(data) > 2 and data[0] == _ZLIB_METHOD and int.from_bytes(data[:2]) % _ZLIB_CHECK == 0:
        kind, window = "zlib", zlib.MAX_WBITS
    else:
        return data, None
    unpacked, rest = bytearray(), data
    try:
        while rest:  # gzip may have several parts
            unpacking = zlib.decompressobj(window)
            unpacked += unpacking.decompress(rest, MAX_UNPACKED_BYTES + 1 - len(unpacked))
            if not unpacking.eof or len(unpacked) > MAX_UNPACKED_BYTES:
                return data, None
            rest = unpacking.unused_data
    except zlib.error:
        return data, None
    return bytes(unpacked), kind


def json_of(value: object) -> bytes:
    """Bytes become base64, other things that JSON lacks become text."""
    options = orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_SUBCLASS
    return orjson.dumps(value, _plain, options)


def _plain(value: object) -> object:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return str(value)


def fields_of(data: bytes) -> dict[str, Any]:
    """As JSON, digit by digit, if it is an object or array; else as text, or `dataBase64`. So `recordFilter` sees it."""
    try:
        if type(orjson.loads(data)) in {dict, list}:
            return {"data": orjson.Fragment(data.translate(_LINE_FEEDS))}
    except orjson.JSONDecodeError:
        pass
    try:
        return {"data": data.decode()}
    except UnicodeDecodeError:
        return {"dataBase64": b64encode(data).decode()}
