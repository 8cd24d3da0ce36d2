"""The header of the Glue Schema Registry, found and cut off without decoding what follows it."""

from __future__ import annotations

import base64
import json
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from kcl_daemon.records import schema_header
from kcl_daemon.records.payload import RawRecord
from kcl_daemon.records.schema_header import MAX_UNPACKED_BYTES, Header, UnreadablePayload
from tests.unit.records.aggregates import outer
from tests.unit.retrieval.registry import CLICKS, ORDERS, framed


def header_of(data: Raw) -> Header | None:
    text = schema_header.beginning(data)
    return None if text is None else schema_header.header(text)


def opened(data: Raw) -> tuple[str, bytes]:
    """Version and payload of what has a header."""
    header = header_of(data)
    assert header is not None
    return header.version_id, base64.b64decode(
        json.loads(bytes(schema_header.payload(data, header))), validate=True
    )


def with_escaped_slashes(record: RawRecord) -> Raw:
    return Raw(bytes(record.data).replace(b"/", rb"\/"))


@given(st.binary(max_size=200), st.uuids().map(str), st.booleans())
def test_a_framed_payload_is_found_and_opened(payload: bytes, version_id: str, packed: bool) -> None:
    record = outer(framed(payload, version_id, packed=packed))
    assert schema_header.may_have_header([outer(b""), outer(b"x" * 40), record])
    assert opened(record.data) == (version_id, payload)
    assert opened(with_escaped_slashes(record)) == (version_id, payload)


@pytest.mark.parametrize("packed", [True, False])
def test_json_may_escape_slashes(packed: bool) -> None:
    record = outer(framed(b"\xff" * 50, CLICKS, packed=packed))
    assert b"/" in bytes(record.data)
    assert opened(with_escaped_slashes(record)) == (CLICKS, b"\xff" * 50)


@given(st.binary(max_size=60))
def test_data_that_is_not_framed_has_no_schema_header(data: bytes) -> None:
    record = outer(data)
    is_framed = len(data) >= 18 and data[0] == 3 and data[1] in {0, 5}
    assert (header_of(record.data) is not None) == is_framed
    assert schema_header.may_have_header([record]) or not is_framed


@pytest.mark.parametrize("data", [b"", b"\3", b"\3\0" + b"x" * 15, b"\3\1" + b"x" * 30, b"\3\6" + b"x" * 16])
def test_data_too_short_or_packed_otherwise_has_no_schema_header(data: bytes) -> None:
    assert header_of(outer(data).data) is None


def test_a_text_that_is_no_base64_has_none() -> None:
    assert header_of(Raw(b'"Aw' + b"*" * 40 + b'"')) is None
    assert header_of(Raw(b'"Aw' + rb"\/" * 3 + b"*" * 40 + b'"')) is None


def test_the_beginning_is_the_same_for_all_records_of_a_version() -> None:
    first, second = outer(framed(b"one")), outer(framed(b"another"))
    assert schema_header.beginning(first.data) == schema_header.beginning(second.data)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (framed(b"", ORDERS, packed=True)[:18] + b"no zlib", "uncompressed"),
        (framed(b"word " * 40, packed=True)[:-6], "cut off"),
        (framed(b"", packed=True)[:18] + zlib.compress(bytes(MAX_UNPACKED_BYTES + 1)), "more than"),
    ],
    ids=["junk", "cut off", "bomb"],
)
def test_a_payload_that_cannot_be_unpacked_says_why(data: bytes, why: str) -> None:
    record = outer(data)
    header = header_of(record.data)
    assert header is not None
    with pytest.raises(UnreadablePayload, match=why):
        schema_header.payload(record.data, header)


def test_packed_data_that_is_no_base64_says_so() -> None:
    header = header_of(outer(framed(b"x", packed=True)).data)
    assert header is not None
    with pytest.raises(UnreadablePayload, match="no base64"):
        schema_header.payload(Raw(b'"AwU*"'), header)


def test_a_few_bytes_of_zlib_take_no_more_memory_than_one_record_may() -> None:
    bomb = framed(b"", packed=True)[:18] + zlib.compress(bytes(512 * 2**20))
    tracemalloc.start()
    try:
        with pytest.raises(UnreadablePayload, match="more than"):
            opened(outer(bomb).data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * MAX_UNPACKED_BYTES
