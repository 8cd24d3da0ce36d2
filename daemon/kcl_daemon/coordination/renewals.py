"""What renewals come to in each period (KCL: the metrics of RenewAllLeases).

KCL renews all leases in one tick; here each has its own time. The figures are those of a tick all the same: it has
succeeded if no renewal failed in the period, and took as long as the slowest.
"""

from __future__ import annotations

from kcl_daemon.leases.lease import Lease
from kcl_daemon.metrics import kcl, kcl_shards
from kcl_daemon.ports import Clock
from kcl_daemon.ports_metrics import Meters, Span


def lease_labels(lease: Lease) -> dict[str, str]:
    """What tells the figures of a lease's shard apart."""
    if lease.stream is None:
        return {"shard_id": lease.shard_id}
    return {"shard_id": lease.shard_id, "stream": str(lease.stream)}


class Renewals:
    """One for a keeper, which tells it what happens; `tick` sums it up.

    Attributes:
        lost: leases that were lost, since the last tick.
    """

    def __init__(self, meters: Meters, clock: Clock) -> None:
        self._meters = meters
        self._clock = clock
        self._failures = 0
        self._slowest_s = 0.0
        self.lost = 0

    def renewed(self, began_s: float, *, ok: bool) -> None:
        """A renewal has ended; `began_s` is monotonic."""
        seconds = self._clock.monotonic() - began_s
        self._slowest_s = max(self._slowest_s, seconds)
        self._failures += not ok
        self._meters.done(kcl.RENEWAL_ONE, seconds, ok)

    def checkpoint(self, lease: Lease) -> Span:
        """A checkpoint is written."""
        return self._meters.operation(kcl_shards.PROCESS_CHECKPOINT, **lease_labels(lease))

    def tick(self, held: int) -> None:
        """A period is over; so many leases are held."""
        self._meters.done(kcl.RENEWAL, self._slowest_s, not self._failures)
        self._meters.add(kcl.RENEWAL_LOST, self.lost)
        self._meters.add(kcl.RENEWAL_HELD, held)
        self.lost, self._failures, self._slowest_s = 0, 0, 0.0
