"""Positions in a shard and their order."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import total_ordering
from typing import Final

_NUMBER_RANK: Final = 0


class Sentinel(StrEnum):
    """The values are wire literals (KCL: SentinelCheckpoint)."""

    AT_TIMESTAMP = "AT_TIMESTAMP"
    TRIM_HORIZON = "TRIM_HORIZON"
    LATEST = "LATEST"
    SHARD_END = "SHARD_END"


_RANKS: Final = {
    Sentinel.AT_TIMESTAMP.value: -3,
    Sentinel.TRIM_HORIZON.value: -2,
    Sentinel.LATEST.value: -1,
    Sentinel.SHARD_END.value: 1,
}


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class ExtendedSequenceNumber:
    """A Kinesis sequence number or a sentinel, with the index inside a KPL aggregate (0 for a plain record).

    Ordered as KCL orders checkpoints: AT_TIMESTAMP < TRIM_HORIZON < LATEST < any number < SHARD_END; numbers by value
    (never as text), then by sub-sequence number, which a sentinel ignores.

    Raises:
        ValueError: the text is neither digits nor a sentinel, or the sub-sequence number is negative.
    """

    sequence_number: str
    sub_sequence_number: int = 0
    _order: tuple[int, int, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        text = self.sequence_number
        if self.sub_sequence_number < 0:
            raise ValueError(f"sub-sequence number must not be negative: {self.sub_sequence_number}")
        rank = _RANKS.get(text)
        if rank is not None:
            order = (rank, 0, 0)
        elif text.isascii() and text.isdigit():
            order = (_NUMBER_RANK, int(text), self.sub_sequence_number)
        else:
            raise ValueError(f"neither a sequence number nor a sentinel: {text[:80]!r}")
        object.__setattr__(self, "_order", order)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExtendedSequenceNumber) and self._order == other._order

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, ExtendedSequenceNumber):
            return NotImplemented
        return self._order < other._order

    def __hash__(self) -> int:
        return hash(self._order)

    def __str__(self) -> str:
        return (
            f"{self.sequence_number}/{self.sub_sequence_number}"
            if self.sub_sequence_number
            else self.sequence_number
        )

    @property
    def is_sentinel(self) -> bool:
        return self._order[0] != _NUMBER_RANK

    @property
    def is_shard_end(self) -> bool:
        return self._order[0] > _NUMBER_RANK


TRIM_HORIZON: Final = ExtendedSequenceNumber(Sentinel.TRIM_HORIZON)
LATEST: Final = ExtendedSequenceNumber(Sentinel.LATEST)
AT_TIMESTAMP: Final = ExtendedSequenceNumber(Sentinel.AT_TIMESTAMP)
SHARD_END: Final = ExtendedSequenceNumber(Sentinel.SHARD_END)
