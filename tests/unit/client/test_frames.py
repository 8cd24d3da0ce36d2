"""A processor sees the same records whether a batch came as a line or as a frame."""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from kcl_client import Batch, Checkpointer, ExtendedSequenceNumber, Record, RecordSchema
from kcl_client._run import _is_offered
from kcl_protocol import messages
from kcl_protocol.codec import encode
from kcl_protocol.errors import RemoteProtocolError
from kcl_protocol.frames import Columns, encode_frame
from kcl_protocol.messages import Status
from tests.unit.client.support import INITIALIZE, Handled, Idle, Wire, serve

SCHEMA = RecordSchema("orders", "v1", "JSON", "{}")
FRAME = encode_frame(
    Columns(
        [b"\xff\0", b'{"a":1}'],
        ["ä".encode(), b"k"],
        ["7", "8"],
        [1_735_689_600_250, None],
        [0, 3],
        [None, SCHEMA],
    ),
    12,
)
LINE = encode(
    messages.ProcessRecords(
        [
            messages.Record("/wA=", "ä", "7", 1_735_689_600_250),
            messages.Record("eyJhIjoxfQ==", "k", "8", None, 3, SCHEMA),
        ],
        12,
    )
)


def batch(said: bytes) -> Batch:
    found: list[Batch] = []

    def keep(given: Batch, checkpointer: Checkpointer) -> None:
        found.append(given)

    serve(Handled(keep), Wire(INITIALIZE, said), takes_frames=True)
    return found[0]


def seen(record: Record) -> tuple[object, ...]:
    key, position = record.partition_key, record.position
    numbers = (record.sequence_number, record.sub_sequence_number, position)
    return (record.data, key, *numbers, record.arrival_ms, record.arrival, record.schema, repr(record))


@pytest.mark.parametrize("said", [LINE, FRAME], ids=["line", "frame"])
def test_a_batch_is_the_same(said: bytes) -> None:
    given = batch(said)
    assert (len(given), given.millis_behind_latest) == (2, 12)
    assert [seen(record) for record in given] == [seen(record) for record in batch(LINE).records]
    first, second = given.records
    assert (first.data, second.json(), second.text()) == (b"\xff\0", {"a": 1}, '{"a":1}')
    assert second.position == ExtendedSequenceNumber("8", 3)
    assert (first.schema, second.schema) == (None, SCHEMA)


@pytest.mark.parametrize("said", [LINE, FRAME], ids=["line", "frame"])
def test_batches_and_records_can_be_copied_and_sent_to_other_processes(said: bytes) -> None:
    given = batch(said)
    assert given.records is given.records
    assert replace(given, millis_behind_latest=3) == Batch(given.records, 3)
    assert [seen(record) for record in pickle.loads(pickle.dumps(given))] == [*map(seen, given)]
    assert seen(pickle.loads(pickle.dumps(given.records[1]))) == seen(given.records[1])


def test_a_batch_has_no_other_attributes() -> None:
    for said in (LINE, FRAME):
        with pytest.raises(AttributeError, match="record"):
            _ = batch(said).record  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue] - the mistake


def test_frames_are_announced_once_and_only_where_they_are_offered() -> None:
    for takes, version in ((True, 1), (False, None)):
        wire = Wire(INITIALIZE, LINE)
        serve(Idle(), wire, takes_frames=takes)
        assert wire.said == [Status("initialize", version), Status("processRecords")]


@pytest.mark.parametrize(("offered", "takes"), [(None, False), ("1", True), ("3", True), ("no", False)])
def test_the_environment_offers_frames(
    offered: str | None, takes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KCL_FRAMES", raising=False)
    if offered is not None:
        monkeypatch.setenv("KCL_FRAMES", offered)
    assert _is_offered("KCL_FRAMES") is takes


def test_a_broken_frame_ends_the_session_with_the_reason() -> None:
    wire = Wire(INITIALIZE, FRAME[:-4], b"    " + LINE)
    with pytest.raises(RemoteProtocolError, match="over max_line_bytes=20"):
        serve(Idle(), Wire(INITIALIZE, FRAME), takes_frames=True, max_line_bytes=20)
    serve(Idle(), wire, takes_frames=True)
    assert wire.statuses == ["initialize", "processRecords", "processRecords"]
    broken = bytearray(FRAME)
    broken[FRAME.index(b"\n") + 35] = 0xFF
    with pytest.raises(RemoteProtocolError, match="not one after the other"):
        serve(Idle(), Wire(INITIALIZE, bytes(broken)), takes_frames=True)


@pytest.mark.parametrize("said", [LINE, FRAME], ids=["line", "frame"])
def test_a_batch_is_an_arrow_batch_too(said: bytes) -> None:
    given = batch(said).arrow()
    given.validate(full=True)
    assert given.column_names == [
        "data",
        "partition_key",
        "sequence_number",
        "sub_sequence_number",
        "approximate_arrival_timestamp",
    ]
    first, second = given.to_pylist()
    assert first == {
        "data": b"\xff\0",
        "partition_key": "\u00e4",
        "sequence_number": "7",
        "sub_sequence_number": 0,
        "approximate_arrival_timestamp": datetime(2025, 1, 1, 0, 0, 0, 250_000, UTC),
    }
    assert (second["data"], second["approximate_arrival_timestamp"]) == (b'{"a":1}', None)
    assert given.schema == Batch(()).arrow().schema


def test_an_arrow_batch_lies_in_the_frame() -> None:
    given = batch(FRAME)
    assert given._frame is not None
    body = pa.py_buffer(given._frame.body)
    for column in (0, 1, 2):
        assert given.arrow().column(column).buffers()[2].address == body.address


def test_arrow_needs_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "kcl_protocol.arrow", raising=False)
    monkeypatch.delattr("kcl_protocol.arrow", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match="needs pyarrow: pip install pyarrow"):
        batch(FRAME).arrow()
