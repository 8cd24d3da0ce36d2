"""Segments are read as they were written, or refused."""

from __future__ import annotations

import io
from typing import Any
from zlib import crc32

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from kcl_landing import segments
from kcl_landing.log import Footer, Format, LogInfo
from kcl_landing.records import SCHEMA, Record, RecordBatch, to_arrow
from kcl_landing.segments import Damaged, decode, encode, read_footer
from tests.landing.landers import FORMATS, formats

_MOST_MS = 253_402_300_799_999
_RECORDS = st.builds(
    Record,
    st.binary(max_size=64),
    st.integers(0, 2**128).map(str),
    st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.none() | st.integers(0, _MOST_MS),
    st.none() | st.integers(0, 2**31),
)


def footer(rows: int, **more: Any) -> Footer:
    fields: dict[str, Any] = {
        "application": "app",
        "stream": "wörds",
        "shard": "shardId-000000000000",
        "number": 7,
        "to": 7,
        "after": "-1/0",
        "last": "9/0",
        "rows": rows,
        "first_ms": 1,
        "last_ms": 2,
        "token": 3,
        "writer": "w",
    }
    return Footer(**{**fields, **more})


def encoded(said: Footer) -> bytes:
    return msgspec.json.encode(said)


def checksum(said: Footer) -> bytes:
    return b"crc32=%08x" % crc32(encoded(said))


def log_info(file_format: Format) -> LogInfo:
    return LogInfo("app", "log", file_format, "id")


def some(rows: int) -> list[RecordBatch]:
    each = [Record(bytes([number % 256]) * 50, str(10**55 + number), "k", number) for number in range(rows)]
    return [to_arrow(each, stream="wörds", shard_id="shardId-000000000000")] if each else []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(_RECORDS, min_size=1, max_size=5), max_size=4), st.sampled_from(FORMATS))
def test_any_records_come_back(given_records: list[list[Record]], file_format: Format) -> None:
    batches = [to_arrow(each, stream="wörds", shard_id="shardId-000000000000") for each in given_records]
    said = footer(sum(map(len, given_records)))
    content = encode(log_info(file_format), batches, said)
    assert read_footer(content, file_format) == said
    assert decode(content, file_format).equals(pa.Table.from_batches(batches, SCHEMA))


@formats
def test_the_end_of_a_shard_has_children_and_no_rows(file_format: Format) -> None:
    said = footer(0, children=("shardId-000000000001",))
    content = encode(log_info(file_format), [], said)
    assert read_footer(content, file_format) == said
    assert decode(content, file_format).num_rows == 0


@formats
def test_a_changed_byte_is_noticed_or_changes_nothing(file_format: Format) -> None:
    """Only names and statistics in Parquet's own metadata have no checksum: the manifest's covers the whole object."""
    content = bytes(encode(log_info(file_format), some(20), footer(20)))
    good, noticed = decode(content, file_format), 0
    for at in range(0, len(content), 3):
        changed = content[:at] + bytes([content[at] ^ 0x11]) + content[at + 1 :]
        try:
            assert decode(changed, file_format).equals(good)
            assert read_footer(changed, file_format) == footer(20)
        except Damaged:
            noticed += 1
        assert crc32(changed) != crc32(content)
    assert noticed > len(content) / 3 * (0.4 if file_format == "parquet" else 0.99)


@formats
def test_a_segment_that_is_cut_off_is_damaged(file_format: Format) -> None:
    content = encode(log_info(file_format), some(300), footer(300))
    for size in range(0, len(content), 41):
        for read in (decode, read_footer):
            with pytest.raises(Damaged, match="no whole segment"):
                read(content[:size], file_format)


@formats
def test_a_count_that_does_not_fit_is_damage(file_format: Format) -> None:
    content = encode(log_info(file_format), some(3), footer(4))
    with pytest.raises(Damaged, match="it has 3 records, but says 4"):
        decode(content, file_format)


def test_another_file_is_damaged() -> None:
    sink = io.BytesIO()
    parquet.write_table(pa.table({"a": [1]}), sink)
    for read in (decode, read_footer):
        with pytest.raises(Damaged, match="no whole segment"):
            read(sink.getvalue(), "parquet")


def _many(said: dict[bytes, bytes]) -> bytes:
    """Records of zeros: unpacked, they are five hundred times as long."""
    rows, sink = 200_000, io.BytesIO()
    zeros = {name: pa.nulls(rows, kind) for name, kind in zip(SCHEMA.names, SCHEMA.types, strict=True)}
    zeros["data"] = pa.array([bytes(100)], pa.binary()).take(pa.array([0] * rows))
    with parquet.ParquetWriter(sink, SCHEMA, compression="zstd") as writer:
        writer.write_table(pa.table(zeros, SCHEMA))
        writer.add_key_value_metadata(said)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({}, "kcl.crc32"),
        ({b"kcl.crc32": b"crc32=00000000", b"kcl.segment": b"{}"}, "does not fit its checksum"),
        ({b"kcl.segment": encoded(footer(3)), b"kcl.crc32": checksum(footer(3))}, "says 3"),
    ],
)
def test_records_are_not_unpacked_before_the_segment_has_said_how_many(
    said: dict[bytes, bytes], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*_: object) -> None:
        raise AssertionError("it says of itself that it is no segment")

    content = _many(said)
    assert len(content) < 150_000
    monkeypatch.setattr(parquet.ParquetFile, "read", read)
    with pytest.raises(Damaged, match=reason):
        decode(content, "parquet")


@formats
def test_a_segment_that_would_unpack_to_more_than_any_is_damaged(
    file_format: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = encode(log_info(file_format), some(300), footer(300))
    monkeypatch.setattr(segments, "_UNPACKED_BYTES_MOST", 1000)
    with pytest.raises(Damaged, match="unpacks to more than 1000 bytes"):
        decode(content, file_format)


def test_parquet_is_plain_for_every_reader() -> None:
    content = encode(log_info("parquet"), some(1000), footer(1000))
    file = parquet.ParquetFile(pa.BufferReader(content))
    group = file.metadata.row_group(0)
    columns = {group.column(index).path_in_schema: group.column(index) for index in range(7)}
    assert list(columns) == SCHEMA.names
    assert {each.compression for each in columns.values()} == {"ZSTD"}
    constant = {"stream", "shard_id"}
    for name, column in columns.items():
        assert ("RLE_DICTIONARY" in column.encodings) is (name in constant)
    kinds = {name: str(file.schema.column(index).logical_type) for index, name in enumerate(SCHEMA.names)}
    assert kinds["data"] == "None"
    assert kinds["sequence_number"] == "String"
    arrival = "Timestamp(isAdjustedToUTC=true, timeUnit=microseconds"
    assert kinds["approximate_arrival_timestamp"].startswith(arrival)
    assert b"ARROW:schema" not in file.metadata.metadata
