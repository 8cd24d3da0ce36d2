"""`kcl-daemon migrate`: its command line, what it does to the tables of an application, and how it looks."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import click
import pytest
from click.testing import CliRunner, Result

from kcl_daemon.cli import main
from kcl_daemon.cli.application import open_existing
from kcl_daemon.cli.common import NotChanged
from kcl_daemon.cli.migrate import (
    Direction,
    change_version,
    decide,
    migration_status,
    remove_index,
    status_json,
    status_lines,
)
from kcl_daemon.config.children import ChildSettings
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import AccessDenied, AwsError
from kcl_daemon.fleet.client_version import CLIENT_VERSION_CODEC, ClientVersion
from kcl_daemon.leases.layout import TABLE_STATUS_CODEC as MOVE
from kcl_daemon.leases.layout import PastState, StateRow, TableStatus
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.row import RowUpdate, WriteResult, new_lease_row
from kcl_daemon.leases.worker_row import report
from kcl_daemon.ports import IndexState, Tables
from kcl_protocol.sequence import TRIM_HORIZON
from tests.simulator.loop import run_virtual
from tests.simulator.memory.table import MemoryTable
from tests.unit.fakes import LoopClock

V = ClientVersion


class Coordinator(MemoryTable):
    """Somebody else may change the row just before our write."""

    rival: ClientVersion | None = None

    async def update(self, update: RowUpdate) -> WriteResult:
        if self.rival is not None:
            rival, self.rival = self.rival, None
            await self.says(rival)
        return await super().update(update)

    async def says(self, version: ClientVersion) -> None:
        past = (PastState(V.INIT.value, "w-1", 1_770_000_000_000),)
        await self.put(
            CLIENT_VERSION_CODEC.row(StateRow(version, "w-1", 1_770_000_000_000, past), key_attribute="key")
        )

    async def state(self) -> ClientVersion:
        stored = CLIENT_VERSION_CODEC.read(await self.get(CLIENT_VERSION_CODEC.row_key))
        assert isinstance(stored, StateRow)
        return stored.state


class Denied(MemoryTable):
    """A lease table whose index may not be deleted."""

    async def remove_owner_index(self) -> None:
        raise AccessDenied("no", operation="UpdateTable")


class Stage:
    """An application's tables."""

    def __init__(self, leases: MemoryTable) -> None:
        self.clock = LoopClock()
        self.leases = leases
        self.workers = MemoryTable("metrics", "wid")
        self.coordinator = Coordinator("coordinator", "key")
        self.tables = Tables(self.leases, self.workers, self.coordinator)
        self.said: list[str] = []

    async def steer(self, direction: Direction) -> None:
        """All of what the command does."""
        done = await change_version(self.tables, direction, clock=self.clock)
        if done.remove_index_after_s is not None:
            await self.remove(done.remove_index_after_s)

    async def remove(self, after_s: float) -> None:
        await remove_index(self.tables, after_s, clock=self.clock, say=self.said.append)

    async def index(self) -> IndexState:
        state = await self.leases.describe()
        assert state is not None
        return state.owner_index


def play(scene: Callable[[Stage], Awaitable[None]], leases: type[MemoryTable] = MemoryTable) -> Stage:
    async def body() -> Stage:
        stage = Stage(leases("billing", "leaseKey", has_owner_index=True))
        for table in (stage.leases, stage.workers, stage.coordinator):
            await table.ensure()
        await scene(stage)
        return stage

    return run_virtual(body)


@pytest.mark.parametrize("version", [V.UPGRADE_FROM_2X, V.V3X_WITH_ROLLBACK])
def test_a_rollback_deletes_the_index_when_all_have_noticed(version: ClientVersion) -> None:
    async def scene(stage: Stage) -> None:
        await stage.coordinator.says(version)
        async with anyio.create_task_group() as background:
            background.start_soon(stage.steer, Direction.ROLLBACK)
            await anyio.sleep(119)
            assert await stage.coordinator.state() is V.V2X
            assert await stage.index() is IndexState.ACTIVE
        assert await stage.index() is IndexState.ABSENT
        assert anyio.current_time() == pytest.approx(120)

    assert "is being deleted" in play(scene).said[-1]


def test_a_rollforward_during_the_wait_saves_the_index() -> None:
    async def scene(stage: Stage) -> None:
        await stage.coordinator.says(V.V2X)
        async with anyio.create_task_group() as background:

            async def removed() -> None:
                with pytest.raises(NotChanged, match="the index is kept"):
                    await stage.remove(120)

            background.start_soon(removed)
            await anyio.sleep(50)
            await stage.steer(Direction.ROLLFORWARD)
        assert await stage.coordinator.state() is V.UPGRADE_FROM_2X
        assert await stage.index() is IndexState.ACTIVE

    play(scene)


def test_an_index_that_is_gone_already_is_no_trouble() -> None:
    async def scene(stage: Stage) -> None:
        await stage.coordinator.says(V.UPGRADE_FROM_2X)
        stage.leases.exist_without_index()
        await stage.steer(Direction.ROLLBACK)

    assert play(scene).said[-1] == "there is no index to delete"


def test_an_index_that_may_not_be_deleted_is_reported_with_what_is_left_to_do() -> None:
    async def scene(stage: Stage) -> None:
        await stage.coordinator.says(V.UPGRADE_FROM_2X)
        with pytest.raises(AwsError, match=r"rolled back; delete the index of table billing later") as raised:
            await stage.steer(Direction.ROLLBACK)
        assert isinstance(raised.value, AccessDenied)
        assert await stage.coordinator.state() is V.V2X

    play(scene, Denied)


@pytest.mark.parametrize(
    ("direction", "version", "said"),
    [
        (Direction.ROLLBACK, None, "there is no row"),
        (Direction.ROLLBACK, V.V3X, "rollback to 2.x is not possible"),
        (Direction.ROLLBACK, V.V2X, "has already rolled back"),
        (Direction.ROLLFORWARD, V.UPGRADE_FROM_2X, "it was not rolled back"),
    ],
)
def test_a_migration_step_that_the_state_does_not_allow_is_refused_with_the_reason(
    direction: Direction, version: ClientVersion | None, said: str
) -> None:
    async def scene(stage: Stage) -> None:
        if version is not None:
            await stage.coordinator.says(version)
        with pytest.raises(NotChanged, match=said):
            await decide(stage.tables, direction, clock=stage.clock)

    play(scene)


def test_a_change_in_between_is_read_and_judged_anew() -> None:
    async def scene(stage: Stage) -> None:
        await stage.coordinator.says(V.UPGRADE_FROM_2X)
        stage.coordinator.rival = V.V3X_WITH_ROLLBACK
        await change_version(stage.tables, Direction.ROLLBACK, clock=stage.clock)
        assert await stage.coordinator.state() is V.V2X
        await stage.coordinator.says(V.UPGRADE_FROM_2X)
        stage.coordinator.rival = V.V3X
        with pytest.raises(NotChanged, match="is not possible"):
            await change_version(stage.tables, Direction.ROLLBACK, clock=stage.clock)

    play(scene)


def test_the_status_names_everything_that_an_upgrade_waits_for() -> None:
    async def scene(stage: Stage) -> None:
        await stage.coordinator.says(V.UPGRADE_FROM_2X)
        stage.leases.exist_without_index()
        for number, owner in enumerate(("w-1", "w-2", "w-old", None)):
            lease = Lease(
                LeaseKey(f"shardId-{number}"), 1, TRIM_HORIZON, lease_owner=WorkerId(owner) if owner else None
            )
            await stage.leases.put(new_lease_row(lease))
        await stage.leases.put({"leaseKey": "shardId-bad", "leaseCounter": 1})
        now_s = stage.clock.wall_ms() // 1000
        await stage.workers.update(report(WorkerId("w-1"), now_s=now_s - 4))
        await stage.workers.update(report(WorkerId("w-2"), now_s=now_s - 300))
        seen = await migration_status(stage.tables, clock=stage.clock, report_s=30.0)
        text = "\n".join(status_lines(seen))
        for part in (
            "CLIENT_VERSION_UPGRADE_FROM_2X: workers take leases",
            "since 2026-02-02T02:40:00+00:00, set by w-1",
            "before: CLIENT_VERSION_INIT",
            "index by owner: absent",
            "4 leases, 1 of them without an owner",
            "shardId-3: no owner",
            "w-1: reported 4 s ago\n",
            "w-2: reported 300 s ago; owns leases, so the upgrade waits for it",
            "w-old: owns leases but has never reported",
            "not ready: the index by owner is not active; 2 lease owners do not report",
        ):
            assert part in text
        document = json.loads(status_json(seen))
        assert document["client_version"] == V.UPGRADE_FROM_2X.value
        assert document["owners_that_do_not_report"] == ["w-2", "w-old"]
        assert document["leases_without_owner"] == ["shardId-3"]
        assert document["ready"] is False
        assert [worker["alive"] for worker in document["workers"]] == [True, False]

    play(scene)


def test_the_status_of_a_new_application_says_nothing_of_an_upgrade() -> None:
    async def scene(stage: Stage) -> None:
        await stage.coordinator.says(V.V3X)
        await stage.leases.put(new_lease_row(Lease(LeaseKey("shardId-0"), 1, TRIM_HORIZON)))
        await stage.leases.put(
            new_lease_row(Lease(LeaseKey("shardId-1"), 1, TRIM_HORIZON, lease_owner=WorkerId("w-1")))
        )
        text = "\n".join(status_lines(await migration_status(stage.tables, clock=stage.clock, report_s=30.0)))
        assert "the leader assigns leases; no upgrade is in progress" in text
        assert "tables: separate; no migration to one table is in progress" in text
        for part in ("ready", "the upgrade waits", "complete"):
            assert part not in text

    play(scene)


def test_the_status_of_an_application_without_a_row_or_with_a_strange_one_is_reported() -> None:
    async def scene(stage: Stage) -> None:
        seen = await migration_status(stage.tables, clock=stage.clock, report_s=30.0)
        assert "no row Migration3.0" in next(status_lines(seen))
        assert json.loads(status_json(seen))["client_version"] is None
        await stage.coordinator.put({"key": CLIENT_VERSION_CODEC.row_key, "cv": "CLIENT_VERSION_9X"})
        seen = await migration_status(stage.tables, clock=stage.clock, report_s=30.0)
        assert "CLIENT_VERSION_9X" in next(status_lines(seen))
        assert "CLIENT_VERSION_9X" in json.loads(status_json(seen))["problem"]

    play(scene)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (None, "tables: separate; no migration to one table is in progress"),
        (
            TableStatus.INIT,
            "tables: separate; TABLE_MIGRATION_STATUS_INIT: no migration to one table is in progress",
        ),
        (TableStatus.DEPLOYED, "deploy all workers with migrateAllEntitiesToLeaseTable=true"),
        (TableStatus.PENDING, "to roll back, deploy with migrateAllEntitiesToLeaseTable=false"),
    ],
)
def test_the_status_tells_how_far_the_move_into_one_table_is(state: TableStatus | None, said: str) -> None:
    async def scene(stage: Stage) -> None:
        if state is not None:
            row = StateRow(state, "w-9", 1_770_000_000_000, (PastState("earlier", "w-8", 0),))
            await stage.coordinator.put(MOVE.row(row, key_attribute="key"))
        for number, owner in enumerate(("w-1", "w-2")):
            lease = Lease(LeaseKey(f"shardId-{number}"), 1, TRIM_HORIZON, lease_owner=WorkerId(owner))
            await stage.leases.put(new_lease_row(lease))
        now_s = stage.clock.wall_ms() // 1000
        await stage.workers.update(report(WorkerId("w-1"), now_s=now_s - 4))
        await stage.leases.update(report(WorkerId("w-1"), now_s=now_s - 40))
        await stage.leases.update(report(WorkerId("w-3"), now_s=now_s - 2))
        seen = await migration_status(stage.tables, clock=stage.clock, report_s=30.0)
        text = "\n".join(status_lines(seen))
        for part in (
            said,
            "w-2: owns leases but does not report",
            "w-1: writes its row to the old table",
            "w-1: reported 4 s",
        ):
            assert part in text
        assert "w-3: reported 2 s ago" in text
        reported = json.loads(status_json(seen))["tables"]
        assert (reported["layout"], reported["migration"]) == (
            "separate",
            None if state is None else state.value,
        )
        assert reported["owners_that_do_not_know_the_single_table"] == ["w-2"]
        assert reported["workers_that_report_to_the_old_table"] == ["w-1"]
        assert [past["modified_by"] for past in reported["history"]] == ([] if state is None else ["w-8"])

    play(scene)


def test_the_status_of_one_table_names_how_it_came_to_be_so() -> None:
    async def scene(stage: Stage) -> None:
        tables = Tables(stage.leases, stage.leases, stage.leases)
        lines = list(status_lines(await migration_status(tables, clock=stage.clock, report_s=30.0)))
        assert lines[-1] == "tables: one, all rows are in the lease table"
        row = StateRow(TableStatus.COMPLETE, "w-9", 1_770_000_000_000)
        await stage.leases.put(MOVE.row(row, key_attribute="leaseKey"))
        seen = await migration_status(tables, clock=stage.clock, report_s=30.0)
        assert list(status_lines(seen))[-1] == "  since 2026-02-02T02:40:00+00:00, set by w-9"
        assert json.loads(status_json(seen))["tables"]["migration"] == TableStatus.COMPLETE.value

    play(scene)


def test_a_strange_row_of_the_move_is_reported() -> None:
    async def scene(stage: Stage) -> None:
        await stage.coordinator.put({"key": MOVE.row_key, "tm": "TABLE_MIGRATION_STATUS_ODD"})
        seen = await migration_status(stage.tables, clock=stage.clock, report_s=30.0)
        assert "TABLE_MIGRATION_STATUS_ODD" in "\n".join(status_lines(seen))
        assert "TABLE_MIGRATION_STATUS_ODD" in json.loads(status_json(seen))["tables"]["problem"]

    play(scene)


def test_a_rollback_finds_the_version_row_that_was_carried_over() -> None:
    async def scene(stage: Stage) -> None:
        await stage.coordinator.put(MOVE.row(StateRow(TableStatus.PENDING, "w-9", 5), key_attribute="key"))
        version = CLIENT_VERSION_CODEC.row(StateRow(V.V3X_WITH_ROLLBACK, "w-1", 5), key_attribute="leaseKey")
        await stage.leases.put(version)
        settings = Settings("billing", "orders", ChildSettings(("true",)), "w-1")
        opened = await open_existing(stage.tables, settings)
        await change_version(opened.tables, Direction.ROLLBACK, clock=stage.clock)
        stored = CLIENT_VERSION_CODEC.read(await stage.leases.get(CLIENT_VERSION_CODEC.row_key))
        assert isinstance(stored, StateRow)
        assert stored.state is V.V2X
        assert await stage.coordinator.get(CLIENT_VERSION_CODEC.row_key) is None

    play(scene)


def invoke(*words: str) -> Result:
    return CliRunner().invoke(main, ["migrate", *words])


def test_the_group_is_a_command_of_the_program() -> None:
    command = main.get_command(click.Context(main), "migrate")
    assert isinstance(command, click.Group)
    assert sorted(command.commands) == ["rollback", "rollforward", "status"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["status"], 2, "no properties file given"),
        (["rollback", "--help"], 0, "--no-index-deletion"),
        (["status", "nowhere.properties"], 2, "nowhere.properties"),
        (["rollforward", "-p", "app.properties", "--yes"], 1, "kcl-daemon migrate rollforward: Unavailable"),
    ],
)
def test_the_command_line_says_what_is_wrong(here: Path, words: list[str], code: int, said: str) -> None:
    result = invoke(*words)
    assert result.exit_code == code
    assert said in result.output


def test_the_environment_wins_over_the_file_as_it_does_for_the_daemon(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a container's command would steer another application than its daemon works on."""
    file = here / "app.properties"
    monkeypatch.setenv("KCL_APPLICATION_NAME", "not allowed")
    result = CliRunner().invoke(main, ["migrate", "status", str(file)])
    assert result.exit_code == 2
    assert "KCL_APPLICATION_NAME" in result.stderr
