"""The throughput of each shard over the last minutes, for the sparklines; bounded.

Owns how much is remembered. Knows no clock and asks nobody: it is told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kcl_daemon.observe.snapshot import Snapshot

SAMPLES_MOST: Final = 40
WATCHED_EVERY_S: Final = 2.0
UNWATCHED_EVERY_S: Final = 15.0
WATCHED_FOR_S: Final = 10.0
"""How long after the last look somebody is believed to look still."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment.

    Args:
        at_s: by the clock of whoever tells.
        bytes_per_s: of each lease that was held.
    """

    at_s: float
    bytes_per_s: Mapping[str, float]


class History:
    """Remembers at most `SAMPLES_MOST` moments; what of a lease that is held no more goes with the moments."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MOST)
        self._looked_s: float | None = None

    def looked(self, now_s: float) -> None:
        """Somebody looks."""
        self._looked_s = now_s

    def is_due(self, now_s: float, *, late_s: float = 0.0) -> bool:
        """Whether it is time for the next moment.

        Args:
            now_s: by the clock of the moments.
            late_s: how much later than at its time; below zero: earlier.
        """
        return not self._samples or now_s - self._samples[-1].at_s >= self.every_s(now_s) + late_s

    def every_s(self, now_s: float) -> float:
        """How far moments lie apart: near each other while somebody looks."""
        watched = self._looked_s is not None and now_s - self._looked_s < WATCHED_FOR_S
        return WATCHED_EVERY_S if watched else UNWATCHED_EVERY_S

    def remember(self, snapshot: Snapshot, now_s: float) -> None:
        """Add this moment."""
        self._samples.append(Sample(now_s, {shard.key: shard.bytes_per_s for shard in snapshot.shards}))

    def ages_s(self, now_s: float) -> list[float]:
        """How long ago each moment was; the oldest first."""
        return [now_s - sample.at_s for sample in self._samples]

    def values(self, key: str) -> list[float | None]:
        """Of one lease at each moment, bytes a second; None: it was not held."""
        return [sample.bytes_per_s.get(key) for sample in self._samples]

    def of(self, key: str, now_s: float) -> list[tuple[float, float]]:
        """Of one lease: how many seconds ago, and bytes a second; the oldest first."""
        both = zip(self.ages_s(now_s), self.values(key), strict=True)
        return [(age_s, value) for age_s, value in both if value is not None]
