"""PURE: what becomes of a record that may be a KPL aggregate (KCL: AggregatorUtil).

Owns the rules: when it is one, the positions of its user records, and which of them belong to the shard. What is no good
aggregate is given on as it came. Unlike KCL the filter judges each user record for itself: KCL drops the whole
aggregate for one record that went to another shard, and with it those that nobody else will deliver.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Iterator, Sequence
from json.encoder import encode_basestring_ascii
from typing import Final, cast

from msgspec import Raw

from kcl_daemon.leases.lease import MAX_HASH, HashRange
from kcl_daemon.retrieval.aggregate_message import MalformedAggregate, Message, parse, parse_slowly
from kcl_daemon.retrieval.base64_text import BASE64
from kcl_daemon.retrieval.payload import LINE_OVERHEAD_BYTES, Piece, RawRecord, line_bytes

MAGIC: Final = b"\xf3\x89\x9a\xc2"
_DIGEST_BYTES: Final = 16
_HASH_DIGITS_MOST: Final = 39  # 2**128 - 1
PIECE_BYTES: Final = 4 * 2**20
"""About the most that one piece of an aggregate takes in a line, unless it is one user record that is longer."""
# A message up to here is read into memory at once; the user records of a larger one would take many times its memory.
_SMALL_BYTES: Final = 128 * 1024
# A user record takes a microsecond or two: others wait some ten milliseconds at most.
_WITHOUT_A_PAUSE: Final = 10_000
_KEYS_KEPT: Final = 4096

Complaint = Callable[[str, str], None]
"""Is told why what began like an aggregate is none, and its sequence number."""

Stray = Callable[[int, int, str], None]
"""Is told how many user records of an aggregate belong to other shards, of how many, and its sequence number."""

BadKeys = Callable[[str, int, int, str], None]
"""Is told what is wrong with keys of an aggregate, in how many user records, of how many, and its sequence number."""


class Deaggregator:
    """Takes aggregates of one shard apart; a `Split` of payloads.

    Args:
        hash_range: of the shard; None: it is not known, and nothing is filtered.
        on_malformed: told of each record that is delivered as it came although it began like an aggregate.
        on_stray: told of each aggregate that user records are left out of; None: nobody is.
        on_bad_keys: told of each aggregate with user records whose keys are invalid; None: nobody is.

    Attributes:
        malformed: how many of those there were that `on_malformed` is told of.
    """

    def __init__(
        self,
        hash_range: HashRange | None,
        on_malformed: Complaint,
        on_stray: Stray | None = None,
        on_bad_keys: BadKeys | None = None,
    ) -> None:
        self._belongs = None if hash_range is None else _filter(hash_range)
        self._on_malformed = on_malformed
        self._on_stray = on_stray
        self._on_bad_keys = on_bad_keys
        self.malformed = 0

    def __call__(self, record: RawRecord) -> Iterator[Piece]:
        """Its user records that belong to the shard, in order; itself where it is no good aggregate.

        A large aggregate is taken apart piece by piece, as they are asked for; a piece without records says that this
        takes long. A user record with an invalid key is delivered under the aggregate's own partition key; KCL's
        AggregatorUtil loses it and all that follow. An aggregate that begins with such a record is delivered as it came.
        """
        try:
            body = _opened(record.data)
            if body is None:
                yield (record,), line_bytes(record)
                return
            message = parse(body) if len(body) <= _SMALL_BYTES else (yield from _parsed_slowly(body))
            yield from self._pieces(record, message)
        except ValueError as error:
            self.malformed += 1
            self._on_malformed(str(error), record.sequence_number)
            yield (record,), line_bytes(record)

    def _pieces(self, outer: RawRecord, message: Message) -> Iterator[Piece]:
        if message.usable == message.count and message.size_bytes <= _SMALL_BYTES:
            keys = [_json_text(key) for key in message.partition_keys]
            most_bytes = message.count * (max(map(len, keys), default=0) + LINE_OVERHEAD_BYTES)
            most_bytes += 2 * message.size_bytes
            if most_bytes <= PIECE_BYTES and (wanted := self._wanted(message)) is not None:
                if self._on_stray is not None and len(wanted) < message.count:
                    self._on_stray(message.count - len(wanted), message.count, outer.sequence_number)
                yield _user_records(outer, message, keys, wanted), most_bytes
                return
        yield from self._filtered(outer, message)

    def _wanted(self, message: Message) -> Sequence[int] | None:
        """Numbers of the user records that belong to the shard; None where a key is invalid."""
        if self._belongs is None:
            return range(message.count)
        by_key: dict[int, bool] = {}
        by_hash_key: dict[int, bool] = {}
        belongs, wanted = self._belongs, list[int]()
        for number, (key, hash_key, _) in enumerate(message.records):
            if hash_key is not None:
                told = by_hash_key.get(hash_key)
                if told is None:
                    try:
                        told = by_hash_key[hash_key] = belongs(_hash(message.hash_keys[hash_key]))
                    except MalformedAggregate:
                        return None
            else:
                told = by_key.get(key)
                if told is None:
                    told = by_key[key] = belongs(_hash_of_key(message.partition_keys[key]))
            if told:
                wanted.append(number)
        return wanted

    def _filtered(self, outer: RawRecord, message: Message) -> Iterator[Piece]:
        """ValueError where the first user record has an invalid key, and then nothing has been given."""
        texts, belongs = _KeyTexts(message.partition_keys), _Belonging(self._belongs, message)
        encoded = BASE64.encoded
        piece: list[RawRecord] = []
        piece_bytes = strays = since = bad = 0
        reason = ""
        for number, (key, hash_key, data) in enumerate(message.records):
            since += 1
            try:
                text, belonging = texts[key], belongs(key, hash_key)
            except ValueError as error:
                if not number:
                    raise
                text, belonging = outer.partition_key, True
                bad, reason = bad + 1, str(error)
            if belonging:
                record = RawRecord(
                    encoded(data),
                    text,
                    outer.sequence_number,
                    outer.approximate_arrival_timestamp,
                    number,
                )
                size = line_bytes(record)
                if piece and piece_bytes + size > PIECE_BYTES:
                    yield piece, piece_bytes
                    piece, piece_bytes, since = [], 0, 0
                piece.append(record)
                piece_bytes += size
            else:
                strays += 1
            if since >= _WITHOUT_A_PAUSE:
                yield piece, piece_bytes
                piece, piece_bytes, since = [], 0, 0
        if piece:
            yield piece, piece_bytes
        if self._on_stray is not None and strays:
            self._on_stray(strays, message.count, outer.sequence_number)
        if self._on_bad_keys is not None and bad:
            self._on_bad_keys(reason, bad, message.count, outer.sequence_number)


class _Belonging:
    """Whether user records belong to the shard; what it has found out it keeps, up to a bound.

    Args:
        belongs: judges a hash; None: all are in the shard.
        message: of which they are.
    """

    def __init__(self, belongs: Callable[[int], bool] | None, message: Message) -> None:
        self._belongs = belongs
        self._message = message
        self._by_key: dict[int, bool] = {}
        self._by_hash_key: dict[int, bool] = {}

    def __call__(self, key: int, hash_key: int | None) -> bool:
        """The one with keys of these indexes; ValueError where its explicit hash key is invalid."""
        if hash_key is not None and hash_key >= len(self._message.hash_keys):
            raise MalformedAggregate("a record refers to a hash key that is not there")
        if self._belongs is None:
            return True
        known, index = (self._by_key, key) if hash_key is None else (self._by_hash_key, hash_key)
        told = known.get(index)
        if told is None:
            if len(known) >= _KEYS_KEPT:
                known.clear()
            hashed = (
                _hash_of_key(self._message.partition_keys[key])
                if hash_key is None
                else _hash(self._message.hash_keys[hash_key])
            )
            told = known[index] = self._belongs(hashed)
        return told


class _KeyTexts(dict[int, Raw]):
    """Partition keys by their index, as JSON; a bounded number of them."""

    def __init__(self, keys: list[bytes]) -> None:
        super().__init__()
        self._keys = keys

    def __missing__(self, index: int) -> Raw:
        if index >= len(self._keys):
            raise MalformedAggregate("a record refers to a key that is not there")
        if len(self) >= _KEYS_KEPT:
            self.clear()
        text = self[index] = _json_text(self._keys[index])
        return text


def _opened(data: Raw) -> bytes | None:
    """The message of an aggregate; None where it does not begin like one. ValueError: it does, and is none."""
    body = BASE64.decoded(data)
    if not body.startswith(MAGIC):
        return None
    if len(body) <= len(MAGIC) + _DIGEST_BYTES:
        raise MalformedAggregate("too short")
    message = body[len(MAGIC) : -_DIGEST_BYTES]
    # Not for security: where the machine allows MD5 for nothing else, it allows it for this.
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


def _user_records(
    outer: RawRecord, message: Message, keys: Sequence[Raw], wanted: Sequence[int]
) -> list[RawRecord]:
    number, arrival, encoded = outer.sequence_number, outer.approximate_arrival_timestamp, BASE64.encoded
    if len(wanted) == message.count:
        return [
            RawRecord(encoded(data), keys[key], number, arrival, sub_number)
            for sub_number, (key, _, data) in enumerate(message.records)
        ]
    records = message.records
    assert isinstance(records, list), "a small message"
    return [
        RawRecord(encoded(records[each][2]), keys[records[each][0]], number, arrival, each) for each in wanted
    ]


def _json_text(key: bytes) -> Raw:
    """As JSON in ASCII; bytes that are no UTF-8 become U+FFFD, as Java reads them."""
    return Raw(encode_basestring_ascii(key.decode("utf-8", "replace")).encode("ascii"))


def _filter(hash_range: HashRange) -> Callable[[int], bool] | None:
    if hash_range.start <= 0 and hash_range.end >= MAX_HASH:
        return None
    return lambda hashed: hash_range.start <= hashed <= hash_range.end


def _hash(hash_key: bytes) -> int:
    """An explicit hash key: a decimal number."""
    if not hash_key.isdigit() or len(hash_key) > _HASH_DIGITS_MOST:
        raise MalformedAggregate("an explicit hash key is no number")
    return int(hash_key)


def _hash_of_key(partition_key: bytes) -> int:
    return int.from_bytes(hashlib.md5(partition_key, usedforsecurity=False).digest())
