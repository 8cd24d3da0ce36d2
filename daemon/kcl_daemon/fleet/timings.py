"""How often each loop looks, all derived from the settings in one place.

Waiting for the next round of a loop, or for somebody to ask for it earlier.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import anyio

from kcl_daemon.config.balance import BalanceSettings, LeaseSettings
from kcl_daemon.leases.expiry import unclaimed_patience_s
from kcl_daemon.leases.worker_row import ACTIVE_REPORTS
from kcl_daemon.ports import Clock

# A leader's lease in a fleet at rest, and how many times the one of a fleet at work it may be.
_IDLE_LEASE_S: Final = 30.0
_MAX_IDLE_STRETCH: Final = 2.5


@dataclass(frozen=True, slots=True)
class LeaderTerm:
    """What a leader promises: silent for `lease_s` it leads no more, and it beats every `heartbeat_s`."""

    lease_s: float
    heartbeat_s: float


@dataclass(frozen=True, slots=True)
class Timings:
    """Periods and limits of one worker, in seconds.

    Args:
        failover_s: a lease is ours, and another's is not abandoned, for this long after its last movement.
        renew_s: a lease is renewed this long after its last movement. KCL renews every third of the fail-over time,
            moved or not; this leaves time for the same number of tries, because a failed one is made again after a
            quarter of it.
        call_s: a lease call that has not answered by then is given up; well below the fail-over time.
        poll_s: how often a leader looks at the leases of a fleet at work; the measure for all other looks.
        report_s: how often this worker's row is written.
        active_s: a worker whose row is older is not given leases.
        heartbeat_s: how often the leader of a fleet at work writes the lock.
        leader_lease_s: how long the leader of a fleet at work may be silent.
        handoff_s: a hand-off that takes longer is cut short.
        parents_s: how often a shard looks at its parents.
        balance_s: how often the leader evens out load in a fleet that does not change.
        capture_s: how often this worker's CPU is measured.
        unclaimed_s: how long a lease that was given away may stand still until its new owner must have written it.
    """

    failover_s: float
    renew_s: float
    call_s: float
    poll_s: float
    report_s: float
    active_s: float
    heartbeat_s: float
    leader_lease_s: float
    handoff_s: float
    parents_s: float
    balance_s: float
    capture_s: float
    unclaimed_s: float

    # A look costs a request, on every worker, for ever. Who holds many leases looks often: that is where a moment's
    # gap costs most, and where it adds little to what its renewals cost. Who holds none looks rarely.

    def discovery_s(self, held: int, *, leading: bool, young: bool = False) -> float:
        """How often to ask for new leases; a leader sees in its own looks what it was given.

        A worker that has just started is about to be given many, by owners that pass them on within a moment.

        What is given to us stands still until we find and renew it: twice as often as it would seem abandoned, or the
        leader gives it to another, and later to us again, and so on.
        """
        if leading:
            return self.fallback_poll_s
        if young:
            return min(self.poll_s, self.failover_s) / 2
        return min(self.poll_s * (max(1.25, 6 / held) if held else 10), self.failover_s / 2)

    def epoch_poll_s(self, held: int) -> float:
        """How often to look whether the leader has given leases away, where it says so in its lock row.

        With nothing in hand it is less often than a lease may stand still; leaders know that (`leases/expiry.py`).
        """
        if not held:
            return min(6.5 * self.poll_s, 1.3 * self.failover_s)
        return min(self.poll_s * (4.0 if held == 1 else max(1.25, 7.5 / (held + 1))), 0.8 * self.failover_s)

    @property
    def fallback_poll_s(self) -> float:
        """How often to ask for leases all the same where the lock row tells of them."""
        return 30 * self.poll_s

    @property
    def max_handoff_wait_s(self) -> float:
        """How long a worker that stops reads on at most, so that the next owners see what is coming."""
        return self.failover_s / 2

    def lock_s(self, held: int) -> float:
        """How often a worker that does not lead looks at the lock."""
        return 5 / 3 * self.heartbeat_s * (max(1.0, 2 / held) if held else 3)

    def term(self, *, calm: bool, alone: bool) -> LeaderTerm:
        """What the leader promises with a heartbeat; it may be silent for longer where little depends on it.

        Args:
            calm: there are no more leases than workers.
            alone: there are no other workers, and so nobody waits for it.
        """
        if not (calm or alone):
            return LeaderTerm(self.leader_lease_s, self.heartbeat_s)
        stretch = min(_MAX_IDLE_STRETCH, max(1.0, _IDLE_LEASE_S / self.leader_lease_s))
        lease_s = stretch * self.leader_lease_s
        return LeaderTerm(
            lease_s, lease_s / 3 if alone else min(max(1.0, 2 / 3 * stretch) * self.heartbeat_s, lease_s / 3)
        )

    def leader_poll_s(self, *, alone: bool, leases: int, workers: int) -> float:
        """How often the leader looks at the leases: rarely when nobody else could lose one."""
        if alone:
            return 7.5 * self.poll_s
        return self.poll_s * (2.5 if leases <= workers else 1)

    def workers_poll_s(self, leader_poll_s: float) -> float:
        """How often the leader looks at the rows of workers, where they have a table of their own."""
        return max(2.5 * self.poll_s, min(2 * leader_poll_s, 5 * self.poll_s))


def timings(settings: LeaseSettings, balance: BalanceSettings | None = None) -> Timings:
    """The timings for a worker's settings; the defaults of balancing where none are given."""
    balance = balance or BalanceSettings()
    interval_ms = balance.assignment_interval_ms or 2 * settings.failover_time_ms
    failover_s = settings.failover_time_ms / 1000
    report_s = settings.worker_metrics_report_ms / 1000
    return Timings(
        failover_s=failover_s,
        renew_s=0.4 * failover_s,
        call_s=max(failover_s / 3, 0.5),
        poll_s=min(max(failover_s / 5, 0.2), 2.0),
        report_s=report_s,
        active_s=ACTIVE_REPORTS * report_s,
        heartbeat_s=settings.leader_heartbeat_ms / 1000,
        leader_lease_s=settings.leader_lease_ms / 1000,
        handoff_s=settings.handoff_timeout_ms / 1000,
        parents_s=min(settings.parent_shard_poll_interval_ms / 1000, 2.0),
        balance_s=interval_ms / 1000 * balance.variance_balancing_frequency,
        capture_s=balance.capture_ms / 1000,
        unclaimed_s=unclaimed_patience_s(failover_s, interval_ms / 1000),
    )


class Wakeup:
    """A loop waits on it between rounds; anybody may end the wait. A nudge while nobody waits is kept."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = anyio.Event()

    def wake(self) -> None:
        """End the wait that is under way, or the next one."""
        self._event.set()

    async def wait(self, seconds: float) -> None:
        """Wait that long, or until nudged."""
        with self._clock.move_on_after(seconds):
            await self._event.wait()
        self._event = anyio.Event()


class Broadcast:
    """Something that many may wait for at once; unlike a nudge it is not kept for those who come later."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = anyio.Event()

    def fire(self) -> None:
        """Wake everybody who waits now."""
        self._event.set()
        self._event = anyio.Event()

    async def wait(self, seconds: float) -> None:
        """Wait that long, or until it fires."""
        event = self._event
        with self._clock.move_on_after(seconds):
            await event.wait()
