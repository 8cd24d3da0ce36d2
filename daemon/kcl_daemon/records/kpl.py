"""Takes KPL aggregates apart, and makes them (KCL: AggregatorUtil, Messages.AggregatedRecord).

Unlike in KCL, one record of another shard does not drop the whole aggregate. The protobuf parser is hand-written: a
second protobuf version in one process breaks applications.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, compress, repeat
from json.encoder import encode_basestring_ascii
from typing import Final, Protocol, TypeVar, cast

from msgspec import Raw

from kcl_daemon.leases.lease import MAX_HASH, HashRange
from kcl_daemon.records.base64_text import BASE64
from kcl_daemon.records.payload import (
    LINE_OVERHEAD_BYTES,
    AnyRecord,
    Piece,
    UserRecords,
    line_bytes,
    user_record_type,
)

T = TypeVar("T")

_PARTITION_KEY: Final = 0x0A  # field number and wire type
_HASH_KEY: Final = 0x12
_RECORD: Final = 0x1A
_KEY_INDEX: Final = 0x08
_HASH_INDEX: Final = 0x10
_DATA: Final = 0x1A
_RECORD_TAGS: Final = frozenset({_KEY_INDEX, _HASH_INDEX, _DATA})

# Some ten milliseconds of work.
_CHUNK_BYTES: Final = 64 * 1024
_LOW: Final = 0x7F
_MORE: Final = 0x80
_VARINT_BITS: Final = 64
_WIRE_TYPE_BITS: Final = 3


class MalformedAggregate(ValueError):
    """The message says why."""


ParsedRecord = tuple[int, int | None, bytes]
"""Index of the partition key, of the explicit hash key, data. Indexes may be out of range."""


ParsedColumns = tuple[Sequence[int], Sequence[int | None] | None, Sequence[bytes]]
"""Records by their parts; None: no record has an explicit hash key."""


@dataclass(frozen=True, slots=True)
class Message:
    """`columns` are there if the message is small."""

    partition_keys: list[bytes]
    hash_keys: list[bytes]
    columns: ParsedColumns | None
    count: int
    size_bytes: int
    large: bytes = b""

    @property
    def records(self) -> Iterable[ParsedRecord]:
        if self.columns is None:
            return chain.from_iterable(_chunks(self.large, {_PARTITION_KEY: [], _HASH_KEY: []}))
        indexes, hash_indexes, bodies = self.columns
        return list(zip(indexes, hash_indexes or repeat(None), bodies, strict=False))


# A record up to its data, and a partition key up to its text, with lengths of one byte.
_RECORD_HEAD: Final = re.compile(rb"\x1a([\x04-\x7f])\x08([\x00-\x7f])\x1a([\x00-\x7b])")
_KEY_HEAD: Final = re.compile(rb"\n([\x00-\x7f])")
_PLUS_4: Final = bytes(range(4, 256)) + bytes(4)


def _parsed_in_c(message: bytes) -> Message | None:
    """Cut at what looks like a head. None if the lengths do not fit: parse otherwise."""
    parts = _RECORD_HEAD.split(message)
    table, sizes, bodies = _KEY_HEAD.split(parts[0]), b"".join(parts[3::4]), parts[4::4]
    keys = table[2::2]
    if (
        table[0]
        or list(map(len, bodies)) != list(sizes)
        or sizes.translate(_PLUS_4) != b"".join(parts[1::4])
        or list(map(len, keys)) != list(b"".join(table[1::2]))
    ):
        return None
    return Message(keys, [], (b"".join(parts[2::4]), None, bodies), len(bodies), len(message))


def parse(message: bytes) -> Message:
    """MalformedAggregate if it is cut off or a field is missing."""
    if (found := _parsed_in_c(message)) is not None:
        return found
    tables: dict[int, list[bytes]] = {_PARTITION_KEY: [], _HASH_KEY: []}
    records: list[ParsedRecord] = []
    try:
        _read(message, 0, len(message), tables, records)
    except IndexError:
        raise MalformedAggregate("the message is cut off") from None
    keys, hash_keys = tables[_PARTITION_KEY], tables[_HASH_KEY]
    indexes, hash_indexes, bodies = zip(*records, strict=True) if records else ((), (), ())
    has_hash_keys = hash_indexes.count(None) < len(records)
    columns = (indexes, hash_indexes if has_hash_keys else None, bodies)
    return Message(keys, hash_keys, columns, len(records), len(message))


def parse_slowly(message: bytes) -> Generator[None, None, Message]:
    """Pauses for other tasks, keeps no user record in memory."""
    tables: dict[int, list[bytes]] = {_PARTITION_KEY: [], _HASH_KEY: []}
    count = 0
    try:
        for chunk in _chunks(message, tables):
            count += len(chunk)
            yield
    except IndexError:
        raise MalformedAggregate("the message is cut off") from None
    keys, hash_keys = tables[_PARTITION_KEY], tables[_HASH_KEY]
    return Message(keys, hash_keys, None, count, len(message), message)


def _chunks(message: bytes, tables: dict[int, list[bytes]]) -> Iterator[list[ParsedRecord]]:
    at = 0
    while at < len(message):
        records: list[ParsedRecord] = []
        at = _read(message, at, at + _CHUNK_BYTES, tables, records)
        yield records


# Length of the record, tag and value of the key index, tag and length of the data.
_short_head: Final = struct.Struct("<BBBBB").unpack_from
_long_head: Final = struct.Struct("<HBBBH").unpack_from
_LONG_HEAD_BYTES: Final = 7
_THIRD_BYTE: Final = 0x8000  # the second byte of a number says that a third follows


def _read(
    data: bytes, at: int, until: int, tables: dict[int, list[bytes]], records: list[ParsedRecord]
) -> int:
    end = len(data)
    until, head_until = min(until, end), end - _LONG_HEAD_BYTES
    while at < until:
        tag = data[at]
        if tag == _RECORD and at < head_until:
            # The common forms: key index below 128, data, nothing else; lengths of one byte, or both of two.
            length, key_tag, key, data_tag, size = _short_head(data, at + 1)
            start = at + 6
            if length & _MORE:
                length, key_tag, key, data_tag, size = _long_head(data, at + 1)
                if (length | size) & _THIRD_BYTE or not size & _MORE:
                    key_tag = 0
                length, size = (length & _LOW | length >> 8 << 7) - 1, size & _LOW | size >> 8 << 7
                start = at + 8
            if key_tag == _KEY_INDEX and data_tag == _DATA and key < _MORE and size == length - 4:
                at = start + size
                records.append((key, None, data[start:at]))
                continue
        if tag == _RECORD or tag in tables:
            length = data[at + 1]
            at += 2
            if length & _MORE:
                length, at = _varint(data, at - 1)
            stop = at + length
            if tag == _RECORD:
                records.append(_record(data, at, stop))
            else:
                tables[tag].append(data[at:stop])
            at = stop
        else:
            at = _skip_field(data, at)
    if at > end:
        raise MalformedAggregate("the message is cut off")
    return at


def _record(data: bytes, at: int, end: int) -> tuple[int, int | None, bytes]:
    key = hash_key = body = None
    while at < end:
        tag = data[at]
        if tag not in _RECORD_TAGS:
            at = _skip_field(data, at)
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


def _skip_field(data: bytes, at: int) -> int:
    tag, at = _varint(data, at)
    if not tag >> _WIRE_TYPE_BITS:
        raise MalformedAggregate("a field without a number")
    match tag & (1 << _WIRE_TYPE_BITS) - 1:
        case 0:
            return _varint(data, at)[1]
        case 1:
            return at + 8
        case 2:
            length, at = _varint(data, at)
            return at + length
        case 5:
            return at + 4
        case kind:
            raise MalformedAggregate(f"a field of wire type {kind}")


MAGIC: Final = b"\xf3\x89\x9a\xc2"
_DIGEST_BYTES: Final = 16
_MAX_HASH_DIGITS: Final = 39
PIECE_BYTES: Final = 4 * 2**20
_SMALL_BYTES: Final = 128 * 1024
# Some ten milliseconds.
_RECORDS_PER_TURN: Final = 10_000
_KEYS_KEPT: Final = 4096

OnMalformed = Callable[[str, str], None]
"""Reason, sequence number."""

OnOtherShard = Callable[[int, int, str], None]
"""Count, total in the aggregate, sequence number."""

OnBadKeys = Callable[[str, int, int, str], None]
"""Reason, and as `OnOtherShard`."""


class OtherShards(Protocol):
    def kept(self, record: AnyRecord, /) -> bool | None:
        """Whether the aggregate's records of other shards are delivered; None: ask the service."""
        ...

    def ask(self) -> None:
        """The caller has the answer before it takes the next piece."""
        ...


class Deaggregator:
    """Without a `hash_range` no record is left out; without `strays` those of other shards are."""

    def __init__(
        self,
        hash_range: HashRange | None,
        on_malformed: OnMalformed,
        on_other_shard: OnOtherShard | None = None,
        on_bad_keys: OnBadKeys | None = None,
        strays: OtherShards | None = None,
    ) -> None:
        self._belongs = None if hash_range is None else _filter(hash_range)
        self._on_malformed = on_malformed
        self._on_other_shard = on_other_shard
        self._on_bad_keys = on_bad_keys
        self._strays = strays
        self.malformed = 0

    def __call__(self, record: AnyRecord) -> Iterator[Piece]:
        """The user records of this shard in order, or the record itself if it is no valid aggregate.

        An empty piece: the next one takes long. An explicit hash key that is no number counts as none (aws-kinesis-agg of Node
        writes `undefined`). Without its key, a user record gets that of the aggregate (KCL loses it and all that follow); if
        it is the first one, the aggregate is delivered unchanged.
        """
        try:
            body = _message_of(record.data)
            if body is None:
                yield (record,), line_bytes(record)
                return
            message = parse(body) if len(body) <= _SMALL_BYTES else (yield from _parsed_slowly(body))
            yield from self._pieces(record, message)
        except ValueError as error:
            self.malformed += 1
            self._on_malformed(str(error), record.sequence_number)
            yield (record,), line_bytes(record)

    def _pieces(self, outer: AnyRecord, message: Message) -> Iterator[Piece]:
        kept = False if self._belongs is None or self._strays is None else self._strays.kept(outer)
        if message.columns is not None:
            keys = message.partition_keys
            if b"".join(keys).translate(None, _PLAIN):
                keys = [bytes(_json_text(key))[1:-1] for key in keys]
            max_bytes = message.count * (max(map(len, keys), default=0) + 2 + LINE_OVERHEAD_BYTES)
            max_bytes += 2 * message.size_bytes
            if max_bytes <= PIECE_BYTES and (found := self._at_once(outer, message, keys, kept)) is not None:
                if kept is None and len(found) < message.count:
                    kept = yield from self._asked(outer)
                    found = self._at_once(outer, message, keys, kept) or found
                self._report_strays(message.count - len(found), outer, message)
                self._report(_ODD_HASH_KEY, _odd_count(message), outer, message)
                yield found, max_bytes
                return
        yield from self._filtered(outer, message, kept)

    def _asked(self, outer: AnyRecord) -> Generator[Piece, None, bool]:
        assert self._strays is not None, "without it nothing is unknown"
        self._strays.ask()
        yield (), 0
        return self._strays.kept(outer) is not False

    def _at_once(
        self, outer: AnyRecord, message: Message, keys: list[bytes], kept: bool | None
    ) -> UserRecords | None:
        assert message.columns is not None, "it is small"
        indexes, hash_indexes, bodies = message.columns
        sub_numbers: Sequence[int] = range(message.count)
        try:
            if message.hash_keys or not (kept or self._all_belong(message.partition_keys)):
                belongs = _ShardFilter(None if kept else self._belongs, message)
                ours = {each for each in {each[:2] for each in message.records} if belongs(*each)}
                is_ours = [each[:2] in ours for each in message.records]
                sub_numbers = list(compress(sub_numbers, is_ours))
                indexes, bodies = list(compress(indexes, is_ours)), list(compress(bodies, is_ours))
            elif hash_indexes is not None:
                return None
            used_keys = list(map(keys.__getitem__, indexes))
        except (IndexError, MalformedAggregate):
            return None
        make = user_record_type(message.size_bytes, message.count)
        return UserRecords(outer, bodies, used_keys, sub_numbers, make)

    def _all_belong(self, keys: Iterable[bytes]) -> bool:
        return self._belongs is None or all(map(self._belongs, map(hash_of_key, keys)))

    def _filtered(self, outer: AnyRecord, message: Message, kept: bool | None) -> Iterator[Piece]:
        """ValueError, before the first piece, if the key of the first user record is missing."""
        texts = _KeyTexts(message.partition_keys)
        belongs = _ShardFilter(None if kept else self._belongs, message)
        user_record = user_record_type(message.size_bytes, message.count)
        piece: list[AnyRecord] = []
        piece_bytes = strays = since = missing = odd = 0
        for number, (key, hash_key, data) in enumerate(message.records):
            since += 1
            try:
                belonging, text = belongs(key, hash_key), texts[key]
                odd += belongs.is_odd(hash_key)
            except ValueError:
                if not number:
                    raise
                text, belonging = outer.partition_key, True
                missing += 1
            if not belonging and kept is None:
                yield piece, piece_bytes
                piece, piece_bytes, since = [], 0, 0
                if kept := (yield from self._asked(outer)):
                    belonging, belongs = True, _ShardFilter(None, message)
            if belonging:
                size = (len(data) + 2) // 3 * 4 + 2 + len(text) + LINE_OVERHEAD_BYTES
                if piece and piece_bytes + size > PIECE_BYTES:
                    yield piece, piece_bytes
                    piece, piece_bytes, since = [], 0, 0
                piece.append(
                    user_record(
                        data, text, outer.sequence_number, outer.approximate_arrival_timestamp, number
                    )
                )
                piece_bytes += size
            else:
                strays += 1
            if since >= _RECORDS_PER_TURN:
                yield piece, piece_bytes
                piece, piece_bytes, since = [], 0, 0
        if piece:
            yield piece, piece_bytes
        self._report_strays(strays, outer, message)
        self._report(_MISSING_KEY, missing, outer, message)
        self._report(_ODD_HASH_KEY, odd, outer, message)

    def _report_strays(self, count: int, outer: AnyRecord, message: Message) -> None:
        if self._on_other_shard is not None and count:
            self._on_other_shard(count, message.count, outer.sequence_number)

    def _report(self, reason: str, count: int, outer: AnyRecord, message: Message) -> None:
        if self._on_bad_keys is not None and count:
            self._on_bad_keys(reason, count, message.count, outer.sequence_number)


_MISSING_KEY: Final = "a record refers to a key that is not there"
_ODD_HASH_KEY: Final = "an explicit hash key is no number, so it counts as none"


class _ShardFilter:
    def __init__(self, belongs: Callable[[int], bool] | None, message: Message) -> None:
        self._belongs = belongs
        self._message = message
        self._by_key: dict[int, bool] = {}
        self._by_hash_key: dict[int, bool | None] = {}

    def __call__(self, key: int, hash_key: int | None) -> bool:
        """ValueError if a key is missing."""
        message = self._message
        if key >= len(message.partition_keys) or (
            hash_key is not None and hash_key >= len(message.hash_keys)
        ):
            raise MalformedAggregate(_MISSING_KEY)
        is_ours = None if hash_key is None else self._of_hash_key(hash_key)
        if is_ours is None:
            is_ours = True if self._belongs is None else self._by_key.get(key)
        if is_ours is None:
            assert self._belongs is not None, "it was asked"
            _make_room(self._by_key)
            is_ours = self._by_key[key] = self._belongs(hash_of_key(message.partition_keys[key]))
        return is_ours

    def is_odd(self, hash_key: int | None) -> bool:
        return hash_key is not None and self._of_hash_key(hash_key) is None

    def _of_hash_key(self, index: int) -> bool | None:
        known = self._by_hash_key
        if index not in known:
            _make_room(known)
            hashed = _hash(self._message.hash_keys[index])
            known[index] = hashed if hashed is None else self._belongs is None or self._belongs(hashed)
        return known[index]


def _make_room(known: dict[int, T]) -> None:
    if len(known) >= _KEYS_KEPT:
        known.clear()


def _odd_count(message: Message) -> int:
    odd = [_hash(each) is None for each in message.hash_keys]
    if True not in odd:
        return 0
    return sum(hash_key is not None and odd[hash_key] for _, hash_key, _ in message.records)


class _KeyTexts(dict[int, Raw]):
    def __init__(self, keys: list[bytes]) -> None:
        super().__init__()
        self._keys = keys

    def __missing__(self, index: int) -> Raw:
        _make_room(self)
        text = self[index] = _json_text(self._keys[index])
        return text


def _message_of(data: Raw) -> bytes | None:
    """None if it is no aggregate. ValueError if it begins like one but is malformed."""
    body = BASE64.decoded(data)
    if not body.startswith(MAGIC):
        return None
    if len(body) <= len(MAGIC) + _DIGEST_BYTES:
        raise MalformedAggregate("too short")
    message = body[len(MAGIC) : -_DIGEST_BYTES]
    # Not for security, so it works where MD5 is forbidden.
    if hashlib.md5(message, usedforsecurity=False).digest() != body[-_DIGEST_BYTES:]:
        raise MalformedAggregate("the digest does not fit")
    return message


def _parsed_slowly(message: bytes) -> Generator[Piece, None, Message]:
    parsing = parse_slowly(message)
    while True:
        try:
            next(parsing)
        except StopIteration as end:
            return cast("Message", end.value)
        yield (), 0


_PLAIN: Final = bytes(range(0x20, 0x7F)).translate(None, b'"\\')


def _json_text(key: bytes) -> Raw:
    """Invalid UTF-8 becomes U+FFFD, as in Java."""
    return Raw(encode_basestring_ascii(key.decode("utf-8", "replace")).encode("ascii"))


class Aggregate:
    """All keys must belong to one shard (`hash_of_key`), or consumers drop records."""

    def __init__(self) -> None:
        self._keys: dict[bytes, int] = {}
        self._records: list[bytes] = []
        self.size_bytes = len(MAGIC) + _DIGEST_BYTES

    def __len__(self) -> int:
        return len(self._records)

    def added_bytes(self, partition_key: str, data: bytes) -> int:
        return len(partition_key.encode()) + len(data) + _FIELDS_BYTES_MOST

    def add(self, partition_key: str, data: bytes) -> None:
        key = partition_key.encode()
        index = self._keys.get(key)
        if index is None:
            index = self._keys[key] = len(self._keys)
            self.size_bytes += 1 + len(_number(len(key))) + len(key)
        body = b"".join((b"\x08", _number(index), b"\x1a", _number(len(data)), data))
        record = b"".join((b"\x1a", _number(len(body)), body))
        self._records.append(record)
        self.size_bytes += len(record)

    def data(self) -> bytes:
        keys = (part for key in self._keys for part in (b"\n", _number(len(key)), key))
        message = b"".join((*keys, *self._records))
        return b"".join((MAGIC, message, hashlib.md5(message, usedforsecurity=False).digest()))


_FIELDS_BYTES_MOST: Final = 32


def _number(value: int) -> bytes:
    parts = bytearray()
    while value > _LOW:
        parts.append(value & _LOW | _MORE)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _filter(hash_range: HashRange) -> Callable[[int], bool] | None:
    if hash_range.start <= 0 and hash_range.end >= MAX_HASH:
        return None
    return lambda hashed: hash_range.start <= hashed <= hash_range.end


def _hash(hash_key: bytes) -> int | None:
    if not hash_key.isdigit() or len(hash_key) > _MAX_HASH_DIGITS:
        return None
    hashed = int(hash_key)
    return hashed if hashed <= MAX_HASH else None


def hash_of_key(partition_key: bytes) -> int:
    return int.from_bytes(hashlib.md5(partition_key, usedforsecurity=False).digest())
