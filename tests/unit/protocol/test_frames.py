"""Batches as frames: whatever is put in comes out, however it is cut; what is broken is refused with the reason."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from pathlib import Path
from struct import pack_into

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_protocol.codec import decode_child_line, decode_daemon_line, encode
from kcl_protocol.conversation import ChildSide
from kcl_protocol.errors import RemoteProtocolError
from kcl_protocol.frames import Columns, Frame, decode_frame, encode_frame, framed_records
from kcl_protocol.messages import (
    FRAMES_VERSION,
    DaemonMessage,
    FrameHeader,
    Initialize,
    LeaseLost,
    ProcessRecords,
    Record,
    RecordSchema,
    ShutdownRequested,
    Status,
)

PAGE = Path(__file__).parents[3] / "docs" / "protocol.md"
KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
RECORDS = st.lists(
    st.builds(
        Record,
        st.binary(max_size=30).map(lambda data: b64encode(data).decode()),
        KEYS,
        st.integers(0, 10**56).map(str),
        st.none() | st.integers(0, 2**53),
        st.integers(0, 2**63 - 1),
        st.none() | st.builds(RecordSchema, KEYS, KEYS, st.sampled_from(["AVRO", "JSON"]), KEYS),
    ),
    max_size=5,
)
BEHIND = st.none() | st.integers(0, 2**53)
SAMPLE = [Record("aGVsbG8=", "order-7", "4964", 1_735_689_600_250, 0), Record("", "ä", "4965", None, 2)]


def columns(records: list[Record]) -> Columns:
    has_schemas = any(record.schema for record in records)
    return Columns(
        [b64decode(record.data) for record in records],
        [None if (key := record.partition_key) is None else key.encode() for record in records],
        [record.sequence_number for record in records],
        [record.approximate_arrival_timestamp for record in records],
        [record.sub_sequence_number for record in records],
        [record.schema for record in records] if has_schemas else (),
    )


def child(max_line_bytes: int = 10_000) -> ChildSide[DaemonMessage]:
    return ChildSide(decode_daemon_line, max_line_bytes=max_line_bytes, decode_frame=framed_records)


@given(RECORDS, BEHIND)
def test_a_decoded_frame_has_the_records_that_were_encoded(
    records: list[Record], behind_ms: int | None
) -> None:
    frame, told_behind_ms = decode_frame(encode_frame(columns(records), behind_ms))
    assert (list(frame), told_behind_ms) == (records, behind_ms)
    assert [frame[index] for index in range(len(frame))] == records == frame[:]


@given(RECORDS, BEHIND)
def test_until_when_a_frame_is_complete_stands_in_its_line(
    records: list[Record], complete_ms: int | None
) -> None:
    encoded = encode_frame(columns(records), 0, complete_ms)
    assert (b"completeMillis" in encoded) is (complete_ms is not None)
    side = child()
    side.receive_data(encode(Initialize("s", "LATEST", 0)) + encoded)
    side.next_message()
    side.send(Status("initialize"))
    message = side.next_message()
    assert isinstance(message, ProcessRecords)
    assert (list(message.records), message.complete_ms) == (records, complete_ms)


@given(st.lists(RECORDS, max_size=4), st.booleans(), st.data())
def test_frames_among_lines_may_be_cut_anywhere(
    batches: list[list[Record]], is_line: bool, data: st.DataObject
) -> None:
    said: list[DaemonMessage] = [Initialize("s", "LATEST", 0)]
    wire = encode(said[0])
    for batch in batches:
        said.append(ProcessRecords(batch, 7))
        as_line = encode(said[-1])
        is_line = not is_line
        wire += as_line if is_line else encode_frame(columns(batch), 7)
    said.append(LeaseLost())
    wire += encode(said[-1])
    cuts = sorted(data.draw(st.sets(st.integers(0, len(wire)), max_size=12)))
    side, heard = child(), list[DaemonMessage]()
    for begin, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        side.receive_data(wire[begin:end])
        while (message := side.next_message()) is not None:
            heard.append(
                ProcessRecords(list(message.records), message.millis_behind_latest)
                if isinstance(message, ProcessRecords)
                else message
            )
            side.send(Status(message.action))
    assert heard == said


def test_bytes_of_a_frame_one_by_one() -> None:
    side = child()
    for byte in encode(Initialize("s", "LATEST", 0)) + encode_frame(columns(SAMPLE), 0):
        side.receive_data(bytes([byte]))
    assert isinstance(side.next_message(), Initialize)
    side.send(Status("initialize"))
    batch = side.next_message()
    assert isinstance(batch, ProcessRecords)
    assert list(batch.records) == SAMPLE


def refusal(said: bytes, max_line_bytes: int = 10_000) -> str:
    side = child(max_line_bytes)
    side.receive_data(encode(Initialize("s", "LATEST", 0)) + said)
    side.next_message()
    side.send(Status("initialize"))
    with pytest.raises(RemoteProtocolError) as error:
        side.next_message()
    return str(error.value)


def header(size: object, count: object, more: str = "") -> bytes:
    return f'{{"action":"processRecords","frame":{size},"count":{count}{more}}}\n'.encode()


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (header(-1, 1), '"frame" must be a whole number from 0, but is -1'),
        (header(1, '"x"'), '"count" must be an integer'),
        (header(1, "null"), '"count" must be a whole number from 0, but is null or missing'),
        (header(4, 0, ',"schemas":1'), '"schemas" must be an array, but is 1'),
        (header(4, 0, ',"schemas":[1]'), '"schemas" must be an array of objects'),
        (header(4, 0, ',"schemas":[{}]'), '"schemaName" must be a text'),
        (header(4, 0, "x"), "is not JSON"),
        (header(3, 0) + b"abc", "has 3 bytes, but needs 3 by its header, 4 at least for 0 records"),
        (header(20, 10**18) + bytes(20), "at least for 1000000000000000000 records"),
    ],
)
def test_a_header_that_is_wrong_says_why(said: bytes, why: str) -> None:
    assert why in refusal(said)


def test_a_frame_beyond_the_limit_is_refused_before_it_comes() -> None:
    assert refusal(header(201, 1), 200) == "the daemon's frame of 201 bytes is over max_line_bytes=200"


def broken(position: int, number: int) -> bytes:
    whole = bytearray(encode_frame(columns(SAMPLE), 0))
    pack_into("<i", whole, whole.index(b"\n") + 1 + position, number)
    return bytes(whole)


@pytest.mark.parametrize("position", range(32, 60, 4))
@pytest.mark.parametrize("number", [-1, 0, 2**31 - 1])
def test_ends_that_are_not_in_order_are_refused(position: int, number: int) -> None:
    assert "not one after the other" in refusal(broken(position, number))


def test_a_frame_with_another_size_than_its_header_says_is_refused() -> None:
    whole = encode_frame(columns(SAMPLE), 0)
    with pytest.raises(RemoteProtocolError, match="has 81 bytes, but needs 82 by its header"):
        decode_frame(whole[:-1])


def test_a_key_that_is_no_utf8_and_a_schema_that_is_not_there_are_refused() -> None:
    whole = encode_frame(columns(SAMPLE), 0)
    assert "partition key in the daemon's frame is no UTF-8" in refusal(
        whole.replace("ä".encode(), b"\xff\xff")
    )
    one = RecordSchema("n", "v", "JSON", "{}")
    whole = encode_frame(columns([Record("", "k", "1", schema=one)]), 0)
    at = whole.index(b"\n") + 1 + 32
    assert "has schema 1, but there are 1" in refusal(whole[:at] + b"\1" + whole[at + 1 :])


def test_records_in_another_state_are_refused() -> None:
    side = child()
    side.receive_data(encode_frame(columns(SAMPLE), 0))
    with pytest.raises(RemoteProtocolError, match="expected initialize"):
        side.next_message()


def test_without_frames_a_header_is_a_wrong_line() -> None:
    side = ChildSide(decode_daemon_line, max_line_bytes=1000)
    side.receive_data(encode_frame(columns(SAMPLE), 0))
    with pytest.raises(RemoteProtocolError, match='"records" must be an array'):
        side.next_message()


def test_a_number_that_is_not_ascii_is_refused() -> None:
    with pytest.raises(ValueError, match="codec can't encode"):
        encode_frame(Columns([b""], [b"k"], ["\xe9"], [0], [0]), 0)


def test_numbers_that_fit_in_no_frame_are_refused() -> None:
    with pytest.raises(OverflowError):
        encode_frame(Columns([b""], [b"k"], ["1"], [2**63], [0]), 0)


def test_a_child_announces_frames_in_its_first_status() -> None:
    line = encode(Status("initialize", FRAMES_VERSION))
    assert line == b'{"action":"status","responseFor":"initialize","frames":1}\n'
    assert decode_child_line(line) == Status("initialize", 1)
    assert decode_child_line(encode(Status("initialize"))) == Status("initialize", None)


def test_the_example_of_the_documents_is_right() -> None:
    page = PAGE.read_text("utf-8")
    said = re.search(r'^(\{"action":"processRecords","frame".*)$', page, re.MULTILINE)
    body_start = (1_735_689_600_250).to_bytes(8, "little").hex(" ")
    shown = page[page.index(f"```text\n{body_start}") :].split("```")[1]
    assert said is not None
    body = bytes.fromhex(re.sub(r"(?m)^text$|#.*$", "", shown))
    example = [
        Record("aGk=", "a", "115", 1_735_689_600_250, 0),
        Record("eW8h", "ä", "116", None, 3),
    ]
    assert encode_frame(columns(example), 840) == said[1].encode() + b"\n" + body


def test_a_frame_of_the_wrong_length_in_memory_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="has 3 bytes, but needs 4"):
        Frame(FrameHeader(4, 0, None), b"abc")


def test_nothing_but_records_may_come_as_a_frame() -> None:
    side = child()
    side.receive_data(encode(Initialize("s", "LATEST", 0)) + encode(ShutdownRequested()))
    assert isinstance(side.next_message(), Initialize)
    side.send(Status("initialize"))
    assert side.next_message() == ShutdownRequested()
