"""Lines and frames give a child the same records."""

from __future__ import annotations

import base64
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Raw

from kcl_daemon.records import payload as payloads
from kcl_daemon.records.base64_text import Base64Text
from kcl_daemon.records.kpl import Deaggregator
from kcl_daemon.records.payload import EMPTY, Payload, RawRecord
from kcl_protocol.codec import FRAME_START, decode_daemon_line
from kcl_protocol.frames import decode_frame
from kcl_protocol.messages import ProcessRecords, Record, RecordSchema
from tests.unit.records.aggregates import UserRecord, aggregate, outer, silent

TEXTS = st.text(st.characters(), max_size=12)
SCHEMAS = st.none() | st.builds(RecordSchema, TEXTS, TEXTS, TEXTS, TEXTS)
RECORDS = st.lists(
    st.builds(
        Record,
        st.binary(max_size=60).map(lambda data: base64.b64encode(data).decode()),
        st.none() | TEXTS,
        st.integers(0, 10**56).map(str),
        st.none() | st.integers(0, 2**53),
        st.integers(0, 2**31),
    ),
    max_size=6,
)


def told(said: bytes) -> tuple[list[Record], int | None]:
    """What a child gets, from a line or a frame."""
    if said.startswith(FRAME_START):
        frame, behind_ms = decode_frame(said)
        return list(frame), behind_ms
    message = decode_daemon_line(said)
    assert isinstance(message, ProcessRecords)
    return list(message.records), message.millis_behind_latest


@given(RECORDS, st.none() | st.integers(0, 2**53), st.data())
@example([Record("", "k\ud800", "1")], None, None)
@example([Record("", None, "1"), Record("", "k", "2")], None, None)
@example([Record("", None, "1"), Record("", "", "2")], None, None)
def test_a_frame_has_the_records_of_the_line(
    records: list[Record], behind_ms: int | None, data: st.DataObject | None
) -> None:
    if data is not None and data.draw(st.booleans()):
        records = [replace(record, schema=data.draw(SCHEMAS)) for record in records]
    payload = Payload.of(records)
    said = payload.frame(behind_ms)
    assert told(said) == told(payload.line(behind_ms)) == (records, behind_ms)
    if not said.startswith(FRAME_START):
        return
    again, told_behind_ms = Payload.of_line(said)
    assert again.decoded() == records
    assert again.frame(told_behind_ms) == said
    assert len(again) == len(records)


@given(st.lists(st.tuples(st.text(min_size=1, max_size=5), st.binary(max_size=700), st.none()), min_size=1))
def test_user_records_of_aggregates_are_the_same_too(user_records: list[UserRecord]) -> None:
    whole = Payload([outer(b"plain", "48"), outer(aggregate(user_records), "49"), outer(b"", "50")], 0)
    (part,) = whole.expanded(Deaggregator(None, silent))
    said = part.frame(0)
    assert said.startswith(FRAME_START)
    assert told(said) == told(part.line(0))
    assert [record.partition_key for record in told(said)[0]][1:-1] == [key for key, _, _ in user_records]
    assert [record.sub_sequence_number for record in told(said)[0]] == [0, *range(len(user_records)), 0]


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("size", [0, 1, 600, 10 * 2**20])
def test_the_smallest_and_the_largest_record_pass(
    size: int, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payloads, "BASE64", Base64Text(fast=fast))
    record = Record(base64.b64encode(bytes(size)).decode(), "k", "7", 1_795_190_407_660)
    said = Payload.of([record]).frame(0)
    assert said.startswith(FRAME_START)
    assert len(said) < size + 200
    assert told(said) == ([record], 0)


@pytest.mark.parametrize("fast", [True, False])
def test_an_escaped_slash_is_base64(fast: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "BASE64", Base64Text(fast=fast))
    plain = base64.b64encode(b"\xff" * 600).decode()
    escaped = Raw(b'"%b"' % plain.replace("/", "\\/").encode())
    payload = Payload([RawRecord(escaped, Raw(b'"k"'), "1", None)], 0)
    assert told(payload.frame(0)) == ([Record(plain, "k", "1")], 0)


@pytest.mark.parametrize(
    "odd",
    [
        Record("no base64!", "k", "1"),
        Record("", "\ud800", "1"),
        Record("", "k", "1", 2**64),
    ],
    ids=["data", "key", "time"],
)
def test_a_batch_that_fits_in_no_frame_comes_as_a_line(odd: Record) -> None:
    payload = Payload.of([Record("", "k", "0"), odd])
    assert payload.frame(3) == payload.line(3)


def test_an_empty_batch_is_a_line() -> None:
    assert EMPTY.frame(3) == EMPTY.line(3)
