"""Takes the fleet from the ways of 2.x to those of 3.x once all is ready (KCL: MigrationReadyMonitor).

Runs on every worker of an application that is being upgraded, acts on the leader by shuffle. Owns since when all has
been ready; `leases.upgrade` decides.
"""

from __future__ import annotations

from collections.abc import Callable

from kcl_daemon.coordination.overview import Overview
from kcl_daemon.coordination.shuffle import ShuffleLeader
from kcl_daemon.errors import AwsError
from kcl_daemon.leases.client_version import CODEC
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.leases.state_row import Refusal
from kcl_daemon.leases.upgrade import CHECK_EVERY_S, NotYet, Readiness, Upgrade, consider, readiness
from kcl_daemon.metrics import kcl
from kcl_daemon.ports import Clock, IndexState, Log, Tables
from kcl_daemon.ports_metrics import NO_METERS, Meters


class Upgrader:
    """Watches whether the index is there and every lease owner reports."""

    def __init__(
        self,
        *,
        tables: Tables,
        overview: Overview,
        leader: ShuffleLeader,
        worker_id: WorkerId,
        clock: Clock,
        report_s: float,
        log: Log,
        meters: Meters = NO_METERS,
    ) -> None:
        self._meters = meters
        self._tables = tables
        self._overview = overview
        self._leader = leader
        self._me = worker_id
        self._clock = clock
        self._report_s = report_s
        self._log = log
        self._on_upgraded: Callable[[], None] | None = None
        self._ready_since_s: float | None = None
        self._told = ""

    def on_upgraded(self, callback: Callable[[], None]) -> None:
        """Have a function called, from the loop, when the row has changed."""
        self._on_upgraded = callback

    async def run(self) -> None:
        """Check now and then; for ever."""
        self._ready_since_s, self._told = None, ""
        while True:
            await self._clock.sleep(CHECK_EVERY_S)
            try:
                await self._check()
            except AwsError as error:
                # That we cannot look does not mean that somebody is not ready.
                self._meters.add(kcl.MIGRATION_FAULT)
                self._log.warning("upgrade_check_failed", error=str(error))

    async def _check(self) -> None:
        if not self._leader.leads:
            self._ready_since_s = None
            return
        ready = await self._readiness()
        self._meters.add(kcl.MIGRATION_INDEX, ready.index_active)
        self._meters.add(kcl.MIGRATION_REPORTS, not (ready.silent or ready.unowned))
        stored = CODEC.read(await self._tables.coordinator.get(CODEC.row_key))
        if stored is None or isinstance(stored, Refusal):
            return  # who follows the row says so
        decision = consider(
            stored,
            ready,
            self._ready_since_s,
            leads=True,
            me=self._me,
            now_s=self._clock.monotonic(),
            now_ms=self._clock.wall_ms(),
            key_attribute=self._tables.coordinator.key_attribute,
        )
        match decision:
            case NotYet(ready_since_s, reason):
                self._tell(ready_since_s, reason)
                self._ready_since_s = ready_since_s
            case Upgrade(update, reason):
                if (await self._tables.coordinator.update(update)).applied:
                    self._log.info("upgrade_made", reason=reason)
                if self._on_upgraded is not None:
                    self._on_upgraded()

    async def _readiness(self) -> Readiness:
        state = await self._tables.leases.describe()
        await self._overview.look()
        return readiness(
            self._overview.leases,
            self._overview.workers,
            index_active=state is not None and state.owner_index is IndexState.ACTIVE,
            wall_s=self._clock.wall_ms() / 1000,
            report_s=self._report_s,
        )

    def _tell(self, ready_since_s: float | None, reason: str) -> None:
        """What is missing, when that changes; that nothing is, once."""
        what = reason if ready_since_s is None else "ready"
        tell = self._log.debug if what == self._told else self._log.info
        tell("upgrade_waits", reason=reason)
        self._told = what
