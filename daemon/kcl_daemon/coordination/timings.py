"""How often each loop looks, all derived from the settings in one place."""

from __future__ import annotations

from dataclasses import dataclass

from kcl_daemon.config.settings import BalanceSettings, LeaseSettings


@dataclass(frozen=True, slots=True)
class Timings:
    """Periods and limits of one worker, in seconds.

    Args:
        failover_s: a lease is ours, and another's is not abandoned, for this long after its last movement.
        renew_s: a lease is renewed this long after its last movement. KCL renews every third of the fail-over time,
            moved or not; this leaves time for the same number of tries, because a failed one is made again after a
            quarter of it.
        call_s: a lease call that has not answered by then is given up; well below the fail-over time.
        look_s: how often a leader looks at the leases of a fleet at work; the measure for all other looks.
        report_s: how often this worker's row is written.
        active_s: a worker whose row is older is not given leases.
        heartbeat_s: how often the leader writes the lock and the others look at it.
        leader_lease_s: how long this leader may be silent.
        handoff_s: a hand-off that takes longer is cut short.
        parents_s: how often a shard looks at its parents.
        balance_s: how often the leader evens out load in a fleet that does not change.
        capture_s: how often this worker's CPU is measured.
        audit_s: how often the leader looks for holes.
    """

    failover_s: float
    renew_s: float
    call_s: float
    look_s: float
    report_s: float
    active_s: float
    heartbeat_s: float
    leader_lease_s: float
    handoff_s: float
    parents_s: float
    balance_s: float
    capture_s: float
    audit_s: float = 120.0

    # A look costs a request, on every worker, for ever. Who holds many leases looks often: that is where a moment's
    # gap costs most, and where it adds little to what its renewals cost. Who holds none looks rarely.

    def discovery_s(self, held: int, *, leading: bool) -> float:
        """How often to ask for new leases; a leader sees in its own looks what it was given.

        What is given to us stands still until we find and renew it: twice as often as it would seem abandoned, or the
        leader gives it to another, and later to us again, and so on.
        """
        if leading:
            return 30 * self.look_s
        return min(self.look_s * (max(1.25, 6 / held) if held else 10), self.failover_s / 2)

    def lock_s(self, held: int) -> float:
        """How often a worker that does not lead looks at the lock."""
        return self.heartbeat_s * (max(1.0, 2 / held) if held else 3)

    def beat_s(self, *, alone: bool) -> float:
        """How often the leader shows that it lives; without other workers nobody waits for it."""
        return self.heartbeat_s * (2 if alone else 1)

    def leader_look_s(self, *, alone: bool, leases: int, workers: int) -> float:
        """How often the leader looks at the leases: rarely when nobody else could lose one."""
        if alone:
            return 7.5 * self.look_s
        return self.look_s * (2 if leases <= workers else 1)

    @property
    def workers_look_s(self) -> float:
        """How often the leader looks at the rows of workers, where they have a table of their own."""
        return 2.5 * self.look_s


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
        look_s=min(max(failover_s / 5, 0.2), 2.0),
        report_s=report_s,
        active_s=2 * report_s,
        heartbeat_s=settings.leader_heartbeat_ms / 1000,
        leader_lease_s=settings.leader_lease_ms / 1000,
        handoff_s=settings.handoff_timeout_ms / 1000,
        parents_s=min(settings.parent_shard_poll_interval_ms / 1000, 2.0),
        balance_s=interval_ms / 1000 * balance.variance_balancing_frequency,
        capture_s=balance.capture_ms / 1000,
    )
