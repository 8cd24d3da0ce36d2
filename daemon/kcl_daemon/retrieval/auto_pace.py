"""How often one shard is read with `idleTimeBetweenReadsInMillis=auto`.

A shard may be read five times a second by all applications together, and a refused read is the only sign of others: each
then reads less often, the more the more often it reads, and slowly returns. So they end at equal shares. The numbers were
chosen by simulation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from kcl_daemon.config.retrieval import FASTEST_READS_MS, SLOWEST_AUTO_MS

_SHORTEST_S: Final = FASTEST_READS_MS / 1000
_LONGEST_S: Final = SLOWEST_AUTO_MS / 1000
_FASTEST: Final = 1 / _SHORTEST_S
# A silent shard: each pause is so much longer than the one before. A record every second or two is still found soon.
_LONGER: Final = 1.25
_EMPTIES_MOST: Final = 20
# Five pauses of exactly 200 ms would not always be a second where the reads arrive.
_SPARE: Final = 0.1
# After a refusal. Growth is slow at first, as others are there, and quick when nothing was refused for long.
_KEPT: Final = 0.93
_GROWTH: Final = 0.004
_LATE_GROWTH: Final = 1.5e-5
# Pauses of a share are 0.6 to 1.4 times their mean. Else applications stay in step, and one of them is always refused.
_SPREAD: Final = 0.8
# So that no pause of a share is longer than the longest.
_SLOWEST: Final = (1 + _SPREAD / 2) / _LONGEST_S


@dataclass(frozen=True, slots=True)
class AutoPace:
    """Of one shard.

    Args:
        empties: answers in a row without records, at the tip.
        rate: reads a second that were left after the last refusal.
        refused_s: monotonic time of that refusal; None: none yet.
    """

    empties: int = 0
    rate: float = _FASTEST
    refused_s: float | None = None

    def answered(self, count: int, behind_ms: int | None) -> AutoPace:
        if count:
            return replace(self, empties=0) if self.empties else self
        return self if behind_ms else replace(self, empties=min(self.empties + 1, _EMPTIES_MOST))

    def refused(self, now_s: float) -> AutoPace:
        return AutoPace(self.empties, max(_SLOWEST, self.reads_per_s(now_s) * _KEPT), now_s)

    def reads_per_s(self, now_s: float) -> float:
        if self.refused_s is None:
            return _FASTEST
        since_s = now_s - self.refused_s
        return min(_FASTEST, self.rate * (1 + _GROWTH * since_s) + _LATE_GROWTH * since_s**3)

    def idle_s(self, chance: float) -> float:
        """From one read at the tip to the next, if the shard is ours alone. `chance` is 0 to 1."""
        return min(_LONGEST_S, _SHORTEST_S * _LONGER**self.empties * (1 + _SPARE * chance))

    def share_s(self, now_s: float, chance: float) -> float:
        """What others need between two of our reads; 0: nothing is known of others."""
        rate = self.reads_per_s(now_s)
        return 0.0 if rate >= _FASTEST else max(_SHORTEST_S, (1 + _SPREAD * (chance - 0.5)) / rate)
