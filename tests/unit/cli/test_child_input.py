"""Records from files for `kcl-daemon run-child`, and transcripts for `kcl-daemon replay-transcript`."""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.cli.replay_transcript import BadTranscript, lines_of
from kcl_daemon.cli.run_child import (
    FIRST_NUMBER,
    in_batches,
    new_lines,
    records_of_changes,
    records_of_json,
    records_of_lines,
    run_child,
)
from kcl_daemon.records.forms import ChangeForm
from kcl_daemon.records.letters import BadLetter
from kcl_protocol.messages import CheckpointRequest, Record, RecordSchema, Status
from tests.transcripts.transcript import FOLDER
from tests.unit.consumer.letters import LETTER, letter


def test_each_line_is_the_data_of_a_record_with_all_fields() -> None:
    first, second = records_of_lines(b"hello\n\xff\x00\n")
    assert first == Record("aGVsbG8=", "key", str(FIRST_NUMBER), 1_735_689_600_000, 0)
    assert b64decode(second.data) == b"\xff\x00"
    assert int(second.sequence_number) == FIRST_NUMBER + 1


@pytest.mark.parametrize(
    ("before", "now", "new"),
    [
        ("", "", ""),
        ("", "ab", "ab"),
        ("ab", "ab", ""),
        ("ab", "abc", "c"),
        ("abc", "cde", "de"),
        ("aaa", "aaa", ""),
    ],
)
def test_the_new_lines_of_a_text_are_those_after_what_was_there(before: str, now: str, new: str) -> None:
    assert new_lines(tuple(before), tuple(now)) == tuple(new)


def test_objects_may_say_every_field() -> None:
    plain, whole = records_of_json(
        b'{"text":"hello"}\n\n'
        b'{"data":"aGk=","partitionKey":"k","sequenceNumber":"7","subSequenceNumber":2,'
        b'"approximateArrivalTimestamp":null,"action":"record"}\n'
    )
    assert (plain.data, plain.sequence_number) == ("aGVsbG8=", str(FIRST_NUMBER))
    assert whole == Record("aGk=", "k", "7", None, 2)


_CHANGE = {"eventName": "INSERT", "dynamodb": {"Keys": {"id": {"S": "a"}}, "SequenceNumber": "5"}}
_ARN = "arn:aws:dynamodb:eu-west-1:000000000000:table/orders/stream/2024-11-24T03:00:00.000"


@pytest.mark.parametrize(
    "file",
    [
        json.dumps({"Records": [_CHANGE, _CHANGE]}),
        json.dumps({"Records": [_CHANGE, _CHANGE]}, indent=2),
        f"{json.dumps(_CHANGE)}\n\n{json.dumps(_CHANGE)}\n",
    ],
)
def test_changes_are_an_event_an_answer_or_lines(file: str) -> None:
    first, second = records_of_changes(file.encode(), ChangeForm.PLAIN)
    assert first == second
    assert (first.partition_key, first.sequence_number) == ('{"id":{"S":"a"}}', "5")
    assert json.loads(b64decode(first.data))["table"] == "table"


def test_changes_of_an_event_have_its_table() -> None:
    file = json.dumps({**_CHANGE, "eventSourceARN": _ARN}).encode()
    (plain,) = records_of_changes(file, ChangeForm.PLAIN)
    assert json.loads(b64decode(plain.data))["table"] == "orders"
    (of_lambda,) = records_of_changes(file, ChangeForm.LAMBDA)
    assert json.loads(b64decode(of_lambda.data))["eventSourceARN"] == _ARN


@pytest.mark.parametrize(
    "file", [b"", b"hello", b"[]", b"{}\n{}", b'{"Records": [{"dynamodb": 5}]}', b'{"Records": 5}']
)
def test_a_file_without_changes_of_a_table_is_refused(file: bytes) -> None:
    with pytest.raises(BadLetter, match="no records of a DynamoDB stream"):
        records_of_changes(file, ChangeForm.KCL1)


def test_a_record_may_have_a_schema_as_dead_letters_have() -> None:
    (record,) = records_of_json(
        b'{"data":"aGk=","schemaName":"order","schemaVersionId":"b7b4","schemaDataFormat":"JSON","schemaDefinition":"{}"}'
    )
    assert record.schema == RecordSchema("order", "b7b4", "JSON", "{}")


def test_dead_letters_are_records_in_the_order_of_their_positions() -> None:
    file = b"".join(each.line() + b"\n" for each in (LETTER, letter(20), letter(3)))
    records = list(records_of_json(file))
    assert records == [letter(3).record, letter(20).record, LETTER.record]


def test_a_letter_without_its_data_is_named() -> None:
    fields = {**json.loads(LETTER.line()), "data": None, "dataAt": "s3://b/k", "dataBytes": 6}
    with pytest.raises(BadLetter, match="line 1: its data is at s3://b/k; use kcl-daemon letters replay"):
        records_of_json(json.dumps(fields).encode())


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"hello", "not JSON"),
        (b"[1]", "not an object"),
        (b"{}", "needs either data (base64) or text"),
        (b'{"data":"aGk=","text":"hi"}', "either data"),
        (b'{"data":"hi!"}', "not base64; use text for plain text"),
        (b'{"data":7}', "not base64"),
        (b'{"text":"hi","key":"k"}', "unknown field 'key'"),
        (b'{"text":7}', "text is 7, not a string"),
        (b'{"text":null}', "text is null, not a string"),
        (b'{"text":"hi","partitionKey":["k"]}', 'partitionKey is ["k"], not a string'),
        (b'{"text":"hi","subSequenceNumber":"x"}', 'subSequenceNumber is "x", not a whole number from 0'),
        (b'{"text":"hi","subSequenceNumber":null}', "subSequenceNumber is null, not"),
        (b'{"text":"hi","subSequenceNumber":-1}', "subSequenceNumber is -1, not"),
        (b'{"text":"hi","subSequenceNumber":true}', "subSequenceNumber is true, not"),
        (b'{"text":"hi","subSequenceNumber":18446744073709551615}', "not a whole number from 0"),
        (
            b'{"text":"hi","approximateArrivalTimestamp":1.5}',
            "Timestamp is 1.5, not a whole number from 0, or null",
        ),
        (b'{"text":"hi","sequenceNumber":"x"}', 'sequenceNumber is "x", not digits in quotes'),
        (b'{"text":"hi","sequenceNumber":null}', "sequenceNumber is null, not digits"),
        (b'{"text":"hi","sequenceNumber":-1}', "sequenceNumber is -1, not digits"),
        (b'{"text":"hi","sequenceNumber":49640000000000000000000000}', "not digits in quotes"),
        (b'{"text":"hi","sequenceNumber":"' + b"1" * 5000 + b'"}', "1..., not digits in quotes"),
    ],
)
def test_a_line_that_is_no_record_is_reported_with_its_number(line: bytes, reason: str) -> None:
    with pytest.raises(BadLetter, match=r"line 2: ") as caught:
        list(records_of_json(b'{"text":"good"}\n' + line))
    assert reason in str(caught.value)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


FIELDS = (
    "data",
    "text",
    "partitionKey",
    "sequenceNumber",
    "subSequenceNumber",
    "approximateArrivalTimestamp",
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, JSON)))
def test_a_line_is_a_record_that_can_be_sent_or_is_reported(fields: dict[str, object]) -> None:
    try:
        (record,) = records_of_json(json.dumps(fields).encode())
    except BadLetter:
        return
    assert int(record.sequence_number) >= 0
    assert isinstance(record.partition_key, str)
    assert type(record.sub_sequence_number) is int
    b64decode(record.data, validate=True)


def test_a_wrong_value_ends_the_command_with_a_line(tmp_path: Path) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text('{"text":"hi","subSequenceNumber":"x"}\n')
    done = CliRunner().invoke(run_child, ["--records", str(file), "--", "true"])
    assert done.exit_code == 2
    assert 'line 1: subSequenceNumber is "x", not a whole number from 0' in done.output


def test_a_short_number_may_stand_without_quotes() -> None:
    (record,) = records_of_json(b'{"text":"hi","sequenceNumber":7}')
    assert record.sequence_number == "7"


@given(st.integers(0, 300), st.integers(1, 50))
def test_batches_hold_every_record_in_its_order(count: int, most: int) -> None:
    records = list(records_of_lines(b"x\n" * count))
    batches = in_batches(records, most)
    assert [record for batch in batches for record in batch] == records
    assert all(0 < len(batch) <= most for batch in batches)


def test_batches_have_a_size_in_bytes_too() -> None:
    records = list(records_of_lines(b"1234\n123\n12345678901\n1\n12\n"))
    batches = in_batches(records, 2, 8)
    assert [[len(b64decode(record.data)) for record in batch] for batch in batches] == [[4, 3], [11], [1, 2]]


@pytest.mark.parametrize("name", ["kclpy", "node", "ruby", "dotnet", "before_2017"])
def test_the_transcripts_of_the_tests_can_be_replayed(name: str) -> None:
    lines = list(lines_of((FOLDER / f"{name}.jsonl").read_bytes()))
    assert lines[0].expected is None
    assert lines[1].expected == Status("initialize")
    assert any(isinstance(line.expected, CheckpointRequest) for line in lines)


@pytest.mark.parametrize(
    "text", [b"hello", b"[]", b'{"from":"child"}', b'{"from":"child","line":7}', b"null"]
)
def test_a_line_that_is_no_entry_of_a_transcript_is_reported_with_its_number(text: bytes) -> None:
    with pytest.raises(BadTranscript, match="line 1"):
        list(lines_of(text))
