"""Opening an application's tables: the layout, what is made, what is added while work goes on, and throttling."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from kcl_daemon.config.tables import TableOptions, TablesSettings
from kcl_daemon.errors import (
    AccessDenied,
    AwsError,
    ConfigurationError,
    InvalidRequest,
    Unavailable,
)
from kcl_daemon.fleet.tables import ApplicationTables
from kcl_daemon.leases.layout import TableLayout
from kcl_daemon.leases.leader import LeaderLock, lock_row
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.row import Row
from kcl_daemon.leases.worker_row import report
from kcl_daemon.ports import IndexState, Tables, TableState
from kcl_protocol.sequence import TRIM_HORIZON
from tests.simulator.loop import run_virtual
from tests.simulator.memory.table import MemoryTable
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.troubled import Trouble, TroubledTable

SEPARATE, SINGLE = TableLayout.SEPARATE, TableLayout.SINGLE
LOCK = LeaderLock(WorkerId("w-1"), "token", 30_000)
LEASE = Lease(LeaseKey("shardId-000000000000"), 0, TRIM_HORIZON)
OLD_LEASE: Row = {
    "leaseKey": "shardId-000000000000",
    "leaseCounter": 3,
    "checkpoint": "TRIM_HORIZON",
    "checkpointSubSequenceNumber": 0,
    "ownerSwitchesSinceCheckpoint": 0,
}
PLAIN, RECOVERY = TableOptions(), TableOptions(point_in_time_recovery=True)


class AdminTable(TroubledTable):
    """A table that refuses management calls as it is told, and takes its time to be made."""

    def __init__(self, name: str, key_attribute: str, made: list[str]) -> None:
        super().__init__(name, key_attribute)
        self._made = made
        self.refusals: list[AwsError] = []
        self.asked: list[str] = []
        self.seconds_to_make = 0.0

    async def describe(self) -> TableState | None:
        self.asked.append("describe")
        return await super().describe()

    async def ensure(self) -> bool:
        created = await super().ensure()
        if created:
            self._made.append(self.name)
            await anyio.sleep(self.seconds_to_make)
        return created

    async def add_owner_index(self) -> None:
        self._resume("add_owner_index")
        await super().add_owner_index()

    async def enable_recovery(self) -> None:
        self._resume("enable_recovery")
        await super().enable_recovery()

    def _resume(self, call: str) -> None:
        self.asked.append(call)
        if self.refusals:
            raise self.refusals.pop(0)


class Stage:
    """Three tables that do not exist yet."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.leases = AdminTable("app", "leaseKey", self.made)
        self.workers = AdminTable("app-WorkerMetricStats", "wid", self.made)
        self.coordinator = AdminTable("app-CoordinatorState", "key", self.made)
        self.log = MemoryLog()

    def opened_by(
        self,
        layout: TableLayout = SEPARATE,
        leases: TableOptions = PLAIN,
        worker_metrics: TableOptions = PLAIN,
        coordinator: TableOptions = PLAIN,
    ) -> ApplicationTables:
        """The tables as a worker with such settings has them."""
        return ApplicationTables(
            Tables(self.leases, self.workers, self.coordinator),
            settings=TablesSettings(
                layout=layout, leases=leases, worker_metrics=worker_metrics, coordinator=coordinator
            ),
            clock=LoopClock(),
            log=self.log,
        )

    def chosen(self) -> list[object]:
        return [fields["layout"] for _, event, fields in self.log.lines if event == "table_layout_chosen"]


def play(scene: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        await scene(Stage())

    run_virtual(main)


def test_a_fresh_application_gets_three_tables_the_lease_table_last() -> None:
    async def scene(stage: Stage) -> None:
        opened = stage.opened_by()
        await opened.open()
        assert sorted(stage.made[:2]) == ["app-CoordinatorState", "app-WorkerMetricStats"]
        assert stage.made[2:] == ["app"]
        assert not opened.tables.share_one_table
        assert opened.tables.coordinator.key_attribute == "key"
        assert opened.tables.worker_metrics.name == "app-WorkerMetricStats"

    play(scene)


def test_the_tables_of_a_fresh_application_are_made_at_the_same_time() -> None:
    async def scene(stage: Stage) -> None:
        for table in (stage.leases, stage.workers, stage.coordinator):
            table.seconds_to_make = 8.0
        await stage.opened_by().open()
        assert anyio.current_time() < 8.5

    play(scene)


def test_a_fresh_application_may_ask_for_one_table() -> None:
    async def scene(stage: Stage) -> None:
        opened = stage.opened_by(SINGLE)
        await opened.open()
        assert stage.made == ["app"]
        assert opened.tables.share_one_table
        assert (
            opened.tables.coordinator.key_attribute
            == opened.tables.worker_metrics.key_attribute
            == "leaseKey"
        )
        assert stage.log.events("warning") == []

    play(scene)


@pytest.mark.parametrize(
    "row", [lock_row("leaseKey", LOCK), {"leaseKey": "w-1", **report(WorkerId("w-1"), now_s=1).put}]
)
def test_a_lease_table_with_other_rows_is_the_single_layout_whatever_is_set(row: Row) -> None:
    async def scene(stage: Stage) -> None:
        await stage.leases.ensure()
        await stage.leases.put(row)
        opened = stage.opened_by(SEPARATE)
        await opened.open()
        assert stage.made == ["app"]
        assert opened.tables.share_one_table

    play(scene)


def test_the_leaders_lock_tells_the_single_layout_without_a_scan() -> None:
    async def scene(stage: Stage) -> None:
        await stage.leases.ensure()
        await stage.leases.put(lock_row("leaseKey", LOCK))
        stage.leases.calls.clear()
        await stage.opened_by().open()
        assert "scan" not in stage.leases.calls

    play(scene)


def test_a_coordinator_table_is_the_separate_layout_whatever_is_set() -> None:
    async def scene(stage: Stage) -> None:
        await stage.coordinator.ensure()
        opened = stage.opened_by(SINGLE)
        await opened.open()
        assert sorted(stage.made) == ["app", "app-CoordinatorState", "app-WorkerMetricStats"]
        assert not opened.tables.share_one_table
        assert stage.log.events("warning") == ["table_layout_doubtful"]

    play(scene)


def test_leases_of_kcl_2_alone_decide_nothing() -> None:
    async def scene(stage: Stage) -> None:
        await stage.leases.ensure()
        await stage.leases.put(OLD_LEASE)
        await stage.opened_by(SEPARATE).open()
        assert stage.chosen() == ["separate"]

    play(scene)


def test_a_migration_that_is_complete_leads_to_the_lease_table_and_makes_nothing() -> None:
    async def scene(stage: Stage) -> None:
        for table in (stage.leases, stage.workers, stage.coordinator):
            await table.ensure()
        state: Row = {"tm": "TABLE_MIGRATION_STATUS_COMPLETE", "mb": "w-1", "mts": 1}
        await stage.coordinator.put({"key": "TableMigration3.5", **state})
        opened = stage.opened_by()
        await opened.open()
        assert opened.tables.share_one_table
        assert stage.chosen() == ["single"]

    play(scene)


@pytest.mark.parametrize("status", ["INIT", "DEPLOYED", "PENDING"])
def test_a_migration_under_way_is_the_separate_layout(status: str) -> None:
    async def scene(stage: Stage) -> None:
        await stage.coordinator.ensure()
        state: Row = {"tm": f"TABLE_MIGRATION_STATUS_{status}", "mb": "w-1", "mts": 1}
        await stage.coordinator.put({"key": "TableMigration3.5", **state})
        opened = stage.opened_by()
        await opened.open()
        assert not opened.tables.share_one_table

    play(scene)


def test_a_migration_row_that_nobody_can_read_keeps_the_worker_from_starting() -> None:
    async def scene(stage: Stage) -> None:
        await stage.coordinator.ensure()
        await stage.coordinator.put({"key": "TableMigration3.5", "tm": "SOMETHING_NEW"})
        with pytest.raises(ConfigurationError, match="SOMETHING_NEW"):
            await stage.opened_by().open()
        assert stage.made == ["app-CoordinatorState"]

    play(scene)


@pytest.mark.parametrize("one", [SEPARATE, SINGLE])
@pytest.mark.parametrize("other", [SEPARATE, SINGLE])
@pytest.mark.parametrize("seconds", [0.0, 5.0])
def test_two_workers_that_begin_in_the_same_moment_come_up_in_the_same_layout(
    one: TableLayout, other: TableLayout, seconds: float
) -> None:
    async def scene(stage: Stage) -> None:
        for table in (stage.leases, stage.workers, stage.coordinator):
            table.seconds_to_make = seconds
        workers = [stage.opened_by(one), stage.opened_by(other)]
        async with anyio.create_task_group() as group:
            for worker in workers:
                group.start_soon(worker.open)
        assert workers[0].tables.share_one_table is workers[1].tables.share_one_table
        assert len(stage.made) == len(set(stage.made))

    play(scene)


def test_tables_are_opened_by_a_second_try_after_an_error() -> None:
    async def scene(stage: Stage) -> None:
        await stage.coordinator.ensure()
        stage.coordinator.reads.append(Trouble.FAILED_BEFORE)
        opened = stage.opened_by()
        with pytest.raises(Unavailable):
            await opened.open()
        await opened.open()
        assert sorted(stage.made) == ["app", "app-CoordinatorState", "app-WorkerMetricStats"]

    play(scene)


def test_a_missing_index_is_added_while_work_goes_on() -> None:
    async def scene(stage: Stage) -> None:
        built: list[Callable[[], None]] = []
        stage.leases._defer_build = built.append
        stage.leases.exist_without_index()
        opened = stage.opened_by()
        await opened.open()
        assert "add_owner_index" not in stage.leases.asked
        async with anyio.create_task_group() as group:
            group.start_soon(opened.complete_index)
            await anyio.sleep(20)
            assert stage.leases.asked.count("add_owner_index") == 1
            assert "owner_index_ready" not in stage.log.events()
            built[0]()
        assert stage.log.events("info")[-2:] == ["owner_index_added", "owner_index_ready"]
        assert await opened.tables.leases.owned_keys("w-1") == []

    play(scene)


def test_an_index_that_another_worker_adds_at_the_same_moment_is_as_good() -> None:
    async def scene(stage: Stage) -> None:
        stage.leases.exist_without_index()
        opened = stage.opened_by()
        await opened.open()
        await MemoryTable.add_owner_index(stage.leases)
        stage.leases.exist_without_index()
        stage.leases.refusals = [Unavailable("the table is being updated"), InvalidRequest("there is one")]
        await opened.complete_index()
        assert stage.log.events("warning") == []

    play(scene)


def test_a_denied_index_is_one_warning_with_advice() -> None:
    async def scene(stage: Stage) -> None:
        stage.leases.exist_without_index()
        stage.leases.refusals = [AccessDenied("not allowed", operation="UpdateTable")]
        opened = stage.opened_by()
        await opened.open()
        await opened.complete_index()
        ((_, event, fields),) = [line for line in stage.log.lines if line[0] == "warning"]
        assert (event, fields["table"], fields["lacks"]) == (
            "table_not_completed",
            "app",
            "the index by owner",
        )
        assert "dynamodb:UpdateTable" in str(fields["advice"])

    play(scene)


def test_a_table_with_its_index_is_looked_at_and_left_alone() -> None:
    async def scene(stage: Stage) -> None:
        await stage.leases.ensure()
        opened = stage.opened_by()
        await opened.open()
        stage.leases.asked.clear()
        await opened.complete_index()
        await opened.complete_recovery()
        assert stage.leases.asked == ["describe"]
        assert "owner_index_ready" not in stage.log.events()

    play(scene)


def test_an_index_that_was_removed_since_the_start_is_added_again() -> None:
    """A fleet that goes back to 2.x and forward again: its workers have seen the index at their start."""

    async def scene(stage: Stage) -> None:
        await stage.leases.ensure()
        opened = stage.opened_by()
        await opened.open()
        await stage.leases.remove_owner_index()
        await opened.complete_index()
        state = await stage.leases.describe()
        assert state is not None
        assert state.owner_index is IndexState.ACTIVE

    play(scene)


def test_point_in_time_recovery_is_turned_on_where_it_is_asked_also_of_a_table_that_exists() -> None:
    async def scene(stage: Stage) -> None:
        await stage.leases.ensure()
        opened = stage.opened_by(leases=RECOVERY, coordinator=RECOVERY)
        await opened.open()
        stage.leases.refusals = [Unavailable("the table is too new")]
        await opened.complete_recovery()
        on = [table.has_recovery for table in (stage.leases, stage.workers, stage.coordinator)]
        assert on == [True, False, True]

    play(scene)


def test_in_one_table_only_the_options_of_the_lease_table_count() -> None:
    async def scene(stage: Stage) -> None:
        opened = stage.opened_by(SINGLE, worker_metrics=RECOVERY, coordinator=RECOVERY)
        await opened.open()
        await opened.complete_recovery()
        asked = stage.leases.asked + stage.workers.asked + stage.coordinator.asked
        assert "enable_recovery" not in asked

    play(scene)


def test_point_in_time_recovery_that_never_works_is_given_up_with_one_warning() -> None:
    async def scene(stage: Stage) -> None:
        opened = stage.opened_by(leases=RECOVERY)
        await opened.open()
        stage.leases.refusals = [Unavailable("no") for _ in range(1000)]
        await opened.complete_recovery()
        assert stage.log.events("warning") == ["table_not_completed"]
        assert anyio.current_time() < 1000

    play(scene)


def test_options_that_an_existing_table_does_not_have_are_reported() -> None:
    async def scene(stage: Stage) -> None:
        await stage.leases.ensure()
        stage.leases.differences = ("deletion protection is off",)
        await stage.opened_by().open()
        ((_, event, fields),) = [line for line in stage.log.lines if line[0] == "warning"]
        assert (event, fields["table"]) == ("table_left_as_it_is", "app")
        assert fields["differences"] == ["deletion protection is off"]

    play(scene)
