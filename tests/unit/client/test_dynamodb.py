"""Changes of a table for a Python processor: the same in every form, with the values of boto3."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Final

import pytest
from boto3.dynamodb.types import Binary, TypeDeserializer, TypeSerializer
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_client import Batch, Checkpointer, Record, RecordProcessor
from kcl_client.dynamodb import Change, changes
from kcl_client.testing import drive, make_record
from kcl_daemon.records.changes import changes_of, snapshot_record
from kcl_daemon.records.forms import ChangeForm
from kcl_protocol import messages
from tests.examples import examples

_ARN: Final = "arn:aws:dynamodb:eu-west-1:000000000000:table/orders/stream/2024-11-24T03:00:00.000"
_TTL: Final = {"principalId": "dynamodb.amazonaws.com", "type": "Service"}


def _records(form: ChangeForm, *events: Mapping[str, Any]) -> list[messages.Record]:
    return changes_of(json.dumps({"Records": events}).encode(), form, _ARN)[0].decoded()


def _event(
    name: str, number: int = 7, identity: Mapping[str, str] | None = None, **images: Any
) -> dict[str, Any]:
    inner = {
        "Keys": {"id": {"S": "a"}},
        "SequenceNumber": str(number),
        "ApproximateCreationDateTime": 1464805270.5,
        "SizeBytes": 5,
        **images,
    }
    return {"eventName": name, "dynamodb": inner, "userIdentity": identity}


def _change(form: ChangeForm, event: Mapping[str, Any]) -> Change:
    (wire,) = _records(form, event)
    return Change.of(Record(wire))


_FORMS: Final = pytest.mark.parametrize("form", ChangeForm)


@_FORMS
def test_a_change_has_images_keys_and_a_time(form: ChangeForm) -> None:
    new = {"id": {"S": "a"}, "n": {"N": "1.50"}, "b": {"B": "AP8="}, "s": {"NS": ["1", "2"]}}
    change = _change(form, _event("MODIFY", NewImage=new, OldImage={"id": {"S": "a"}}))
    assert (change.kind, change.keys, change.old) == ("modify", {"id": "a"}, {"id": "a"})
    assert change.new == {
        "id": "a",
        "n": Decimal("1.50"),
        "b": Binary(b"\x00\xff"),
        "s": {Decimal(1), Decimal(2)},
    }
    assert change.created_at == datetime(2016, 6, 1, 18, 21, 10, 500_000, tzinfo=UTC)
    assert (change.sequence_number, change.is_expiry) == ("7", False)
    assert change.table == (None if form is ChangeForm.KCL1 else "orders")


@_FORMS
def test_an_item_that_dynamodb_removed_by_itself_is_an_expiry(form: ChangeForm) -> None:
    change = _change(form, _event("REMOVE", identity=_TTL))
    assert (change.kind, change.is_expiry, change.new, change.old) == ("remove", True, None, None)
    other = _change(form, _event("REMOVE", identity={**_TTL, "principalId": "other"}))
    assert not other.is_expiry


@_FORMS
def test_a_change_without_a_time(form: ChangeForm) -> None:
    assert _change(form, _event("INSERT", ApproximateCreationDateTime=None)).created_at is None


@_FORMS
def test_an_item_of_a_snapshot(form: ChangeForm) -> None:
    raw = snapshot_record(b'{"id":{"S":"a"}}', ("id",), form, _ARN, number="5", at_ms=1464805270000)
    change = Change.of(Record(make_record(raw.body, sequence_number="5")))
    assert change.kind == ("snapshot" if form is ChangeForm.PLAIN else "insert")
    assert (change.keys, change.new, change.old) == ({"id": "a"}, {"id": "a"}, None)


_NUMBERS: Final = st.decimals(
    allow_nan=False, allow_infinity=False, places=3, min_value=-(10**20), max_value=10**20
)
_NAMES: Final = st.sampled_from(["$set", "$binary", "$map", "$other", "$number", "a", "$", "ü"]) | st.text(
    max_size=3
)
_SCALARS: Final = st.none() | st.booleans() | st.text(max_size=5) | _NUMBERS | st.binary(max_size=5)
_SETS: Final = (
    st.sets(st.text(max_size=3), min_size=1)
    | st.sets(_NUMBERS, min_size=1, max_size=3)
    | st.sets(st.binary(max_size=3), min_size=1, max_size=3)
)
_VALUES: Final = st.recursive(
    _SCALARS | _SETS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=2),
    max_leaves=8,
)


@given(st.dictionaries(_NAMES, _VALUES, min_size=1, max_size=3))
@settings(max_examples=examples(200), deadline=None)
def test_all_forms_say_the_same_and_nothing_is_ambiguous(item: dict[str, Any]) -> None:
    written = TypeSerializer().serialize(item)
    image = json.loads(json.dumps(written, default=_base64))["M"]
    forms = [_change(form, _event("INSERT", NewImage=image)) for form in ChangeForm]
    assert forms[1] == forms[2]
    assert replace(forms[0], table="orders") == forms[1]
    assert forms[0].new == TypeDeserializer().deserialize(written)


def _base64(value: object) -> str:
    assert isinstance(value, bytes)
    return make_record(value).data


@pytest.mark.parametrize(
    "data",
    [
        b"hello",
        b"[]",
        b"5",
        b"{}",
        b'{"dynamodb":{}}',
        b'{"kind":"insert"}',
        b'{"eventName":1,"dynamodb":{"Keys":{}}}',
        b'{"eventName":"INSERT","dynamodb":{"Keys":{"id":{"N":"x"}}}}',
        b'{"eventName":"INSERT","eventSourceARN":"orders","dynamodb":{"Keys":{},"SequenceNumber":"1"}}',
    ],
)
def test_other_records_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="is no change of a DynamoDB table"):
        Change.of(Record(make_record(data)))


class _Copy(RecordProcessor):
    def __init__(self) -> None:
        self.items: dict[str, Any] = {}

    def process_records(self, batch: Batch, checkpointer: Checkpointer) -> None:
        for change in changes(batch):
            if change.new is not None and "bad" in change.new:
                batch.reject(change.record, "bad item")
            elif change.kind == "remove":
                del self.items[change.keys["id"]]
            else:
                self.items[change.keys["id"]] = change.new
        checkpointer.checkpoint()


@_FORMS
def test_a_processor_keeps_a_copy_and_rejects(form: ChangeForm) -> None:
    first = {"id": {"S": "a"}, "n": {"N": "1"}}
    copy = _Copy()
    given_records = _records(
        form,
        _event("INSERT", 1, NewImage=first),
        _event("INSERT", 2, NewImage={**first, "bad": {"BOOL": True}}),
        _event("INSERT", 3, Keys={"id": {"S": "b"}}, NewImage={"id": {"S": "b"}}),
        _event("REMOVE", 4, Keys={"id": {"S": "b"}}, OldImage={"id": {"S": "b"}}),
    )
    report = drive(copy, given_records, dead_letters=True)
    assert copy.items == {"a": {"id": "a", "n": Decimal(1)}}
    assert [(position.sequence_number, why) for position, why in report.rejected] == [("2", "bad item")]
    assert report.exit_code == 0
