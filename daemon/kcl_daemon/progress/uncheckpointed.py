"""The batches that were delivered and that the stored checkpoint does not cover; counted once a batch."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import Final

from kcl_protocol.sequence import ExtendedSequenceNumber

MOST: Final = 256
"""Above it neighbours count as one batch, which is as old as the first of them."""


class Uncheckpointed:
    def __init__(self) -> None:
        self._batches: deque[tuple[ExtendedSequenceNumber, float]] = deque()
        self._each = 1
        """How many batches count as one."""
        self._in_last = 1

    def delivered(
        self, last: ExtendedSequenceNumber, arrived_s: float, stored: ExtendedSequenceNumber
    ) -> None:
        """A batch whose first record arrived at `arrived_s`; what comes again counts from the first time."""
        batches = self._batches
        self._forget(stored)
        if not stored < last or (batches and not batches[-1][0] < last):
            return
        if batches and self._in_last < self._each:
            batches[-1] = last, batches[-1][1]
            self._in_last += 1
            return
        batches.append((last, arrived_s))
        self._in_last = 1
        if len(batches) > MOST:
            pairs = zip(islice(batches, 0, None, 2), islice(batches, 1, None, 2), strict=False)
            self._batches = deque([*((second[0], first[1]) for first, second in pairs), batches[-1]])
            self._each *= 2

    def oldest_s(self, stored: ExtendedSequenceNumber) -> float | None:
        """Arrival of the first record of the oldest batch, monotonic; None: all is checkpointed."""
        self._forget(stored)
        return self._batches[0][1] if self._batches else None

    def _forget(self, stored: ExtendedSequenceNumber) -> None:
        batches = self._batches
        while batches and not stored < batches[0][0]:
            batches.popleft()
        if len(batches) < 2:
            self._each = 1
