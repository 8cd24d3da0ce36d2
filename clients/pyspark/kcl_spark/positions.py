"""Positions in a shard as Spark's offsets, file names and the KCL carry them: (sequence number, sub-sequence number).

Pure. Positions are compared as whole numbers, never as text; `START` lies before every record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

Position: TypeAlias = tuple[int, int]
"""Sequence number and sub-sequence number (0 for a record that is in no aggregate)."""
Positions: TypeAlias = Mapping[str, Position]
"""By shard id. A shard that is not there stands at `START`."""

START: Final[Position] = (-1, 0)
_SHARDS: Final = "s"
_VERSION: Final = "kcl"


def position(sequence_number: str | None, sub_sequence_number: int | None) -> Position:
    """The position of a record or a checkpoint; a sentinel (`TRIM_HORIZON`, ...) or nothing is `START`."""
    if sequence_number is None or not (sequence_number.isascii() and sequence_number.isdigit()):
        return START
    return int(sequence_number), sub_sequence_number or 0


def to_text(where: Position) -> str:
    """`SEQUENCE/SUB`, as offsets have it."""
    return f"{where[0]}/{where[1]}"


def from_text(text: str) -> Position:
    """What `to_text` wrote; ValueError where it is something else."""
    sequence, _, sub = text.partition("/")
    return int(sequence), int(sub)


def to_mark(where: Position) -> str:
    """`SEQUENCE.SUB`, as names of files have it."""
    return f"{where[0]}.{where[1]}"


def from_mark(text: str) -> Position:
    """What `to_mark` wrote; ValueError where it is something else."""
    sequence, _, sub = text.partition(".")
    return int(sequence), int(sub)


def to_offset(positions: Positions) -> dict[str, object]:
    """The source's offset: what stands in Spark's write-ahead log, shards in order of their names."""
    shards = {shard: to_text(positions[shard]) for shard in sorted(positions)}
    return {_VERSION: 1, _SHARDS: shards}


def from_offset(offset: object) -> dict[str, Position] | None:
    """The positions of an offset of ours; None where it is another source's."""
    if not isinstance(offset, dict) or offset.get(_VERSION) != 1:
        return None
    shards = offset.get(_SHARDS)
    if not isinstance(shards, dict):
        return None
    return {str(shard): from_text(str(text)) for shard, text in shards.items()}


def minimum(all_positions: Iterable[Positions]) -> dict[str, Position]:
    """For each shard what all have reached; a shard that one of them does not know is left out."""
    each = list(all_positions)
    if not each:
        return {}
    shards = set(each[0]).intersection(*each[1:])
    return {shard: min(positions[shard] for positions in each) for shard in shards}
