from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

Position: TypeAlias = tuple[int, int]
"""Sequence number and sub-sequence number (0 if not aggregated)."""
Positions: TypeAlias = Mapping[str, Position]
START: Final[Position] = (-1, 0)


def position(sequence_number: str | None, sub_sequence_number: int | None) -> Position:
    """`START` for a sentinel (`TRIM_HORIZON`, ...) or None."""
    if sequence_number is None or not (sequence_number.isascii() and sequence_number.isdigit()):
        return START
    return int(sequence_number), sub_sequence_number or 0


def to_text(where: Position, separator: str = "/") -> str:
    return f"{where[0]}{separator}{where[1]}"


def from_text(text: str, separator: str = "/") -> Position:
    sequence, _, sub = text.partition(separator)
    return int(sequence), int(sub)
