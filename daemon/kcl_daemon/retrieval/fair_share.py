"""How fast `kcl-daemon tail` may read a shard: a fifth of what all its readers share.

A shard answers five GetRecords a second, and 2 MiB a second; after a large answer it refuses everybody until the time that
the answer was worth has passed. An answer's size is known only when it is there, so the number of records that are asked for
follows the sizes seen so far: few at first, more only after answers that were full.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

READ_EVERY_S: Final = 1.0
BYTES_PER_S: Final = 2 * 2**20 / 5
FIRST_RECORDS: Final = 2
GROWTH: Final = 4
RECORDS_MOST: Final = 1000
"""More would not be quicker, and records may suddenly be large."""
_LONGEST_PAUSE_S: Final = 30.0
_DOUBLINGS_MOST: Final = 10


@dataclass(frozen=True, slots=True)
class FairShare:
    """`limit`: records to ask for next, after `pause_s`. `record_bytes`: what one is taken for; 0: none was seen."""

    limit: int = FIRST_RECORDS
    pause_s: float = READ_EVERY_S
    record_bytes: float = 0.0
    refusals: int = 0

    def answered(self, records: int, data_bytes: int) -> FairShare:
        """As the service counts them: data and keys."""
        pause_s = max(READ_EVERY_S, data_bytes / BYTES_PER_S)
        if not records:
            return replace(self, pause_s=pause_s, refusals=0)
        mean = data_bytes / records
        # Large records are believed at once, small ones slowly.
        expected = max(mean, (self.record_bytes + mean) / 2)
        most = self.limit * GROWTH if records >= self.limit else self.limit
        fitting = int(BYTES_PER_S * READ_EVERY_S / max(expected, 1.0))
        return FairShare(max(1, min(fitting, most, RECORDS_MOST)), pause_s, expected)

    def refused(self) -> FairShare:
        """Throttled, or the service failed."""
        pause_s = min(_LONGEST_PAUSE_S, 2 * READ_EVERY_S * 2 ** min(self.refusals, _DOUBLINGS_MOST))
        return replace(self, pause_s=pause_s, refusals=self.refusals + 1)
