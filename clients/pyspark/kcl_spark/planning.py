"""What one micro-batch reads: ends that are fair to all shards, the segments of a range, tasks of similar size.

Pure. A range is planned at most once by end: what `ends` gave goes into Spark's write-ahead log, and whatever happens
later, the batch of that range is made of the same records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kcl_spark.positions import START, Position, Positions, to_text
from kcl_spark.segments import Segment


@dataclass(frozen=True, slots=True)
class Piece:
    """Records of one segment that belong to a batch.

    Args:
        segment: where they are.
        after: those behind this position,
        last: up to and with this one.
    """

    segment: Segment
    after: Position
    last: Position


class Hole(Exception):
    """Raised when records between what was read and what is spooled next are missing: reading on would lose them."""

    def __init__(self, shard_id: str, reached: Position, found: Position) -> None:
        super().__init__(
            f"the spool of {shard_id} lacks the records between {to_text(reached)} and {to_text(found)}; was it altered "
            "while the engine ran? Start the engine again: the records are delivered once more"
        )


def ends(
    start: Positions,
    spooled: Mapping[str, Sequence[Segment]],
    granted: Positions,
    max_bytes: int | None,
) -> dict[str, Position]:
    """How far the next batch goes, shard by shard; what has nothing new stays where it is.

    Shards take turns, a segment each, so that a shard with a long backlog does not keep the others waiting. At least
    one segment is taken where there is one.

    Args:
        start: where the batch before ended.
        spooled: the segments of each shard, in order.
        granted: the checkpoint with which each shard's lease came here: up to there others may have done the work.
        max_bytes: no further segment once the batch has this much; None: everything.

    Raises:
        Hole: records are missing in between.
    """
    queues = {
        shard: [each for each in segments if each.last > start.get(shard, START)]
        for shard, segments in sorted(spooled.items())
    }
    reached = dict(start)
    taken = 0
    turn = 0
    while any(len(queue) > turn for queue in queues.values()):
        for shard, queue in queues.items():
            if len(queue) <= turn:
                continue
            if max_bytes is not None and taken and taken + queue[turn].size_bytes > max_bytes:
                return reached
            taken += queue[turn].size_bytes
            _refuse_hole(shard, reached.get(shard, START), granted.get(shard, START), queue[turn].after)
            reached[shard] = queue[turn].last
        turn += 1
    return reached


def _refuse_hole(shard_id: str, reached: Position, granted: Position, after: Position) -> None:
    if after > max(reached, granted):
        raise Hole(shard_id, reached, after)


def pieces(segments: Sequence[Segment], after: Position, last: Position) -> list[Piece]:
    """What a shard's segments hold of (after, last], in order."""
    return [
        Piece(each, max(after, each.after), min(last, each.last))
        for each in segments
        if each.last > after and each.after < last
    ]


def is_covered(shard_id: str, segments: Sequence[Segment], after: Position, last: Position) -> bool:
    """Whether every record of (after, last] is in the segments; False: the rest may still come.

    Raises:
        Hole: it cannot come any more, as later records are there already.
    """
    reached = after
    for each in segments:
        if reached >= last:
            break
        if each.last > reached:
            if each.after > reached:
                raise Hole(shard_id, reached, each.after)
            reached = each.last
    return reached >= last


def tasks(all_pieces: Sequence[Sequence[Piece]], most: int) -> list[list[Piece]]:
    """Put whole shards together into at most so many tasks of similar size: the order in a shard stays."""
    groups: list[tuple[int, list[Piece]]] = []
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
