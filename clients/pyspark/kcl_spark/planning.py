"""What one micro-batch reads: its end in all shards, its segments and its tasks.

Spark logs the result of `ends` before it reads; from then on that batch always has the same records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from kcl_spark.positions import START, Position, Positions, to_text
from kcl_spark.segments import CLOSED_MS, OPEN_MS, Arrivals, Segment


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
