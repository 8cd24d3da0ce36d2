"""The header of the Glue Schema Registry in front of a record's data.

18 bytes: 3, then 0 (plain) or 5 (zlib), then the UUID of the schema version: exactly 24 characters of base64, so plain
data need not be decoded.
"""

from __future__ import annotations

import struct
import zlib
from binascii import a2b_base64
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final
from uuid import UUID

from msgspec import Raw

from kcl_daemon.records.base64_text import BASE64
from kcl_daemon.records.payload import AnyRecord

MAX_UNPACKED_BYTES: Final = 32 * 2**20
"""A few bytes of zlib can fill the memory."""

# 03 00 and 03 05 in base64, after the quote.
_PREFIX: Final = b'"Aw'
_VERSION: Final = 3
_PLAIN: Final = 0
_ZLIB: Final = 5
_HEADER_BYTES: Final = 18
_HEADER_CHARACTERS: Final = 24
_QUOTE: Final = b'"'

_data_of: Final = attrgetter("data")
_prefix_of: Final = struct.Struct(f"{len(_PREFIX)}s").unpack_from


class UnreadablePayload(ValueError):
    """The message says why."""


@dataclass(frozen=True, slots=True)
class Header:
    version_id: str
    is_packed: bool


def may_have_header(records: Sequence[AnyRecord]) -> bool:
    """Runs in C: most streams have no headers."""
    try:
        return (_PREFIX,) in map(_prefix_of, map(_data_of, records))
    except struct.error:
        return any(bytes(record.data).startswith(_PREFIX) for record in records)


def beginning(data: Raw) -> bytes | None:
    """The header's text, the same for all records of a version."""
    text = bytes(memoryview(data)[: _HEADER_CHARACTERS + 1])
    if not text.startswith(_PREFIX) or len(data) < _HEADER_CHARACTERS + 2:
        return None
    return text[1:] if b"\\" not in text else _with_plain_slashes(data)


def header(text: bytes) -> Header | None:
    try:
        head = a2b_base64(text, strict_mode=True)
    except ValueError:
        return None
    if len(head) != _HEADER_BYTES or head[0] != _VERSION or head[1] not in {_PLAIN, _ZLIB}:
        return None
    return Header(str(UUID(bytes=head[2:])), head[1] == _ZLIB)


def payload(data: Raw, head: Header) -> Raw:
    """As JSON text. UnreadablePayload if it cannot be unpacked or is too large."""
    if head.is_packed:
        return BASE64.encoded(_unpacked(_bytes(data)[_HEADER_BYTES:]))
    view = memoryview(data)
    if b"\\" in bytes(view[1 : _HEADER_CHARACTERS + 1]):
        return BASE64.encoded(_bytes(data)[_HEADER_BYTES:])
    return Raw(b"".join((_QUOTE, view[_HEADER_CHARACTERS + 1 :])))


def _with_plain_slashes(data: Raw) -> bytes | None:
    try:
        head = BASE64.decoded(data)[:_HEADER_BYTES]
    except ValueError:
        return None
    return bytes(BASE64.encoded(head))[1:-1]


def _bytes(data: Raw) -> bytes:
    try:
        return BASE64.decoded(data)
    except ValueError as error:
        raise UnreadablePayload(f"the data is no base64: {error}") from error


def _unpacked(packed: bytes) -> bytes:
    unpacking = zlib.decompressobj()
    try:
        data = unpacking.decompress(packed, MAX_UNPACKED_BYTES + 1)
    except zlib.error as error:
        raise UnreadablePayload(f"it cannot be uncompressed: {error}") from error
    if len(data) > MAX_UNPACKED_BYTES:
        raise UnreadablePayload(f"it is more than {MAX_UNPACKED_BYTES} bytes when uncompressed")
    if not unpacking.eof:
        raise UnreadablePayload("it cannot be uncompressed: it is cut off")
    return data
