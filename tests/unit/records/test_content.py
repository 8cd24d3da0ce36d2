"""What people see of a record's data: unpacked, never wrongly, as JSON or text or base64."""

from __future__ import annotations

import gzip
import sys
import zlib
from base64 import b64decode
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_daemon.cli.common import json_text
from kcl_daemon.cli.stream.show import data_text, json_line, text_line
from kcl_daemon.records.content import SeenRecord, SeenSchema, fields_of, json_of, uncompressed
from kcl_daemon.records.schema_header import MAX_UNPACKED_BYTES
from tests.examples import examples


def seen(data: bytes) -> SeenRecord:
    return SeenRecord("shardId-000000000003", "49", 1, "key\n", 1_770_000_000_123, data)


@given(st.binary(max_size=500))
@settings(max_examples=examples(100))
def test_compressed_data_is_uncompressed_and_other_data_is_unchanged(data: bytes) -> None:
    assert uncompressed(gzip.compress(data)) == (data, "gzip")
    assert uncompressed(zlib.compress(data)) == (data, "zlib")
    unpacked, kind = uncompressed(data)
    assert (unpacked == data) is (kind is None)


def test_parts_of_a_gzip_are_one_and_what_is_cut_off_stays() -> None:
    packed = gzip.compress(b"one, ") + gzip.compress(b"two")
    assert uncompressed(packed) == (b"one, two", "gzip")
    for broken in (
        packed[:-1],
        packed + b"more",
        zlib.compress(b"x")[:-1],
        b"\x1f\x8b",
        b"x\x9c",
        b"x\x9ctext",
    ):
        assert uncompressed(broken) == (broken, None)


def test_a_few_bytes_do_not_fill_the_memory() -> None:
    packed = gzip.compress(bytes(MAX_UNPACKED_BYTES + 1))
    assert uncompressed(packed) == (packed, None)


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b'{"a": 1.10,\r\n "b": "x\\ny"}', b'{"data":{"a": 1.10,   "b": "x\\ny"}}'),
        (b'{"n":123456789012345678901234567890}', b'{"data":{"n":123456789012345678901234567890}}'),
        (b"[1]", b'{"data":[1]}'),
        (b"5", b'{"data":"5"}'),
        (b'"text"', b'{"data":"\\"text\\""}'),
        (b"\x1b[2J", b'{"data":"\\u001b[2J"}'),
        (b"\xff\x00", b'{"dataBase64":"/wA="}'),
        (b"", b'{"data":""}'),
    ],
)
def test_json_is_inline_as_it_was_written_on_one_line(data: bytes, line: bytes) -> None:
    assert orjson.dumps(fields_of(data)) == line


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
@settings(max_examples=examples(200))
def test_a_line_is_one_line_of_json_and_holds_everything(data: bytes) -> None:
    line = json_line(seen(data))
    assert line.splitlines() == [line] or "\n" not in line
    found = orjson.loads(line)
    if "dataBase64" in found:
        assert b64decode(found["dataBase64"]) == data
    elif isinstance(found["data"], str):
        assert found["data"].encode() == data
    else:
        assert found["data"] == orjson.loads(data)


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
@settings(max_examples=examples(200))
def test_shown_data_are_printable_whatever_they_are(data: bytes) -> None:
    assert data_text(data, None).isprintable()
    assert data_text(data, 10).isprintable()


def test_a_line_for_people() -> None:
    from click import unstyle  # what is tested is what is written

    line = unstyle(text_line(seen(b"\x1b[2Jx"), long=False, most=None))
    assert line == "2026-02-02T02:40:00.123Z    3  key\\n  \\x1b[2Jx"
    assert "49/1" in unstyle(text_line(seen(b"x"), long=True, most=None))
    assert data_text(b"abcdef", 3) == "abc... (6 characters; all of them with --json)"
    assert data_text(b"\xff" * 40, None) == f"(no text, 40 B: {'ff ' * 32}...)"


def test_values_that_json_lacks_become_text() -> None:
    value = {"bytes": b"\xff", "at": datetime(2026, 1, 2, tzinfo=UTC), "price": Decimal("1.10"), 3: {1: None}}
    assert orjson.loads(json_of(value)) == {
        "bytes": "/w==",
        "at": "2026-01-02T00:00:00+00:00",
        "price": "1.10",
        "3": {"1": None},
    }


def test_compression_and_schema_are_told() -> None:
    record = SeenRecord("s", "1", 0, "k", None, b"{}", "gzip", SeenSchema("order", "v", "AVRO"))
    found = orjson.loads(json_line(record))
    assert found["arrival"] is None
    assert found["compression"] == "gzip"
    assert found["schema"] == {"name": "order", "versionId": "v", "dataFormat": "AVRO"}


@pytest.mark.parametrize("is_terminal", [True, False])
def test_json_on_a_terminal_has_nothing_that_it_would_obey(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    text = "a\x1b[31m \x7f \x9b31m \u202e \u2028 \U000e0001 é"
    record = replace(seen(text.encode()), partition_key=text)
    for line in (json_line(record), json_text({"one": [text]})):
        assert line.replace("\n", "").isprintable() is is_terminal
        assert "é" in line
    assert orjson.loads(json_line(record))["data"] == text
    assert orjson.loads(json_line(record))["partitionKey"] == text
