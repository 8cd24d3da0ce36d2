"""Takes part in the move of an application into one table, and brings it forward while this worker leads.

(KCL: TableMigrationStateMachineImpl.) Owns the pace of the looks and the carrying out of steps; which step is next is
decided in `leases.table_migration_steps`, where rows are is known by `table_routes`. In an application with one table
nothing of this runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar, assert_never

from kcl_daemon.config.table_settings import TablesSettings
from kcl_daemon.coordination.elector import Elector
from kcl_daemon.coordination.migration_figures import faults, tell_phases, tell_status
from kcl_daemon.coordination.nudge import Nudge
from kcl_daemon.coordination.overview import Overview
from kcl_daemon.coordination.table_routes import TableRoutes
from kcl_daemon.errors import AwsError, Unavailable
from kcl_daemon.leases.client_version import CODEC as CLIENT_VERSION
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.leases.state_row import Refusal
from kcl_daemon.leases.table import Row
from kcl_daemon.leases.table_migration import REFRESH_EVERY_S, MigrationRow, Place, TableStatus
from kcl_daemon.leases.table_migration_moves import Complete, Move, Part
from kcl_daemon.leases.table_migration_steps import (
    Advance,
    Create,
    Nothing,
    Step,
    SwitchOver,
    Withdraw,
    step,
)
from kcl_daemon.leases.table_migration_survey import Survey, survey
from kcl_daemon.metrics import kcl
from kcl_daemon.ports import Clock, InTable, Log, Transactions
from kcl_daemon.ports_metrics import NO_METERS, Meters

_T = TypeVar("_T")

# Who neither leads nor moves anything learns of the end from the lock, which is gone then; this is in case it does not.
_REST_S: Final = 300.0
# While the leader moves rows, and where something failed.
_BUSY_S: Final = 10.0
# A leader that fails to read the row this many times gives up the lock.
_FAILURES_MOST: Final = 3
# What is concluded from must not be older.
_LOOK_MOST_S: Final = 30.0
# A batch of 25 rows each; there are a handful.
_STEPS_MOST: Final = 20


@dataclass(frozen=True, slots=True)
class Means:
    """What a leader carries steps out with.

    Args:
        overview: what it sees of leases and workers.
        transactions: over the application's tables.
        report: writes this worker's row.
    """

    overview: Overview
    transactions: Transactions
    report: Callable[[], Awaitable[object]]


class TableMigrator:
    """One worker's part in the move."""

    def __init__(
        self,
        *,
        routes: TableRoutes,
        settings: TablesSettings,
        elector: Elector,
        means: Means,
        worker_id: WorkerId,
        clock: Clock,
        call_s: float,
        report_s: float,
        log: Log,
        meters: Meters = NO_METERS,
    ) -> None:
        self._meters = meters
        self._routes = routes
        self._settings = settings
        self._elector = elector
        self._means = means
        self._me = worker_id
        self._clock = clock
        self._call_s = call_s
        self._report_s = report_s
        self._log = log
        self._nudge = Nudge(clock)
        self._failures = 0
        self._is_moving = settings.migrate_all
        self._told: object = None
        self._may_drive: Callable[[], bool] = lambda: True
        routes.lock.on_taken(self._nudge.nudge)

    def only_when(self, may_drive: Callable[[], bool]) -> None:
        """Have it moved on only in an application of which this is true: one that is past its upgrade from 2.x.

        A roll-back to 2.x brings back workers that fail on a lease table with rows of other kinds.
        """
        self._may_drive = may_drive

    async def run(self) -> None:
        """Look now and then, also when this worker begins to lead; returns when all is in the lease table."""
        if self._is_over:
            return
        await self._take_part()
        self._log.info(
            "table_migration_complete",
            advice="when all workers report this, the two old tables can be deleted",
        )
        await self._means.report()  # whoever reported to the old table is not seen there any more

    @property
    def _is_over(self) -> bool:
        return self._routes.status is TableStatus.COMPLETE

    async def _take_part(self) -> None:
        while not self._is_over:
            try:
                with self._meters.operation(kcl.TABLE):
                    await self._look()
                self._failures = 0
            except AwsError as error:
                await self._failed(error)
            if not self._is_over:
                await self._nudge.wait(self._pause_s())

    async def _look(self) -> None:
        row = await self._follow()
        tell_status(self._meters, row)
        if row is not None and not isinstance(row, Refusal) and row.state is TableStatus.COMPLETE:
            await self._switch_over()
        elif self._elector.is_leader and self._may_drive():
            await self._drive(row)
        elif isinstance(row, Refusal):
            self._refused(row)

    def _pause_s(self) -> float:
        if self._failures or (self._elector.is_leader and self._means.overview.age_s is None):
            return _BUSY_S
        if self._elector.is_leader and self._settings.migrate_all:
            return _BUSY_S
        if self._settings.migrate_all:
            return REFRESH_EVERY_S
        return 2 * REFRESH_EVERY_S if self._elector.is_leader else _REST_S

    async def _drive(self, row: MigrationRow | Refusal | None) -> None:
        """Step by step until there is nothing to write now."""
        for _ in range(_STEPS_MOST):
            if isinstance(row, Refusal):
                self._refused(row)
                return
            seen = await self._survey(row)
            if seen is None:
                return
            # Until somebody asks for a move the steps are bookkeeping, which every application has.
            pending = row is not None and row.state is TableStatus.PENDING
            self._is_moving = self._settings.migrate_all or pending
            tell_phases(self._meters, seen, self._means.overview.leases)
            decided = step(
                seen,
                status=self._routes.status,
                migrate_all=self._settings.migrate_all,
                bake_s=self._settings.complete_bake_s,
                deploy_bake_s=self._settings.deploy_bake_s,
                me=self._me,
                now_ms=self._clock.wall_ms(),
            )
            if not await self._carry_out(decided) or not self._elector.is_leader:
                return
            row = await self._follow()

    async def _survey(self, row: MigrationRow | None) -> Survey | None:
        """What is known now; None where the leader has not looked at the fleet lately."""
        overview = self._means.overview
        if overview.age_s is None or overview.age_s > _LOOK_MOST_S:
            return None
        moving = self._settings.migrate_all and row is not None and row.state is not TableStatus.INIT
        return survey(
            row=row,
            leases=overview.leases,
            legacy_workers=overview.workers_apart,
            workers=overview.workers_in_leases,
            legacy_rows=await self._old_rows() if moving else (),
            wall_s=self._clock.wall_ms() / 1000,
            report_s=self._report_s,
        )

    async def _old_rows(self) -> list[Row]:
        """The rows of the coordinator table. A scan may be behind, so the one that matters is asked for by its key."""
        table = self._routes.separate.coordinator
        with self._clock.move_on_after(2 * self._call_s):
            known = await table.get(CLIENT_VERSION.row_key)
            rows = [row for row in await table.scan() if row[table.key_attribute] != CLIENT_VERSION.row_key]
            return rows if known is None else [known, *rows]
        raise Unavailable(f"no answer within {2 * self._call_s:g} s", operation="Scan")

    async def _carry_out(self, decided: Step) -> bool:
        """Whether something was written, so that the next step may follow."""
        match decided:
            case Nothing(reason):
                self._tell(reason)
            case Refusal():
                self._refused(decided)
            case SwitchOver():
                await self._switch_over()
            case _:
                with faults(self._meters, decided):
                    applied = await self._write(decided)
                if applied:
                    tell = self._log.info if self._is_moving else self._log.debug
                    tell("table_migration_step", reason=decided.reason, **_facts(decided))
                return applied
        return False

    async def _write(self, decided: Create | Withdraw | Advance | Move | Complete) -> bool:
        table = self._routes.separate.coordinator
        match decided:
            case Create(creation):
                written = await self._in_time(table.put(creation.row, creation.require))
            case Withdraw(key, require):
                written = await self._in_time(table.delete(key, require))
            case Advance(update):
                written = await self._in_time(table.update(update))
            case Move(parts) | Complete(parts):
                return await self._commit(parts)
            case _:
                assert_never(decided)
        return written.applied

    async def _commit(self, parts: tuple[Part, ...]) -> bool:
        places = {
            Place.LEGACY: self._routes.separate.coordinator,
            Place.LEASES: self._routes.separate.leases,
        }
        placed = [InTable(places[part.place], part.what) for part in parts]
        committed = await self._in_time(self._means.transactions.commit(placed))
        if not committed.applied:
            self._log.warning(
                "table_migration_step_refused",
                parts=[f"{placed[number].table.name}: {parts[number].what}" for number in committed.refused],
                advice="another leader was faster, or both tables have a row with this key; the daemon tries "
                "again",
            )
        return committed.applied

    async def _switch_over(self) -> None:
        """The lock first: whoever leads by the old one has to give it up."""
        await self._elector.resign()
        self._routes.switch_over()

    async def _follow(self) -> MigrationRow | Refusal | None:
        try:
            return await self._in_time(self._routes.follow())
        except AwsError:
            self._meters.add(kcl.TABLE_READ_FAULT)
            raise

    async def _in_time(self, call: Awaitable[_T]) -> _T:
        with self._clock.move_on_after(self._call_s):
            return await call
        raise Unavailable(f"no answer within {self._call_s:g} s")

    async def _failed(self, error: AwsError) -> None:
        self._failures += 1
        self._log.warning("table_migration_unreadable", error=str(error), failures=self._failures)
        if self._failures >= _FAILURES_MOST and self._elector.is_leader:
            self._failures = 0
            await self._elector.resign()

    def _refused(self, refusal: Refusal) -> None:
        if refusal != self._told:
            self._log.error("table_migration_stuck", error=refusal.problem, advice=refusal.advice)
        self._told = refusal

    def _tell(self, reason: str) -> None:
        """What is waited for, once for each kind of reason: figures in it change with every look."""
        kind = "".join(each for each in reason if not each.isdigit())
        tell = self._log.info if self._is_moving and kind != self._told else self._log.debug
        tell("table_migration_waits", reason=reason)
        self._told = kind


def _facts(decided: Create | Withdraw | Advance | Move | Complete) -> dict[str, object]:
    """What a step brings about, for the log."""
    match decided:
        case Create():
            return {"to": str(TableStatus.INIT)}
        case Advance(_, to):
            return {"to": str(to)}
        case Complete():
            return {"to": str(TableStatus.COMPLETE)}
        case Withdraw(key):
            return {"deleted": key}
        case Move(_, keys):
            return {"moved": list(keys)}
        case _:
            assert_never(decided)
