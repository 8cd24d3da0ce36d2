"""Lines on their way into a stream: keys, aggregates as the reference library reads them, requests."""

from __future__ import annotations

import base64
import gzip
import hashlib
from dataclasses import dataclass
from typing import Any, cast

import pytest
from aws_kinesis_agg.deaggregator import deaggregate_records
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_daemon.leases.lease import MAX_HASH, HashRange
from kcl_daemon.records.kpl import Aggregate, hash_of_key
from kcl_daemon.records.producing import (
    LARGE_BYTES,
    RECORD_BYTES_MOST,
    BadLine,
    Entry,
    KeyedLine,
    Line,
    Lines,
    aggregated,
    checked,
    key_in,
    keyed,
    plain,
    requests,
    shard_of,
    size_bytes_of,
    strays,
)
from tests.examples import examples
from tests.unit.records.aggregates import apart, decoded

KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
RECORDS = st.lists(st.tuples(KEYS, st.binary(min_size=1, max_size=300)), min_size=1, max_size=40)


@dataclass(frozen=True)
class Part:
    shard_id: str
    hash_range: HashRange


HALVES = (Part("low", HashRange(0, MAX_HASH // 2)), Part("high", HashRange(MAX_HASH // 2 + 1, MAX_HASH)))


def line(key: str, data: bytes = b"data", place: str = "line 1") -> KeyedLine:
    return KeyedLine(place, data, key)


def as_the_reference_reads_it(data: bytes) -> list[tuple[str, bytes]]:
    record = {
        "kinesis": {
            "kinesisSchemaVersion": "1.0",
            "partitionKey": "outer",
            "sequenceNumber": "1",
            "approximateArrivalTimestamp": 1.0,
            "data": base64.b64encode(data).decode(),
        }
    }
    found = cast("list[dict[str, Any]]", deaggregate_records([record]))
    return [(each["kinesis"]["partitionKey"], base64.b64decode(each["kinesis"]["data"])) for each in found]


@given(RECORDS)
@settings(max_examples=examples(60))
def test_both_parsers_read_an_aggregate_as_it_was_made(records: list[tuple[str, bytes]]) -> None:
    made = Aggregate()
    bound = made.size_bytes
    for key, data in records:
        bound += made.added_bytes(key, data)
        made.add(key, data)
    data = made.data()

    assert as_the_reference_reads_it(data) == records
    assert [decoded(each) for each in apart(data)] == records
    assert len(data) == made.size_bytes <= bound


@given(RECORDS)
@settings(max_examples=examples(60))
def test_an_aggregate_holds_lines_of_one_shard_in_their_order(records: list[tuple[str, bytes]]) -> None:
    lines = [line(key, data, f"line {number}") for number, (key, data) in enumerate(records)]
    entries = list(aggregated(lines, HALVES))

    for entry in entries:
        (shard,) = {shard_of(each, HALVES) for each in entry.lines}
        assert shard_of(line(entry.partition_key), HALVES) == shard
        (part,) = (each for each in HALVES if each.shard_id == shard)
        assert strays(entry, part.hash_range) == []
        if len(entry.lines) > 1:
            inside = [(each.partition_key, each.data) for each in entry.lines]
            assert [decoded(each) for each in apart(entry.data, part.hash_range)] == inside
    for part in HALVES:
        of_it = [each for entry in entries for each in entry.lines if shard_of(each, HALVES) == part.shard_id]
        assert of_it == [each for each in lines if shard_of(each, HALVES) == part.shard_id]


def test_lines_that_a_reshard_led_astray_are_found() -> None:
    lines = [line(str(number)) for number in range(40)]
    (entry,) = aggregated(lines, [Part("all", HashRange(0, MAX_HASH))])
    low, high = (strays(entry, part.hash_range) for part in HALVES)

    assert low
    assert high
    assert {*low, *high} == {*lines}
    assert all(hash_of_key(each.partition_key.encode()) > MAX_HASH // 2 for each in low)
    assert strays(next(plain(lines)), HALVES[0].hash_range) == []


def test_aggregates_are_of_about_50_kib() -> None:
    entries = list(aggregated([line("k", bytes(1000)) for _ in range(1000)], HALVES))
    assert {len(entry.lines) for entry in entries[:-1]} == {50}
    assert max(len(entry.data) for entry in entries) <= 50 * 1024


def test_a_lone_line_is_no_aggregate() -> None:
    large = line("k", bytes(200_000))
    assert list(aggregated([large], HALVES)) == [Entry("k", large.data, [large])]


@given(
    st.lists(st.sampled_from([1, 1000, 200_000, LARGE_BYTES, LARGE_BYTES + 1, 5 * LARGE_BYTES]), max_size=30)
)
@settings(max_examples=examples(40))
def test_requests_keep_order_and_limits(sizes: list[int]) -> None:
    entries = list(plain(line("k", bytes(size - 1), str(number)) for number, size in enumerate(sizes)))
    made = list(requests(entries))

    assert [each for request in made for each in request] == entries
    for request in made:
        total = sum(size_bytes_of(each) for each in request)
        assert len(request) == 1 or total <= 4 * 2**20
        assert len(request) == 1 or all(size_bytes_of(each) <= LARGE_BYTES for each in request)


def test_a_request_has_at_most_500_records() -> None:
    assert [len(each) for each in requests(plain(line("k") for _ in range(1200)))] == [500, 500, 200]


@pytest.mark.parametrize(
    ("data", "path", "key"),
    [
        (b'{"id":"a"}', "id", "a"),
        (b'{"order":{"id":7}}', "order.id", "7"),
        (b'{"price":1.10}', "price", "1.10"),
        (b'{"id":12345678901234567890123}', "id", "12345678901234567890123"),
        (b'{"new":true}', "new", "true"),
    ],
)
def test_a_key_is_a_field_as_it_is_written(data: bytes, path: str, key: str) -> None:
    assert key_in(data, path.split(".")) == key


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"plain", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b'{"other":1}', "no field order.id"),
        (b'{"order":[1]}', "no field order.id"),
        (b'{"order":{"id":null}}', "neither a text nor a number"),
        (b'{"order":{"id":{}}}', "neither a text nor a number"),
    ],
)
def test_a_line_without_its_key_says_why(data: bytes, why: str) -> None:
    with pytest.raises(BadLine, match=why):
        key_in(data, ("order", "id"))


@pytest.mark.parametrize(
    ("key", "why"), [("", "has 0 characters"), ("k" * 257, "has 257 characters"), ("\ud800", "no valid text")]
)
def test_a_key_that_no_stream_takes_is_refused(key: str, why: str) -> None:
    with pytest.raises(BadLine, match=why):
        keyed(Line("line 1", b"x"), key, packed=False)


def test_an_empty_too_long_or_malformed_line_is_refused() -> None:
    with pytest.raises(BadLine, match="empty"):
        checked(Line("line 1", b""), in_base64=False)
    with pytest.raises(BadLine, match="too long"):
        checked(Line("line 1", bytes(RECORD_BYTES_MOST + 1)), in_base64=False)
    with pytest.raises(BadLine, match="no base64"):
        checked(Line("line 1", b"a"), in_base64=True)
    with pytest.raises(BadLine, match="too long"):
        keyed(Line("line 1", bytes(RECORD_BYTES_MOST)), "k", packed=False)
    assert checked(Line("line 1", b"AAH/"), in_base64=True).data == b"\0\1\xff"
    assert gzip.decompress(keyed(Line("line 1", b"text"), "k", packed=True).data) == b"text"


@given(
    st.lists(st.binary(max_size=20).map(lambda data: data.replace(b"\n", b"")), max_size=20),
    st.integers(1, 30),
)
@settings(max_examples=examples(60))
def test_lines_are_cut_wherever_pieces_end(expected: list[bytes], piece_bytes: int) -> None:
    text = b"".join(each + b"\n" for each in expected)
    lines = Lines()
    found = [
        each for at in range(0, len(text), piece_bytes) for each in lines.fed(text[at : at + piece_bytes])
    ]
    found += lines.end()

    assert [each.data for each in found] == [each.removesuffix(b"\r") for each in expected]
    assert [each.place for each in found] == [f"line {number + 1}" for number in range(len(expected))]


def test_the_last_line_needs_no_line_feed_and_a_huge_one_is_not_kept() -> None:
    lines = Lines("orders.txt")
    piece = bytes(2**20)
    for _ in range(30):
        assert lines.fed(piece) == []
    (huge,) = lines.fed(b"\nlast")
    assert len(huge.data) == RECORD_BYTES_MOST + 1
    assert lines.end() == [Line("orders.txt, line 2", b"last")]


def test_a_key_leads_where_the_service_says() -> None:
    assert hash_of_key(b"key") == int(hashlib.md5(b"key").hexdigest(), 16)
