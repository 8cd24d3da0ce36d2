"""A frame as Arrow columns that lie in it, without a copy. Needs pyarrow, so nothing else imports this."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa

from kcl_protocol.frames import Frame, Row

_TYPES: Final = (pa.binary(), pa.string(), pa.string(), pa.timestamp("ms", tz="UTC"), pa.int64())
"""In the order of a `Row`."""


def arrays_of(frame: Frame) -> list[Any]:
    """Data, partition keys, sequence numbers, arrivals, sub-sequence numbers. They keep the frame in memory."""
    if sys.byteorder == "big":
        return arrays_of_rows(frame.rows())
    count, body = len(frame), pa.py_buffer(frame.body)
    data, keys, numbers = (
        [None, body.slice(16 * count + 4 * first, 4 * (count + 1)), body] for first in (2 * count, 0, count)
    )
    arrivals, sub_numbers = ([None, body.slice(at, 8 * count)] for at in (0, 8 * count))
    columns = zip(_TYPES, (data, keys, numbers, arrivals, sub_numbers), strict=True)
    arrays = [pa.Array.from_buffers(kind, count, buffers) for kind, buffers in columns]
    if frame.keyless:
        arrays[1] = pa.array([row[1] for row in frame.rows()], _TYPES[1])
    if None in frame.arrivals_ms:
        arrays[3] = pa.array(frame.arrivals_ms, _TYPES[3])
    return arrays


def arrays_of_rows(rows: Iterable[Row]) -> list[Any]:
    columns = list(zip(*rows, strict=True)) or [()] * len(_TYPES)
    return [pa.array(column, kind) for column, kind in zip(columns, _TYPES, strict=False)]


def batch_of(arrays: list[Any]) -> Any:
    data, keys, numbers, arrivals, sub_numbers = arrays
    columns = {
        "data": data,
        "partition_key": keys,
        "sequence_number": numbers,
        "sub_sequence_number": sub_numbers,
        "approximate_arrival_timestamp": arrivals,
    }
    return pa.record_batch(columns)
