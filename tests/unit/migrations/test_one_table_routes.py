"""Rows that may be in either of two tables, the lock that moves, and the routes of each state."""

from __future__ import annotations

import anyio
import pytest

from kcl_daemon.errors import Unavailable
from kcl_daemon.fleet.table_views import DualTable, TableRoutes
from kcl_daemon.leases.layout import TABLE_STATUS_CODEC, StateRow, TableLayout, TableStatus, UnusableState
from kcl_daemon.leases.row import Absent, Equals, Present, Row, RowUpdate
from kcl_daemon.ports import Tables
from tests.simulator.loop import at_once
from tests.unit.fakes import LoopClock
from tests.unit.troubled import Trouble, TroubledTable

INIT, DEPLOYED, PENDING, COMPLETE = TableStatus
STATE: Row = {"key": "Migration3.0", "cv": "3X"}
CARRIED: Row = {"leaseKey": "Migration3.0", "cv": "3X"}
LOCK: Row = {"key": "Leader", "ownerName": "w-1"}


class Stage:
    """The three tables of an application."""

    def __init__(self) -> None:
        self.leases = TroubledTable("app", "leaseKey")
        self.workers = TroubledTable("app-WorkerMetricStats", "wid")
        self.coordinator = TroubledTable("app-CoordinatorState", "key")
        for table in (self.leases, self.workers, self.coordinator):
            at_once(table.ensure())

    def two(self, *, written: TroubledTable | None = None) -> DualTable:
        return DualTable(self.coordinator, self.leases, written=written or self.coordinator)

    def routes(self, status: TableStatus, *, migrate_all: bool = False) -> TableRoutes:
        tables = Tables(self.leases, self.workers, self.coordinator)
        routes = TableRoutes(tables, migrate_all=migrate_all, clock=LoopClock())
        routes.route_to(TableLayout.SEPARATE, status)
        return routes

    def says(self, status: TableStatus) -> None:
        at_once(self.coordinator.put(TABLE_STATUS_CODEC.row(StateRow(status, "w-9", 5), key_attribute="key")))

    def keys(self) -> tuple[set[str], set[str]]:
        old = {str(row["key"]) for row in at_once(self.coordinator.scan())}
        return old, {str(row["leaseKey"]) for row in at_once(self.leases.scan())}


def test_a_row_is_found_in_either_table_and_looks_the_same() -> None:
    stage = Stage()
    assert at_once(stage.two().get("Migration3.0")) is None
    at_once(stage.leases.put(CARRIED))
    assert at_once(stage.two().get("Migration3.0")) == STATE
    at_once(stage.coordinator.put({**STATE, "cv": "2X"}))
    assert at_once(stage.two().get("Migration3.0")) == {**STATE, "cv": "2X"}


@pytest.mark.parametrize("to_leases", [False, True])
def test_a_new_row_goes_where_this_worker_writes(to_leases: bool) -> None:
    stage = Stage()
    two = stage.two(written=stage.leases if to_leases else None)
    written = at_once(two.put(STATE, (Absent("key"),)))
    assert (written.applied, written.row) == (True, STATE)
    assert stage.keys() == (set(), {"Migration3.0"}) if to_leases else ({"Migration3.0"}, set())
    assert not at_once(two.put(STATE, (Absent("key"),))).applied


@pytest.mark.parametrize("to_leases", [False, True])
@pytest.mark.parametrize("carried", [False, True])
def test_a_change_is_made_where_the_row_is(carried: bool, to_leases: bool) -> None:
    stage = Stage()
    at_once(stage.leases.put(CARRIED) if carried else stage.coordinator.put(STATE))
    before = stage.keys()
    two = stage.two(written=stage.leases if to_leases else None)
    update = RowUpdate("Migration3.0", put={"cv": "2X"}, require=(Present("key"), Equals("cv", "3X")))
    written = at_once(two.update(update))
    assert (written.applied, written.row) == (True, {**STATE, "cv": "2X"})
    assert not at_once(two.update(update)).applied
    assert stage.keys() == before


@pytest.mark.parametrize("to_leases", [False, True])
def test_a_write_without_conditions_goes_where_new_rows_go(to_leases: bool) -> None:
    stage = Stage()
    two = stage.two(written=stage.leases if to_leases else None)
    assert at_once(two.update(RowUpdate("w-1", put={"lut": 5}))).row == {"key": "w-1", "lut": 5}
    assert stage.keys() == (set(), {"w-1"}) if to_leases else ({"w-1"}, set())


@pytest.mark.parametrize("carried", [False, True])
def test_a_row_is_deleted_wherever_it_is(carried: bool) -> None:
    stage = Stage()
    at_once(stage.leases.put(CARRIED) if carried else stage.coordinator.put(STATE))
    refused = at_once(stage.two().delete("Migration3.0", (Equals("cv", "2X"),)))
    assert (refused.applied, refused.row) == (False, STATE)
    assert at_once(stage.two().delete("Migration3.0", (Equals("cv", "3X"),))).applied
    assert stage.keys() == (set(), set())


def test_a_row_in_both_tables_is_deleted_from_both() -> None:
    stage = Stage()
    at_once(stage.leases.put(CARRIED))
    at_once(stage.coordinator.put(STATE))
    assert at_once(stage.two().delete("Migration3.0")).applied
    assert stage.keys() == (set(), set())


@pytest.mark.parametrize(
    ("status", "reports_to"),
    [
        (INIT, "app-WorkerMetricStats"),
        (DEPLOYED, "app-WorkerMetricStats"),
        (PENDING, "app"),
    ],
)
def test_a_worker_reports_where_its_status_at_the_start_says(status: TableStatus, reports_to: str) -> None:
    stage = Stage()
    routes = stage.routes(status, migrate_all=status is PENDING)
    stage.says(PENDING)
    at_once(routes.follow())
    assert routes.reports.name == reports_to
    assert routes.lock.name == "app-CoordinatorState"
    assert not routes.tables.share_one_table
    routes.switch_over()
    assert {routes.reports.name, routes.lock.name, routes.tables.coordinator.name} == {"app"}
    assert routes.tables.share_one_table


@pytest.mark.parametrize(
    ("row", "migrate_all", "status"),
    [
        (None, False, INIT),
        (INIT, False, INIT),
        (DEPLOYED, False, DEPLOYED),
        (PENDING, False, DEPLOYED),
        (DEPLOYED, True, PENDING),
        (PENDING, True, PENDING),
    ],
)
def test_a_worker_follows_the_row(row: TableStatus | None, migrate_all: bool, status: TableStatus) -> None:
    stage = Stage()
    routes = stage.routes(DEPLOYED, migrate_all=migrate_all)
    if row is not None:
        stage.says(row)
    at_once(routes.follow())
    assert routes.status is status


def test_a_missing_migration_status_changes_no_route() -> None:
    stage = Stage()
    routes = stage.routes(PENDING, migrate_all=True)
    assert isinstance(at_once(routes.follow()), UnusableState)
    assert routes.status is PENDING


def test_the_end_waits_for_the_switch() -> None:
    stage = Stage()
    stage.says(COMPLETE)
    routes = stage.routes(PENDING, migrate_all=True)
    at_once(routes.follow())
    assert (routes.status, routes.lock.name) == (PENDING, "app-CoordinatorState")


def is_taken(routes: TableRoutes) -> bool:
    """Since it was last asked."""
    woken, routes.lock_taken._event = routes.lock_taken._event.is_set(), anyio.Event()
    return woken


def test_nobody_takes_the_lock_without_reading_the_state() -> None:
    stage = Stage()
    stage.says(DEPLOYED)
    routes = stage.routes(DEPLOYED)
    lock = routes.lock
    stage.coordinator.reads.append(Trouble.FAILED_BEFORE)
    with pytest.raises(Unavailable):
        at_once(lock.put(LOCK, (Absent("key"),)))
    assert (stage.keys()[0], is_taken(routes)) == ({"TableMigration3.5"}, False)
    assert at_once(lock.put(LOCK, (Absent("key"),))).applied
    assert (stage.keys()[0], is_taken(routes)) == ({"TableMigration3.5", "Leader"}, True)


def test_who_tries_for_a_lock_that_has_moved_finds_the_new_one() -> None:
    stage = Stage()
    stage.says(COMPLETE)
    routes = stage.routes(DEPLOYED)
    written = at_once(routes.lock.put(LOCK, (Absent("key"),)))
    assert (written.applied, written.row) == (False, None)
    assert stage.keys() == ({"TableMigration3.5"}, set())
    assert (routes.status, routes.lock.name, is_taken(routes)) == (COMPLETE, "app", True)
    assert at_once(routes.lock.put({"leaseKey": "Leader", "ownerName": "w-1"}, (Absent("leaseKey"),))).applied
    assert is_taken(routes)


def test_a_claim_made_from_the_old_table_does_not_take_the_lock_in_the_new_one() -> None:
    stage = Stage()
    routes = stage.routes(DEPLOYED)
    held: Row = {"leaseKey": "Leader", "ownerName": "w-2"}
    at_once(stage.leases.put(held))
    routes.switch_over()  # between the look at the lock and the claim
    mixed: Row = {"leaseKey": "Leader", "ownerName": "w-1"}
    for row in (LOCK, mixed):
        assert not at_once(routes.lock.put(row, (Absent("key"),))).applied
    assert at_once(stage.leases.scan()) == [held]
