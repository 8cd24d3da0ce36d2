"""Segments: the spool's Arrow files. Each holds records of one shard, in order, without a gap.

A name is `AFTER~LAST~ROWS~BYTES~FROM~UNTIL.arrow`: the records after position AFTER up to LAST, with arrival
times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute
from pyarrow import fs

from kcl_spark.positions import START, Position, from_mark, to_mark

RecordBatch: TypeAlias = Any
SUFFIX: Final = ".arrow"
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
_COMPUTE: Any = pyarrow.compute
_MICROSECONDS: Final = 1000
_MAGIC: Final = b"ARROW1"
_ARRIVED: Final = SCHEMA.get_field_index("approximate_arrival_timestamp")
_PLACES: Final = [SCHEMA.get_field_index(name) for name in ("sequence_number", "sub_sequence_number")]
OPEN_MS: Final = 2**63 - 1
CLOSED_MS: Final = -1


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Consecutive records with one arrival time, which never goes back."""

    arrived_ms: int
    last: Position
    rows: int


@dataclass(frozen=True, slots=True)
class Segment:
    """The content of a segment's name.

    Args:
        after: the records begin after this position.
        first_ms: 0: unknown. Never before the end of the previous segment.
    """

    shard_id: str
    after: Position
    last: Position
    rows: int
    size_bytes: int
    first_ms: int = 0
    last_ms: int = 0

    @property
    def name(self) -> str:
        times = f"{self.first_ms}~{self.last_ms}"
        return f"{to_mark(self.after)}~{to_mark(self.last)}~{self.rows}~{self.size_bytes}~{times}{SUFFIX}"

    def path(self, spool: Path) -> Path:
        return spool / self.shard_id / self.name


def parse_name(shard_id: str, name: str) -> Segment | None:
    parts = name.removesuffix(SUFFIX).split("~")
    if not name.endswith(SUFFIX) or len(parts) != 6:
        return None
    after, last, *numbers = parts
    return Segment(shard_id, from_mark(after), from_mark(last), *map(int, numbers))


def list_segments(spool: Path) -> dict[str, list[Segment]]:
    found: dict[str, list[Segment]] = {}
    for folder in _entries(spool):
        if not folder.is_dir():
            continue
        names = [parse_name(folder.name, entry.name) for entry in _entries(folder)]
        found[folder.name] = sorted((each for each in names if each is not None), key=lambda each: each.last)
    return found


def is_whole(path: Path, size_bytes: int) -> bool:
    try:
        if path.stat().st_size != size_bytes:
            return False
        with path.open("rb") as file:
            file.seek(-len(_MAGIC), 2)
            return file.read() == _MAGIC
    except OSError:
        return False


def read_range(location: str, after: Position, last: Position) -> Iterator[RecordBatch]:
    with _opened(location) as file, pa.ipc.open_file(file) as reader:
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            low, high = rows_up_to(batch, after), rows_up_to(batch, last)
            if high > low:
                yield batch if high - low == batch.num_rows else batch.slice(low, high - low)


def span_ms(table: Any, not_before_ms: int) -> tuple[int, int]:
    arrived = table.column("approximate_arrival_timestamp").cast(pa.int64())
    first, latest = arrived[0].as_py(), _COMPUTE.max(arrived).as_py()
    first_ms = not_before_ms if first is None else max(first // _MICROSECONDS, not_before_ms)
    return first_ms, first_ms if latest is None else max(latest // _MICROSECONDS, first_ms)


def read_arrivals(location: str) -> list[Arrivals]:
    """In order; reads only three columns."""
    files, path = (
        (fs.LocalFileSystem(), location) if "://" not in location else fs.FileSystem.from_uri(location)
    )
    options = pa.ipc.IpcReadOptions(included_fields=[*_PLACES, _ARRIVED])
    with files.open_input_file(path) as file, pa.ipc.open_file(file, options=options) as reader:
        table = reader.read_all().combine_chunks()
    arrived = table.column("approximate_arrival_timestamp").cast(pa.int64()).combine_chunks()
    known = _COMPUTE.fill_null_forward(_COMPUTE.cumulative_max(arrived, skip_nulls=True))
    runs = _COMPUTE.run_end_encode(_COMPUTE.divide(_COMPUTE.fill_null(known, 0), _MICROSECONDS))
    ends = runs.run_ends.to_pylist()
    last_rows = pa.array([end - 1 for end in ends])
    sequences = table.column("sequence_number").take(last_rows).to_pylist()
    subs = table.column("sub_sequence_number").take(last_rows).to_pylist()
    return [
        Arrivals(arrived_ms, (int(sequence), sub), end - begin)
        for arrived_ms, sequence, sub, end, begin in zip(
            runs.values.to_pylist(), sequences, subs, ends, [0, *ends[:-1]], strict=True
        )
    ]


def packed(batches: Iterable[RecordBatch]) -> bytes:
    memory = pa.BufferOutputStream()
    with pa.ipc.new_stream(memory, SCHEMA) as writer:
        for batch in batches:
            writer.write_batch(batch)
    content: bytes = memory.getvalue().to_pybytes()
    return content


def unpacked(content: bytes) -> Iterator[RecordBatch]:
    with pa.ipc.open_stream(content) as reader:
        yield from reader


def _opened(location: str) -> Any:
    if "://" not in location:
        return pa.memory_map(location)
    files, path = fs.FileSystem.from_uri(location)
    with files.open_input_file(path) as file:
        return pa.BufferReader(file.read_buffer())


def rows_up_to(batch: RecordBatch, where: Position) -> int:
    if where == START or not batch.num_rows:
        return 0
    high: int = batch.num_rows
    sequences, subs = batch.column("sequence_number"), batch.column("sub_sequence_number")
    low = 0
    if _at(sequences, subs, high - 1) <= where:
        return high
    while low < high:
        middle = (low + high) // 2
        if _at(sequences, subs, middle) <= where:
            low = middle + 1
        else:
            high = middle
    return low


def _at(sequences: Any, subs: Any, row: int) -> Position:
    return int(sequences[row].as_py()), int(subs[row].as_py())


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
