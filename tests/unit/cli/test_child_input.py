"""Records from files for `kcl-daemon run-child`, and transcripts for `kcl-daemon replay`."""

from __future__ import annotations

from base64 import b64decode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.cli.child_input import (
    FIRST_NUMBER,
    BadRecord,
    in_batches,
    records_of_json,
    records_of_lines,
)
from kcl_daemon.cli.replay import BadTranscript, lines_of
from kcl_protocol.messages import CheckpointRequest, Record, Status
from tests.transcripts.transcript import FOLDER


def test_each_line_is_the_data_of_a_record_with_all_fields() -> None:
    first, second = records_of_lines(b"hello\n\xff\x00\n")
    assert first == Record("aGVsbG8=", "key", str(FIRST_NUMBER), 1_735_689_600_000, 0)
    assert b64decode(second.data) == b"\xff\x00"
    assert int(second.sequence_number) == FIRST_NUMBER + 1


def test_objects_may_say_every_field() -> None:
    plain, whole = records_of_json(
        b'{"text":"hello"}\n\n'
        b'{"data":"aGk=","partitionKey":"k","sequenceNumber":"7","subSequenceNumber":2,'
        b'"approximateArrivalTimestamp":null,"action":"record"}\n'
    )
    assert (plain.data, plain.sequence_number) == ("aGVsbG8=", str(FIRST_NUMBER))
    assert whole == Record("aGk=", "k", "7", None, 2)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"hello", "not JSON"),
        (b"[1]", "not an object"),
        (b"{}", "either data, in base64, or text"),
        (b'{"data":"aGk=","text":"hi"}', "either data"),
        (b'{"data":"hi!"}', "not base64; for plain text write text"),
        (b'{"data":7}', "not base64"),
        (b'{"text":"hi","key":"k"}', "unknown field 'key'"),
    ],
)
def test_a_line_that_is_no_record_is_told_with_its_number(line: bytes, reason: str) -> None:
    with pytest.raises(BadRecord, match=r"line 2: ") as caught:
        list(records_of_json(b'{"text":"good"}\n' + line))
    assert reason in str(caught.value)


@given(st.integers(0, 300), st.integers(1, 50))
def test_batches_hold_every_record_in_its_order(count: int, most: int) -> None:
    records = list(records_of_lines(b"x\n" * count))
    batches = in_batches(records, most)
    assert [record for batch in batches for record in batch] == records
    assert all(0 < len(batch) <= most for batch in batches)


@pytest.mark.parametrize("name", ["kclpy", "node", "ruby", "dotnet", "before_2017"])
def test_the_transcripts_of_the_tests_can_be_replayed(name: str) -> None:
    lines = list(lines_of((FOLDER / f"{name}.jsonl").read_bytes()))
    assert lines[0].expected is None
    assert lines[1].expected == Status("initialize")
    assert any(isinstance(line.expected, CheckpointRequest) for line in lines)


@pytest.mark.parametrize(
    "text", [b"hello", b"[]", b'{"from":"child"}', b'{"from":"child","line":7}', b"null"]
)
def test_what_is_no_transcript_is_told(text: bytes) -> None:
    with pytest.raises(BadTranscript, match="line 1"):
        list(lines_of(text))
