"""`recordFilter` says what EventBridge's patterns say: AWS' table of operators, a plain reference, errors with their places."""

from __future__ import annotations

import json
from base64 import b64encode
from random import Random  # noqa: TID251 - seeded; the generators of hypothesis take ten times as long
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_daemon.records.event_pattern import PatternError
from kcl_daemon.records.kpl import Deaggregator
from kcl_daemon.records.payload import Payload, UserRecords
from kcl_daemon.records.record_filter import RecordFilter
from kcl_protocol.messages import Record
from tests.examples import examples
from tests.unit.records import pattern_reference as reference
from tests.unit.records.aggregates import aggregate


def record(
    data: bytes, key: str = "key", number: int = 7, arrival_ms: int | None = 1_545_084_650_987
) -> Record:
    return Record(b64encode(data).decode(), key, str(number), arrival_ms, 0)


def lets_through(pattern: object, data: bytes, **fields: Any) -> bool:
    text = pattern if isinstance(pattern, str) else json.dumps(pattern)
    return len(RecordFilter.of(text).kept(Payload.of([record(data, **fields)]))) == 1


def of_data(pattern: object, data: object) -> bool:
    return lets_through({"data": pattern}, json.dumps(data).encode())


# Each line of the tables of operators in AWS' documents, of EventBridge and of Lambda: what fits, what does not.
AWS_TABLE = [
    ({"UserID": [None]}, {"UserID": None}, {"UserID": "x"}),
    ({"LastName": [""]}, {"LastName": ""}, {"LastName": None}),
    ({"Name": ["Alice"]}, {"Name": "Alice"}, {"Name": "alice"}),
    ({"Name": [{"equals-ignore-case": "alice"}]}, {"Name": "ALICE"}, {"Name": "Alicia"}),
    ({"Location": ["New York"], "Day": ["Monday"]}, {"Location": "New York", "Day": "Monday"}, {"Location": "New York"}),
    ({"PaymentType": ["Credit", "Debit"]}, {"PaymentType": "Debit"}, {"PaymentType": "Cash"}),
    ({"$or": [{"Location": ["New York"]}, {"Day": ["Monday"]}]}, {"Day": "Monday"}, {"Day": "Sunday"}),
    ({"Weather": [{"anything-but": ["Raining"]}]}, {"Weather": "Sunny"}, {"Weather": "Raining"}),
    ({"x": [{"anything-but": 100}]}, {"x": 101}, {"x": 1e2}),
    ({"x": [{"anything-but": [100, 200]}]}, {"x": "100"}, {"x": 200}),
    ({"Region": [{"anything-but": {"prefix": "us-"}}]}, {"Region": "eu-1"}, {"Region": "us-1"}),
    ({"FileName": [{"anything-but": {"suffix": ".png"}}]}, {"FileName": "a.txt"}, {"FileName": "a.png"}),
    ({"s": [{"anything-but": {"prefix": ["a", "b"]}}]}, {"s": "c"}, {"s": "bx"}),
    ({"s": [{"anything-but": {"equals-ignore-case": "initializing"}}]}, {"s": "x"}, {"s": "INITIALIZING"}),
    ({"s": [{"anything-but": {"wildcard": "*/lib/*"}}]}, {"s": "/bin/x"}, {"s": "/usr/lib/x"}),
    ({"Price": [{"numeric": ["=", 100]}]}, {"Price": 100.0}, {"Price": "100"}),
    ({"Price": [{"numeric": [">", 10, "<=", 20]}]}, {"Price": 20}, {"Price": 10}),
    ({"Price": [{"numeric": ["<", 10]}]}, {"Price": 9.99}, {"Price": 10}),
    ({"ProductName": [{"exists": True}]}, {"ProductName": None}, {"Product": 1}),
    ({"ProductName": [{"exists": False}]}, {"Product": 1}, {"ProductName": "x"}),
    ({"Region": [{"prefix": "us-"}]}, {"Region": "us-east-1"}, {"Region": "eu-us-1"}),
    ({"service": [{"prefix": {"equals-ignore-case": "eventb"}}]}, {"service": "EventBridge"}, {"service": "Bridge"}),
    ({"FileName": [{"suffix": ".png"}]}, {"FileName": "dog.png"}, {"FileName": "dog.png.txt"}),
    ({"service": [{"suffix": {"equals-ignore-case": "tBridge"}}]}, {"service": "EVENTBRIDGE"}, {"service": "event"}),
    ({"FilePath": [{"wildcard": "dir/*.png"}]}, {"FilePath": "dir/a/b.png"}, {"FilePath": "dir/a.txt"}),
    ({"ip": [{"cidr": "10.0.0.0/24"}]}, {"ip": "10.0.0.255"}, {"ip": "10.0.1.0"}),
    ({"ip": [{"cidr": "2001:db8::/32"}]}, {"ip": "2001:db8::1"}, {"ip": "10.0.0.1"}),
    ({"tags": ["b", "z"]}, {"tags": ["a", "b"]}, {"tags": ["a", "c"]}),
    ({"tags": [{"exists": True}]}, {"tags": [1]}, {"tags": []}),
    ({"a": {"b": [1]}}, {"a": [[{"b": 2}], [{"b": 1}]]}, {"a": {"b": {"b": 1}}}),
    ({"a": {"b": [1], "c": [2]}}, {"a": [{"b": 1, "c": 2}]}, {"a": [{"b": 1, "c": 3}, {"b": 0, "c": 2}]}),
    ({"a": {"b": [{"exists": False}]}}, {"a": [{"c": 1}]}, {"a": [{"c": 1}, {"b": 1}]}),
    ({"on": [True]}, {"on": True}, {"on": 1}),
    ({"n": [1]}, {"n": 1.0}, {"n": True}),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "fits", "fits_not"), AWS_TABLE)
def test_each_operator_does_what_the_tables_of_aws_say(
    pattern: object, fits: object, fits_not: object
) -> None:
    assert of_data(pattern, fits)
    assert not of_data(pattern, fits_not)


JSON_ORDER = b'{"order": {"type": "new"}}'
NEW = {"data": {"order": {"type": ["new"]}}}


@pytest.mark.parametrize(
    ("pattern", "data", "passes"),
    [
        (NEW, JSON_ORDER, True),
        (NEW, b"\x00\xff no text", False),
        (NEW, b"new", False),
        (NEW, b'"new"', False),
        (NEW, b"", False),
        ({"data": {"x": [{"exists": False}]}}, b"plain text", False),
        ({"data": {"x": [{"exists": False}]}}, b"{}", True),
        ({"data": ["plain text", {"prefix": "plan"}]}, b"plain text", True),
        ({"data": [{"prefix": "plain"}]}, b"plainly", True),
        ({"data": [{"prefix": "{"}]}, JSON_ORDER, False),
        ({"data": [{"anything-but": "x"}]}, b"\xff", False),
        ({"data": ["12"]}, b"12", True),
        ({"partitionKey": ["key"]}, b"\xff", True),
        (NEW, b'{"order": {"type": "n\\u0065w"}}', True),
        (NEW, b'[{"order": {"type": "new"}}]', True),
        ({"data": {"a": [{"suffix": "\u00e9"}]}}, '{"a": "caf\u00e9"}'.encode(), True),
        ({"data": {"a": ["/"]}}, b'{"a": "\\/"}', True),
        (NEW, b"[" * 2_000 + b"]" * 2_000, False),
        (NEW, b"[" * 900 + JSON_ORDER + b"]" * 900, True),
    ],
)  # fmt: skip
def test_data_that_is_no_json_matches_only_as_text(pattern: object, data: bytes, passes: bool) -> None:
    assert lets_through(pattern, data) is passes


def test_metadata_can_be_asked_for() -> None:
    assert lets_through({"partitionKey": [{"prefix": "k\u00fc"}]}, b"", key="k\u00fcche")
    assert lets_through({"approximateArrivalTimestamp": [{"numeric": [">=", 1_545_084_650.987]}]}, b"")
    assert not lets_through({"approximateArrivalTimestamp": [{"numeric": [">", 1_545_084_650.987]}]}, b"")
    assert lets_through({"approximateArrivalTimestamp": [{"exists": False}]}, b"", arrival_ms=None)
    assert lets_through({"sequenceNumber": ["7"], "kinesisSchemaVersion": ["1.0"]}, b"")
    assert not lets_through({"sequenceNumber": ["7"], "data": {"a": [1]}}, b"{}")


def test_alternatives_stand_in_an_array_or_as_lambda_writes_them() -> None:
    new, old = {"data": {"t": ["new"]}}, {"data": {"t": ["old"]}}
    of_lambda = {"Filters": [{"Pattern": json.dumps(each)} for each in (new, old)]}
    either = {"$or": [new, {"partitionKey": ["old"], "data": {"t": ["old"]}}]}
    for pattern in ([new, old], of_lambda, either):
        for kind in ("new", "old", "other"):
            found = lets_through(pattern, json.dumps({"t": kind}).encode(), key="old")
            assert found is (kind != "other"), (pattern, kind)


@pytest.mark.parametrize(
    ("pattern", "place"),
    [
        ("{", "no JSON at line 1 column 2: Expecting property name"),
        ('{"data":\n  {"a": [1}}', "no JSON at line 2 column 11"),
        ("[]", "at the top: an empty array"),
        ("7", "at the top: a pattern is an object"),
        ('{"data": "x"}', "at data: values go into an array"),
        ('{"data": {"a": []}}', "at data.a: an empty array"),
        ('{"data": {"a": {}}}', "at data.a: an empty object"),
        ('{"data": {"a": [{"prefix": 1}]}}', "at data.a[0].prefix: it takes a text, not 1"),
        ('{"data": {"a": ["x", {"starts": "x"}]}}', "at data.a[1]: unknown operator 'starts'"),
        ('{"data": {"a": [{"prefix": "x", "suffix": "y"}]}}', "at data.a[0]: it takes one operator, this has 2"),
        ('{"data": {"a": [["x"]]}}', "at data.a[0]: an array cannot stand in an array"),
        ('{"data": {"a": [{"numeric": [">"]}]}}', "at data.a[0].numeric: it takes an array like"),
        ('{"data": {"a": [{"numeric": ["!", 1]}]}}', "at data.a[0].numeric[0]: it takes one of"),
        ('{"data": {"a": [{"numeric": [">", true]}]}}', "at data.a[0].numeric[1]: it takes a number"),
        ('{"data": {"a": [{"numeric": [">", 3, "<", 2]}]}}', "at data.a[0].numeric: a range"),
        ('{"data": {"a": [{"exists": 0}]}}', "at data.a[0].exists: it takes true or false"),
        ('{"data": {"a": [{"wildcard": "a**"}]}}', "at data.a[0].wildcard: two stars"),
        ('{"data": {"a": [{"wildcard": "a\\\\b"}]}}', "at data.a[0].wildcard: a backslash"),
        ('{"data": {"a": [{"cidr": "10.0.0/33"}]}}', "at data.a[0].cidr: "),
        ('{"data": {"a": [{"anything-but": [null]}]}}', "at data.a[0].anything-but: it takes a text, a number"),
        ('{"data": {"a": [{"anything-but": {"numeric": 1}}]}}', "at data.a[0].anything-but: it takes values, or one"),
        ('{"data": {"a": [{"anything-but": {"prefix": [1]}}]}}', "at data.a[0].anything-but.prefix[0]: it takes a text"),
        ('{"data": {"$or": [{"a": [1]}]}}', "at data.$or: it takes an array of at least two"),
        ('{"$or": [{"data": {"a": [1]}}, {"b": [1]}]}', "at $or[1].b: a record has no such field"),
        ('{"kinesis": {"data": {"a": [1]}}}', "at kinesis: a record has no such field; there are approximateArr"),
        ('{"partitionKey": "x"}', "at partitionKey: values go into an array"),
        ('[{"data": {"a": [1]}}, {"data": {"a": [{"exists": "x"}]}}]', "at [1].data.a[0].exists"),
        ('{"Filters": [{"Pattern": "{]"}]}', "at Filters[0].Pattern: no JSON at line 1 column 2"),
        ('{"Filters": []}', "at Filters: it takes"),
        ('{"data": {"a": [1]}, "data": {"b": [1]}}', "the key 'data' comes twice"),
        ('{"data": {"a": [NaN]}}', "NaN is not a number"),
        ('{"data": ' + '{"a": ' * 60 + "[1]" + "}" * 61, "more than 50 levels"),
        ('{"data": ' + '{"a": ' * 60_000 + "[1]" + "}" * 60_001, "nested too deep"),
    ],
)  # fmt: skip
def test_a_malformed_pattern_is_refused_with_its_place(pattern: str, place: str) -> None:
    with pytest.raises(PatternError) as refused:
        RecordFilter.of(pattern)
    assert place in str(refused.value)


def compare(chance: Random, pairs: int) -> None:
    """Events that are near to the pattern: some of each are kept."""
    for _ in range(pairs):
        pattern = reference.some_pattern(chance)
        events = [reference.some_event(chance) for _ in range(4)]
        spelt = [
            json.dumps(each, ensure_ascii=chance.random() < 0.5, indent=chance.choice((None, 1)))
            for each in events
        ]
        kept = RecordFilter.of(json.dumps({"data": pattern})).kept(
            Payload.of([record(text.encode(), number=at) for at, text in enumerate(spelt)])
        )
        wanted = [at for at, event in enumerate(events) if reference.matches(pattern, event)]
        assert [int(each.sequence_number) for each in kept.records] == wanted, (pattern, events)


@settings(max_examples=examples(20), deadline=None)
@given(seed=st.integers(0, 2**64))
def test_the_filter_agrees_with_the_reference(seed: int) -> None:
    compare(Random(seed), 50)


@pytest.mark.prove
@pytest.mark.parametrize("seed", range(100))
def test_the_filter_agrees_with_the_reference_over_a_million_pairs(seed: int) -> None:
    compare(Random(seed), 2_500)


def test_records_inside_aggregates_are_looked_at_one_by_one() -> None:
    texts = [json.dumps({"t": "new" if number % 10 == 0 else "old"}).encode() for number in range(50)]
    whole = Payload.of([record(aggregate([("k", text, None) for text in texts]), number=5), record(texts[0])])
    (payload,) = [each for each in whole.expanded(Deaggregator(None, lambda *_: None)) if each]
    assert any(isinstance(run, UserRecords) for run in payload.runs)
    kept = RecordFilter.of('{"data": {"t": ["new"]}}').kept(payload)
    assert [each.sub_sequence_number for each in kept.records] == [0, 10, 20, 30, 40, 0]
    assert kept.line(0) == payload.some([payload.records[at] for at in (0, 10, 20, 30, 40, 50)]).line(0)
    by_key = RecordFilter.of('{"partitionKey": ["k"]}').kept(payload)
    assert len(by_key) == 50


def test_a_kept_record_does_not_hold_the_memory_of_the_batch() -> None:
    line = Payload.of([record(b'{"t": 1}'), record(b'{"t": 2}')]).line(0)
    payload, _ = Payload.of_line(line)
    kept = RecordFilter.of('{"data": {"t": [2]}}').kept(payload)
    assert memoryview(kept.records[0].data).obj is not line
    assert kept.size_bytes < 1_000


def test_a_wildcard_takes_time_in_proportion() -> None:
    pattern = {"data": {"a": [{"wildcard": "*a" * 50 + "*b"}]}}
    assert not of_data(pattern, {"a": "a" * 100_000})
