"""From the daemon's lines to Arrow: read, trimmed, put into columns. Pure.

Knows the fields of the line protocol and the columns of a segment; knows nothing of files, sockets or leases.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import pyarrow as pa

from kcl_spark.positions import Position, position
from kcl_spark.segments import SCHEMA, RecordBatch

_MICROSECONDS: Final = 1000


class Record(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """A record of `processRecords`; `data` is decoded while the line is read, which is what takes most of the time."""

    data: bytes
    sequence_number: str
    partition_key: str | None = None
    approximate_arrival_timestamp: int | None = None
    sub_sequence_number: int | None = None

    @property
    def where(self) -> Position:
        """Its position."""
        return position(self.sequence_number, self.sub_sequence_number)


class Message(msgspec.Struct, frozen=True, rename="camel"):
    """Anything that the daemon says: the fields of all its messages."""

    action: str
    shard_id: str = ""
    sequence_number: str | None = None
    sub_sequence_number: int | None = None
    records: list[Record] = []
    millis_behind_latest: int | None = None
    error: str | None = None


read_line: Final = msgspec.json.Decoder(Message).decode
"""The message of a line; `msgspec.DecodeError` where it is none, a fault of whoever wrote it."""


def behind(records: Sequence[Record], mark: Position) -> Sequence[Record]:
    """The records after a mark; they are in order. What is redelivered lies at or before it."""
    if not records or records[0].where > mark:
        return records
    low, high = 0, len(records)
    while low < high:
        middle = (low + high) // 2
        if records[middle].where <= mark:
            low = middle + 1
        else:
            high = middle
    return records[low:]


def to_arrow(records: Sequence[Record], *, stream: str, shard_id: str) -> RecordBatch:
    """The records as rows of a segment."""
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
