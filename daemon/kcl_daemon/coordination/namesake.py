"""Two processes with one worker id: found out before the second one begins, and while both work.

Each would take the other's leases for its own, for ever. Owns what was seen of the other. A predecessor that has died
left the same traces; only a proof of its death, or a fail-over time without any movement, tells it apart.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import anyio

from kcl_daemon.coordination.predecessors import Predecessors
from kcl_daemon.coordination.timings import Timings
from kcl_daemon.errors import AccessDenied, TableNotFound, WorkerIdTaken
from kcl_daemon.leases.leader import LEADER_KEY, lock_from_row
from kcl_daemon.leases.lease import LeaseKey, WorkerId
from kcl_daemon.leases.row import MalformedRowError, lease_from_row
from kcl_daemon.leases.stats import Incarnation, incarnation_of, worker_from_row
from kcl_daemon.ports import Clock, Log, Tables

# A row that is older is a dead process's, even if clocks are wrong by minutes.
_OLD_S: Final = 600
# So many leases are enough to see whether anybody renews.
_LEASES_MOST: Final = 5
# What a killed daemon leaves is gone a second after it.
_PATIENCE_S: Final = 5.0
_SOON_S: Final = 0.2
_TELL_AGAIN_S: Final = 60.0
_FORGOTTEN_S: Final = 600.0
_APART_S: Final = 1.0
_ADVICE: Final = (
    "each running worker needs its own workerId: remove workerId from the properties file so that one "
    "is generated, or stop the other process"
)

_ALLOW: Final = "grant dynamodb:GetItem on the three tables; kcl-daemon iam-policy prints the policy"


@dataclass(frozen=True, slots=True)
class _Traces:
    """What a process with our worker id changes while it lives."""

    incarnation: Incarnation | None
    reported_s: int
    lock_version: str | None
    counters: tuple[tuple[LeaseKey, int], ...]


class Namesake:
    """Used by one worker.

    Args:
        mine: which process we are.
        predecessors: those proven dead.
        on_younger: called with the reason when we have to give way.
    """

    def __init__(
        self,
        *,
        tables: Tables,
        worker_id: WorkerId,
        mine: Incarnation,
        predecessors: Predecessors,
        clock: Clock,
        timings: Timings,
        log: Log,
        on_younger: Callable[[WorkerIdTaken], None],
    ) -> None:
        self._tables = tables
        self._me = worker_id
        self._mine = mine
        self._predecessors = predecessors
        self._clock = clock
        self._timings = timings
        self._log = log
        self._on_younger = on_younger
        self._told_s: float | None = None
        self._lost_s: float | None = None
        self.stands_aside = False
        """Whether we give way: what bears our worker id is the other's."""

    async def settle(self, stop: anyio.Event) -> None:
        """Return when no other process with our worker id lives, or a stop is asked for.

        Where its row stands, and its death is not proven, that is so after a fail-over time without any movement.

        Raises:
            AwsError: the rows could not be read; may be called again.
        """
        seen, since_s, waits = None, 0.0, False
        patient_until_s = self._clock.monotonic() + _PATIENCE_S
        while not stop.is_set():
            now_s = self._clock.monotonic()
            try:
                traces = await self._traces()
            except AccessDenied as error:
                self._log.warning("worker_id_not_checked", error=str(error), advice=_ALLOW)
                return
            if traces is None or self._is_dead(traces.incarnation):
                return
            if seen is None or traces != seen:
                if seen is not None:
                    self._tell(
                        f"it is active: {_difference(seen, traces)}",
                        does="this one waits until the other has ended",
                    )
                seen, since_s = traces, now_s
            elif now_s - since_s > self._timings.failover_s:
                self._log.info("worker_id_free", still_s=round(now_s - since_s, 1))
                return
            if not waits:
                waits = True
                self._log.info("worker_id_in_doubt", waits_s=self._timings.failover_s)
            soon = self._predecessors.may_change and now_s < patient_until_s
            with self._clock.move_on_after(_SOON_S if soon else self._timings.look_s / 2):
                await stop.wait()
            if soon:
                await self._predecessors.look()

    def is_seen(self, other: Incarnation) -> bool:
        """Another process with our worker id lives; whether we give way. Of two the later one does."""
        self.stands_aside = self.stands_aside or other < self._mine
        if not self.stands_aside:
            self._tell(
                "it has written this worker's row",
                does="this one continues: the other started later and stops",
            )
            return False
        self._tell("it has written this worker's row", does="this one started later and stops")
        self._on_younger(WorkerIdTaken(f"workerId {self._me} is used by another running process"))
        return True

    def lease_lost(self) -> None:
        """Somebody with our worker id has written a lease that we hold; once may be chance, twice is none."""
        now_s, before_s = self._clock.monotonic(), self._lost_s
        if before_s is not None and now_s - before_s < _APART_S:
            return
        self._lost_s = now_s
        if before_s is not None and now_s - before_s < _FORGOTTEN_S:
            self._tell(
                "it has written leases that this one holds", does="both keep taking each other's leases"
            )

    def _is_dead(self, incarnation: Incarnation | None) -> bool:
        return incarnation is not None and self._predecessors.is_dead(incarnation.nonce)

    def _tell(self, seen: str, *, does: str) -> None:
        now_s = self._clock.monotonic()
        if self._told_s is None or now_s - self._told_s >= _TELL_AGAIN_S:
            self._told_s = now_s
            self._log.error("worker_id_used_twice", seen=seen, does=does, advice=_ADVICE)

    async def _traces(self) -> _Traces | None:
        """What there is of a process with our worker id; None: there is none, or it is long dead."""
        table = self._tables.worker_metrics
        row = await table.get(self._me)
        worker = None if row is None else worker_from_row(row, key_attribute=table.key_attribute)
        if row is None or worker is None or abs(self._clock.wall_ms() / 1000 - worker.last_update_s) > _OLD_S:
            return None
        lock = lock_from_row(await self._tables.coordinator.get(LEADER_KEY))
        return _Traces(
            incarnation_of(row),
            worker.last_update_s,
            lock.version if lock is not None and lock.owner == self._me else None,
            await self._counters(),
        )

    async def _counters(self) -> tuple[tuple[LeaseKey, int], ...]:
        found: list[tuple[LeaseKey, int]] = []
        for key in await self._keys():
            row = await self._tables.leases.get(key)
            with suppress(MalformedRowError):
                lease = None if row is None else lease_from_row(row)
                if lease is not None and lease.actual_owner == self._me and not lease.is_finished:
                    found.append((lease.lease_key, lease.lease_counter))
        return tuple(found)

    async def _keys(self) -> list[str]:
        try:
            return sorted(await self._tables.leases.owned_keys(self._me))[:_LEASES_MOST]
        except TableNotFound:  # the index is missing: worker row and lock have to do
            return []


def _difference(before: _Traces, after: _Traces) -> str:
    if before.counters != after.counters:
        return "it has renewed a lease"
    if before.lock_version != after.lock_version:
        return "it has renewed the leader's lock"
    return "it has written this worker's row"
