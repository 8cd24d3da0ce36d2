"""Elects the leader by the lock row, and tells whether it is us (KCL: DynamoDBLockBasedLeaderDecider).

Owns the lock that we hold and the sighting of another's. Several workers may believe to lead for a moment (a paused one
that wakes up); that is harmless, because every write a leader makes is conditional.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kcl_daemon.coordination.nudge import Nudge
from kcl_daemon.coordination.timings import Timings
from kcl_daemon.errors import AwsError, Unavailable
from kcl_daemon.leases.leader import (
    LEADER_KEY,
    Claim,
    LeaderLock,
    Sighting,
    Watch,
    decide,
    heartbeat,
    lock_from_row,
    lock_row,
    ours,
)
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.leases.table import Row
from kcl_daemon.ports import Clock, Log, Randomness, Table


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What decides how often it is worth to look: how many leases we hold, and whether there are other workers."""

    held: Callable[[], int] = lambda: 0
    alone: Callable[[], bool] = lambda: False


class Elector:
    """One worker's part in the election."""

    def __init__(
        self,
        *,
        table: Table,
        worker_id: WorkerId,
        clock: Clock,
        randomness: Randomness,
        timings: Timings,
        log: Log,
    ) -> None:
        self._table = table
        self._me = worker_id
        self._clock = clock
        self._randomness = randomness
        self._timings = timings
        self._log = log
        self._nudge = Nudge(clock)
        self._lock: LeaderLock | None = None
        self._proved_s = 0.0
        self._surroundings = Surroundings()
        self._sighting: Sighting | None = None
        self._silent_s = 0.0
        self._unanswered: set[str] = set()
        self._on_elected: Callable[[], None] | None = None

    def on_elected(self, callback: Callable[[], None]) -> None:
        """Have a function called, from the loop, whenever this worker becomes leader."""
        self._on_elected = callback

    def surrounded_by(self, surroundings: Surroundings) -> None:
        """Give it what it goes by in the choice of its pace; without that it looks rarely and beats often."""
        self._surroundings = surroundings

    @property
    def is_leader(self) -> bool:
        """Whether we lead; false once our own lock has grown older than its lease, whatever the table says."""
        return (
            self._lock is not None
            and self._clock.monotonic() - self._proved_s <= self._timings.leader_lease_s
        )

    @property
    def may_lead_soon(self) -> bool:
        """Whether the leader has missed heartbeats, so that whoever takes over does well to be prepared."""
        return not self.is_leader and self._silent_s > 2.5 * self._timings.heartbeat_s

    async def run(self) -> None:
        """Keep the lock or watch it; for ever."""
        while True:
            try:
                if self._lock is not None:
                    await self._beat(self._lock)
                if self._lock is None:
                    await self._look()
            except AwsError as error:
                self._log.warning("leader_lock_unreachable", error=str(error), leading=self.is_leader)
                self._step_down_if_stale()
            await self._nudge.wait(self._pause_s())

    def _pause_s(self) -> float:
        if self._lock is not None:
            return self._timings.beat_s(alone=self._surroundings.alone())
        if self._silent_s > 0:
            # The lock has not moved since the last look: from now on every second counts.
            return min(self._timings.heartbeat_s, self._timings.look_s)
        return self._timings.lock_s(self._surroundings.held())

    async def resign(self) -> None:
        """Give the lock up, so that another worker leads at once. Never raises for AWS: a lock left behind expires."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        try:
            # The row, not our memory: a heartbeat may have been cut off on its way.
            row = lock_from_row(await self._get())
            if row is not None and row.owner == self._me:
                with self._clock.move_on_after(self._timings.call_s):
                    await self._table.delete(LEADER_KEY, ours(row))
                    self._log.info("leadership_released")
        except AwsError as error:
            self._log.warning("leadership_release_failed", error=str(error), advice="it expires by itself")

    async def _beat(self, lock: LeaderLock) -> None:
        began_s = self._clock.monotonic()
        version = self._randomness.token()
        self._unanswered.add(version)
        with self._clock.move_on_after(self._timings.call_s):
            written = await self._table.update(heartbeat(lock, version))
            row = lock_from_row(written.row)
            if written.applied:
                self._lock, self._proved_s = LeaderLock(self._me, version, lock.duration_ms), began_s
                self._unanswered.clear()
            elif row is not None and row.owner == self._me and row.version in self._unanswered:
                # A heartbeat whose answer got lost had taken effect.
                self._lock = row
                self._nudge.nudge()
            else:
                self._step_down(
                    "another worker took the lock" if row is not None else "the lock row was deleted"
                )
            return
        raise Unavailable(f"no answer within {self._timings.call_s:g} s", operation="UpdateItem")

    async def _look(self) -> None:
        key_attribute = self._table.key_attribute
        lock = lock_from_row(await self._get())
        now_s = self._clock.monotonic()
        match decide(lock, self._sighting, me=self._me, now_s=now_s, key_attribute=key_attribute):
            case Claim() as claim:
                await self._claim(claim)
            case Watch(sighting, owner, silent_s, duration_s):
                self._sighting, self._silent_s = sighting, silent_s
                if silent_s > duration_s / 2:
                    self._log.warning(
                        "leader_is_silent",
                        leader=owner,
                        silent_s=round(silent_s, 1),
                        takeover_after_s=duration_s,
                    )

    async def _claim(self, claim: Claim) -> None:
        began_s = self._clock.monotonic()
        lock = LeaderLock(self._me, self._randomness.token(), int(self._timings.leader_lease_s * 1000))
        with self._clock.move_on_after(self._timings.call_s):
            # Where the answer gets lost the next look finds a lock of our own, and takes it over at once.
            written = await self._table.put(lock_row(self._table.key_attribute, lock), claim.require)
            if written.applied:
                self._lock, self._proved_s = lock, began_s
                self._sighting, self._silent_s = None, 0.0
                self._log.info("leadership_taken", reason=claim.reason)
                if self._on_elected is not None:
                    self._on_elected()
            return
        raise Unavailable(f"no answer within {self._timings.call_s:g} s", operation="PutItem")

    def _step_down(self, reason: str) -> None:
        self._lock = None
        self._log.warning("leadership_lost", reason=reason)

    def _step_down_if_stale(self) -> None:
        if self._lock is not None and not self.is_leader:
            self._step_down("the lock could not be renewed in time")

    async def _get(self) -> Row | None:
        with self._clock.move_on_after(self._timings.call_s):
            return await self._table.get(LEADER_KEY)
        raise Unavailable(f"no answer within {self._timings.call_s:g} s", operation="GetItem")
