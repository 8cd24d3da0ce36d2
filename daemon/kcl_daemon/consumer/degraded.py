"""Shards that this worker has released because their children kept failing, and that it wants to rest for a while.

Owns for how long. Whom the leader gives such a lease to next is the matter of `assignment`.
"""

from __future__ import annotations

from dataclasses import dataclass

from kcl_daemon.leases.lease import Lease, LeaseKey
from kcl_daemon.ports import Clock
from kcl_protocol.sequence import ExtendedSequenceNumber


@dataclass(frozen=True, slots=True)
class _Rest:
    until_s: float
    checkpoint: ExtendedSequenceNumber


class Degraded:
    """One for all consumers of a worker.

    Args:
        clock: for the time.
        rest_s: how long a shard rests.
    """

    def __init__(self, clock: Clock, rest_s: float) -> None:
        self._clock = clock
        self._rest_s = rest_s
        self._rests: dict[LeaseKey, _Rest] = {}

    def released(self, lease: Lease) -> None:
        """This lease is released now for its failures."""
        now_s = self._clock.monotonic()
        self._rests = {key: rest for key, rest in self._rests.items() if rest.until_s > now_s}
        self._rests[lease.lease_key] = _Rest(now_s + self._rest_s, lease.checkpoint)

    def rest_s(self, lease: Lease) -> float:
        """How long this lease should rest yet, should it be ours again; 0 where somebody has got on with it."""
        rest = self._rests.get(lease.lease_key)
        if rest is None or rest.checkpoint != lease.checkpoint:
            return 0.0
        return max(0.0, rest.until_s - self._clock.monotonic())
