"""Records of the line protocol as Arrow columns."""

from __future__ import annotations

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
SCHEMA: Final = pa.schema(
    [
        ("data", pa.binary()),
        ("partition_key", _TEXT),
        ("stream", _TEXT),
        ("shard_id", _TEXT),
        ("sequence_number", _TEXT),
        ("sub_sequence_number", pa.int64()),
        ("approximate_arrival_timestamp", pa.timestamp("us", tz="UTC")),
    ]
)


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


class FrameMessage(Message, frozen=True, kw_only=True):
    frame: Frame


read_line: Final = msgspec.json.Decoder(Message).decode


def read_frame(header: FrameHeader, body: bytes) -> Message:
    behind_ms = header.millis_behind_latest
    return FrameMessage("processRecords", frame=Frame(header, body), millis_behind_latest=behind_ms)


def behind(records: Sequence[Record], mark: Position) -> Sequence[Record]:
    first = bisect_right(records, mark, key=lambda record: record.where)
    return records[first:] if first else records


def to_arrow(records: Sequence[Record], *, stream: str, shard_id: str) -> RecordBatch:
    count = len(records)
    arrivals = [record.approximate_arrival_timestamp for record in records]
    return pa.record_batch(
        [
            pa.array([record.data for record in records], pa.binary()),
            pa.array([record.partition_key for record in records], pa.string()),
            pa.repeat(pa.scalar(stream), count),
            pa.repeat(pa.scalar(shard_id), count),
            pa.array([record.sequence_number for record in records], pa.string()),
            pa.array([record.sub_sequence_number or 0 for record in records], pa.int64()),
            pa.array(
                [None if each is None else each * _MICROSECONDS for each in arrivals],
                pa.timestamp("us", tz="UTC"),
            ),
        ],
        schema=SCHEMA,
    )


def frame_to_arrow(frame: Frame, *, stream: str, shard_id: str) -> RecordBatch:
    """Texts and data stay where they are in the frame."""
    data, keys, numbers, arrivals, sub_numbers = arrays_of(frame)
    names = (pa.repeat(pa.scalar(name), len(frame)) for name in (stream, shard_id))
    arrived = arrivals.cast(pa.timestamp("us", tz="UTC"))
    return pa.record_batch([data, keys, *names, numbers, sub_numbers, arrived], schema=SCHEMA)


def rows_up_to(batch: RecordBatch, where: Position) -> int:
    return bisect_right(range(batch.num_rows), where, key=partial(_position_in, batch))


def last_position(batch: RecordBatch) -> Position:
    return _position_in(batch, batch.num_rows - 1)


def _position_in(batch: RecordBatch, row: int) -> Position:
    sequences, subs = batch.column("sequence_number"), batch.column("sub_sequence_number")
    return int(sequences[row].as_py()), int(subs[row].as_py())
