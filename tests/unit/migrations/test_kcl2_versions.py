"""A worker that decides its client version, follows it, and one that takes the fleet on; over real rows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from kcl_daemon.config.balance import ClientVersionConfig
from kcl_daemon.errors import ConfigurationError, Unavailable
from kcl_daemon.fleet.client_version import (
    CLIENT_VERSION_CODEC,
    ClientVersion,
    ClientVersionMonitor,
    ComponentSwitcher,
    PausableTask,
    SwitchedTasks,
)
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.layout import StateRow, UnusableState
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.row import Conditions, Row, WriteResult
from kcl_daemon.leases.worker_row import report
from kcl_daemon.migrations.kcl2_rules import follow_stored_version, rollback
from kcl_daemon.migrations.kcl2_taking import ShuffleLeader, Upgrader
from kcl_daemon.ports import Tables
from kcl_protocol.sequence import SHARD_END, TRIM_HORIZON
from tests.simulator.loop import run_virtual
from tests.simulator.memory.table import MemoryTable
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.fleet.contexts import elector_of, fleet_monitor, lease_renewer, worker_context
from tests.unit.troubled import Trouble, TroubledTable

ME, OTHER = WorkerId("me"), WorkerId("other")
V = ClientVersion
TAKING, ASSIGNED = {"taker"}, {"discovery", "elector", "assigner", "reporter"}


class Raced(TroubledTable):
    """A coordinator table where somebody else is quicker by a moment."""

    rival: StateRow[ClientVersion] | None = None

    async def put(self, row: Row, require: Conditions = ()) -> WriteResult:
        if self.rival is not None:
            rival, self.rival = self.rival, None
            await TroubledTable.put(self, CLIENT_VERSION_CODEC.row(rival, key_attribute="key"))
        return await super().put(row, require)


class Stage:
    """A worker's version machine; the loops that it switches only wait."""

    def __init__(self, config: ClientVersionConfig = ClientVersionConfig.V3X) -> None:
        self.clock, self.log = LoopClock(), MemoryLog()
        self.coordinator = Raced("coordinator", "key")
        self.tables = Tables(TroubledTable(), TroubledTable("metrics", "wid"), self.coordinator)
        context = worker_context(ME, clock=self.clock, log=self.log)
        self.renewer = lease_renewer(context, self.tables.leases)
        self.elector = elector_of(context, self.coordinator)
        self.shuffle = ShuffleLeader(context)
        self.upgrader = Upgrader(
            context,
            tables=self.tables,
            monitor=fleet_monitor(context, self.tables),
            leader=self.shuffle,
            on_upgraded=lambda: self.versions.wake(),  # noqa: PLW0108 - made below
        )
        names = ("reporter", "sampler", "owner_index", "discovery", "taker", "assigner", "migrator")
        waiting = {name: PausableTask(anyio.sleep_forever) for name in names}
        self.tasks = SwitchedTasks(
            **waiting, elector=PausableTask(self.elector.run), upgrader=PausableTask(self.upgrader.run)
        )
        self.switcher = ComponentSwitcher(
            self.tasks, renewer=self.renewer, elector=self.elector, forget_shuffle=self.shuffle.forget
        )
        self.versions = ClientVersionMonitor(
            context,
            table=self.coordinator,
            config=config,
            switcher=self.switcher,
            follow=follow_stored_version,
        )

    @property
    def on(self) -> set[str]:
        """What is turned on."""
        names = ("reporter", "owner_index", "discovery", "taker", "elector", "assigner", "upgrader")
        return {name for name in names if getattr(self.tasks, name).is_open}

    async def says(self, version: ClientVersion) -> None:
        """The row says so, whoever wrote it."""
        row = CLIENT_VERSION_CODEC.row(StateRow(version, "somebody", 5), key_attribute="key")
        await MemoryTable.put(self.coordinator, row)

    def leads(self) -> bool:
        return self.elector.is_leader

    def at(self) -> ClientVersion:
        return self.versions.version

    def stored(self) -> StateRow[ClientVersion]:
        stored = CLIENT_VERSION_CODEC.read(self.coordinator._rows.get(CLIENT_VERSION_CODEC.row_key))
        assert isinstance(stored, StateRow)
        return stored

    async def has_lease(self, number: int, owner: WorkerId | None, *, finished: bool = False) -> Lease:
        position = SHARD_END if finished else TRIM_HORIZON
        lease = Lease(LeaseKey(f"shardId-{number:012d}"), 3, position, lease_owner=owner)
        await TroubledTable.put(self.tables.leases, lease_row.new_lease_row(lease))  # type: ignore[arg-type]  # ours
        return lease

    async def report_forever(self, *workers: WorkerId, ahead_s: int = 0) -> None:
        while True:
            now_s = self.clock.wall_ms() // 1000 + ahead_s
            for worker in workers:
                await self.tables.worker_metrics.update(report(worker, now_s=now_s))
            await anyio.sleep(30)


def play(stage: Callable[[], Stage], scene: Callable[[Stage], Awaitable[None]]) -> Stage:
    """A scene over existing tables, with everything that runs beside it."""

    async def main() -> Stage:
        made = stage()
        for table in (made.tables.leases, made.tables.worker_metrics, made.coordinator):
            await table.ensure()
        async with anyio.create_task_group() as background:
            background.start_soon(made.switcher.run)
            await scene(made)
            background.cancel_scope.cancel()
        return made

    return run_virtual(main)


def upgrading() -> Stage:
    return Stage(ClientVersionConfig.V2X)


async def run_for(stage: Stage, seconds: float) -> None:
    """Follow the row for so long."""
    with anyio.move_on_after(seconds):
        await stage.versions.run()


def test_a_new_application_writes_its_row_once_and_costs_nothing_afterwards() -> None:
    async def scene(stage: Stage) -> None:
        await stage.versions.begin()
        assert stage.coordinator.calls == ["get", "put"]
        assert (stage.stored().state, stage.stored().by) == (V.V3X, "me")
        assert stage.on == ASSIGNED | {"owner_index"}
        stage.tasks.elector.turn(False)
        began_s = anyio.current_time()
        await run_for(stage, 600)
        assert stage.coordinator.calls == ["get", "put"]
        assert anyio.current_time() == began_s, "there is nothing to follow: it returns at once"

    play(Stage, scene)


def test_a_later_worker_of_the_application_only_reads() -> None:
    async def scene(stage: Stage) -> None:
        await stage.says(V.V3X)
        await stage.versions.begin()
        assert stage.coordinator.calls == ["get"]

    play(Stage, scene)


def test_a_lost_race_to_write_the_first_row_is_answered_by_reading_it_again() -> None:
    async def scene(stage: Stage) -> None:
        stage.coordinator.rival = StateRow(V.UPGRADE_FROM_2X, "other", 7)
        await stage.versions.begin()
        assert stage.at() is V.UPGRADE_FROM_2X
        assert stage.stored().by == "other"
        assert stage.on == TAKING | {"reporter", "owner_index", "upgrader"}

    play(Stage, scene)


def test_a_first_row_whose_answer_got_lost_is_found_by_the_next_attempt() -> None:
    async def scene(stage: Stage) -> None:
        stage.coordinator.writes.append(Trouble.FAILED_AFTER)
        with pytest.raises(Unavailable):
            await stage.versions.begin()
        await stage.versions.begin()
        assert stage.at() is V.V3X
        assert stage.coordinator.calls.count("put") == 1

    play(Stage, scene)


def test_phase_one_writes_nothing_makes_no_index_and_reads_no_more() -> None:
    async def scene(stage: Stage) -> None:
        await stage.versions.begin()
        await stage.versions.run()
        assert stage.coordinator.calls == ["get"]
        assert stage.on == TAKING
        assert stage.renewer.keeps_finished

    play(lambda: Stage(ClientVersionConfig.V2X_PHASE_1), scene)


def test_an_unreadable_row_stops_the_start_with_advice() -> None:
    async def scene(stage: Stage) -> None:
        await TroubledTable.put(
            stage.coordinator, {"key": CLIENT_VERSION_CODEC.row_key, "cv": "CLIENT_VERSION_9X"}
        )
        with pytest.raises(ConfigurationError, match=r"CLIENT_VERSION_9X.*should be one of"):
            await stage.versions.begin()

    play(Stage, scene)


def test_the_setting_3x_ends_an_upgrade_for_good() -> None:
    async def scene(stage: Stage) -> None:
        await stage.says(V.V3X_WITH_ROLLBACK)
        await stage.versions.begin()
        assert stage.stored().state is V.V3X
        assert [past.state for past in stage.stored().history] == [V.V3X_WITH_ROLLBACK.value]

    play(Stage, scene)


def test_a_worker_follows_the_row_there_and_back_and_there_again() -> None:
    async def scene(stage: Stage) -> None:
        await stage.versions.begin()
        assert stage.on == TAKING | {"reporter", "owner_index", "upgrader"}
        await stage.says(V.V3X_WITH_ROLLBACK)
        await run_for(stage, 61)
        assert stage.on == ASSIGNED
        assert stage.leads()
        await stage.says(V.V2X)
        await run_for(stage, 61)
        assert stage.on == TAKING
        assert not stage.leads()
        assert "Leader" not in stage.coordinator._rows  # given up, not left to expire
        await stage.says(V.UPGRADE_FROM_2X)
        await run_for(stage, 61)
        assert stage.on == TAKING | {"reporter", "owner_index", "upgrader"}

    play(upgrading, scene)


def test_the_last_change_ends_the_looks() -> None:
    async def scene(stage: Stage) -> None:
        await stage.says(V.V3X_WITH_ROLLBACK)
        await stage.versions.begin()
        assert stage.on == ASSIGNED
        await stage.says(V.V3X)
        await stage.versions.run()  # returns
        assert stage.at() is V.V3X
        assert stage.on == ASSIGNED | {"owner_index"}

    play(upgrading, scene)


def test_a_client_version_that_cannot_be_followed_is_reported_once_and_changes_nothing() -> None:
    async def scene(stage: Stage) -> None:
        await stage.versions.begin()
        await stage.says(V.V3X)
        await run_for(stage, 300)
        assert stage.at() is V.UPGRADE_FROM_2X
        await stage.says(V.V3X_WITH_ROLLBACK)
        await run_for(stage, 61)
        assert stage.at() is V.V3X_WITH_ROLLBACK

    assert play(upgrading, scene).log.events("error") == ["client_version_not_followed"]


def test_a_row_that_cannot_be_read_is_read_again_soon() -> None:
    async def scene(stage: Stage) -> None:
        await stage.versions.begin()
        await stage.says(V.V2X)
        stage.coordinator.reads.extend([Trouble.FAILED_BEFORE, Trouble.HANGS_BEFORE, Trouble.THROTTLED])
        await run_for(stage, 75)
        assert stage.at() is V.V2X

    assert play(upgrading, scene).log.events("warning") == ["client_version_unreadable"] * 3


def test_finished_leases_that_were_kept_are_given_up_when_the_leader_assigns() -> None:
    async def scene(stage: Stage) -> None:
        await stage.versions.begin()
        done = await stage.has_lease(1, ME, finished=True)
        going = await stage.has_lease(2, ME)
        for lease in (done, going):
            stage.renewer.adopt(lease, moved_s=stage.clock.monotonic() + 60)
        await stage.says(V.V3X_WITH_ROLLBACK)
        await run_for(stage, 61)
        assert list(stage.renewer.held) == [going.lease_key]
        row = await stage.tables.leases.get(done.lease_key)
        assert row is not None
        assert "leaseOwner" not in row

    play(upgrading, scene)


def test_the_leader_by_shuffle_takes_the_fleet_on_after_ten_minutes_of_readiness() -> None:
    async def scene(stage: Stage) -> None:
        await stage.versions.begin()
        leases = [await stage.has_lease(1, ME)]
        stage.shuffle.poll(leases)
        async with anyio.create_task_group() as background:
            background.start_soon(stage.report_forever, ME)
            background.start_soon(stage.versions.run)
            await anyio.sleep(655)
            assert stage.stored().state is V.UPGRADE_FROM_2X
            await anyio.sleep(10)
            assert (stage.stored().state, stage.stored().by) == (V.V3X_WITH_ROLLBACK, "me")
            assert stage.at() is V.V3X_WITH_ROLLBACK  # whoever wrote it need not wait for a look
            background.cancel_scope.cancel()

    play(upgrading, scene)


@pytest.mark.parametrize("missing", ["report", "owner", "index", "lead"])
def test_the_fleet_stays_where_it_is_while_something_is_missing(missing: str) -> None:
    async def scene(stage: Stage) -> None:
        await stage.versions.begin()
        leases = [await stage.has_lease(1, ME), await stage.has_lease(2, OTHER)]
        if missing == "owner":
            await stage.has_lease(3, None)
        if missing == "index":
            leases_table = stage.tables.leases
            assert isinstance(leases_table, TroubledTable)
            leases_table.exist_without_index()
        if missing != "lead":
            stage.shuffle.poll(leases[:1])
        async with anyio.create_task_group() as background:
            background.start_soon(stage.report_forever, ME, *([] if missing == "report" else [OTHER]))
            await anyio.sleep(2000)
            background.cancel_scope.cancel()
        assert stage.stored().state is V.UPGRADE_FROM_2X

    play(upgrading, scene)


@pytest.mark.parametrize(("ahead_s", "reports_for_s", "upgrades"), [(-90, 900, True), (600, 310, False)])
def test_a_worker_whose_date_is_wrong_counts_while_it_reports(
    ahead_s: int, reports_for_s: float, *, upgrades: bool
) -> None:
    """Behind it seemed to be silent, ahead to report long after it had ended."""

    async def scene(stage: Stage) -> None:
        await stage.versions.begin()
        stage.shuffle.poll([await stage.has_lease(1, ME), await stage.has_lease(2, OTHER)])
        async with anyio.create_task_group() as background:
            background.start_soon(stage.report_forever, ME)
            with anyio.move_on_after(reports_for_s):
                await stage.report_forever(OTHER, ahead_s=ahead_s)
            await anyio.sleep(900 - reports_for_s)
            background.cancel_scope.cancel()
        assert (stage.stored().state is V.V3X_WITH_ROLLBACK) is upgrades

    play(upgrading, scene)


def test_a_break_in_readiness_begins_the_ten_minutes_anew_but_a_failed_look_does_not() -> None:
    async def scene(stage: Stage) -> None:
        await stage.versions.begin()
        stage.shuffle.poll([await stage.has_lease(1, ME)])
        leases = stage.tables.leases
        assert isinstance(leases, TroubledTable)
        async with anyio.create_task_group() as background:
            background.start_soon(stage.report_forever, ME)
            await anyio.sleep(310)
            leases.exist_without_index()
            await anyio.sleep(60)
            await leases.add_owner_index()
            await anyio.sleep(100)
            leases.reads.append(Trouble.FAILED_BEFORE)
            await anyio.sleep(540)  # 1010 s after the start: ready for 590 s at the last look
            assert stage.stored().state is V.UPGRADE_FROM_2X
            await anyio.sleep(60)
            assert stage.stored().state is V.V3X_WITH_ROLLBACK
            background.cancel_scope.cancel()

    assert play(upgrading, scene).log.events("warning") == ["upgrade_check_failed"]


def test_a_rollback_by_the_tool_is_followed_from_the_upgrade() -> None:
    async def scene(stage: Stage) -> None:
        await stage.versions.begin()
        steering = rollback(stage.stored(), now_ms=9, key_attribute="key")
        assert not isinstance(steering, UnusableState)
        await TroubledTable.update(stage.coordinator, steering.update)
        await run_for(stage, 61)
        assert stage.on == TAKING

    play(upgrading, scene)
