"""Segments as bytes: Parquet or Arrow IPC files with the columns of `records.SCHEMA`, and what they say of themselves.

Parquet is plain enough for every reader: data pages V1, zstd, no nested or unusual types, timestamps in UTC microseconds.
Its pages have checksums, and what it says of itself has one; an Arrow file has one over the whole file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from zlib import crc32

import msgspec
import pyarrow as pa
from pyarrow import parquet

from kcl_landing.log import FOOTER, Damaged, Footer, Format, LogInfo
from kcl_landing.records import SCHEMA, RecordBatch

__all__ = ["Damaged", "decode", "encode", "read_footer"]

_CHECKSUM: Final = b"kcl.crc32"
_UNCHECKED: Final = b"crc32=00000000"
_CHECKED: Final = re.compile(rb"crc32=[0-9a-f]{8}")
_CONSTANT: Final = ("stream", "shard_id")
_ROW_GROUP_BYTES: Final = 64 * 1024 * 1024
_PARQUET: Final[Any] = parquet


def encode(info: LogInfo, batches: Sequence[RecordBatch], footer: Footer) -> memoryview:
    """Stream and shard are taken from `footer`."""
    table = pa.Table.from_batches(
        [_with_names(each, footer) for each in batches], None if batches else SCHEMA
    )
    sink = pa.BufferOutputStream()
    if info.format == "arrow":
        return _arrow(sink, table, footer)
    rows = max(1, table.num_rows * _ROW_GROUP_BYTES // max(table.nbytes, _ROW_GROUP_BYTES))
    options = {
        "compression": "zstd",
        "compression_level": 1,
        "use_dictionary": list(_CONSTANT),
        "write_statistics": ["sequence_number", "approximate_arrival_timestamp"],
        "write_page_checksum": True,
        "store_schema": False,
    }
    with _PARQUET.ParquetWriter(sink, table.schema, **options) as writer:
        writer.write_table(table, row_group_size=rows)
        said = msgspec.json.encode(footer)
        writer.add_key_value_metadata({FOOTER: said, _CHECKSUM: _checksum(said)})
    return memoryview(sink.getvalue())


def read_footer(content: bytes | memoryview, format: Format) -> Footer:  # noqa: A002 - it is the name of the field
    """Checks the end of the file, not the records. Raises Damaged."""
    with _reading(format):
        if format == "parquet":
            read = _PARQUET.read_metadata(pa.BufferReader(content))
            return _checked_footer(read.metadata, read.num_rows)
        with pa.ipc.open_file(pa.BufferReader(content)) as file:
            return _footer(file.schema.metadata, None)


def decode(content: bytes | memoryview, format: Format) -> pa.Table:  # noqa: A002
    """The records. Raises Damaged, also if a checksum does not fit."""
    with _reading(format):
        if format == "parquet":
            file = _PARQUET.ParquetFile(pa.BufferReader(content), page_checksum_verification=True)
            table = file.read()
            _checked_footer(file.metadata.metadata, table.num_rows)
        else:
            _check_arrow(content)
            with pa.ipc.open_file(pa.BufferReader(content)) as reader:
                table = reader.read_all()
            _footer(reader.schema.metadata, table.num_rows)
        return table.replace_schema_metadata(None).cast(SCHEMA)


def _with_names(batch: RecordBatch, footer: Footer) -> RecordBatch:
    columns = [
        _repeated(getattr(footer, "shard" if name == "shard_id" else name), batch.num_rows)
        if name in _CONSTANT
        else batch.column(name)
        for name in SCHEMA.names
    ]
    return pa.record_batch(columns, SCHEMA.names)


def _repeated(text: str, count: int) -> Any:
    """As a dictionary, which Parquet takes as it is."""
    zeros = pa.py_buffer(bytes(count))
    indexes = pa.Array.from_buffers(pa.int8(), count, [None, zeros], null_count=0)
    return pa.DictionaryArray.from_arrays(indexes, pa.array([text], pa.string()))


def _arrow(sink: Any, table: pa.Table, footer: Footer) -> memoryview:
    said = {FOOTER: msgspec.json.encode(footer), _CHECKSUM: _UNCHECKED}
    plain = table.cast(SCHEMA).replace_schema_metadata(said)
    options = pa.ipc.IpcWriteOptions(compression=pa.Codec("zstd", 1))
    with pa.ipc.new_file(sink, plain.schema, options=options) as writer:
        writer.write_table(plain)
    content = bytearray(memoryview(sink.getvalue()))
    checked = _checksum(content)
    # The schema is there twice: before the records, and after them.
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
    return _footer(metadata, rows)


def _footer(metadata: Any, rows: int | None) -> Footer:
    footer = msgspec.json.decode(metadata[FOOTER], type=Footer)
    if rows is not None and footer.rows != rows:
        raise Damaged(f"it has {rows} records, but says {footer.rows}")
    return footer


@contextmanager
def _reading(format: Format) -> Iterator[None]:  # noqa: A002
    """What pyarrow raises for damage is of many kinds."""
    try:
        yield
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise Damaged(f"this is no whole segment in the format {format}: {error!r}") from error
