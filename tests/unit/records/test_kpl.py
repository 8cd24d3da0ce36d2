"""KPL aggregates: taken apart as the reference wrote them, filtered one by one, delivered as they came where broken."""

from __future__ import annotations

import hashlib
import json
import time
import tracemalloc
from base64 import b64decode, b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec import Raw

from kcl_daemon.leases.lease import MAX_HASH, HashRange
from kcl_daemon.records.base64_text import HAS_FAST, Base64Text
from kcl_daemon.records.kpl import MAGIC, Deaggregator, hash_of_key
from kcl_daemon.records.payload import LINE_BYTES, Payload
from kcl_protocol.codec import encode
from kcl_protocol.messages import ProcessRecords, Record
from kcl_protocol.sequence import ExtendedSequenceNumber
from tests.unit.records.aggregates import UserRecord, aggregate, apart, decoded, outer, sealed, silent

HASH_KEYS = some.none() | some.integers(0, MAX_HASH).map(str)
USER_RECORDS = some.lists(
    some.tuples(some.text(min_size=1, max_size=30), some.binary(max_size=2000), HASH_KEYS),
    min_size=1,
    max_size=30,
)
LOWER = HashRange(0, MAX_HASH // 2)
UPPER = HashRange(MAX_HASH // 2 + 1, MAX_HASH)


def hashed(record: UserRecord) -> int:
    """Where a record belongs, as the KPL reckons."""
    key, _, hash_key = record
    return int(hash_key) if hash_key is not None else int(hashlib.md5(key.encode()).hexdigest(), 16)


@given(USER_RECORDS)
def test_the_user_records_come_back_in_order(records: list[UserRecord]) -> None:
    found = apart(aggregate(records))

    assert [decoded(each) for each in found] == [(key, data) for key, data, _ in records]
    assert [each.sub_sequence_number for each in found] == list(range(len(records)))
    assert {each.sequence_number for each in found} == {"49"}
    assert {each.approximate_arrival_timestamp for each in found} == {1_770_000_000_123}


@given(USER_RECORDS)
def test_each_user_record_is_delivered_by_the_one_shard_it_belongs_to(records: list[UserRecord]) -> None:
    whole = aggregate(records)
    by_shard = {True: apart(whole, LOWER), False: apart(whole, UPPER)}

    for is_lower, found in by_shard.items():
        numbers = [number for number, each in enumerate(records) if (hashed(each) <= LOWER.end) is is_lower]
        assert [each.sub_sequence_number for each in found] == numbers, "numbers do not depend on the filter"
        assert [decoded(each) for each in found] == [records[number][:2] for number in numbers]


def test_a_user_record_of_another_shard_is_left_out_and_the_others_are_kept() -> None:
    records: list[UserRecord] = [("a", b"1", "0"), ("b", b"2", str(MAX_HASH)), ("c", b"3", "1")]
    assert [decoded(each) for each in apart(aggregate(records), LOWER)] == [("a", b"1"), ("c", b"3")]


@given(some.binary(max_size=200))
def test_other_data_is_delivered_as_it_is(data: bytes) -> None:
    record = outer(data)
    complaints: list[str] = []
    found = apart(data, None, lambda reason, _: complaints.append(reason))
    assert found == [record]
    assert bool(complaints) is data.startswith(MAGIC)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (MAGIC, "too short"),
        (MAGIC + bytes(16), "too short"),
        (MAGIC + bytes(17), "digest"),
        (sealed(b"\x0a\x05ab"), "cut off"),
        (sealed(b"\x0a\x01k\x1a\x04\x08\x01\x1a\x00"), "not there"),
    ],
)
def test_a_broken_aggregate_is_delivered_whole_and_counted(data: bytes, why: str) -> None:
    reported: list[tuple[str, str]] = []
    split = Deaggregator(LOWER, lambda reason, number: reported.append((reason, number)))
    payload = list(Payload([outer(data, "7"), outer(b"plain", "8")], 100).expanded(split))

    assert [each.data for part in payload for each in part.records] == [
        outer(data).data,
        outer(b"plain").data,
    ]
    assert split.malformed == 1
    ((reason, number),) = reported
    assert why in reason
    assert number == "7"


@given(USER_RECORDS, some.data())
def test_a_changed_byte_is_noticed(records: list[UserRecord], data: some.DataObject) -> None:
    whole = bytearray(aggregate(records))
    at = data.draw(some.integers(len(MAGIC), len(whole) - 1))
    whole[at] ^= data.draw(some.integers(1, 255))
    complaints: list[str] = []
    assert len(apart(bytes(whole), None, lambda reason, _: complaints.append(reason))) == 1
    assert complaints == ["the digest does not fit"]


def test_ten_thousand_records_in_one_aggregate() -> None:
    records: list[UserRecord] = [(f"key {number % 7}", b"%d" % number, None) for number in range(10_000)]
    found = apart(aggregate(records))
    assert [decoded(each)[1] for each in found] == [b"%d" % number for number in range(10_000)]
    assert found[-1].position == ExtendedSequenceNumber("49", 9_999)


def test_an_aggregate_of_nothing_gives_nothing() -> None:
    assert apart(sealed(b"\x0a\x01k")) == []


def test_delivery_resumes_inside_an_aggregate() -> None:
    whole = aggregate([(f"k{number}", b"%d" % number, None) for number in range(5)])
    (payload,) = Payload([outer(whole, "7"), outer(b"plain", "8")], 100).expanded(Deaggregator(None, silent))

    rest = payload.after(ExtendedSequenceNumber("7", 2))

    assert [each.position for each in rest.records] == [
        ExtendedSequenceNumber("7", 3),
        ExtendedSequenceNumber("7", 4),
        ExtendedSequenceNumber("8", 0),
    ]


def test_a_payload_without_aggregates_is_left_alone() -> None:
    payload = Payload([outer(b"plain", "7"), outer(b"", "8"), outer(b"more of it", "9")], 100)
    assert list(payload.expanded(Deaggregator(LOWER, silent))) == [payload]


def test_keys_that_are_no_text_become_text() -> None:
    (found,) = apart(sealed(b"\x0a\x01\xff\x1a\x05\x08\x00\x1a\x01x"))
    assert decoded(found) == ("\ufffd", b"x")


@pytest.mark.parametrize("fast", [False] + [True] * HAS_FAST)
@given(data=some.binary(max_size=3000))
def test_base64_is_the_same_both_ways(fast: bool, data: bytes) -> None:
    way, other = Base64Text(fast=fast), Base64Text(fast=False)
    text = way.encoded(data)
    assert bytes(text) == bytes(other.encoded(data))
    assert way.decoded(text) == data


@pytest.mark.parametrize("fast", [False] + [True] * HAS_FAST)
def test_base64_with_escapes_is_read_and_what_is_none_refused(fast: bool) -> None:
    way = Base64Text(fast=fast)
    slashes = b'"' + b"\\/" * 1000 + b'"'
    assert way.decoded(Raw(slashes)) == b"\xff" * 750
    for wrong in (b'"a"', b'"' + b"*" * 1000 + b'"', b'"AA==' + b"A" * 1000 + b'"'):
        with pytest.raises(ValueError, match="base64"):
            way.decoded(Raw(wrong))


def hostile(records: int, key_bytes: int, data_bytes: int = 1) -> bytes:
    """An aggregate of which each user record has the same long key: what it becomes is many times as long."""
    key = b"\x0a" + varint(key_bytes) + b"k" * key_bytes
    record = b"\x08\x00\x1a" + varint(data_bytes) + b"x" * data_bytes
    return sealed(key + (b"\x1a" + varint(len(record)) + record) * records)


def varint(number: int) -> bytes:
    text = bytearray()
    while number > 127:
        text.append(number & 127 | 128)
        number >>= 7
    return bytes((*text, number))


@pytest.mark.parametrize("hash_range", [None, HashRange(0, MAX_HASH - 1)])
@pytest.mark.parametrize(("records", "key_bytes"), [(20_000, 50_000), (1_000, 900_000), (30_000, 1)])
def test_an_aggregate_that_becomes_a_thousand_times_as_long_comes_in_parts(
    records: int, key_bytes: int, hash_range: HashRange | None
) -> None:
    data = hostile(records, key_bytes)
    payload = Payload([outer(b"before", "6"), outer(data, "7"), outer(b"behind", "8")], len(data))
    tracemalloc.start()
    sizes: list[int] = []
    positions: list[ExtendedSequenceNumber] = []
    try:
        for part in payload.expanded(Deaggregator(hash_range, silent)):
            if len(sizes) < 20:
                sizes.append(len(part.line(None)))
                assert sizes[-1] <= LINE_BYTES + key_bytes + 1000
                assert part.size_bytes >= sizes[-1] - 100, "keys count as what is in hand"
            positions += [each.position for each in part.records[:: max(1, len(part))]]
            if len(sizes) == 20:
                break
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * 2**20
    assert positions == sorted(set(positions))


def test_all_parts_of_an_aggregate_are_the_whole() -> None:
    payload = Payload([outer(b"before", "6"), outer(hostile(20_000, 5_000), "7"), outer(b"behind", "8")], 1)
    parts = [part for part in payload.expanded(Deaggregator(None, silent)) if part]
    assert len(parts) > 10
    found = [each.position for part in parts for each in part.records]
    assert found == [
        ExtendedSequenceNumber("6"),
        *(ExtendedSequenceNumber("7", number) for number in range(20_000)),
        ExtendedSequenceNumber("8"),
    ]
    # Where a part ends is a checkpoint: what is read again begins right behind it.
    last = parts[3].last
    rest = [
        each.position
        for part in payload.expanded(Deaggregator(None, silent))
        for each in part.after(last).records
    ]
    assert rest == found[found.index(last) + 1 :]


def test_expanding_a_large_aggregate_yields_to_other_tasks() -> None:
    payload = Payload([outer(hostile(150_000, 1, 0), "7")], 1)
    began = time.thread_time()
    slowest = 0.0
    for _ in payload.expanded(Deaggregator(UPPER, silent)):
        slowest, began = max(slowest, time.thread_time() - began), time.thread_time()
    assert slowest < 0.25, "thirty milliseconds where nobody else works"


def plain(key: int, hash_key: int | None = None) -> bytes:
    """A user record in an aggregate."""
    record = b"\x08" + varint(key) + (b"" if hash_key is None else b"\x10" + varint(hash_key)) + b"\x1a\x01x"
    return b"\x1a" + varint(len(record)) + record


@pytest.mark.parametrize("filler", [b"", b"\x32" + varint(200_000) + bytes(200_000)], ids=["small", "large"])
@pytest.mark.parametrize("hash_range", [None, HashRange(0, MAX_HASH - 1)])
@pytest.mark.parametrize("bad", [plain(7), plain(0, 9)])
def test_a_user_record_with_an_invalid_key_is_delivered_under_the_key_of_its_aggregate(
    bad: bytes, hash_range: HashRange | None, filler: bytes
) -> None:
    reported: list[tuple[str, int, int, str]] = []
    data = sealed(b"\x0a\x01k\x12\x01x" + plain(0) + bad + plain(0) + filler)

    def bad_keys(why: str, count: int, total: int, number: str) -> None:
        reported.append((why, count, total, number))

    split = Deaggregator(hash_range, silent, on_bad_keys=bad_keys)

    found = [each for piece, _ in split(outer(data, "7")) for each in piece]

    assert [each.position for each in found] == [ExtendedSequenceNumber("7", each) for each in range(3)]
    assert found[1].partition_key == outer(data, "7").partition_key
    assert reported == [("a record refers to a key that is not there", 1, 3, "7")]


@pytest.mark.parametrize("filler", [b"", b"\x32" + varint(200_000) + bytes(200_000)], ids=["small", "large"])
@pytest.mark.parametrize("hash_range", [None, LOWER, UPPER], ids=["one shard", "lower", "upper"])
@pytest.mark.parametrize("odd", [b"undefined", b"", b"-130", b"\xc2\xb2", b"1" * 40, b"%d" % (MAX_HASH + 1)])
def test_an_explicit_hash_key_that_is_no_number_counts_as_none(
    odd: bytes, hash_range: HashRange | None, filler: bytes
) -> None:
    """The Node module aws-kinesis-agg writes them; the record's own key decides, in one shard and in two."""
    reported: list[tuple[str, int, int, str]] = []
    tables = b"\x0a\x01a\x0a\x01b\x12" + varint(len(odd)) + odd + b"\x12\x010"
    records = [(0, 0), (1, 0), (0, None), (1, 1)]
    data = sealed(tables + b"".join(plain(*each) for each in records) + filler)

    def bad_keys(why: str, count: int, total: int, number: str) -> None:
        reported.append((why, count, total, number))

    split = Deaggregator(hash_range, silent, on_bad_keys=bad_keys)

    found = [each for piece, _ in split(outer(data, "7")) for each in piece]

    hashes = [hash_of_key(b"a"), hash_of_key(b"b"), hash_of_key(b"a"), 0]
    is_here = [hash_range is None or hash_range.start <= each <= hash_range.end for each in hashes]
    assert [each.sub_sequence_number for each in found] == [at for at in range(4) if is_here[at]]
    assert [decoded(each)[0] for each in found] == [
        key for key, here in zip("abab", is_here, strict=True) if here
    ]
    assert reported == [("an explicit hash key is no number, so it counts as none", 2, 4, "7")]


@given(USER_RECORDS, some.sampled_from([1, 7, 600]), some.sampled_from([None, LOWER]))
def test_the_line_of_user_records_is_that_of_decoded_ones(
    records: list[UserRecord], longer: int, hash_range: HashRange | None
) -> None:
    records = [(key, data[:99] * longer, hash_key) for key, data, hash_key in records]
    payload = Payload([outer(b"plain", "7"), outer(aggregate(records), "8"), outer(b"", "9")], 1)

    (part,) = filter(None, payload.expanded(Deaggregator(hash_range, silent)))

    before, _, behind = payload.decoded()
    found = [
        Record(b64encode(each[1]).decode(), each[0], "8", before.approximate_arrival_timestamp, number)
        for number, each in enumerate(records)
        if hash_range is None or hashed(each) <= hash_range.end
    ]
    assert json.loads(part.line(5)) == json.loads(encode(ProcessRecords([before, *found, behind], 5)))
    assert part.decoded() == [before, *found, behind]
    assert 0 <= part.data_bytes - sum(len(b64decode(each.data)) for each in part.decoded()) <= 2 * 2
    rest = part.after(ExtendedSequenceNumber("8", 2**31))
    assert (rest.decoded(), rest.data_bytes) == ([behind], 0)
