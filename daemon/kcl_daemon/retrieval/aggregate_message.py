"""PURE: the message inside a KPL aggregate, read from its protobuf bytes (KCL: Messages.AggregatedRecord).

Owns the wire format of that one message. Must not know records of Kinesis, base64 or hashes. Written by hand because it
is sixty lines, and a protobuf library of another version in the same process is a known way to break applications.
Unknown fields are read over; groups, which no KPL writes, are refused.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

_PARTITION_KEY: Final = 0x0A  # field 1, length and bytes
_HASH_KEY: Final = 0x12  # field 2, the same
_RECORD: Final = 0x1A  # field 3, the same
_KEY_INDEX: Final = 0x08  # of a record: field 1, number
_HASH_INDEX: Final = 0x10  # field 2, number
_DATA: Final = 0x1A  # field 3, length and bytes
_RECORD_TAGS: Final = frozenset({_KEY_INDEX, _HASH_INDEX, _DATA})

# Of the shortest user records these are some ten thousand: ten milliseconds.
_STRETCH_BYTES: Final = 64 * 1024
_PLAINEST_BYTES: Final = 5
_LOW: Final = 0x7F
_MORE: Final = 0x80  # the bit of a byte that says that the number goes on
_VARINT_BITS: Final = 64
_WIRE_TYPE_BITS: Final = 3


class MalformedAggregate(ValueError):
    """Raised when bytes are no such message; says why."""


UserRecord = tuple[int, int | None, bytes]
"""Index of its partition key, of its explicit hash key or None, its data. The indexes may be outside their tables."""


@dataclass(frozen=True, slots=True)
class Message:
    """What an aggregate holds.

    Args:
        partition_keys: the table of them; UTF-8 if the producer did right.
        hash_keys: the table of explicit hash keys.
        records: the user records in order; may be gone through more than once.
        count: of them.
        usable: how many come before the first one whose key is not in its table; `count` where there is none such.
        size_bytes: of the message.
    """

    partition_keys: list[bytes]
    hash_keys: list[bytes]
    records: Iterable[UserRecord]
    count: int
    usable: int
    size_bytes: int


class _Unread:
    """User records that are read again each time, as they would take many times the memory of the message."""

    def __init__(self, message: bytes) -> None:
        self._message = message

    def __iter__(self) -> Iterator[UserRecord]:
        return chain.from_iterable(_stretches(self._message, {_PARTITION_KEY: [], _HASH_KEY: []}))


def parse(message: bytes) -> Message:
    """The message, its user records in memory: for a small one.

    Raises:
        MalformedAggregate: it is cut off, or a user record lacks a required field.
    """
    tables: dict[int, list[bytes]] = {_PARTITION_KEY: [], _HASH_KEY: []}
    records: list[UserRecord] = []
    try:
        _read(message, 0, len(message), tables, records)
    except IndexError:
        raise MalformedAggregate("the message is cut off") from None
    keys, hash_keys = tables[_PARTITION_KEY], tables[_HASH_KEY]
    usable = _usable(records, len(keys), len(hash_keys))
    return Message(keys, hash_keys, records, len(records), usable, len(message))


def parse_slowly(message: bytes) -> Generator[None, None, Message]:
    """The same for a large one: yields now and then, so that others may work, and keeps no user record in memory."""
    tables: dict[int, list[bytes]] = {_PARTITION_KEY: [], _HASH_KEY: []}
    count = 0
    try:
        for stretch in _stretches(message, tables):
            count += len(stretch)
            yield
    except IndexError:
        raise MalformedAggregate("the message is cut off") from None
    keys, hash_keys = tables[_PARTITION_KEY], tables[_HASH_KEY]
    usable = 0
    for stretch in _stretches(message, {_PARTITION_KEY: [], _HASH_KEY: []}):
        good = _usable(stretch, len(keys), len(hash_keys))
        usable += good
        if good < len(stretch):
            break
        yield
    return Message(keys, hash_keys, _Unread(message), count, usable, len(message))


def _usable(records: list[UserRecord], keys: int, hash_keys: int) -> int:
    """How many user records come before the first one whose key is not in its table."""
    for key, hash_key, _ in records:
        if key >= keys or (hash_key is not None and hash_key >= hash_keys):
            break
    else:
        return len(records)
    return next(
        number
        for number, (key, hash_key, _) in enumerate(records)
        if key >= keys or (hash_key is not None and hash_key >= hash_keys)
    )


def _stretches(message: bytes, tables: dict[int, list[bytes]]) -> Iterator[list[UserRecord]]:
    """The user records of one stretch of bytes after another; what is in the tables is put there on the way."""
    at = 0
    while at < len(message):
        records: list[UserRecord] = []
        at = _read(message, at, at + _STRETCH_BYTES, tables, records)
        yield records


def _read(data: bytes, at: int, until: int, tables: dict[int, list[bytes]], records: list[UserRecord]) -> int:
    """Read what begins between two places into the tables and the list; the place behind it."""
    end = len(data)
    until = min(until, end)
    while at < until:
        tag = data[at]
        if tag == _RECORD:
            length = data[at + 1]
            at += 2
            if length & _MORE:
                length, at = _varint(data, at - 1)
            records.append(_plainest(data, at, at + length) or _record(data, at, at + length))
            at += length
        elif tag in tables:
            length, at = _varint(data, at + 1)
            tables[tag].append(data[at : at + length])
            at += length
        else:
            at = _after(data, at)
    if at > end:
        raise MalformedAggregate("the message is cut off")
    return at


def _plainest(data: bytes, at: int, end: int) -> tuple[int, None, bytes] | None:
    """One user record, where it is written as nearly all are: index of its key below 128, data, and nothing else."""
    if end - at < _PLAINEST_BYTES or data[at] != _KEY_INDEX or data[at + 2] != _DATA:
        return None
    key, length = data[at + 1], data[at + 3]
    at += 4
    high = 0
    if length & _MORE:
        length, high = length & _LOW, data[at]  # two bytes are enough for 16 KiB
        at += 1
    if (key | high) & _MORE or at + (length | high << 7) != end or end > len(data):
        return None
    return key, None, data[at:end]


def _record(data: bytes, at: int, end: int) -> tuple[int, int | None, bytes]:
    """One user record between two places; of a field that comes twice the last counts, as in protobuf."""
    key = hash_key = body = None
    while at < end:
        tag = data[at]
        if tag not in _RECORD_TAGS:
            at = _after(data, at)
            continue
        number = data[at + 1]
        at += 2
        if number & _MORE:
            number, at = _varint(data, at - 1)
        if tag == _DATA:
            body = data[at : at + number]
            at += number
        elif tag == _KEY_INDEX:
            key = number
        else:
            hash_key = number
    if at != end or end > len(data):
        raise MalformedAggregate("a record is cut off")
    if key is None or body is None:
        raise MalformedAggregate("a record lacks its partition key or its data")
    return key, hash_key, body


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number, and the place after it."""
    number = data[at]
    at += 1
    if number < _MORE:
        return number, at
    number &= _MORE - 1
    shift = 7
    while True:
        byte = data[at]
        at += 1
        number |= (byte & (_MORE - 1)) << shift
        if byte < _MORE:
            return number & (1 << _VARINT_BITS) - 1, at
        shift += 7
        if shift >= _VARINT_BITS:
            raise MalformedAggregate("a number is too long")


def _after(data: bytes, at: int) -> int:
    """The place after a field that nobody knows, which begins here."""
    tag, at = _varint(data, at)
    if not tag >> _WIRE_TYPE_BITS:
        raise MalformedAggregate("a field without a number")
    match tag & (1 << _WIRE_TYPE_BITS) - 1:
        case 0:  # a number
            return _varint(data, at)[1]
        case 1:
            return at + 8
        case 2:  # a length, and so many bytes
            length, at = _varint(data, at)
            return at + length
        case 5:
            return at + 4
        case kind:
            raise MalformedAggregate(f"a field of wire type {kind}")
