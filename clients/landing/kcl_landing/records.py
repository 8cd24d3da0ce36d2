"""Records of the line protocol as Arrow columns."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa

from kcl_landing.positions import Position, position
from kcl_protocol.arrow import arrays_of
from kcl_protocol.frames import Frame
from kcl_protocol.messages import FrameHeader

RecordBatch: TypeAlias = Any
_MICROSECONDS: Final = 1000
_TEXT: Final = pa.string()
_ARRIVAL: Final = pa.timestamp("us", tz="UTC")
SCHEMA: Final = pa.schema(
    [
        ("data", pa.binary()),
        ("partition_key", _TEXT),
        ("stream", _TEXT),
        ("shard_id", _TEXT),
        ("sequence_number", _TEXT),
        ("sub_sequence_number", pa.int64()),
        ("approximate_arrival_timestamp", _ARRIVAL),
    ]
)
_NAMES: Final = ("stream", "shard_id")
_PLAIN: Final = pa.schema([each for each in SCHEMA if each.name not in _NAMES])


class Record(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    data: bytes
    sequence_number: str
    partition_key: str | None = None
    approximate_arrival_timestamp: int | None = None
    sub_sequence_number: int | None = None

    @property
    def where(self) -> Position:
        return position(self.sequence_number, self.sub_sequence_number)


class Message(msgspec.Struct, frozen=True, rename="camel"):
    action: str
    shard_id: str = ""
    fencing_token: int | None = None
    sequence_number: str | None = None
    sub_sequence_number: int | None = None
    records: list[Record] = []
    millis_behind_latest: int | None = None
    error: str | None = None
    stream_name: str | None = None
    child_shards: tuple[str, ...] | None = None
    complete_millis: int | None = None


class FrameMessage(Message, frozen=True, kw_only=True):
    frame: Frame


read_line: Final = msgspec.json.Decoder(Message).decode


def read_frame(header: FrameHeader, body: bytes) -> Message:
    return FrameMessage(
        "processRecords",
        frame=Frame(header, body),
        millis_behind_latest=header.millis_behind_latest,
        complete_millis=header.complete_ms,
    )


def behind(records: Sequence[Record], mark: Position) -> Sequence[Record]:
    first = bisect_right(records, mark, key=lambda record: record.where)
    return records[first:] if first else records


def to_arrow(records: Sequence[Record], *, stream: str, shard_id: str) -> RecordBatch:
    return _named(plain_batch(records), stream, shard_id)


def frame_to_arrow(frame: Frame, *, stream: str, shard_id: str) -> RecordBatch:
    return _named(plain_frame(frame), stream, shard_id)


def plain_batch(records: Sequence[Record]) -> RecordBatch:
    columns = [
        pa.array([record.data for record in records], pa.binary()),
        pa.array([record.partition_key for record in records], _TEXT),
        pa.array([record.sequence_number for record in records], _TEXT),
        pa.array([record.sub_sequence_number or 0 for record in records], pa.int64()),
        _in_microseconds([record.approximate_arrival_timestamp for record in records]),
    ]
    return pa.record_batch(columns, _PLAIN)


def plain_frame(frame: Frame) -> RecordBatch:
    data, keys, numbers, _, sub_numbers = arrays_of(frame)
    return pa.record_batch([data, keys, numbers, sub_numbers, _in_microseconds(frame.arrivals_ms)], _PLAIN)


def repeated(text: str, count: int) -> Any:
    """pyarrow.repeat loads pyarrow.compute: a second of CPU."""
    each = text.encode()
    ends = array("i", range(0, len(each) * count + 1, len(each)) if each else bytes(4 * (count + 1)))
    return pa.Array.from_buffers(_TEXT, count, [None, pa.py_buffer(ends), pa.py_buffer(each * count)])


def _named(batch: RecordBatch, stream: str, shard_id: str) -> RecordBatch:
    names = (repeated(each, batch.num_rows) for each in (stream, shard_id))
    data, keys, *rest = batch.columns
    return pa.record_batch([data, keys, *names, *rest], schema=SCHEMA)


def compact(arrivals_ms: Sequence[int | None]) -> Sequence[int | None]:
    return (
        arrivals_ms if None in arrivals_ms else array("q", [each for each in arrivals_ms if each is not None])
    )


def _in_microseconds(arrivals_ms: Sequence[int | None]) -> Any:
    """Arrow's cast, likewise."""
    if None in arrivals_ms:
        return pa.array([None if each is None else each * _MICROSECONDS for each in arrivals_ms], _ARRIVAL)
    known = array("q", [(each or 0) * _MICROSECONDS for each in arrivals_ms])
    return pa.Array.from_buffers(_ARRIVAL, len(known), [None, pa.py_buffer(known)])


def rows_up_to(batch: RecordBatch, where: Position) -> int:
    return bisect_right(range(batch.num_rows), where, key=partial(_position_in, batch))


def last_position(batch: RecordBatch) -> Position:
    return _position_in(batch, batch.num_rows - 1)


def _position_in(batch: RecordBatch, row: int) -> Position:
    sequences, subs = batch.column("sequence_number"), batch.column("sub_sequence_number")
    return int(sequences[row].as_py()), int(subs[row].as_py())
