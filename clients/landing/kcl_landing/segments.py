"""Segments as Parquet or Arrow IPC files, and what they say of themselves.

Parquet for every reader: data pages V1, zstd, no nested types, timestamps in UTC microseconds. Its pages and its
footer have checksums; an Arrow file has one over the whole file.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias
from zlib import crc32

import msgspec
import pyarrow as pa
from pyarrow import parquet

from kcl_landing.log import FOOTER, Damaged, Footer, Format, LogInfo
from kcl_landing.records import SCHEMA, RecordBatch, repeated

__all__ = ["Damaged", "decode", "encode", "read_footer"]

_CHECKSUM: Final = b"kcl.crc32"
_UNCHECKED: Final = b"crc32=00000000"
Table: TypeAlias = Any
_CHECKED: Final = re.compile(rb"crc32=[0-9a-f]{8}")
_ROW_GROUP_BYTES: Final = 64 * 1024 * 1024
_ROOM_BYTES: Final = 256 * 1024
_UNPACKED_BYTES_MOST: Final = 4 * 1024**3
"""Some columns do not count for landingMaxBytes, and compaction merges."""
_PARQUET: Final[Any] = parquet


def encode(info: LogInfo, batches: Sequence[RecordBatch], footer: Footer) -> memoryview:
    named = [_with_names(each, footer) for each in batches]
    table = pa.Table.from_batches(named, None if named else SCHEMA)
    if info.format == "arrow":
        return _arrow(table, footer)
    said = msgspec.json.encode(footer)
    # A buffer that grows is copied each time.
    room = pa.allocate_buffer(table.nbytes + table.nbytes // 50 + len(said) + _ROOM_BYTES)
    sink = pa.FixedSizeBufferWriter(room)
    rows = max(1, table.num_rows * _ROW_GROUP_BYTES // max(table.nbytes, _ROW_GROUP_BYTES))
    options = {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": ["stream", "shard_id"],
        "write_statistics": ["sequence_number", "approximate_arrival_timestamp"],
        "write_page_checksum": True,
        "store_schema": False,
    }
    with _PARQUET.ParquetWriter(sink, table.schema, **options) as writer:
        writer.write_table(table, row_group_size=rows)
        writer.add_key_value_metadata({FOOTER: said, _CHECKSUM: _checksum(said)})
    return memoryview(room)[: sink.tell()]


def read_footer(content: bytes | memoryview, format: Format) -> Footer:  # noqa: A002 - it is the name of the field
    """Not of the records. Raises Damaged."""
    with _reading(format):
        if format == "parquet":
            read = _PARQUET.read_metadata(pa.BufferReader(content))
            return _checked_footer(read.metadata, read.num_rows)
        with pa.ipc.open_file(pa.BufferReader(content)) as file:
            return _footer(file.schema.metadata)


def decode(content: bytes | memoryview, format: Format) -> Table:  # noqa: A002
    """Damaged: also by a checksum."""
    with _reading(format):
        table = _parquet_table(content) if format == "parquet" else _arrow_table(content)
        plain = table.replace_schema_metadata(None)
        return plain if plain.schema.equals(SCHEMA) else plain.cast(SCHEMA)


def _parquet_table(content: bytes | memoryview) -> Table:
    """A few bytes of zeros can unpack to any number of records: the footer is checked before."""
    file = _PARQUET.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
    said = file.metadata
    footer = _checked_footer(said.metadata, said.num_rows)
    _check_size(sum(said.row_group(each).total_byte_size for each in range(said.num_row_groups)))
    table = file.read()
    _check_rows(table.num_rows, footer)
    return table


def _arrow_table(content: bytes | memoryview) -> Table:
    _check_arrow(content)
    with pa.ipc.open_file(pa.BufferReader(content)) as reader:
        footer, batches, rows, size = _footer(reader.schema.metadata), list[Any](), 0, 0
        for each in range(reader.num_record_batches):
            batches.append(reader.get_batch(each))
            rows, size = rows + batches[-1].num_rows, size + batches[-1].nbytes
            _check_size(size)
            if rows > footer.rows:
                break
        _check_rows(rows, footer)
        return pa.Table.from_batches(batches, reader.schema)


def _check_size(size_bytes: int) -> None:
    if size_bytes > _UNPACKED_BYTES_MOST:
        raise Damaged(f"it unpacks to more than {_UNPACKED_BYTES_MOST} bytes")


def _check_rows(rows: int, footer: Footer) -> None:
    if rows != footer.rows:
        raise Damaged(f"it has {rows} records, but says {footer.rows}")


def _with_names(batch: RecordBatch, footer: Footer) -> RecordBatch:
    names = {
        "stream": repeated(footer.stream, batch.num_rows),
        "shard_id": repeated(footer.shard, batch.num_rows),
    }
    columns = [names[each] if each in names else batch.column(each) for each in SCHEMA.names]
    return pa.record_batch(columns, SCHEMA)


def _arrow(table: Table, footer: Footer) -> memoryview:
    sink = pa.BufferOutputStream()
    said = {FOOTER: msgspec.json.encode(footer), _CHECKSUM: _UNCHECKED}
    whole = table.replace_schema_metadata(said)
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 1))
    with pa.ipc.new_file(sink, whole.schema, options=options) as writer:
        writer.write_table(whole)
    content = bytearray(memoryview(sink.getvalue()))
    checked = _checksum(content)
    # It is there twice.
    for at in (content.find(_UNCHECKED), content.rfind(_UNCHECKED)):
        content[at : at + len(checked)] = checked
    return memoryview(content)


def _check_arrow(content: bytes | memoryview) -> None:
    with pa.ipc.open_file(pa.BufferReader(content)) as reader:
        said = reader.schema.metadata[_CHECKSUM]
    whole = bytearray(content)
    for at in (whole.find(said), whole.rfind(said)):
        whole[at : at + len(said)] = _UNCHECKED
    if _CHECKED.fullmatch(said) is None or _checksum(whole) != said:
        raise Damaged(f"the checksum of the file is {_checksum(whole)!r}, but it says {said!r}")


def _checksum(content: bytes | bytearray) -> bytes:
    return b"crc32=%08x" % crc32(content)


def _checked_footer(metadata: Any, rows: int) -> Footer:
    if metadata[_CHECKSUM] != _checksum(metadata[FOOTER]):
        raise Damaged("what it says of itself does not fit its checksum")
    footer = _footer(metadata)
    _check_rows(rows, footer)
    return footer


def _footer(metadata: Any) -> Footer:
    return msgspec.json.decode(metadata[FOOTER], type=Footer)


@contextmanager
def _reading(format: Format) -> Generator[None]:  # noqa: A002
    """Pyarrow raises many kinds."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise Damaged(f"this is no whole segment in the format {format}: {error!r}") from error
