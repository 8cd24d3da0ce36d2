"""The message inside an aggregate, against the reference implementation of protobuf."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as some

from kcl_daemon.records.kpl import MalformedAggregate, Message, parse, parse_slowly
from tests.unit.records.aggregates import AggregatedRecord

KEYS = some.lists(some.text(max_size=20), min_size=1, max_size=5)
INDEX = some.integers(0, 300)


@given(
    keys=KEYS,
    hash_keys=some.lists(some.integers(0, 2**128 - 1).map(str), max_size=4),
    picks=some.lists(some.tuples(INDEX, some.none() | INDEX, some.binary(max_size=400), some.booleans())),
)
def test_an_aggregate_written_by_protobuf_is_read(
    keys: list[str], hash_keys: list[str], picks: list[tuple[int, int | None, bytes, bool]]
) -> None:
    written = AggregatedRecord(partition_key_table=keys, explicit_hash_key_table=hash_keys)
    expected: list[tuple[int, int | None, bytes]] = []
    for key, hash_key, data, tagged in picks:
        entry = written.records.add(partition_key_index=key % len(keys), data=data)
        if hash_key is not None and hash_keys:
            entry.explicit_hash_key_index = hash_key % len(hash_keys)
        if tagged:
            entry.tags.add(key="colour", value="blue")
        at = hash_key % len(hash_keys) if hash_key is not None and hash_keys else None
        expected.append((key % len(keys), at, data))

    message = parse(written.SerializeToString())

    assert message.partition_keys == [key.encode() for key in keys]
    assert message.hash_keys == [key.encode() for key in hash_keys]
    assert message.records == expected


@given(some.binary(max_size=300))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        message = parse(data)
    except MalformedAggregate:
        return
    assert all(key < len(message.partition_keys) for key, _, _ in message.records)


@given(some.data())
def test_a_good_message_with_a_few_bytes_altered_is_read_or_refused(data: some.DataObject) -> None:
    written = AggregatedRecord(partition_key_table=["a", "b"], explicit_hash_key_table=["5"])
    for number in range(3):
        written.records.add(
            partition_key_index=number % 2, explicit_hash_key_index=0, data=b"x" * 40 * number
        )
    message = bytearray(written.SerializeToString())
    for at in data.draw(some.lists(some.integers(0, len(message) - 1), min_size=1, max_size=3)):
        message[at] = data.draw(some.integers(0, 255))
    cut = data.draw(some.integers(0, len(message)))
    try:
        ours = parse(bytes(message[:cut]))
    except MalformedAggregate:
        return
    theirs = AggregatedRecord.FromString(bytes(message[:cut]))
    assert [data for _, _, data in ours.records] == [each.data for each in theirs.records]
    assert [key for key, _, _ in ours.records] == [each.partition_key_index for each in theirs.records]


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"\x0a\x05ab", "cut off"),
        (b"\x0a", "cut off"),
        (b"\x1a\x04\x08\x00\x1a", "cut off"),
        (b"\x1a\x03\x08\x00\x1a\x01", "a record is cut off"),
        (b"\x0a\x01k\x1a\x02\x1a\x00", "lacks"),
        (b"\x0a\x01k\x1a\x02\x08\x00", "lacks"),
        (b"\x0b\x0c", "wire type 3"),
        (b"\x02\x00", "without a number"),
        (b"\x20" + b"\xff" * 10 + b"\x01", "too long"),
    ],
)
def test_a_malformed_aggregate_is_refused_with_its_reason(message: bytes, why: str) -> None:
    with pytest.raises(MalformedAggregate, match=why):
        parse(message)


@given(some.binary(max_size=200), some.integers(0, 5000))
def test_slowly_is_the_same(rest: bytes, records: int) -> None:
    message = b"\x0a\x01k" + b"\x1a\x15\x08\x00\x1a\x11" + bytes(17)
    message += b"\x1a\x15\x08\x00\x1a\x11" + bytes(17)
    message += message[3:26] * records + rest
    try:
        whole = parse(message)
    except MalformedAggregate as error:
        with pytest.raises(MalformedAggregate, match=re.escape(str(error))):
            slowly(message)
        return
    found = slowly(message)
    assert list(found.records) == list(whole.records)
    assert replace(found, columns=None, large=b"") == replace(whole, columns=None)


def slowly(message: bytes) -> Message:
    parsing = parse_slowly(message)
    while True:
        try:
            next(parsing)
        except StopIteration as end:
            found: Message = end.value
            return found


def test_fields_of_a_later_version_are_read_over() -> None:
    unknown = b"\x28\x96\x01" + b"\x31" + bytes(8) + b"\x3a\x02ab" + b"\x45" + bytes(4) + b"\xfa\x01\x01z"
    record = unknown + b"\x08\x00" + unknown + b"\x1a\x02hi" + unknown
    message = unknown + b"\x0a\x01k" + b"\x1a" + bytes([len(record)]) + record + unknown
    assert parse(message).records == [(0, None, b"hi")]
    assert [each.data for each in AggregatedRecord.FromString(message).records] == [b"hi"]


def test_an_empty_message_has_no_records() -> None:
    assert parse(b"").records == []
