"""PURE: how long to wait before the next read of a shard (KCL: KinesisSleepTimeController).

Unlike KCL no pause is made while the shard has more to give than one answer holds, beyond what the service's limits
for each shard ask for: five reads a second, 2 MiB a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

_SHORTEST_S: Final = 0.2  # five reads a second
_BYTES_PER_S: Final = 2 * 2**20
_LONGEST_BACKOFF_S: Final = 10.0
_SERVICE_DOMAINS: Final = (".amazonaws.com", ".amazonaws.com.cn", ".api.aws", ".api.amazonwebservices.com.cn")


@dataclass(frozen=True, slots=True)
class Answered:
    """What the pace goes by of a good answer.

    Args:
        count: its records.
        data_bytes: of these records.
        behind_ms: how far behind the tip it was; None: not told.
    """

    count: int
    data_bytes: int
    behind_ms: int | None


@dataclass(frozen=True, slots=True)
class Pace:
    """The pace of one shard.

    Args:
        idle_s: pause between two reads at the tip.
        reduced_within_s: a shard that is less than this behind is read only so often (KCL:
            millisBehindLatestThresholdForReducedTps); 0: at the tip only.
        limited: whether the service's limits are kept from the start; else once it has refused a read for its rate.
        failures: failed reads in a row.
    """

    idle_s: float
    reduced_within_s: float = 0.0
    limited: bool = True
    failures: int = 0

    def failed(self, *, throttled: bool = False) -> Pace:
        """After one more failed read."""
        return Pace(self.idle_s, self.reduced_within_s, self.limited or throttled, self.failures + 1)

    def succeeded(self) -> Pace:
        """After a good read."""
        return Pace(self.idle_s, self.reduced_within_s, self.limited) if self.failures else self

    def pause_s(self, answer: Answered | None, *, elapsed_s: float, chance: float) -> float:
        """Seconds to wait from now.

        Args:
            answer: the last one; None after a failure.
            elapsed_s: since the last read began.
            chance: 0 to 1, spreads the retries of many shards after a failure.
        """
        if self.failures or answer is None:
            most: float = min(
                _LONGEST_BACKOFF_S, max(self.idle_s, _SHORTEST_S) * 2 ** min(max(self.failures - 1, 0), 10)
            )
            return most * (0.5 + chance / 2)
        return max(0.0, self._interval_s(answer) - elapsed_s)

    def _interval_s(self, answer: Answered) -> float:
        """Between the beginnings of two reads."""
        allowed_s = max(_SHORTEST_S, answer.data_bytes / _BYTES_PER_S)
        behind_s = (answer.behind_ms or 0) / 1000
        if not behind_s:
            return max(self.idle_s, allowed_s if self.limited else _SHORTEST_S, self.reduced_within_s)
        if behind_s < self.reduced_within_s:
            return max(self.idle_s, allowed_s, self.reduced_within_s)
        return allowed_s if self.limited or not answer.count else 0.0


def keeps_limits(endpoint: str | None) -> bool:
    """Whether an endpoint is the service's own, whose limits are known; stand-ins have others or none."""
    host = None if endpoint is None else urlsplit(endpoint).hostname
    return host is None or host.endswith(_SERVICE_DOMAINS)
