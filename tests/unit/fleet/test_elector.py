"""One worker's part in the election."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from kcl_daemon.leases.leader import LEADER_KEY, LeaderLock, lock_from_row, lock_row
from kcl_daemon.leases.lease import WorkerId
from tests.simulator.loop import run_virtual
from tests.unit.fakes import MemoryLog
from tests.unit.fleet.contexts import elector_of, held_number, known_fleet, worker_context
from tests.unit.troubled import Trouble, TroubledTable

ME, OTHER = WorkerId("me"), WorkerId("other")


class Stage:
    """An elector over a coordinator table."""

    def __init__(self) -> None:
        self.table = TroubledTable("coordinator", "key")
        self.log = MemoryLog()
        self.elected_at_s: list[float] = []
        self.java_leaders: list[WorkerId | None] = []
        context = worker_context(ME, log=self.log)
        self.renewer, self.fleet = held_number(context, self.table), known_fleet(context, self.table)
        self.renewer.number = 4
        self.elector = elector_of(
            context,
            self.table,
            renewer=self.renewer,
            monitor=self.fleet,
            on_elected=lambda: self.elected_at_s.append(anyio.current_time()),
            on_java_leader=lambda: self.java_leaders.append(self.elector.java_leader),
        )

    async def lock(self) -> LeaderLock | None:
        return lock_from_row(await TroubledTable.get(self.table, LEADER_KEY))

    async def led_by(
        self,
        owner: WorkerId,
        *,
        version: str = "v-1",
        duration_ms: int = 120_000,
        assignment_epoch: str | None = None,
    ) -> None:
        """Somebody else's lock is in the table."""
        lock = LeaderLock(owner, version, duration_ms, assignment_epoch=assignment_epoch)
        await TroubledTable.put(self.table, lock_row("key", lock))


def play(scene: Callable[[Stage], Awaitable[None]], *, led_by: WorkerId | None = None) -> Stage:
    """Run the elector beside a scene."""

    async def main() -> Stage:
        stage = Stage()
        await stage.table.ensure()
        if led_by is not None:
            await stage.led_by(led_by)
        async with anyio.create_task_group() as background:
            background.start_soon(stage.elector.run)
            await scene(stage)
            background.cancel_scope.cancel()
        return stage

    return run_virtual(main)


def test_without_a_leader_the_first_look_takes_the_lock() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(0.1)
        assert stage.elector.is_leader
        lock = await stage.lock()
        assert lock == LeaderLock(ME, "token-1", 12_000, assignment_epoch="token-1")

    assert play(scene).elected_at_s == [0.0]


def test_the_leader_shows_a_new_version_with_each_heartbeat() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(7.0)
        lock = await stage.lock()
        assert lock is not None
        assert lock.version == "token-3"

    play(scene)


def test_a_silent_leader_is_replaced_after_its_own_lease_and_one_look() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(300.0)
        assert stage.elector.is_leader

    (elected_s,) = play(scene, led_by=OTHER).elected_at_s
    assert 120.0 < elected_s <= 130.0


def test_a_heartbeating_leader_is_never_replaced() -> None:
    async def scene(stage: Stage) -> None:
        for beat in range(20):
            await anyio.sleep(100.0)
            await stage.led_by(OTHER, version=f"beat-{beat}")
        assert not stage.elector.is_leader

    assert play(scene, led_by=OTHER).elected_at_s == []


def test_a_leader_that_left_cleanly_is_replaced_at_the_next_look() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(61.0)
        await TroubledTable.delete(stage.table, LEADER_KEY)
        await anyio.sleep(5.1)
        assert stage.elector.is_leader

    play(scene, led_by=OTHER)


def test_a_silent_leader_is_noticed_before_it_may_be_replaced() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(40.0)  # a Java leader's heartbeats are half a minute apart
        assert not stage.elector.may_lead_soon
        await anyio.sleep(20.0)
        assert stage.elector.may_lead_soon

    play(scene, led_by=OTHER)


def test_the_lock_of_a_java_leader_is_read_no_more_often_between_its_heartbeats() -> None:
    async def scene(stage: Stage) -> None:
        for beat in range(10):
            await stage.led_by(OTHER, version=f"beat-{beat}")
            await anyio.sleep(30.0)

    polls = play(scene, led_by=OTHER).table.calls.count("get")
    assert 60 <= polls <= 61  # every 5 s, and none is left out


def test_a_heartbeat_whose_answer_got_lost_does_not_cost_the_lock() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(1.0)
        stage.table.writes.extend([Trouble.FAILED_AFTER, Trouble.FAILED_AFTER])
        await anyio.sleep(60.0)
        assert stage.elector.is_leader
        assert "leadership_lost" not in stage.log.events()

    assert len(play(scene).elected_at_s) == 1


def test_a_leader_that_cannot_reach_the_table_steps_down_when_its_lease_is_over() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(1.0)
        stage.table.writes.extend([Trouble.FAILED_BEFORE] * 100)
        await anyio.sleep(10.5)
        assert stage.elector.is_leader
        await anyio.sleep(4.0)
        assert (
            stage.log.events("warning")[-1] == "leader_lock_unreachable"
            or "leadership_lost" in stage.log.events()
        )

    stage = play(scene)
    assert not stage.elector.is_leader


def test_a_leader_whose_lock_was_taken_knows_at_its_next_heartbeat() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(1.0)
        await stage.led_by(OTHER, version="theirs")
        await anyio.sleep(5.0)
        assert not stage.elector.is_leader
        lock = await stage.lock()
        assert lock is not None
        assert lock.owner == OTHER

    assert "leadership_lost" in play(scene).log.events("warning")


def test_a_claim_whose_answer_got_lost_is_made_good_at_the_next_look() -> None:
    async def scene(stage: Stage) -> None:
        stage.table.writes.append(Trouble.FAILED_AFTER)
        await anyio.sleep(6.0)
        assert stage.elector.is_leader

    play(scene)


def test_resigning_removes_the_lock_even_after_a_lost_heartbeat() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(1.0)
        stage.table.writes.append(Trouble.FAILED_AFTER)
        await anyio.sleep(5.0)
        await stage.elector.resign()
        assert await stage.lock() is None
        assert not stage.elector.is_leader

    play(scene)


def test_who_resigns_because_it_cannot_lead_leaves_the_lock_to_others_for_a_while() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(1.0)
        await stage.elector.resign(stand_back=True)
        await anyio.sleep(23.0)  # two leases of 12 s
        assert await stage.lock() is None
        await anyio.sleep(8.0)
        assert stage.elector.is_leader, "nobody else did it"
        assert len(stage.elected_at_s) == 2

    play(scene)


def test_who_is_alone_has_nobody_to_leave_the_lock_to() -> None:
    async def scene(stage: Stage) -> None:
        stage.fleet.alone = True
        await anyio.sleep(1.0)
        await stage.elector.resign(stand_back=True)
        await anyio.sleep(10.0)
        assert stage.elector.is_leader

    play(scene)


def test_a_worker_that_does_not_lead_leaves_the_lock_alone_when_it_resigns() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(1.0)
        await stage.elector.resign()
        lock = await stage.lock()
        assert lock is not None
        assert lock.owner == OTHER

    play(scene, led_by=OTHER)


def test_a_worker_without_leases_looks_rarely_and_still_takes_over_in_time() -> None:
    async def scene(stage: Stage) -> None:
        stage.renewer.number = 0
        await anyio.sleep(14.0)
        assert stage.table.calls.count("get") == 1
        await anyio.sleep(200.0)

    (elected_s,) = play(scene, led_by=OTHER).elected_at_s
    assert 120.0 < elected_s <= 125.0


def test_a_leader_alone_shows_itself_less_often() -> None:
    async def scene(stage: Stage) -> None:
        stage.renewer.number, stage.fleet.alone = 0, True
        await anyio.sleep(100.0)
        assert 9 <= stage.table.calls.count("update") <= 10  # a third of the 30 s that it promises
        assert stage.elector.is_leader

    play(scene)


# --- news


def test_the_lock_row_tells_of_an_assignment_at_once_and_only_then() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(7.0)
        quiet = await stage.lock()
        assert quiet is not None
        assert (quiet.version, quiet.assignment_epoch) == ("token-3", "token-1")
        stage.elector.report()
        await anyio.sleep(0.1)
        reported = await stage.lock()
        assert reported is not None
        assert reported.assignment_epoch == reported.version == "token-4"
        await anyio.sleep(3.1)
        later = await stage.lock()
        assert later is not None
        assert (later.version, later.assignment_epoch) == ("token-5", "token-4")

    play(scene)


def test_news_that_could_not_be_written_are_reported_with_the_next_heartbeat() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(1.0)
        stage.table.writes.append(Trouble.FAILED_BEFORE)
        stage.elector.report()
        await anyio.sleep(6.0)
        lock = await stage.lock()
        assert lock is not None
        assert lock.assignment_epoch not in {None, "token-1"}

    play(scene)


def test_a_follower_tells_in_the_row_of_a_leader_that_tells() -> None:
    async def scene(stage: Stage) -> None:
        await stage.led_by(OTHER, assignment_epoch="before")
        await stage.elector.notify_assigned()
        lock = await stage.lock()
        assert lock is not None
        assert lock.assignment_epoch not in {None, "before"}
        assert (lock.owner, lock.version) == (OTHER, "v-1")

    play(scene, led_by=OTHER)


def test_a_follower_adds_nothing_to_the_row_of_a_java_leader_and_minds_no_trouble() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(1.0)
        await stage.elector.notify_assigned()
        assert "update" not in stage.table.calls
        stage.table.reads.append(Trouble.FAILED_BEFORE)
        await stage.elector.notify_assigned()

    play(scene, led_by=OTHER)


# --- how closely leaders are watched


def test_the_leader_of_a_fleet_at_rest_promises_less() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(0.1)
        stage.renewer.number, stage.fleet.idle = 0, True
        await anyio.sleep(3.0)
        lock = await stage.lock()
        assert lock is not None
        assert (lock.version, lock.duration_ms) == ("token-2", 30_000)
        await anyio.sleep(4.5)
        lock = await stage.lock()
        assert lock is not None
        assert lock.version == "token-2"
        stage.fleet.idle = False
        await anyio.sleep(1.0)
        lock = await stage.lock()
        assert lock is not None
        assert (lock.version, lock.duration_ms) == ("token-3", 12_000)

    play(scene)


def test_the_leader_names_a_deputy_while_there_is_one() -> None:
    async def scene(stage: Stage) -> None:
        stage.renewer.number, stage.fleet.chosen = 0, OTHER
        await anyio.sleep(4.0)
        lock = await stage.lock()
        assert lock is not None
        assert lock.deputy == OTHER
        stage.fleet.chosen = None
        await anyio.sleep(3.0)
        lock = await stage.lock()
        assert lock is not None
        assert lock.deputy is None

    play(scene)


def test_the_deputy_leads_soon_after_the_leaders_lease_is_over() -> None:
    async def scene(stage: Stage) -> None:
        stage.renewer.number = 1
        for beat in range(20):
            lock = LeaderLock(OTHER, f"beat-{beat}", 12_000)
            await TroubledTable.put(stage.table, {**lock_row("key", lock), "daemonDeputy": ME})
            await anyio.sleep(3.0)
        await anyio.sleep(30.0)

    (elected_s,) = play(scene, led_by=OTHER).elected_at_s
    assert 12.0 < elected_s - 57.0 <= 12.0 + 2.4 + 2.0


# --- no leader


def test_a_fleet_without_a_leader_for_two_durations_is_warned_of_and_has_a_figure() -> None:
    async def scene(stage: Stage) -> None:
        stage.table.writes.extend([Trouble.THROTTLED] * 40)
        await anyio.sleep(20.0)
        assert stage.elector.leaderless_s >= 19.0
        assert "fleet_without_leader" not in stage.log.events()
        await anyio.sleep(12.0)
        assert stage.log.events("warning").count("fleet_without_leader") == 1
        await anyio.sleep(24.0)
        assert stage.log.events("warning").count("fleet_without_leader") == 2
        stage.table.writes.clear()
        await anyio.sleep(6.0)
        assert stage.elector.leaderless_s == 0.0
        assert "fleet_has_leader_again" in stage.log.events("info")

    play(scene)


def test_a_sound_fleet_is_not_warned_of() -> None:
    async def scene(stage: Stage) -> None:
        for beat in range(40):
            await stage.led_by(OTHER, version=f"beat-{beat}", duration_ms=30_000)
            await anyio.sleep(5.0)
            assert stage.elector.leaderless_s <= 10.0

    assert "fleet_without_leader" not in play(scene, led_by=OTHER).log.events()


def test_a_java_leader_is_told_from_one_of_ours_until_another_is_seen() -> None:
    async def scene(stage: Stage) -> None:
        await stage.led_by(OTHER)
        await anyio.sleep(120)
        await TroubledTable.delete(stage.table, LEADER_KEY)
        await stage.led_by(OTHER, version="v-2", assignment_epoch="some")
        await anyio.sleep(120)

    assert play(scene).java_leaders == [OTHER, None]
