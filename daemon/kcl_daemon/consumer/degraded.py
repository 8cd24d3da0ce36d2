"""What the consumers of one worker know of each other's failures: shards that rest, and whether any child has ever begun.

Owns for how long shards rest. Whom the leader gives such a lease to next is the matter of `assignment`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kcl_daemon.leases.lease import Lease, LeaseKey
from kcl_daemon.ports import Clock
from kcl_daemon.progress.progress import Failures
from kcl_protocol.sequence import ExtendedSequenceNumber

# The first one may have failed for a passing reason.
_TWICE: Final = 2


@dataclass(frozen=True, slots=True)
class _Rest:
    until_s: float
    checkpoint: ExtendedSequenceNumber
    failures: Failures


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

    def released(self, lease: Lease, failures: Failures) -> None:
        """This lease is released now for these failures."""
        now_s = self._clock.monotonic()
        self._rests = {key: rest for key, rest in self._rests.items() if rest.until_s > now_s}
        self._rests[lease.lease_key] = _Rest(now_s + self._rest_s, lease.checkpoint, failures)

    def failures(self, lease: Lease) -> Failures | None:
        """What this lease was last released for; None where it was not, or somebody has got on with it."""
        rest = self._rests.get(lease.lease_key)
        return None if rest is None or rest.checkpoint != lease.checkpoint else rest.failures

    def rest_s(self, lease: Lease) -> float:
        """How long this lease should rest yet, should it be ours again; 0 where somebody has got on with it."""
        rest = self._rests.get(lease.lease_key)
        if rest is None or rest.checkpoint != lease.checkpoint:
            return 0.0
        return max(0.0, rest.until_s - self._clock.monotonic())


class Beginnings:
    """Whether the children of a worker fail at their start, all of them and always: then it is no matter of one shard."""

    def __init__(self) -> None:
        self._failures: dict[LeaseKey, int] = {}
        self._is_settled = False

    def started(self, key: LeaseKey) -> None:
        """A child of this lease runs."""
        if not self._is_settled:
            self._failures.setdefault(key, 0)

    def begun(self) -> None:
        """A child has answered `initialize`: from now on failures are told shard by shard."""
        self._is_settled = True

    def failed(self, key: LeaseKey) -> int:
        """A child of this lease failed: how many have by now, once two of each shard have and none has ever begun; else 0."""
        if self._is_settled or key not in self._failures:
            return 0
        self._failures[key] += 1
        if min(self._failures.values()) < _TWICE:
            return 0
        self._is_settled = True
        return sum(self._failures.values())
