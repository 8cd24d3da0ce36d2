"""The watchdog's loop: what it logs, and whom it ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import repeat

import anyio
import pytest

from kcl_daemon.leases.lease import LeaseKey
from kcl_daemon.progress.progress import ActiveLeases, LeaseProgress, WaitReason
from kcl_daemon.progress.watchdog import TICK_S, StallLimits, Watchdog
from tests.simulator.loop import run_virtual
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.progress.support import FakeChild, Held, position


@dataclass
class Stage:
    """A watchdog and one lease."""

    log: MemoryLog = field(default_factory=MemoryLog)
    clock: LoopClock = field(default_factory=LoopClock)
    child_stuck_s: float | None = None

    def __post_init__(self) -> None:
        self.active_leases = ActiveLeases()
        self.watchdog = Watchdog(
            active_leases=self.active_leases,
            limits=StallLimits(child_stuck_s=self.child_stuck_s),
            failover_s=10.0,
            clock=self.clock,
            log=self.log,
        )
        self.held = Held(LeaseProgress(self.clock.monotonic), moved_s=self.clock.monotonic())
        self.active_leases.add(self.held)

    async def passes(self, seconds: float, *, renewed: bool = True) -> None:
        """The watchdog looks so long."""
        with anyio.move_on_after(seconds):
            async with anyio.create_task_group() as group:
                group.start_soon(self.watchdog.run)
                while renewed:
                    self.held.moved_s = self.clock.monotonic()
                    await anyio.sleep(1)

    @property
    def events(self) -> list[tuple[str, str]]:
        return [(level, event) for level, event, _ in self.log.lines]


def test_a_stall_is_warned_of_then_an_error_every_ten_minutes_and_its_end_is_reported() -> None:
    async def course() -> None:
        stage = Stage()
        stage.held.progress.works("processRecords")
        await stage.passes(290)
        assert stage.events == []
        await stage.passes(20)
        assert stage.events == [("warning", "shard_stalled")]
        fields = stage.log.lines[0][2]
        assert fields["shard_id"] == "shardId-0"
        assert fields["cause"] == "child"
        assert "childStuckTimeoutMillis" in str(fields["advice"])
        assert stage.watchdog.is_stalled(stage.held)
        await stage.passes(1210)
        assert stage.events[1:] == [("error", "shard_stalled")] * 2
        stage.held.progress.done(position(1), 1, 10)
        stage.held.progress.last_fetch.answer(behind_ms=0, empty=True, now_s=stage.clock.monotonic())
        await stage.passes(4)
        assert stage.events[3:] == [("info", "shard_moves_again")]
        assert not stage.watchdog.is_stalled(stage.held)

    run_virtual(course)


def test_a_lane_that_was_stalled_is_no_longer_once_it_has_nothing_more_to_do() -> None:
    async def course() -> None:
        stage = Stage()
        lane = Held(LeaseProgress(stage.clock.monotonic, lane=1))
        stage.held.progress.lanes[1] = lane
        lane.progress.works("processRecords")
        await stage.passes(310)
        assert stage.events == [("warning", "shard_stalled")] * 2, "of its shard, too, which begins"
        lane.progress.done(position(1), 1, 10)
        lane.progress.last_fetch.answer(behind_ms=0, empty=True, now_s=stage.clock.monotonic())
        await stage.passes(4)
        assert ("info", "shard_moves_again") in stage.events
        assert not stage.watchdog.is_stalled(lane)

    run_virtual(course)


def test_a_wait_for_a_parent_is_never_an_error() -> None:
    async def course() -> None:
        stage = Stage()
        stage.held.progress.waits(WaitReason.PARENT, "shardId-7")
        await stage.passes(3600 + 1300)
        assert stage.events == [("warning", "shard_stalled")] * 3

    run_virtual(course)


def test_a_stuck_child_is_ended_alone_and_once() -> None:
    async def course() -> None:
        stage = Stage(child_stuck_s=30.0)
        other = Held(LeaseProgress(stage.clock.monotonic), key=LeaseKey("shardId-1"))
        ended: list[str] = []
        for held, name in ((stage.held, "stuck"), (other, "other")):
            held.progress.starts()
            held.progress.child_started(FakeChild(), partial(ended.append, name))
            held.progress.waits_for_records()
        stage.held.progress.works("processRecords")
        await stage.passes(29)
        assert ended == []
        await stage.passes(60)
        assert ended == ["stuck"]
        assert stage.events == [("warning", "child_stuck")]

    run_virtual(course)


def test_after_a_pause_of_the_whole_process_nobody_is_called_stalled_at_once() -> None:
    async def course() -> None:
        stage = Stage()
        stage.held.progress.works("processRecords")
        await stage.passes(100)
        stage.held.moved_s = stage.clock.monotonic() + 400
        await anyio.sleep(400)  # nothing ran
        stage.watchdog.tick(lag_s=400.0)
        assert stage.events == [("warning", "event_loop_late")]
        stage.held.progress.done(position(1), 1, 10)
        await stage.passes(80)
        assert stage.events[1:] == [("warning", "shard_stalled")], "no answer since, and that is told of"

    run_virtual(course)


def test_short_pauses_again_and_again_do_not_keep_anything_from_being_judged() -> None:
    async def course() -> None:
        stage = Stage(child_stuck_s=600.0)
        ended: list[float] = []
        stage.held.progress.child_started(FakeChild(), lambda: ended.append(stage.clock.monotonic()))
        stage.held.progress.works("processRecords")
        began_s = stage.clock.monotonic()
        for _ in range(210):  # an event loop that is late at every tick
            await anyio.sleep(3.1)
            stage.held.moved_s = stage.clock.monotonic()
            stage.watchdog.tick(lag_s=1.1)
        assert [event for _, event in stage.events if event != "event_loop_late"] == [
            "shard_stalled",
            "child_stuck",
        ]
        assert 600 < ended[0] - began_s < 630, "later by what it has been late in the last minute"

    run_virtual(course)


def test_a_pause_is_added_to_the_patience_with_a_child_for_a_minute() -> None:
    async def course() -> None:
        stage = Stage(child_stuck_s=60.0)
        ended: list[str] = []
        stage.held.progress.child_started(FakeChild(), partial(ended.append, "ended"))
        stage.held.progress.works("processRecords")
        await stage.passes(10)
        await anyio.sleep(400)
        stage.watchdog.tick(lag_s=400.0)
        await stage.passes(45)
        assert ended == [], "it has not had its minute yet"
        await stage.passes(10)
        assert ended == ["ended"]

    run_virtual(course)


def test_leases_that_are_not_renewed_are_told_of_once_before_they_are_lost() -> None:
    async def course() -> None:
        stage = Stage()
        await stage.passes(7, renewed=False)
        assert stage.events == []
        await stage.passes(2.5, renewed=False)
        assert stage.events == [("warning", "leases_not_renewed")]
        stage.watchdog.tick(lag_s=0.0)
        assert len(stage.events) == 1
        stage.held.moved_s = stage.clock.monotonic()
        stage.watchdog.tick(lag_s=0.0)
        assert stage.events[1:] == [("info", "leases_renewed_again")]
        stage.held.lost = "another owner"
        await stage.passes(20, renewed=False)
        assert len(stage.events) == 2, "what is lost is not renewed rightly"

    run_virtual(course)


def test_a_rate_is_of_the_last_seconds() -> None:
    async def course() -> None:
        stage = Stage()
        for number in range(60):
            stage.held.progress.done(position(number), 1, 1000)
            await stage.passes(1 if number % 2 else TICK_S + 1)
        assert 300 < stage.watchdog.rates(stage.held.key).out_bytes < 900
        stage.active_leases.remove(stage.held)
        await stage.passes(3)
        assert stage.watchdog.rates(stage.held.key).out_bytes == 0

    run_virtual(course)


@pytest.mark.parametrize("ahead_s", [-7200.04, 30.04])
def test_a_wrong_clock_is_told_of_once_an_hour(ahead_s: float) -> None:
    async def course() -> None:
        stage = Stage()
        for known_s in (None, -30.0, 30.0):
            stage.watchdog.clock_ahead_s = partial(next, repeat(known_s))
            await stage.passes(10)
        assert stage.events == [], "not known, or hardly wrong"
        stage.active_leases.remove(stage.held)
        stage.watchdog.clock_ahead_s = lambda: ahead_s
        await stage.passes(3500)
        told = [fields for _, event, fields in stage.log.lines if event == "clock_is_wrong"]
        assert [each["ahead_s"] for each in told] == [round(ahead_s, 1)]
        assert "NTP" in str(told[0]["advice"])
        await stage.passes(200)
        assert [event for _, event in stage.events].count("clock_is_wrong") == 2

    run_virtual(course)
