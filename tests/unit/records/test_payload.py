"""Records that are not decoded become the same line as those that are."""

from __future__ import annotations

import base64
import gc
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw

from kcl_daemon.errors import Unavailable
from kcl_daemon.records.payload import (
    EMPTY,
    AnyRecord,
    Payload,
    Piece,
    RawRecord,
    data_bytes_of,
    line_bytes,
)
from kcl_daemon.transport import kinesis, service_answers
from kcl_protocol.codec import decode_daemon_line, encode
from kcl_protocol.messages import ProcessRecords, Record, RecordSchema
from kcl_protocol.sequence import ExtendedSequenceNumber

# Whatever a producer may put into a partition key, lone surrogates included.
KEYS = st.text(st.characters(), max_size=20)
ARRIVALS = st.none() | st.integers(0, 4_102_444_800_000)
BEHIND = st.none() | st.integers(0, 2**53)


@st.composite
def records(draw: st.DrawFn) -> list[Record]:
    numbers = sorted(draw(st.sets(st.integers(0, 10**56), max_size=6)))
    return [
        Record(
            base64.b64encode(draw(st.binary(max_size=60))).decode(), draw(KEYS), str(number), draw(ARRIVALS)
        )
        for number in numbers
    ]


def body(given_records: list[Record], behind_ms: int | None, *, escaped: bool) -> bytes:
    """The answer of GetRecords with these records, with text as UTF-8 or escaped."""
    reported: dict[str, object] = {
        "Records": [
            {
                "SequenceNumber": record.sequence_number,
                "PartitionKey": record.partition_key,
                "Data": record.data,
                **(
                    {}
                    if record.approximate_arrival_timestamp is None
                    else {"ApproximateArrivalTimestamp": record.approximate_arrival_timestamp / 1000}
                ),
            }
            for record in given_records
        ],
        "NextShardIterator": "next",
        "EncryptionType": None,
    }
    if behind_ms is not None:
        reported["MillisBehindLatest"] = behind_ms
    return json.dumps(reported, ensure_ascii=escaped).encode("utf-8", "surrogatepass")


def one_way(line: bytes) -> bytes:
    """With DEL escaped: it is ASCII, and may stand in JSON either way; a key is handed on as the service wrote it."""
    return line.replace(b"\x7f", rb"\u007f")


@given(records(), BEHIND)
@example([Record("", "k\u00e9y\ud800", "1")], None)
@example([Record("", "k\x7fy", "1")], None)
def test_an_escaped_answer_is_encoded_as_its_records_would_be(
    given_records: list[Record], behind_ms: int | None
) -> None:
    fetched = kinesis.fetched(body(given_records, behind_ms, escaped=True))
    line = fetched.payload.line(fetched.millis_behind_latest)
    assert one_way(line) == one_way(encode(ProcessRecords(given_records, behind_ms)))
    assert list(fetched.records) == given_records


@given(records(), BEHIND)
def test_an_unescaped_answer_is_encoded_as_its_records_would_be(
    given_records: list[Record], behind_ms: int | None
) -> None:
    plain = [
        record
        for record in given_records
        if (record.partition_key or "").encode("utf-8", "replace").decode() == record.partition_key
    ]
    fetched = kinesis.fetched(body(plain, behind_ms, escaped=False))
    assert fetched.payload.line(behind_ms) == encode(ProcessRecords(plain, behind_ms))


@st.composite
def records_with_schemas(draw: st.DrawFn) -> list[Record]:
    """Some with a schema, some without."""
    schemas = st.none() | st.builds(RecordSchema, KEYS, KEYS, KEYS, KEYS)
    return [replace(record, schema=draw(schemas)) for record in draw(records())]


@given(records_with_schemas(), BEHIND)
@example([Record("", 'k","schemaName":"s', "1")], None)
@example([Record("AAAA", "half of a pair: \ud83d", "1"), Record("", "", "2", 7, 3)], 0)
@example([Record("", "\udc00", "1", schema=RecordSchema("null", "null", "", "\ud83d"))], None)
@example([Record("", "", "1", schema=RecordSchema("null", "null", "", "")), Record("", "", "2")], 1)
def test_a_line_that_is_read_again_becomes_the_same_line(
    given_records: list[Record], behind_ms: int | None
) -> None:
    line = Payload.of(given_records).line(behind_ms)
    payload, told_behind_ms = Payload.of_line(line)
    assert payload.line(told_behind_ms) == line
    assert payload.decoded() == given_records


@given(records())
def test_decoded_records_become_a_payload_and_back(given_records: list[Record]) -> None:
    payload = Payload.of(given_records)
    assert payload.decoded() == given_records
    assert json.loads(payload.line(3)) == json.loads(encode(ProcessRecords(given_records, 3)))
    assert len(payload) == len(given_records)
    sizes = [len(base64.b64decode(record.data)) for record in given_records]
    assert payload.data_bytes == sum(sizes) == Payload.joined([payload, EMPTY]).data_bytes
    assert [data_bytes_of(each) for each in payload.records] == sizes


def test_a_key_that_is_no_utf8_does_not_stop_a_shard() -> None:
    reported = b'{"Records":[{"SequenceNumber":"7","PartitionKey":"a\xff\xc3\xa9","Data":"eA=="}],"MillisBehindLatest":0}'
    line = decode_daemon_line(kinesis.fetched(reported).payload.line(0))
    assert line == ProcessRecords([Record("eA==", "a\ufffd\u00e9", "7")], 0)


@pytest.mark.parametrize("size", [0, 1, 10 * 2**20])
def test_the_smallest_and_the_largest_record_pass(size: int) -> None:
    record = Record(base64.b64encode(bytes(size)).decode(), "k", "7", 1_795_190_407_660)
    fetched = kinesis.fetched(body([record], 0, escaped=True))
    assert fetched.payload.line(0) == encode(ProcessRecords([record], 0))
    assert fetched.payload.data_bytes == data_bytes_of(fetched.payload.records[0]) == size


@pytest.mark.parametrize("least", [0, 100, 3_000])
def test_the_bytes_of_many_short_and_of_many_long_records_are_exact(least: int) -> None:
    sizes = [least + number % 50 for number in range(700)]
    many = [Record(base64.b64encode(bytes(size)).decode(), "a=", "7") for size in sizes]
    assert kinesis.fetched(body(many, 0, escaped=False)).payload.data_bytes == sum(sizes)


@given(records(), st.integers(0, 10**56), st.integers(0, 3))
def test_records_up_to_the_position_are_dropped(given_records: list[Record], number: int, sub: int) -> None:
    position = ExtendedSequenceNumber(str(number), sub)
    left = Payload.of(given_records).after(position).decoded()
    assert left == [
        record for record in given_records if ExtendedSequenceNumber(record.sequence_number, 0) > position
    ]


def test_only_what_looks_like_an_aggregate_is_given_to_be_taken_apart() -> None:
    aggregate = base64.b64encode(b"\xf3\x89\x9a\xc2rest").decode()
    payload = Payload.of(
        [
            Record(data, "84mawg", str(number))
            for number, data in enumerate(["", "eA==", aggregate, "ODRtYXc="])
        ]
    )
    asked: list[str] = []

    def split(record: AnyRecord) -> Iterator[Piece]:
        asked.append(record.sequence_number)
        yield (
            [
                RawRecord(Raw(b'"eA=="'), record.partition_key, record.sequence_number, None, sub)
                for sub in range(3)
            ],
            1000,
        )

    (expanded,) = payload.expanded(split)
    assert asked == ["2"]
    assert [(each.sequence_number, each.sub_sequence_number) for each in expanded.records] == [
        ("0", 0), ("1", 0), ("2", 0), ("2", 1), ("2", 2), ("3", 0),
    ]  # fmt: skip
    assert all(earlier.position < later.position for earlier, later in pairwise(expanded.records))
    plain = Payload.of([Record("eA==xxxx", "k", "1")])
    assert list(plain.expanded(split)) == [plain]


def test_only_aggregates_are_delivered_in_slices() -> None:
    def split(record: AnyRecord) -> Iterator[Piece]:
        yield [record], 1000

    aggregate = base64.b64encode(b"\xf3\x89\x9a\xc2" + bytes(96)).decode()
    plain = Payload.of([Record("eA==", "k", str(number)) for number in range(9)])
    assert list(plain.expanded(split, slice_bytes=1)) == [plain]
    mixed = Payload.of([Record(aggregate, "k", str(number)) for number in range(9)])
    parts = list(mixed.expanded(split, slice_bytes=300))
    assert [len(part) for part in parts] == [2, 2, 2, 2, 1]
    assert [record for part in parts for record in part.records] == list(mixed.records)
    assert [len(part) for part in mixed.expanded(split, slice_bytes=1)] == [1] * 9


def test_slices_of_which_nothing_is_delivered_give_way_too() -> None:
    aggregate = base64.b64encode(b"\xf3\x89\x9a\xc2" + bytes(96)).decode()
    strays = Payload.of([Record(aggregate, "k", str(number)) for number in range(3)])
    assert [len(part) for part in strays.expanded(lambda _: iter(()), slice_bytes=1)] == [0, 0, 0]


def test_an_empty_payload_is_encoded_as_a_line_without_records() -> None:
    assert EMPTY.line(None) == encode(ProcessRecords([], None))
    assert (len(EMPTY), EMPTY.data_bytes) == (0, 0)


@pytest.mark.parametrize(
    "reported",
    [
        b"",
        b"{}",
        b"[]",
        b"<html>",
        b'{"Records":null}',
        b'{"Records":[{}]}',
        b'{"Records":["x"]}',
        b'{"Records":[{"SequenceNumber":"1","PartitionKey":"k","Data":5}]}',
        b'{"Records":[{"SequenceNumber":"1","PartitionKey":7,"Data":"eA=="}]}',
        b'{"Records":[{"SequenceNumber":"none","PartitionKey":"k","Data":"eA=="}]}',
        b'{"Records":[{"SequenceNumber":"1","PartitionKey":"k","Data":"eA=="}],"NextSha',
        b'{"Records":[],"ChildShards":[{"ShardId":"s"}]}',
        b'{"Records":[],"ChildShards":7}',
        b'{"Records":[{"SequenceNumber":"1","PartitionKey":"k","Data":"eA==","ApproximateArrivalTimestamp":"x"}]}',
        b'{"Records":[{"SequenceNumber":"1","PartitionKey":"k","Data":"eA==","ApproximateArrivalTimestamp":1e999}]}',
        b'{"Records":[],"ChildShards":' + b"[" * 100_000,
        b"\xff\xfe",
    ],
)
def test_a_malformed_answer_of_get_records_is_unavailable(reported: bytes) -> None:
    with pytest.raises(Unavailable, match="GetRecords: the answer cannot be understood"):
        kinesis.fetched(reported)


@given(st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_any_malformed_body_is_unavailable(reported: bytes) -> None:
    with pytest.raises(Unavailable):
        kinesis.fetched(reported)
    with pytest.raises(Unavailable):
        kinesis.parsed("GetShardIterator", service_answers.iterator, reported)


@given(records(), st.data())
def test_a_body_that_was_cut_is_no_answer(given_records: list[Record], data: st.DataObject) -> None:
    whole = body(given_records, 1, escaped=True)
    with pytest.raises(Unavailable):
        kinesis.fetched(whole[: data.draw(st.integers(0, len(whole) - 1))])


def test_lines_leave_nothing_behind_in_memory() -> None:
    """Nor does the library that writes them: a daemon writes millions of lines."""
    payload = Payload.of([Record("YQ==", "k", "7", 1_770_000_000_123)])
    for _ in range(100):
        payload.line(0)
    gc.collect()
    before = sys.getallocatedblocks()
    for _ in range(2_000):
        payload.line(0)
    gc.collect()
    assert sys.getallocatedblocks() - before < 200


def test_a_record_takes_no_more_of_a_line_than_is_reckoned() -> None:
    longest = RawRecord(Raw(b'"eA=="'), Raw(b'"k"'), "9" * 129, 2**63, 2**31)
    assert len(Payload([longest], 0).line(2**63)) < line_bytes(longest) + 100
    assert len(Payload([longest] * 100, 0).line(None)) < 100 * line_bytes(longest)
