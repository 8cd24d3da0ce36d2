"""Segments: the spool's Arrow files. Each holds records of one shard, in order, without a gap.

A name is `AFTER~LAST~ROWS~BYTES~FROM~UNTIL.arrow`: the records after position AFTER up to LAST, with arrival
times.

What one micro-batch reads: its end in all shards, its segments and its tasks.

Spark logs the result of `ends` before it reads; from then on that batch always has the same records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute
from pyarrow import fs

from kcl_spark.positions import START, Position, Positions, from_mark, to_mark, to_text

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


@dataclass(frozen=True, slots=True)
class SegmentRange:
    segment: Segment
    after: Position
    last: Position


class MissingRange(Exception):
    """Raised when records are missing before the next spooled ones: reading on would lose them."""

    def __init__(self, shard_id: str, reached: Position, found: Position) -> None:
        super().__init__(
            f"the spool of {shard_id} lacks the records between {to_text(reached)} and {to_text(found)}; was it altered "
            "while the engine ran? Start the engine again: the records are delivered once more"
        )


@dataclass(frozen=True, slots=True)
class Step:
    """Records with one arrival time; arrival times of a shard never go back."""

    arrived_ms: int
    last: Position
    size_bytes: int
    after: Position


Times = Callable[[Segment], Sequence[Arrivals]]


def ends(
    start: Positions,
    spooled: Mapping[str, Sequence[Segment]],
    granted: Positions,
    max_bytes: int | None,
    *,
    horizon_ms: int = OPEN_MS,
    times: Times | None = None,
) -> dict[str, Position]:
    """How far the next batch goes in each shard. `MissingRange` if records in between are missing.

    Spark's watermark follows the newest record of all shards. So a batch ends at one arrival time in all
    shards: the latest that fits `max_bytes`. Only within one millisecond shards take turns. At least one step
    is taken.

    Other hosts may have committed up to `granted`, the leases' checkpoints. Without `times` segments are
    taken whole.
    """
    queues = {
        shard: [each for each in segments if each.last > start.get(shard, START)]
        for shard, segments in sorted(spooled.items())
    }
    whole_ms = _whole_up_to(queues, max_bytes, horizon_ms)
    heads: list[tuple[int, int, str, Step, Iterator[Step]]] = []

    def push(turn: int, shard: str, steps: Iterator[Step]) -> None:
        step = next(steps, None)
        if step is not None and step.arrived_ms <= horizon_ms:
            heappush(heads, (step.arrived_ms, turn, shard, step, steps))

    for shard, queue in queues.items():
        push(0, shard, _steps(queue, start.get(shard, START), whole_ms, times))
    reached, taken = dict(start), 0
    while heads:
        now_ms = heads[0][0]
        together: list[tuple[str, Step]] = []
        while heads and heads[0][0] == now_ms:
            _, turn, shard, step, steps = heappop(heads)
            together.append((shard, step))
            push(turn + 1, shard, steps)
        size = sum(step.size_bytes for _, step in together)
        fits = max_bytes is None or taken + size <= max_bytes
        if not fits and taken:
            return reached
        for shard, step in together:
            if not fits and max_bytes is not None and taken and taken + step.size_bytes > max_bytes:
                return reached
            _refuse_hole(shard, reached.get(shard, START), granted.get(shard, START), step.after)
            reached[shard] = step.last
            taken += step.size_bytes
    return reached


def end_within(
    segments: Sequence[Segment], start: Position, horizon_ms: int, times: Times | None = None
) -> Position:
    queue = [each for each in segments if each.last > start]
    last = START
    for step in _steps(queue, start, horizon_ms, times):
        if step.arrived_ms > horizon_ms:
            break
        last = step.last
    return last


def _whole_up_to(queues: Mapping[str, Sequence[Segment]], max_bytes: int | None, horizon_ms: int) -> int:
    """An arrival time up to which everything fits, so that those segments need not be read."""
    segments = [each for queue in queues.values() for each in queue if each.first_ms <= horizon_ms]
    if max_bytes is None or sum(each.size_bytes for each in segments) <= max_bytes:
        return horizon_ms
    segments.sort(key=lambda each: each.first_ms)
    best, size, number = CLOSED_MS, 0, 0
    for until_ms in sorted({each.last_ms for each in segments}):
        while number < len(segments) and segments[number].first_ms <= until_ms:
            size += segments[number].size_bytes
            number += 1
        if size > max_bytes:
            break
        best = until_ms
    return min(best, horizon_ms)


def _steps(queue: Sequence[Segment], start: Position, whole_ms: int, times: Times | None) -> Iterator[Step]:
    for each in queue:
        if times is None or each.last_ms <= whole_ms or each.first_ms == each.last_ms:
            yield Step(each.first_ms, each.last, each.size_bytes, each.after)
            continue
        after = each.after
        for arrivals in times(each):
            if arrivals.last > start:
                arrived_ms = max(arrivals.arrived_ms, each.first_ms)
                yield Step(arrived_ms, arrivals.last, each.size_bytes * arrivals.rows // each.rows, after)
            after = arrivals.last


def _refuse_hole(shard_id: str, reached: Position, granted: Position, after: Position) -> None:
    if after > max(reached, granted):
        raise MissingRange(shard_id, reached, after)


def pieces(segments: Sequence[Segment], after: Position, last: Position) -> list[SegmentRange]:
    return [
        SegmentRange(each, max(after, each.after), min(last, each.last))
        for each in segments
        if each.last > after and each.after < last
    ]


def is_covered(shard_id: str, segments: Sequence[Segment], after: Position, last: Position) -> bool:
    """Whether the segments hold all of (after, last]; `MissingRange` if the rest cannot come any more."""
    reached = after
    for each in segments:
        if reached >= last:
            break
        if each.last > reached:
            if each.after > reached:
                raise MissingRange(shard_id, reached, each.after)
            reached = each.last
    return reached >= last


def tasks(all_pieces: Sequence[Sequence[SegmentRange]], most: int) -> list[list[SegmentRange]]:
    groups: list[tuple[int, list[SegmentRange]]] = []
    sized = sorted(
        ((sum(each.segment.size_bytes for each in shard), list(shard)) for shard in all_pieces if shard),
        key=lambda pair: pair[0],
        reverse=True,
    )
    for size, shard in sized:
        if len(groups) < most:
            groups.append((size, shard))
            continue
        smallest = min(range(len(groups)), key=lambda number: groups[number][0])
        groups[smallest] = (groups[smallest][0] + size, groups[smallest][1] + shard)
    return [group for _, group in groups]
