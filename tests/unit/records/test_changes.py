"""Changes of a DynamoDB table in their three forms."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_daemon.records.base64_text import BASE64
from kcl_daemon.records.batch import Batch, ReadFacts
from kcl_daemon.records.batch_text import BatchText
from kcl_daemon.records.changes import changes_of, payload_of, snapshot_record
from kcl_daemon.records.dead_letter import LetterCause
from kcl_daemon.records.forms import ChangeForm
from kcl_daemon.records.lane_window import LaneWindow, key_hash
from kcl_daemon.records.letters import parse_letter
from kcl_daemon.records.payload import AnyRecord, Payload
from kcl_daemon.records.record_filter import RecordFilter
from kcl_protocol.frames import decode_frame
from kcl_protocol.sequence import TRIM_HORIZON, ExtendedSequenceNumber
from tests.examples import examples
from tests.unit.consumer.letters import LETTER

Json = dict[str, Any]

_ARN: Final = "arn:aws:dynamodb:eu-west-1:000000000000:table/orders/stream/2024-11-24T03:00:00.000"
_KEYS: Final[Json] = {"id": {"S": "a"}}
_TTL: Final = {"PrincipalId": "dynamodb.amazonaws.com", "Type": "Service"}


def _event(number: int = 5, kind: str = "INSERT", identity: Json | None = None, **change: object) -> Json:
    inner = {
        "Keys": _KEYS,
        "SequenceNumber": str(number),
        "ApproximateCreationDateTime": 1464805270,
        **change,
    }
    by = {} if identity is None else {"userIdentity": identity}
    return {"eventID": f"{number:032}", "eventName": kind, "eventVersion": "1.1", "dynamodb": inner, **by}


def _answer(*events: Json, after: str | None = "next") -> bytes:
    return json.dumps({"Records": events, "NextShardIterator": after}).encode()


def _payload(answer: bytes, form: ChangeForm = ChangeForm.KCL1) -> Payload:
    return changes_of(answer, form, _ARN)[0]


def _data(answer: bytes, form: ChangeForm = ChangeForm.KCL1) -> Json:
    (record,) = _payload(answer, form).records
    data: Json = json.loads(_body(record))
    return data


def _body(record: AnyRecord) -> bytes:
    return BASE64.decoded(record.data)


def _plain(**image: object) -> object:
    return _data(_answer(_event(NewImage=image)), ChangeForm.PLAIN)["new"]


def test_an_answer_has_records_an_iterator_and_a_count() -> None:
    payload, after, count = changes_of(_answer(_event(5), _event(6)), ChangeForm.KCL1, _ARN)
    assert (after, count) == ("next", 2)
    assert [record.sequence_number for record in payload.records] == ["5", "6"]
    assert payload.first_arrival_ms == 1464805270000


@pytest.mark.parametrize("form", ChangeForm)
def test_an_empty_answer_at_the_end_of_a_shard(form: ChangeForm) -> None:
    payload, after, count = changes_of(_answer(after=None), form, _ARN)
    assert (len(payload), after, count) == (0, None, 0)


def test_changes_before_a_time_are_left_out_and_counted() -> None:
    late = _event(6, ApproximateCreationDateTime=1464805271.5)
    timeless = _event(7, ApproximateCreationDateTime=None)
    payload, _, count = changes_of(_answer(_event(5), late, timeless), ChangeForm.KCL1, _ARN, 1464805271000)
    assert count == 3
    assert [record.sequence_number for record in payload.records] == ["6", "7"]


@pytest.mark.parametrize(
    "answer",
    [
        b"no json",
        b"[]",
        b'{"Records":[{}]}',
        b'{"Records":[{"dynamodb":{"SequenceNumber":5}}]}',
        _answer(_event(6), _event(5)),
        _answer({"dynamodb": {"SequenceNumber": "five"}}),
        _answer(_event(Keys="none")),
    ],
)
def test_an_answer_without_its_parts_is_refused(answer: bytes) -> None:
    with pytest.raises(ValueError, match=r"cannot be understood|out of order|neither a sequence number"):
        changes_of(answer, ChangeForm.KCL1, _ARN)


def test_lambda_has_seconds_the_arn_and_who_deleted() -> None:
    data = _data(_answer(_event(kind="REMOVE", identity=_TTL, OldImage=_KEYS)), ChangeForm.LAMBDA)
    assert data["eventSourceARN"] == _ARN
    assert data["userIdentity"] == {"principalId": "dynamodb.amazonaws.com", "type": "Service"}
    assert data["dynamodb"]["ApproximateCreationDateTime"] == 1464805270
    assert data["dynamodb"]["OldImage"] == _KEYS


def test_lambda_keeps_parts_of_a_second() -> None:
    data = _data(_answer(_event(ApproximateCreationDateTime=1464805270.25)), ChangeForm.LAMBDA)
    assert data["dynamodb"]["ApproximateCreationDateTime"] == 1464805270.25


@pytest.mark.parametrize("form", [ChangeForm.KCL1, ChangeForm.LAMBDA])
def test_nulls_are_left_out(form: ChangeForm) -> None:
    event = {**_event(NewImage=None, OldImage={"id": {"S": "null"}}), "eventID": None, "userIdentity": None}
    data = _data(_answer(event), form)
    assert data.keys() - {"eventSourceARN"} == {"eventName", "eventVersion", "dynamodb"}
    assert data["dynamodb"].keys() == {"Keys", "OldImage", "SequenceNumber", "ApproximateCreationDateTime"}


def test_a_change_in_plain_form_has_kind_table_keys_old_item_and_time() -> None:
    event = _event(kind="REMOVE", identity=_TTL, OldImage={**_KEYS, "n": {"N": "1"}})
    assert _data(_answer(event), ChangeForm.PLAIN) == {
        "kind": "remove",
        "table": "orders",
        "keys": {"id": "a"},
        "old": {"id": "a", "n": 1},
        "sequenceNumber": "5",
        "createdAt": 1464805270000,
        "expired": True,
    }


def test_plain_values_of_every_kind() -> None:
    assert _plain(
        text={"S": "x"},
        yes={"BOOL": True},
        none={"NULL": True},
        blob={"B": "AA=="},
        texts={"SS": ["a", "b"]},
        numbers={"NS": ["1", "2.5"]},
        blobs={"BS": ["AA=="]},
        list={"L": [{"N": "1"}, {"L": []}, {"M": {}}]},
        map={"M": {"a": {"M": {"b": {"S": "c"}}}}},
    ) == {
        "text": "x",
        "yes": True,
        "none": None,
        "blob": {"$binary": "AA=="},
        "texts": {"$set": ["a", "b"]},
        "numbers": {"$set": [1, 2.5]},
        "blobs": {"$set": [{"$binary": "AA=="}]},
        "list": [1, [], {}],
        "map": {"a": {"b": "c"}},
    }


@pytest.mark.parametrize(
    ("given_text", "plain"),
    [
        ("12345678901234567890123456789012345678", b"12345678901234567890123456789012345678"),
        ("9.9999999999999999999999999999999999999E+125", b"9.9999999999999999999999999999999999999E+125"),
        ("-1E-130", b"-1E-130"),
        (".5", b"0.5"),
        ("007", b"7"),
        ("NaN", b'{"$number":"NaN"}'),
        ('1"', b'{"$number":"1\\""}'),
    ],
)
def test_plain_numbers_are_exact(given_text: str, plain: bytes) -> None:
    (record,) = _payload(_answer(_event(NewImage={"n": {"N": given_text}})), ChangeForm.PLAIN).records
    assert b'"new":{"n":%b}' % plain in _body(record)


def test_an_object_that_looks_like_ours_is_wrapped_but_an_item_is_not() -> None:
    ours: Json = {"M": {"$set": {"L": []}}}
    assert _plain(**{"$set": ours}) == {"$set": {"$map": {"$set": []}}}
    assert _plain(a={"M": {"$map": ours}}) == {"a": {"$map": {"$map": {"$map": {"$set": []}}}}}
    assert _plain(a={"M": {"$a": {"S": "x"}, "$b": {"S": "y"}}}) == {"a": {"$a": "x", "$b": "y"}}


def test_values_of_unknown_kinds_are_passed_on() -> None:
    odd = {"X": [1]}
    both = {"S": "a", "N": "1"}
    assert _plain(odd=odd, both=both, none={}) == {
        "odd": {"$other": odd},
        "both": {"$other": both},
        "none": {"$other": {}},
    }


@pytest.mark.parametrize("form", ChangeForm)
def test_a_lone_surrogate_in_a_change_is_delivered(form: ChangeForm) -> None:
    half = {"\ud800": {"SS": ["\udfff"]}, "l": {"L": [{"S": "\ud800"}]}, "m": {"M": {"\ud800": {"S": "x"}}}}
    payload = _payload(_answer(_event(Keys={"id": {"S": "\ud800"}}, NewImage=half), _event(6)), form)
    assert "\\ud800" in _body(payload.records[0]).decode()
    assert payload.decoded()[0].partition_key == '{"id":{"S":"\\ud800"}}'
    assert len(json.loads(payload.line(0))["records"]) == 2


def test_invalid_utf_8_stops_nothing() -> None:
    answer = _answer(_event(NewImage={"t": {"S": "x?x"}})).replace(b"x?x", b"x\xffx")
    assert _data(answer)["dynamodb"]["NewImage"] == {"t": {"S": "x\ufffdx"}}


def test_a_large_item() -> None:
    image = {"text": {"S": "x" * 400_000}}
    for form in ChangeForm:
        (record,) = Payload.of_line(_payload(_answer(_event(NewImage=image, OldImage=image)), form).line(0))[
            0
        ].records
        assert len(record.data) > 4 * 800_000 / 3


@pytest.mark.parametrize(
    "written",
    [
        '{"a":{"S":"\u00fc/"},"b":{"N":"1"}}',
        '{ "b" : {"N":"1"},\n "a":{"S":"\\u00fc\\/"} }',
        '{"b":{"N":"1"},"a":{"S":"\u00fc/"}}',
    ],
)
def test_the_partition_key_is_the_same_however_keys_are_written(written: str) -> None:
    answer = _answer(_event(Keys="HERE")).decode().replace('"HERE"', written).encode()
    (record,) = _payload(answer).decoded()
    assert record.partition_key == '{"a":{"S":"ü/"},"b":{"N":"1"}}'


_TEXTS: Final = st.text(max_size=5)
_NAMES: Final = st.lists(_TEXTS, min_size=1, max_size=2, unique=True)


@given(_NAMES, st.lists(_TEXTS, min_size=1, max_size=4), st.randoms(), st.booleans(), st.booleans())
@settings(max_examples=examples(100), deadline=None)
def test_partition_keys_of_any_batch(
    names: list[str], texts: list[str], random: Any, is_ascii: bool, is_compact: bool
) -> None:
    """Each is what it would be alone, and says what the item's keys are."""
    separators = (",", ":") if is_compact else None
    events: list[Json] = []
    for number, text in enumerate(texts):
        shuffled = random.sample(names, len(names)) if random.random() < 0.5 else sorted(names)
        events.append(_event(number, Keys={name: {"S": text} for name in shuffled}))
    answer = json.dumps({"Records": events}, ensure_ascii=is_ascii, separators=separators)
    assert [record.partition_key for record in _payload(answer.encode()).decoded()] == [
        json.dumps({name: {"S": text} for name in sorted(names)}, ensure_ascii=False, separators=(",", ":"))
        for text in texts
    ]


@pytest.mark.parametrize("form", ChangeForm)
def test_changes_are_found_again_in_lines_and_frames(form: ChangeForm) -> None:
    payload = _payload(_answer(*(_event(number, NewImage=_KEYS) for number in (5, 6, 7))), form)
    records = payload.decoded()
    assert Payload.of_line(payload.line(3))[0].decoded() == records
    assert list(decode_frame(payload.frame(3))[0]) == records
    for text in (payload.line(3), payload.frame(3)):
        assert BatchText(text).find("6", 0) == records[1]
    assert payload.data_bytes == sum(len(_body(record)) for record in payload.records)


def test_parts_of_a_batch() -> None:
    late = [_event(number, ApproximateCreationDateTime=1464805270 + number) for number in (5, 6, 7)]
    payload = _payload(_answer(*late))
    assert payload.after(payload.first).first.sequence_number == "6"
    assert payload.arrived_before(1464805277000).last.sequence_number == "6"
    assert payload.span_ms == 2000
    assert list(payload.expanded(lambda _: pytest.fail("no aggregates"))) == [payload]
    assert len(Payload.joined([payload, payload.after(payload.first)])) == 5
    assert len({key_hash(record) for record in payload.records}) == 1


@pytest.mark.parametrize("form", ChangeForm)
def test_an_item_of_a_snapshot(form: ChangeForm) -> None:
    item = {"sort": {"N": "1"}, "id": {"S": "ü"}, "x": {"S": "y"}}
    record = snapshot_record(
        json.dumps(item).encode(), ("id", "sort"), form, _ARN, number="17", at_ms=1464805270001
    )
    keys = {"id": {"S": "ü"}, "sort": {"N": "1"}}
    change = _payload(_answer(_event(Keys=keys)))
    assert record.partition_key == change.records[0].partition_key
    assert payload_of([record]).first_arrival_ms == 1464805270001
    data = json.loads(record.body)
    if form is ChangeForm.PLAIN:
        assert data["kind"] == "snapshot"
        assert data["new"] == {"id": "ü", "sort": 1, "x": "y"}
        assert data["keys"] == {"id": "ü", "sort": 1}
    else:
        assert data["eventName"] == "INSERT"
        assert data["awsRegion"] == "eu-west-1"
        assert data["dynamodb"]["Keys"] == keys
        assert data["dynamodb"]["NewImage"] == item
        assert data["dynamodb"]["SequenceNumber"] == "17"


def test_changes_of_an_item_stay_in_one_lane_in_their_order() -> None:
    answers = [_event(number, Keys={"id": {"S": f"item {number % 5}"}}) for number in range(40)]
    window = LaneWindow(3, TRIM_HORIZON)
    lanes = window.add(Batch(_payload(_answer(*answers)), ReadFacts(0.0, None, 0)))
    found: dict[str, list[int]] = {}
    for lane in lanes:
        taken = window.take(lane, 1 << 30, 1 << 30)
        assert taken is not None
        for record in taken.payload.decoded():
            found.setdefault(f"{lane} {record.partition_key}", []).append(int(record.sequence_number))
        window.checkpoint(lane, taken.payload.last)
    assert sorted(found.values()) == [list(range(each, 40, 5)) for each in range(5)]
    assert window.mark == ExtendedSequenceNumber("39")


@pytest.mark.parametrize("form", ChangeForm)
def test_a_letter_comes_back_as_it_was(form: ChangeForm) -> None:
    half = _event(Keys={"id": {"S": "\ud800"}}, NewImage={"id": {"S": "\ud800"}})
    for event in (_event(NewImage={**_KEYS, "t": {"S": "Grüße"}}), half):
        payload = _payload(_answer(event), form)
        record = BatchText(payload.line(0)).find("5", 0)
        assert record is not None
        letter = replace(LETTER, record=record, cause=LetterCause.REJECTED)
        back = parse_letter(letter.line(), "place").letter
        assert back == letter
        assert Payload.of([back.record]).line(0) == payload.line(0)


def test_the_letter_of_an_item_with_a_long_key_comes_back() -> None:
    """The number of an item in a snapshot has its key."""
    number = "1" + "7" * 4299
    raw = snapshot_record(b'{"id":{"S":"a"}}', ("id",), ChangeForm.KCL1, _ARN, number=number, at_ms=0)
    payload = payload_of([raw])
    for text in (payload.line(0), payload.frame(0)):
        record = BatchText(text).find(number, 0)
        assert record is not None
        letter = replace(LETTER, record=record)
        assert parse_letter(letter.line(), "place").letter == letter
        assert len(letter.key) <= 128


_PAID: Final = {"status": {"S": "paid"}, "n": {"N": "12"}, "tags": {"SS": ["a", "b"]}}


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ({"eventName": ["INSERT"]}, True),
        ({"eventName": ["REMOVE", "MODIFY"]}, False),
        ({"eventName": [{"prefix": "INS"}], "dynamodb": {"NewImage": {"status": {"S": ["paid"]}}}}, True),
        ({"dynamodb": {"NewImage": {"status": {"S": [{"anything-but": "paid"}]}}}}, False),
        ({"dynamodb": {"NewImage": {"n": {"N": ["12"]}}}}, True),
        ({"dynamodb": {"NewImage": {"n": {"N": [12]}}}}, False),
        ({"dynamodb": {"NewImage": {"tags": {"SS": ["b"]}}}}, True),
        ({"dynamodb": {"OldImage": {"status": {"S": [{"exists": False}]}}}}, True),
        ({"dynamodb": {"Keys": {"id": {"S": ["a"]}}}, "userIdentity": {"type": [{"exists": False}]}}, True),
        ({"$or": [{"eventName": ["REMOVE"]}, {"dynamodb": {"SizeBytes": [{"numeric": [">", 5]}]}}]}, True),
        ({"data": {"eventName": ["INSERT"]}, "partitionKey": [{"prefix": '{"id"'}]}, True),
    ],
)
@pytest.mark.parametrize("form", [ChangeForm.KCL1, ChangeForm.LAMBDA])
def test_a_filter_sees_a_change_as_lambda_shows_it(pattern: Json, matches: bool, form: ChangeForm) -> None:
    payload = _payload(_answer(_event(NewImage=_PAID, SizeBytes=9)), form)
    assert bool(RecordFilter.of(json.dumps(pattern)).kept(payload)) is matches


def test_a_filter_sees_the_data_of_a_plain_change() -> None:
    payload = _payload(_answer(_event(NewImage=_PAID)), ChangeForm.PLAIN)
    kept = RecordFilter.of('{"data": {"kind": ["insert"], "new": {"n": [{"numeric": [">=", 12]}]}}}')
    assert len(kept.kept(payload)) == 1
    assert not RecordFilter.of('{"data": {"kind": ["remove"]}}').kept(payload)


@pytest.mark.parametrize(
    ("text", "of_changes"),
    [
        ('{"data": {"eventName": ["INSERT"]}}', False),
        ('{"eventName": ["INSERT"]}', True),
        (
            '[{"partitionKey": ["a"]}, {"$or": [{"partitionKey": ["a"]}, {"dynamodb": {"SizeBytes": [1]}}]}]',
            True,
        ),
    ],
)
def test_a_filter_knows_whether_it_needs_changes(text: str, of_changes: bool) -> None:
    assert RecordFilter.of(text).of_changes is of_changes
