"""The Java leader at work: every 20 s it looks at leases and workers and writes assignments (LeaseAssignmentManager).

Owns what a leader remembers from run to run and its writes. What is decided is
`java_decider`'s. Stale worker rows are not deleted: no run lasts a day.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kcl_daemon.errors import AwsError
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.row import MalformedRowError, is_lease_row, lease_from_row
from kcl_daemon.leases.worker_row import FAILED, WorkerRow, worker_from_row
from tests.simulator.java import rows as java_rows
from tests.simulator.java.decider import Decision, Snapshot
from tests.simulator.java.host import ACTIVE_S, ASSIGN_S, BALANCE_EVERY, FAILOVER_S, HANDOFF_S, Host
from tests.simulator.java.lock import JavaLock

_FAILURES_MOST: Final = 3


@dataclass(frozen=True, slots=True)
class _Clock:
    """Since when a lease has not moved, and until when its hand-off may last."""

    counter: int
    moved_s: float
    handoff: tuple[WorkerId | None, WorkerId | None] | None = None
    deadline_s: float = 0.0


class JavaAssigner:
    """Runs on every Java worker, works on the leader."""

    def __init__(self, host: Host, lock: JavaLock) -> None:
        self._host = host
        self._lock = lock
        self._clocks: dict[LeaseKey, _Clock] = {}
        self._is_leading = False
        self._failures = 0
        self._runs = 0

    async def run(self) -> None:
        """A run, and 20 s from its end to the next (fixed delay); three that fail in a row cost the leadership."""
        while True:
            try:
                await self._run_once()
                self._failures = 0
            except AwsError as error:
                self._failures += 1
                self._host.log.info("java_assignment_failed", error=str(error))
                if self._failures >= _FAILURES_MOST:
                    self._failures = 0
                    await self._lock.release()
            await self._host.clock.sleep(ASSIGN_S)

    async def _run_once(self) -> None:
        if not await self._lock.is_leader():
            self._is_leading = False
            return
        if not self._is_leading:
            self._is_leading, self._clocks, self._failures, self._runs = True, {}, 0, 0
        leases, workers = await self._load()
        self._keep_time(leases)
        snapshot = self._snapshot(leases, workers)
        decision = Decision(snapshot)
        decision.place()
        if self._runs % BALANCE_EVERY == 0:
            decision.balance(self._host.chance)
        self._runs += 1
        for key, to in decision.moves.items():
            if not self._is_blocked(leases[key], snapshot):
                await self._write(leases[key], to, is_loose=key in snapshot.loose)

    async def _load(self) -> tuple[dict[LeaseKey, Lease], list[WorkerRow]]:
        """Rows that cannot be read are left out."""
        tables = self._host.tables
        leases: dict[LeaseKey, Lease] = {}
        for row in await tables.leases.scan():
            try:
                if is_lease_row(row):
                    lease = lease_from_row(row)
                    leases[lease.lease_key] = lease
            except MalformedRowError:
                continue
        key = tables.worker_metrics.key_attribute
        rows = [worker_from_row(row, key_attribute=key) for row in await tables.worker_metrics.scan()]
        now_s = self._host.clock.wall_ms() / 1000
        active = [
            row
            for row in rows
            if row is not None and now_s - row.last_update_s <= ACTIVE_S and not row.is_failing
        ]
        return leases, active

    def _keep_time(self, leases: dict[LeaseKey, Lease]) -> None:
        """How long each lease has not moved; a lease that has vanished is forgotten."""
        now_s = self._host.now_s()
        self._clocks = {key: self._seen(lease, self._clocks.get(key), now_s) for key, lease in leases.items()}

    def _seen(self, lease: Lease, before: _Clock | None, now_s: float) -> _Clock:
        if before is None:
            moved_s = now_s if lease.lease_owner is not None else 0.0
        else:
            moved_s = now_s if lease.lease_counter > before.counter else before.moved_s
        if lease.checkpoint_owner is None:
            return _Clock(lease.lease_counter, moved_s)
        owners = (lease.checkpoint_owner, lease.lease_owner)
        is_known = before is not None and before.handoff == owners
        deadline_s = before.deadline_s if before is not None and is_known else now_s + HANDOFF_S + FAILOVER_S
        return _Clock(lease.lease_counter, moved_s, owners, deadline_s)

    def _snapshot(self, leases: dict[LeaseKey, Lease], workers: list[WorkerRow]) -> Snapshot:
        now_s = self._host.now_s()
        loose = [
            key
            for key, lease in leases.items()
            if lease.actual_owner is None or now_s - self._clocks[key].moved_s > FAILOVER_S
        ]
        return Snapshot(
            leases,
            tuple(sorted(loose, key=lambda key: self._clocks[key].moved_s)),
            frozenset(key for key in loose if leases[key].checkpoint_owner is not None),
            {row.worker_id: _figures(row) for row in workers},
        )

    def _is_blocked(self, lease: Lease, snapshot: Snapshot) -> bool:
        """G21."""
        key = lease.lease_key
        in_handoff = lease.checkpoint_owner is not None and not lease.is_finished
        return in_handoff and key not in snapshot.loose and self._host.now_s() < self._clocks[key].deadline_s

    async def _write(self, lease: Lease, to: WorkerId, *, is_loose: bool) -> None:
        """A refusal changes nothing, the next run plans anew."""
        graceful = not (is_loose or lease.is_finished or lease.checkpoint_owner is not None)
        update = java_rows.handoff(lease, to) if graceful else java_rows.assignment(lease, to)
        written = await self._host.tables.leases.update(update)
        if not written.applied or written.row is None:
            return
        self._host.log.info("java_lease_assigned", lease_key=lease.lease_key, to=to, graceful=graceful)
        if graceful:
            now_s = self._host.now_s()
            clock = self._clocks[lease.lease_key]
            self._clocks[lease.lease_key] = _Clock(
                clock.counter, clock.moved_s, (lease.lease_owner, to), now_s + HANDOFF_S + FAILOVER_S
            )
        else:
            self._clocks[lease.lease_key] = _Clock(
                lease_from_row(written.row).lease_counter, self._host.now_s()
            )


def _figures(row: WorkerRow) -> dict[str, float]:
    """G12: of each metric the moving average over what its row has."""
    figures: dict[str, float] = {}
    for name, averages in row.metrics.items():
        value: float | None = None
        for each in averages:
            if each != FAILED:
                value = each if value is None else (value + each) / 2
        figures[name] = value or 0.0
    return figures
