"""PURE: what becomes of a record that may be a KPL aggregate (KCL: AggregatorUtil).

Owns the rules: when it is one, the positions of its user records, and which of them belong to the shard. What is no good
aggregate is given on as it came. Unlike KCL the filter judges each user record for itself: KCL drops the whole
aggregate for one record that went to another shard, and with it those that nobody else will deliver.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from json.encoder import encode_basestring_ascii
from typing import Final

from msgspec import Raw

from kcl_daemon.leases.lease import MAX_HASH, HashRange
from kcl_daemon.retrieval.aggregate_message import MalformedAggregate, Message, parse
from kcl_daemon.retrieval.base64_text import BASE64
from kcl_daemon.retrieval.payload import RawRecord

MAGIC: Final = b"\xf3\x89\x9a\xc2"
_DIGEST_BYTES: Final = 16
_HASH_DIGITS_MOST: Final = 39  # 2**128 - 1

Complaint = Callable[[str, str], None]
"""Is told why what began like an aggregate is none, and its sequence number."""

Stray = Callable[[int, int, str], None]
"""Is told how many user records of an aggregate belong to other shards, of how many, and its sequence number."""


class Deaggregator:
    """Takes aggregates of one shard apart; a `Split` of payloads.

    Args:
        hash_range: of the shard; None: it is not known, and nothing is filtered.
        on_malformed: told of each record that is delivered as it came although it began like an aggregate.
        on_stray: told of each aggregate that user records are left out of; None: nobody is.

    Attributes:
        malformed: how many of those there were.
    """

    def __init__(
        self, hash_range: HashRange | None, on_malformed: Complaint, on_stray: Stray | None = None
    ) -> None:
        self._belongs = None if hash_range is None else _filter(hash_range)
        self._on_malformed = on_malformed
        self._on_stray = on_stray
        self.malformed = 0

    def __call__(self, record: RawRecord) -> Sequence[RawRecord]:
        """Its user records that belong to the shard, in order; itself where it is no good aggregate."""
        try:
            message = _opened(record.data)
            if message is None:
                return (record,)
            wanted = self._wanted(message)
        except ValueError as error:
            self.malformed += 1
            self._on_malformed(str(error), record.sequence_number)
            return (record,)
        total = len(message.records)
        if self._on_stray is not None and len(wanted) < total:
            self._on_stray(total - len(wanted), total, record.sequence_number)
        return _user_records(record, message, wanted)

    def _wanted(self, message: Message) -> Sequence[int]:
        """Numbers of the user records that belong to the shard; ValueError where a hash key is no number."""
        belongs, records = self._belongs, message.records
        if belongs is None:
            return range(len(records))
        by_key: dict[int, bool] = {}
        by_hash_key: dict[int, bool] = {}
        wanted: list[int] = []
        for number, (key, hash_key, _) in enumerate(records):
            if hash_key is not None:
                told = by_hash_key.get(hash_key)
                if told is None:
                    told = by_hash_key[hash_key] = belongs(_hash(message.hash_keys[hash_key]))
            else:
                told = by_key.get(key)
                if told is None:
                    told = by_key[key] = belongs(_hash_of_key(message.partition_keys[key]))
            if told:
                wanted.append(number)
        return wanted


def _opened(data: Raw) -> Message | None:
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
    return parse(message)


def _user_records(outer: RawRecord, message: Message, wanted: Sequence[int]) -> list[RawRecord]:
    keys = [_json_text(key) for key in message.partition_keys]
    number, arrival = outer.sequence_number, outer.approximate_arrival_timestamp
    records, encoded = message.records, BASE64.encoded
    if len(wanted) == len(records):
        return [
            RawRecord(encoded(data), keys[key], number, arrival, sub_number)
            for sub_number, (key, _, data) in enumerate(records)
        ]
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
