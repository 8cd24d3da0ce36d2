"""A worker that takes part in the move into one table and drives it as leader, over tables in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import anyio
import pytest

from kcl_daemon.config.tables import TablesSettings
from kcl_daemon.fleet.table_views import TableRoutes
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.layout import TABLE_STATUS_CODEC, StateRow, TableLayout, TableStatus, effective_status
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.row import Row, RowUpdate
from kcl_daemon.leases.worker_row import report
from kcl_daemon.migrations.one_table_loops import TableMigrator
from kcl_daemon.ports import Tables
from kcl_protocol.sequence import TRIM_HORIZON
from tests.simulator.loop import run_virtual
from tests.simulator.memory.table import MemoryTable
from tests.simulator.memory.transactions import MemoryTransactions
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.fleet.contexts import elector_of, fleet_monitor, reporter_of, worker_context
from tests.unit.troubled import Trouble, TroubledTable

INIT, DEPLOYED, PENDING, COMPLETE = TableStatus
ME, OTHER = WorkerId("me"), WorkerId("other")
VERSION: Row = {"key": "Migration3.0", "cv": "CLIENT_VERSION_3X", "mb": "w-0", "mts": 7}
SETTINGS = TablesSettings(deploy_bake_s=120, complete_bake_s=200)


class Stage:
    """A worker with a leader's loops, of an application in separate tables."""

    def __init__(self, state: TableStatus | None, *, migrate_all: bool) -> None:
        self.clock, self.log = LoopClock(), MemoryLog()
        self.leases = TroubledTable("app", "leaseKey")
        self.workers = TroubledTable("app-WorkerMetricStats", "wid")
        self.coordinator = TroubledTable("app-CoordinatorState", "key")
        self.state, self.migrate_all = state, migrate_all
        separate = Tables(self.leases, self.workers, self.coordinator)
        self.routes = TableRoutes(separate, migrate_all=migrate_all, clock=self.clock)
        self.may_drive = True
        self.other_ahead_s: int | None = None
        """How far the clock of another worker is wrong; it has reported to the old table before we come."""
        context = worker_context(ME, clock=self.clock, log=self.log)
        self.monitor = fleet_monitor(context, self.routes.tables)
        self.elector = elector_of(context, self.routes.lock)
        self.reporter = reporter_of(context, self.routes.reports)
        transactions = MemoryTransactions((self.leases, self.workers, self.coordinator))
        self.migrator = TableMigrator(
            context,
            routes=self.routes,
            settings=replace(SETTINGS, migrate_all=migrate_all),
            elector=self.elector,
            monitor=self.monitor,
            transactions=transactions,
            report=self.reporter.report,
            may_drive=lambda: self.may_drive,
        )

    async def begin(self) -> None:
        for table in (self.leases, self.workers, self.coordinator):
            await table.ensure()
        await MemoryTable.put(self.coordinator, VERSION)
        if self.state is not None:
            await self.says(self.state)
        status = effective_status(
            TABLE_STATUS_CODEC.read(await MemoryTable.get(self.coordinator, TABLE_STATUS_CODEC.row_key)),
            migrate_all=self.migrate_all,
        )
        assert isinstance(status, TableStatus)
        self.routes.route_to(TableLayout.SEPARATE, status)
        await self.has_lease(0, ME)
        if self.other_ahead_s is not None:
            await self.reports(self.workers)

    async def says(self, state: TableStatus) -> None:
        """The row says so, whoever wrote it."""
        row = TABLE_STATUS_CODEC.row(StateRow(state, "somebody", self.clock.wall_ms()), key_attribute="key")
        await MemoryTable.put(self.coordinator, row)

    async def has_lease(self, number: int, owner: WorkerId) -> None:
        lease = Lease(LeaseKey(f"shardId-{number:012d}"), 3, TRIM_HORIZON, lease_owner=owner)
        await MemoryTable.put(self.leases, lease_row.new_lease_row(lease))

    async def look_forever(self) -> None:
        """The assigner's part."""
        while True:
            if self.elector.is_leader:
                await self.monitor.poll()
            await anyio.sleep(2)

    async def old_worker(self, table: TroubledTable, *, supports: bool = True) -> None:
        """Another worker reports there, for ever."""
        while True:
            await self.reports(table, supports=supports)
            await anyio.sleep(30)

    async def reports(self, table: TroubledTable, *, supports: bool = True) -> None:
        whole = report(OTHER, now_s=self.clock.wall_ms() // 1000 + (self.other_ahead_s or 0))
        kept = {name: value for name, value in whole.put.items() if supports or name not in {"sup", "slu"}}
        await MemoryTable.update(table, RowUpdate(OTHER, put=kept))

    def leads(self) -> bool:
        return self.elector.is_leader

    def row(self, *, carried: bool = False) -> TableStatus | None:
        found = TABLE_STATUS_CODEC.read(
            (self.leases if carried else self.coordinator)._rows.get(TABLE_STATUS_CODEC.row_key)
        )
        assert found is None or isinstance(found, StateRow)
        return None if found is None else found.state

    def old_keys(self) -> set[str]:
        return set(self.coordinator._rows)


def play(
    scene: Callable[[Stage], Awaitable[None]],
    state: TableStatus | None = None,
    *,
    migrate_all: bool = False,
    other_ahead_s: int | None = None,
) -> Stage:
    """A scene beside everything that runs on the worker."""

    async def main() -> Stage:
        stage = Stage(state, migrate_all=migrate_all)
        stage.other_ahead_s = other_ahead_s
        await stage.begin()
        async with anyio.create_task_group() as background:
            for loop in (stage.elector.run, stage.reporter.run, stage.look_forever, stage.migrator.run):
                background.start_soon(loop)
            await scene(stage)
            background.cancel_scope.cancel()
        return stage

    return run_virtual(main)


def test_a_fleet_that_knows_the_single_table_is_deployed_after_the_bake_time_and_goes_no_further() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(40)
        assert stage.row() is INIT
        await anyio.sleep(60)
        assert stage.row() is INIT
        await anyio.sleep(120)
        assert stage.row() is DEPLOYED
        await anyio.sleep(3600)

    stage = play(scene)
    assert stage.row() is DEPLOYED
    assert stage.old_keys() == {"Leader", "Migration3.0", TABLE_STATUS_CODEC.row_key}
    assert stage.log.events("warning") == []
    assert not [event for event in stage.log.events("info") if event.startswith("table_migration")]


def test_a_lease_owner_that_does_not_know_it_takes_the_row_away_again() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(40)
        assert stage.row() is INIT
        await stage.has_lease(1, OTHER)
        async with anyio.create_task_group() as background:
            background.start_soon(lambda: stage.old_worker(stage.workers, supports=False))
            await anyio.sleep(70)
            assert stage.row() is None
            await anyio.sleep(600)
            assert stage.row() is None
            background.cancel_scope.cancel()
        await stage.has_lease(1, ME)
        await anyio.sleep(70)

    assert play(scene).row() is INIT


def test_the_leader_moves_everything_and_leads_on_by_the_new_lock() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(25)
        assert (stage.row(), stage.old_keys()) == (PENDING, {"Leader", TABLE_STATUS_CODEC.row_key})
        carried = await stage.leases.get("Migration3.0")
        assert carried is not None
        assert (carried["cv"], carried["entityType"]) == (VERSION["cv"], "CLIENT_VERSION_MIGRATION")
        await anyio.sleep(150)
        assert stage.row() is PENDING
        await anyio.sleep(60)
        assert stage.row() is COMPLETE
        await anyio.sleep(30)
        assert stage.elector.is_leader

    stage = play(scene, DEPLOYED, migrate_all=True)
    assert stage.row(carried=True) is COMPLETE
    assert stage.old_keys() == {TABLE_STATUS_CODEC.row_key}
    assert {"Leader", ME} <= set(stage.leases._rows)
    assert stage.workers._rows == {}


def test_rows_of_more_than_one_batch_are_carried_over_in_one_look() -> None:
    async def scene(stage: Stage) -> None:
        for number in range(60):
            await MemoryTable.put(stage.coordinator, {"key": f"stream-{number}", "entityType": "STREAM"})
        await anyio.sleep(25)
        assert (stage.row(), stage.old_keys()) == (PENDING, {"Leader", TABLE_STATUS_CODEC.row_key})

    stage = play(scene, DEPLOYED, migrate_all=True)
    assert sum(row.get("entityType") == "STREAM" for row in stage.leases._rows.values()) == 60


def test_a_worker_that_reports_to_the_old_table_holds_it_up_and_takes_it_back() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(25)
        assert stage.row() is PENDING
        async with anyio.create_task_group() as background:
            background.start_soon(stage.old_worker, stage.workers)
            await anyio.sleep(25)
            assert stage.row() is DEPLOYED
            await anyio.sleep(600)
            assert stage.row() is DEPLOYED
            background.cancel_scope.cancel()
        await anyio.sleep(100)
        assert stage.row() is PENDING

    play(scene, DEPLOYED, migrate_all=True)


@pytest.mark.parametrize("ahead_s", [-180, 180])
@pytest.mark.parametrize("state", [None, INIT])
def test_a_worker_with_a_wrong_clock_does_not_hold_the_move_up(
    state: TableStatus | None, ahead_s: int
) -> None:
    """It reports and knows the single table, whatever its date."""

    async def scene(stage: Stage) -> None:
        await stage.has_lease(1, OTHER)
        async with anyio.create_task_group() as background:
            background.start_soon(stage.old_worker, stage.workers)
            await anyio.sleep(100)
            assert stage.row() is INIT
            await anyio.sleep(200)
            background.cancel_scope.cancel()

    stage = play(scene, state, other_ahead_s=ahead_s)
    assert stage.row() is DEPLOYED
    steps = [fields for _, event, fields in stage.log.lines if event == "table_migration_step"]
    assert not [step for step in steps if "deleted" in step]


@pytest.mark.parametrize("ahead_s", [-180, 180])
def test_a_worker_with_a_wrong_clock_that_reports_to_the_old_table_is_seen(ahead_s: int) -> None:
    async def scene(stage: Stage) -> None:
        async with anyio.create_task_group() as background:
            background.start_soon(stage.old_worker, stage.workers)
            for _ in range(60):
                await anyio.sleep(10)
                assert stage.row() is DEPLOYED
            background.cancel_scope.cancel()
        await anyio.sleep(100)
        assert stage.row() is PENDING

    play(scene, DEPLOYED, migrate_all=True, other_ahead_s=ahead_s)


def test_a_leader_without_the_setting_takes_it_back() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(70)
        assert stage.row() is DEPLOYED

    stage = play(scene, PENDING)
    (step,) = [fields for _, event, fields in stage.log.lines if event == "table_migration_step"]
    assert "migrateAllEntitiesToLeaseTable=false" in str(step["reason"])


def test_a_row_that_both_tables_have_is_left_and_reported() -> None:
    async def scene(stage: Stage) -> None:
        await MemoryTable.put(
            stage.leases, {"leaseKey": "Migration3.0", "cv": "x", "entityType": "CLIENT_VERSION_MIGRATION"}
        )
        await anyio.sleep(60)

    stage = play(scene, DEPLOYED, migrate_all=True)
    assert (stage.row(), stage.old_keys()) == (
        DEPLOYED,
        {"Leader", "Migration3.0", TABLE_STATUS_CODEC.row_key},
    )
    assert "table_migration_step_refused" in stage.log.events("warning")


def test_a_leader_that_finds_the_move_complete_gives_the_old_lock_up_and_takes_the_new_one() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(25)
        await stage.says(COMPLETE)
        await anyio.sleep(60)
        assert stage.elector.is_leader

    stage = play(scene, DEPLOYED, migrate_all=True)
    assert "Leader" in stage.leases._rows
    assert "Leader" not in stage.old_keys()


def test_who_does_not_lead_follows_to_the_new_lock_and_reports_to_the_new_table() -> None:
    async def scene(stage: Stage) -> None:
        await stage.says(COMPLETE)
        await MemoryTable.put(
            stage.coordinator,
            {"key": "Leader", "ownerName": OTHER, "leaseDuration": "30000", "recordVersionNumber": "v"},
        )
        await anyio.sleep(80)
        assert stage.elector.is_leader

    # Without the setting it does not look by itself: it learns of the end when the old lock is not renewed any more.
    stage = play(scene, DEPLOYED)
    assert stage.routes.status is COMPLETE
    assert {"Leader", ME} <= set(stage.leases._rows)


def test_nobody_leads_who_cannot_read_the_state() -> None:
    class Hidden(TroubledTable):
        """The row of the move is out of reach, the lock is not."""

        hidden = True

        async def get(self, key: str) -> Row | None:
            if key == TABLE_STATUS_CODEC.row_key and self.hidden:
                self.reads.append(Trouble.FAILED_BEFORE)
            return await super().get(key)

    async def main() -> None:
        stage = Stage(DEPLOYED, migrate_all=False)
        await stage.begin()
        hidden = Hidden("app-CoordinatorState", "key")
        hidden._rows, hidden._exists = stage.coordinator._rows, True
        stage.routes.separate = Tables(stage.leases, stage.workers, hidden)
        stage.routes.route_to(TableLayout.SEPARATE, DEPLOYED)
        async with anyio.create_task_group() as background:
            for loop in (stage.elector.run, stage.look_forever, stage.migrator.run):
                background.start_soon(loop)
            await anyio.sleep(60)
            assert "Leader" not in hidden._rows
            hidden.hidden = False
            await anyio.sleep(30)
            assert stage.leads()
            hidden.hidden = True
            await anyio.sleep(100)
            assert not stage.leads()
            assert "Leader" not in hidden._rows
            background.cancel_scope.cancel()

    run_virtual(main)


def test_a_deleted_migration_status_is_reported_once_and_the_leader_stays_leader() -> None:
    async def scene(stage: Stage) -> None:
        await MemoryTable.delete(stage.coordinator, TABLE_STATUS_CODEC.row_key)
        await anyio.sleep(120)
        assert stage.elector.is_leader

    stage = play(scene, DEPLOYED, migrate_all=True)
    assert stage.log.events("error") == ["table_migration_stuck"]
    assert stage.row() is None


def test_an_application_that_may_still_go_back_to_2x_is_not_moved() -> None:
    async def scene(stage: Stage) -> None:
        stage.may_drive = False
        await anyio.sleep(600)

    assert play(scene).row() is None


@pytest.mark.parametrize("trouble", [Trouble.THROTTLED, Trouble.FAILED_BEFORE, Trouble.HANGS_BEFORE])
def test_trouble_with_a_table_delays_the_move_and_no_more(trouble: Trouble) -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(25)
        assert stage.row() is PENDING
        stage.coordinator.reads.append(trouble)
        await anyio.sleep(260)
        assert stage.row(carried=True) is COMPLETE

    play(scene, DEPLOYED, migrate_all=True)


def test_in_an_application_with_one_table_nothing_is_done() -> None:
    async def main() -> Stage:
        stage = Stage(None, migrate_all=True)
        for table in (stage.leases, stage.workers, stage.coordinator):
            await table.ensure()
        stage.routes.route_to(TableLayout.SINGLE, COMPLETE)
        await stage.migrator.run()
        return stage

    stage = run_virtual(main)
    assert (stage.coordinator.calls, stage.leases.calls, stage.log.events()) == ([], [], [])
