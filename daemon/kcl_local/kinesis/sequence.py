"""Sequence numbers: 56 digits that grow over all shards, reshards and streams of one model.

Knows nothing of streams or records. Inside the model a record is known by its tick, a small counter; the long number
is made from it on the way out, together with the shard's index, so that a number tells whose it is.
"""

from __future__ import annotations

from typing import Final

_SMALLEST: Final = 495 * 10**53
_DIGITS_MAX: Final = 56
_SHARD_BITS: Final = 24
_TICK_BITS: Final = 56
_TICK_MASK: Final = 2**_TICK_BITS - 1
_SHARD_MASK: Final = 2**_SHARD_BITS - 1


class SequenceNumbers:
    """Issues ticks and translates them.

    Args:
        started_s: when the model started; a later model's numbers are greater, so that a checkpoint which outlived
            its stream is not taken for one of the new stream.
    """

    def __init__(self, started_s: float) -> None:
        self._base = _SMALLEST + (int(started_s * 1000) << (_TICK_BITS + _SHARD_BITS))
        self._last_tick = 0

    def next_tick(self) -> int:
        """The next free tick, from 1."""
        self._last_tick += 1
        return self._last_tick

    def text(self, tick: int, shard_index: int) -> str:
        """The sequence number as on the wire."""
        return str(self._base + (tick << _SHARD_BITS) + shard_index)

    def tick_of(self, text: str, shard_index: int) -> int | None:
        """The tick behind a number of this shard; None for a number that cannot be one of its."""
        if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
            return None
        offset = int(text) - self._base
        tick = offset >> _SHARD_BITS
        belongs = (
            offset > 0 and offset & _SHARD_MASK == shard_index and tick <= min(self._last_tick, _TICK_MASK)
        )
        return tick if belongs else None
