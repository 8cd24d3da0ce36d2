"""The spool's Arrow files. Each holds records of one shard, in order, without a gap.

A name is `AFTER~LAST~ROWS~BYTES~FROM~UNTIL.arrow`: the records after position AFTER up to LAST, which arrived from
FROM until UNTIL. Positions that are too long stand in the file, and a digest in the name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from heapq import heapreplace, merge
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute

from kcl_landing.positions import START, Position, Positions, from_text, to_text
from kcl_landing.records import SCHEMA, RecordBatch, rows_up_to

SUFFIX: Final = ".arrow"
_COMPUTE: Any = pyarrow.compute
_MICROSECONDS: Final = 1000
_MAGIC: Final = b"ARROW1"
_ARRIVED: Final = SCHEMA.get_field_index("approximate_arrival_timestamp")
_PLACES: Final = [SCHEMA.get_field_index(name) for name in ("sequence_number", "sub_sequence_number")]
_ENDS_MOST: Final = 150
_DIGEST: Final = "digest"
OPEN_MS: Final = 2**63 - 1
CLOSED_MS: Final = -1


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Of one arrival time. A record that seems to arrive earlier has that of the one before."""

    arrived_ms: int
    last: Position
    rows: int


@dataclass(frozen=True, slots=True)
class Segment:
    """`first_ms` 0: unknown; never before the end of the previous one."""

    shard_id: str
    after: Position
    last: Position
    rows: int
    size_bytes: int
    first_ms: int = 0
    last_ms: int = 0

    @property
    def name(self) -> str:
        ends = f"{to_text(self.after, '.')}~{to_text(self.last, '.')}"
        if len(ends) > _ENDS_MOST:
            ends = f"{_DIGEST}~{blake2b(ends.encode(), digest_size=16).hexdigest()}"
        return f"{ends}~{self.rows}~{self.size_bytes}~{self.first_ms}~{self.last_ms}{SUFFIX}"

    def path(self, spool: Path) -> Path:
        return spool / self.shard_id / self.name

    @property
    def schema(self) -> Any:
        return SCHEMA.with_metadata({"after": to_text(self.after), "last": to_text(self.last)})


def parse_name(shard_id: str, name: str) -> Segment | None:
    parts = name.removesuffix(SUFFIX).split("~")
    if not name.endswith(SUFFIX) or len(parts) != 6:
        return None
    after, last, *numbers = parts
    if after == _DIGEST:
        return None
    return Segment(shard_id, from_text(after, "."), from_text(last, "."), *map(int, numbers))


def segment_at(path: Path) -> Segment | None:
    """None: not whole, or just removed."""
    if not path.name.startswith(_DIGEST):
        return parse_name(path.parent.name, path.name)
    try:
        with pa.memory_map(str(path)) as file, pa.ipc.open_file(file) as reader:
            ends = [reader.schema.metadata[each].decode() for each in (b"after", b"last")]
    except (OSError, pa.ArrowInvalid, KeyError):
        return None
    numbers = map(int, path.name.removesuffix(SUFFIX).split("~")[2:])
    return Segment(path.parent.name, from_text(ends[0]), from_text(ends[1]), *numbers)


def list_segments(spool: Path) -> dict[str, list[Segment]]:
    found: dict[str, list[Segment]] = {}
    for folder in _entries(spool):
        if not folder.is_dir():
            continue
        segments = [segment_at(entry) for entry in _entries(folder) if entry.suffix == SUFFIX]
        found[folder.name] = sorted(
            (each for each in segments if each is not None), key=lambda each: each.last
        )
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
    with pa.memory_map(location) as file, pa.ipc.open_file(file) as reader:
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
    """By Arrow alone: given numbers of Python it imports pandas, 40 MB."""
    options = pa.ipc.IpcReadOptions(included_fields=[*_PLACES, _ARRIVED])
    with pa.memory_map(location) as file, pa.ipc.open_file(file, options=options) as reader:
        table = reader.read_all().combine_chunks()
    arrived = table.column("approximate_arrival_timestamp").cast(pa.timestamp("ms", "UTC"), safe=False)
    highest = _COMPUTE.cumulative_max(arrived.cast(pa.int64()).combine_chunks(), skip_nulls=True)
    runs = _COMPUTE.run_end_encode(_COMPUTE.fill_null_forward(highest))
    ends = runs.run_ends.to_pylist()
    sequences, subs = table.column("sequence_number"), table.column("sub_sequence_number")
    return [
        Arrivals(arrived_ms or 0, (int(sequences[end - 1].as_py()), subs[end - 1].as_py()), end - begin)
        for arrived_ms, end, begin in zip(runs.values.to_pylist(), ends, [0, *ends[:-1]], strict=True)
    ]


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
    """Reading on would lose records."""

    def __init__(self, shard_id: str, reached: Position, found: Position) -> None:
        super().__init__(
            f"the spool of {shard_id} lacks the records between {to_text(reached)} and {to_text(found)}; was it altered "
            "while the engine ran? Start the engine again: the records are delivered once more"
        )


@dataclass(frozen=True, slots=True)
class Step:
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
    """How far the next batch goes in each shard. MissingRange: records in between are missing.

    A batch ends at one arrival time in all shards: the latest that fits `max_bytes`, but takes a step at least.
    Shards take turns only within one millisecond. Other hosts may have committed up to `granted`. Without `times`
    segments are taken whole.
    """
    most = sys.maxsize if max_bytes is None else max_bytes
    queues = {
        shard: [each for each in segments if each.last > start.get(shard, START)]
        for shard, segments in spooled.items()
    }
    whole_ms = _whole_up_to(queues.values(), most, horizon_ms)

    def turns(shard: str) -> Iterator[tuple[int, int, str, Step]]:
        steps = _steps(queues[shard], start.get(shard, START), horizon_ms, times, whole_ms=whole_ms)
        for turn, step in enumerate(steps):
            yield step.arrived_ms, turn, shard, step

    reached, taken = dict(start), 0
    for _, group in groupby(merge(*map(turns, queues)), key=lambda each: each[0]):
        together = list(group)
        if taken and taken + sum(step.size_bytes for *_, step in together) > most:
            return reached
        for _, _, shard, step in together:
            if taken and taken + step.size_bytes > most:
                return reached
            _refuse_hole(shard, max(reached.get(shard, START), granted.get(shard, START)), step.after)
            reached[shard] = step.last
            taken += step.size_bytes
    return reached


def end_within(
    segments: Sequence[Segment], start: Position, horizon_ms: int, times: Times | None = None
) -> Position:
    queue = [each for each in segments if each.last > start]
    steps = _steps(queue, start, horizon_ms, times, whole_ms=horizon_ms)
    return max((step.last for step in steps), default=START)


def _whole_up_to(queues: Iterable[Sequence[Segment]], most: int, horizon_ms: int) -> int:
    """Those segments need not be read."""
    size = 0
    for each in sorted((each for queue in queues for each in queue), key=lambda each: each.first_ms):
        size += each.size_bytes
        if size > most:
            return min(each.first_ms - 1, horizon_ms)
    return horizon_ms


def _steps(
    queue: Sequence[Segment], start: Position, horizon_ms: int, times: Times | None, *, whole_ms: int
) -> Iterator[Step]:
    for each in queue:
        steps: Iterable[Step] = [Step(each.first_ms, each.last, each.size_bytes, each.after)]
        if times is not None and whole_ms < each.last_ms != each.first_ms:
            steps = _steps_inside(each, times(each))
        for step in steps:
            if step.arrived_ms > horizon_ms:
                return
            if step.last > start:
                yield step


def _steps_inside(segment: Segment, arrivals: Sequence[Arrivals]) -> Iterator[Step]:
    after = segment.after
    for each in arrivals:
        size_bytes = segment.size_bytes * each.rows // segment.rows
        yield Step(max(each.arrived_ms, segment.first_ms), each.last, size_bytes, after)
        after = each.last


def _refuse_hole(shard_id: str, reached: Position, after: Position) -> None:
    if after > reached:
        raise MissingRange(shard_id, reached, after)


def pieces(segments: Sequence[Segment], after: Position, last: Position) -> list[SegmentRange]:
    return [
        SegmentRange(each, max(after, each.after), min(last, each.last))
        for each in segments
        if each.last > after and each.after < last
    ]


def is_covered(shard_id: str, segments: Sequence[Segment], after: Position, last: Position) -> bool:
    """All of (after, last]; MissingRange: the rest cannot come any more."""
    reached = after
    for each in segments:
        if reached < min(last, each.last):
            _refuse_hole(shard_id, reached, each.after)
            reached = each.last
    return reached >= last


def tasks(all_pieces: Sequence[Sequence[SegmentRange]], most: int) -> list[list[SegmentRange]]:
    groups: list[tuple[int, int, list[SegmentRange]]] = [(0, number, []) for number in range(most)]
    for shard in sorted(all_pieces, key=_size_bytes, reverse=True):
        size, number, smallest = groups[0]
        smallest.extend(shard)
        heapreplace(groups, (size + _size_bytes(shard), number, smallest))
    return [group for _, _, group in sorted(groups, key=lambda each: each[1]) if group]


def _size_bytes(shard: Sequence[SegmentRange]) -> int:
    return sum(each.segment.size_bytes for each in shard)
