"""PURE: how long to wait before the next read of a shard (KCL: KinesisSleepTimeController).

Unlike KCL no pause is made while the shard has more to give than one answer holds; the service's limit of five reads a
second for each shard is kept at all times.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_SHORTEST_S: Final = 0.2  # five reads a second
_LONGEST_BACKOFF_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Pace:
    """The pace of one shard.

    Args:
        idle_s: pause between two reads at the tip.
        failures: failed reads in a row.
    """

    idle_s: float
    failures: int = 0

    def failed(self) -> Pace:
        """After one more failed read."""
        return Pace(self.idle_s, self.failures + 1)

    def succeeded(self) -> Pace:
        """After a good read."""
        return Pace(self.idle_s) if self.failures else self

    def pause_s(self, *, elapsed_s: float, behind: bool, chance: float) -> float:
        """Seconds to wait from now.

        Args:
            elapsed_s: since the last read began.
            behind: whether the last answer left records unread.
            chance: 0 to 1, spreads the retries of many shards after a failure.
        """
        if self.failures:
            most: float = min(
                _LONGEST_BACKOFF_S, max(self.idle_s, _SHORTEST_S) * 2 ** min(self.failures - 1, 10)
            )
            return most * (0.5 + chance / 2)
        return max(0.0, (_SHORTEST_S if behind else max(self.idle_s, _SHORTEST_S)) - elapsed_s)
