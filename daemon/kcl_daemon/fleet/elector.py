"""Elects the leader through the lock row (KCL: DynamoDBLockBasedLeaderDecider).

Several may lead for a moment; the conditions of their writes make that harmless.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from kcl_daemon import faults
from kcl_daemon.context import LeaderTerm, Wakeup, WorkerContext
from kcl_daemon.errors import AwsError
from kcl_daemon.fleet.discovery import AssignmentNotifier
from kcl_daemon.fleet.lease_renewer import LeaseRenewer
from kcl_daemon.fleet.monitor import FleetMonitor
from kcl_daemon.leases.leader import (
    LEADER_KEY,
    ClaimLock,
    LeaderLock,
    LockObservation,
    WatchLock,
    assignment_notice,
    decide_lock_claim,
    heartbeat,
    lock_from_row,
    lock_row,
    ours,
)
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.leases.row import Row
from kcl_daemon.ports import Table

_WARN_AFTER_LEASES: Final = 2.0


class LeaderAbsence:
    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._leader_seen_s = context.clock.monotonic()
        self._warn_at_s = 0.0

    @property
    def silent_s(self) -> float:
        return self._context.clock.monotonic() - self._leader_seen_s

    def leader_seen(self, leader: str) -> None:
        if self._warn_at_s:
            self._context.log.info("fleet_has_leader_again", leader=leader, after_s=round(self.silent_s, 1))
        self._leader_seen_s, self._warn_at_s = self._context.clock.monotonic(), 0.0

    def began(self) -> None:
        self._leader_seen_s, self._warn_at_s = self._context.clock.monotonic(), 0.0

    def poll(self, lease_s: float) -> None:
        silent_s, period_s = self.silent_s, _WARN_AFTER_LEASES * lease_s
        if silent_s < max(self._warn_at_s, period_s):
            return
        self._warn_at_s = silent_s + period_s
        self._context.log.warning(
            "fleet_without_leader",
            silent_s=round(silent_s, 1),
            advice="leases are not assigned; find out why no worker can write the row of the leader lock",
        )


# Parts of the lock duration: a deputy's period; a heartbeat is late; the leader may be dead.
_CLOSE_WATCH: Final = 0.2
_LATE: Final = 0.3
_DOUBTFUL: Final = 0.35
# In lock durations: how long a failed leader leaves the lock to others.
_STAND_BACK_TERMS: Final = 2.0


class Elector:
    def __init__(
        self,
        context: WorkerContext,
        *,
        table: Table,
        notifier: AssignmentNotifier,
        renewer: LeaseRenewer,
        monitor: FleetMonitor,
        on_elected: Callable[[], None],
        on_java_leader: Callable[[], None],
        on_holds: Callable[[object], None],
    ) -> None:
        """`on_holds` gets what changes with pauses and limits, and with the leader."""
        self._notifier = notifier
        self._renewer = renewer
        self._monitor = monitor
        self._on_elected = on_elected
        self._on_java_leader = on_java_leader
        self._on_holds = on_holds
        self._absence = LeaderAbsence(context)
        self._table = table
        self._context = context
        self._me = context.worker_id
        self._clock = context.clock
        self._randomness = context.randomness
        self._timings = context.timings
        self._log = context.log
        self._wakeup = Wakeup(context.clock)
        self._lock: LeaderLock | None = None
        self._confirmed_s = 0.0
        self._observation: LockObservation | None = None
        self._silent_s = 0.0
        self._lease_s = context.timings.leader_lease_s
        self._heartbeat_s = context.timings.heartbeat_s
        self._is_deputy = False
        self._assignments_made = 0
        self._reported = 0
        self._unanswered: set[str] = set()
        self._seen_leader: WorkerId | None = None
        self._java_leader: WorkerId | None = None
        self._may_claim_from_s = context.clock.monotonic()
        self._dead: LeaderLock | None = None

    @property
    def worker_id(self) -> WorkerId:
        return self._me

    @property
    def is_leader(self) -> bool:
        """False once our lock is older than its duration, whatever the table says."""
        return (
            self._lock is not None
            and self._clock.monotonic() - self._confirmed_s <= self._lock.duration_ms / 1000
        )

    @property
    def leader(self) -> WorkerId | None:
        return self._me if self.is_leader else self._seen_leader

    @property
    def java_leader(self) -> WorkerId | None:
        return self._java_leader

    @property
    def may_lead_soon(self) -> bool:
        return not self.is_leader and self._silent_s > _DOUBTFUL * self._lease_s

    @property
    def leaderless_s(self) -> float:
        return 0.0 if self.is_leader else self._absence.silent_s

    @property
    def leader_is_missing(self) -> bool:
        return self.leaderless_s > self._lease_s

    async def read_lock(self) -> LeaderLock | None:
        return lock_from_row(await self._get())

    def take_over_from(self, lock: LeaderLock) -> None:
        """Of a process proven dead; done unless the row has changed."""
        self._dead = lock
        self._wakeup.wake()

    def report(self) -> None:
        self._assignments_made += 1
        self._wakeup.wake()

    async def run(self) -> None:
        self._absence.began()
        while True:
            try:
                if self._lock is not None:
                    await self._send_heartbeat(self._lock)
                if self._lock is None:
                    await self._poll()
            except AwsError as error:
                self._log.warning("leader_lock_unreachable", error=str(error), leading=self.is_leader)
                self._notifier.unreadable()
                self._step_down_if_expired()
            self._absence.poll(self._lease_s)
            await self._wakeup.wait(self._pause_s())

    def _pause_s(self) -> float:
        if self._lock is not None:
            return self._heartbeat_s
        if self._silent_s > _LATE * self._lease_s:
            return min(self._timings.heartbeat_s, self._timings.poll_s)
        if self._is_deputy:
            return min(_CLOSE_WATCH * self._lease_s, self._timings.heartbeat_s)
        held = self._renewer.activity
        lock_s = self._timings.lock_s(held)
        if self._notifier.is_kept and not self._renewer.is_young:
            return min(lock_s, self._timings.epoch_poll_s(held))
        return lock_s

    async def resign(self, *, stand_back: bool = False) -> None:
        """Never raises for AWS: the lock expires.

        `stand_back`: we cannot lead, so leave the lock to others for a while, unless alone.
        """
        lock, self._lock = self._lock, None
        if lock is None:
            return
        if stand_back and not self._monitor.is_alone:
            self._may_claim_from_s = (
                self._clock.monotonic() + _STAND_BACK_TERMS * self._timings.leader_lease_s
            )
        try:
            # Not from memory: a cancelled heartbeat may have changed it.
            row = lock_from_row(await self._get())
            if row is not None and row.owner == self._me:
                with self._clock.move_on_after(self._timings.call_s):
                    await self._table.delete(LEADER_KEY, ours(row))
                    faults.maybe("after-lock-released")
                    self._log.info("leadership_released")
        except AwsError as error:
            self._log.warning("leadership_release_failed", error=str(error), advice="it expires by itself")

    async def notify_assigned(self) -> None:
        """Announce them if the lock row has notices. Never raises for AWS: new owners find leases later anyway."""
        try:
            lock = lock_from_row(await self._get())
            if lock is not None and lock.assignment_epoch is not None and lock.owner != self._me:
                with self._clock.move_on_after(self._timings.call_s):
                    await self._table.update(assignment_notice(lock, self._randomness.token()))
                    faults.maybe("after-assignments-announced")
        except AwsError as error:
            self._log.debug("assignments_not_announced", error=str(error))

    async def _send_heartbeat(self, lock: LeaderLock) -> None:
        began_s = self._clock.monotonic()
        version, given = self._randomness.token(), self._assignments_made
        self._unanswered.add(version)
        assignment_epoch = version if given != self._reported else None
        term = self._term()
        promised = replace(lock, duration_ms=int(term.lease_s * 1000), deputy=self._monitor.deputy)
        update = heartbeat(promised, version, assignment_epoch)
        written = await self._context.call(self._table.update(update), "UpdateItem")
        row = lock_from_row(written.row)
        if written.applied:
            faults.maybe("after-heartbeat")
            self._lock, self._confirmed_s = LeaderLock(self._me, version, promised.duration_ms), began_s
            self._reported, self._heartbeat_s = given, term.heartbeat_s
            self._absence.leader_seen(self._me)
            self._unanswered.clear()
            self._on_holds((self._me, None if row is None else row.holds))
        elif row is not None and row.owner == self._me and row.version in self._unanswered:
            self._lock = row
            self._wakeup.wake()
        else:
            self._step_down("another worker took the lock" if row is not None else "the lock row was deleted")

    async def _poll(self) -> None:
        key_attribute = self._table.key_attribute
        lock = lock_from_row(await self._get())
        self._notifier.read(lock)
        self._on_holds(None if lock is None else (lock.owner, lock.holds))
        self._seen_leader = None if lock is None else lock.owner
        self._is_deputy = lock is not None and lock.deputy == self._me
        if lock is not None and lock.owner and not lock.released:
            self._follow(lock.owner if lock.assignment_epoch is None and lock.owner != self._me else None)
        now_s = self._clock.monotonic()
        dead, self._dead = self._dead, None
        match decide_lock_claim(
            lock, self._observation, me=self._me, now_s=now_s, key_attribute=key_attribute, dead=dead
        ):
            case ClaimLock() as claim:
                if now_s >= self._may_claim_from_s:
                    await self._claim(claim)
            case WatchLock(observation, owner, silent_s, duration_s):
                if self._observation is None or observation.version != self._observation.version:
                    self._absence.leader_seen(owner)
                self._observation, self._silent_s, self._lease_s = observation, silent_s, duration_s
                if silent_s > duration_s / 2:
                    self._log.warning(
                        "leader_is_silent",
                        leader=owner,
                        silent_s=round(silent_s, 1),
                        takeover_after_s=duration_s,
                    )

    async def _claim(self, claim: ClaimLock) -> None:
        began_s = self._clock.monotonic()
        version, given = self._randomness.token(), self._assignments_made
        term = self._term()
        lock = LeaderLock(self._me, version, int(term.lease_s * 1000), assignment_epoch=version)
        row = lock_row(self._table.key_attribute, lock)
        # If the answer is lost, the next look finds our own lock.
        written = await self._context.call(self._table.put(row, claim.require), "PutItem")
        if written.applied:
            faults.maybe("after-lock-taken")
            self._lock, self._confirmed_s = lock, began_s
            self._observation, self._silent_s, self._lease_s = None, 0.0, term.lease_s
            self._reported, self._heartbeat_s = given, term.heartbeat_s
            self._absence.leader_seen(self._me)
            self._follow(None)
            self._log.info("leadership_taken", reason=claim.reason)
            self._on_elected()

    def _follow(self, java_leader: WorkerId | None) -> None:
        if java_leader != self._java_leader:
            self._java_leader = java_leader
            self._on_java_leader()

    def _term(self) -> LeaderTerm:
        return self._timings.term(calm=self._monitor.is_idle, alone=self._monitor.is_alone)

    def _step_down(self, reason: str) -> None:
        self._lock = None
        self._log.warning("leadership_lost", reason=reason)

    def _step_down_if_expired(self) -> None:
        if self._lock is not None and not self.is_leader:
            self._step_down("the lock could not be renewed in time")

    async def _get(self) -> Row | None:
        return await self._context.call(self._table.get(LEADER_KEY), "GetItem")
