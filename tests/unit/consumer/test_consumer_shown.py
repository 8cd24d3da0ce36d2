"""What a worker shows of a shard whose child is slow, hangs or fails: a whole worker in virtual time."""

from __future__ import annotations

from base64 import b64decode
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final
from zlib import crc32

import anyio
import pytest

from kcl_daemon.app import build
from kcl_daemon.config.children import ConcurrencySettings, FailureSettings, LaneCounts
from kcl_daemon.leases.lease import WorkerId
from kcl_daemon.ports import NO_METERS, Meters, Statistic
from kcl_daemon.progress.progress import WaitReason
from kcl_daemon.progress.watchdog import ShardState
from kcl_daemon.records.forms import ShardOrder
from kcl_daemon.telemetry.shards import LanesView, ShardView
from kcl_daemon.telemetry.snapshot import Snapshots
from kcl_local.kinesis.model import KinesisModel
from kcl_protocol.codec import encode
from kcl_protocol.messages import DaemonMessage, ProcessRecords, Status
from tests.simulator.loop import run_virtual
from tests.unit.consumer.poison_stage import STREAM, Reader, Stage, Ways, perform, until
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.metrics.stage import Gathered

RETRYING: Final = FailureSettings(failures_most=0)
EPOCH_S: Final = 1_770_000_000.0


class SlowReader(Reader):
    """Takes a tenth of a second for each record before it answers."""

    def __init__(self, ways: Ways, seen: list[str]) -> None:
        super().__init__(ways, seen)
        self._due: deque[float] = deque()
        self._takes_s = 0.0

    def _answer_to(self, message: DaemonMessage) -> bytes | None:
        self._takes_s = len(message.records) / 10 if isinstance(message, ProcessRecords) else 0.0
        return super()._answer_to(message)

    def say(self, data: bytes) -> None:
        self._due.append(anyio.current_time() + self._takes_s)
        super().say(data)

    async def receive(self) -> bytes:
        data = await super().receive()
        if data:
            await anyio.sleep_until(self._due.popleft())
        return data


@dataclass
class Seen(Stage):
    """A stage that is looked at."""

    failures: FailureSettings = RETRYING
    meters: Meters = NO_METERS

    async def work(self, scene: Callable[[], Awaitable[None]], **changes: Any) -> None:
        worker = build(replace(self.settings, **changes), replace(self.adapters(), meters=self.meters))
        self.worker = worker
        self.snapshots = Snapshots(
            worker, application="app", worker_id=WorkerId("worker"), clock=LoopClock(), log=MemoryLog()
        )
        async with anyio.create_task_group() as background:

            async def play() -> None:
                await until(lambda: bool(self.snapshots.now().shards))
                await scene()
                worker.request_stop()

            background.start_soon(play)
            await worker.run()
            self.ended_s = anyio.current_time()

    def begin(self) -> None:
        """Create the stream."""
        self.model = KinesisModel(lambda: EPOCH_S + anyio.current_time())
        self.call("CreateStream", StreamName=STREAM, ShardCount=1)

    @property
    def shard(self) -> ShardView:
        """The one that the worker holds."""
        (shard,) = self.snapshots.now().shards
        return shard

    def oldest_undone_s(self) -> float:
        """The age of the oldest record that no child has answered, by what Kinesis holds; 0: all are done."""
        place = {
            "StreamName": "orders",
            "ShardId": "shardId-000000000000",
            "ShardIteratorType": "TRIM_HORIZON",
        }
        iterator = self.call("GetShardIterator", **place)["ShardIterator"]
        done = set(self.seen)
        for record in self.call("GetRecords", ShardIterator=iterator)["Records"]:
            if b64decode(record["Data"]).decode() not in done:
                return EPOCH_S + anyio.current_time() - float(record["ApproximateArrivalTimestamp"])
        return 0.0


async def put_each_second(stage: Stage, count: int, seconds: int) -> None:
    """So many records a second, for so long."""
    for second in range(seconds):
        stage.put(f"{second}-{number}" for number in range(count))
        await anyio.sleep(1.0)


def test_the_lag_of_a_slow_child_grows_as_its_backlog_does() -> None:
    stage = Seen()
    stage.children.kind = SlowReader
    lags: list[tuple[float, float]] = []

    async def poll() -> None:
        for _ in range(4):
            await anyio.sleep(60.0)
            # 10 records a second are done of 40: after t seconds what is a quarter of t old.
            lags.append((stage.shard.lag_s or 0.0, anyio.current_time() * 3 / 4))

    async def scene() -> None:
        began_s = anyio.current_time()
        async with anyio.create_task_group() as background:
            background.start_soon(put_each_second, stage, 40, 245)
            background.start_soon(poll)
        assert began_s < 10
        assert stage.shard.behind_ms is not None

    perform(stage, scene)
    for told_s, true_s in lags:
        assert told_s == pytest.approx(true_s, rel=0.2, abs=3.0)


def test_the_lag_of_a_child_that_hangs_grows_with_the_clock_and_is_0_once_all_is_done() -> None:
    stage = Seen(Ways(hangs=True))
    lags: list[float | None] = []

    async def scene() -> None:
        await anyio.sleep(60.0)
        lags.append(stage.shard.lag_s)
        stage.put(["poison"])
        for _ in range(3):
            await anyio.sleep(100.0)
            lags.append(stage.shard.lag_s)
        assert stage.shard.behind_ms == 0
        stage.ways.dies_at = lambda text: False

    perform(stage, scene)
    assert lags[0] == 0.0
    assert lags[1:] == [pytest.approx(after_s, abs=2.0) for after_s in (100, 200, 300)]


def test_the_lag_of_a_crash_loop_grows_through_pauses_and_restarts() -> None:
    stage = Seen()
    lags: list[float | None] = []

    async def scene() -> None:
        await anyio.sleep(10.0)
        stage.put(["poison"])
        began_s = anyio.current_time()
        for _ in range(400):
            await anyio.sleep(0.5)
            lags.append((stage.shard.lag_s or 0.0) - (anyio.current_time() - began_s))
        stage.ways.dies_at = lambda text: False
        await until(lambda: stage.seen == ["poison"], within_s=120)
        await anyio.sleep(5.0)
        assert stage.shard.lag_s == 0.0
        assert (stage.shard.state, stage.shard.failures) == (ShardState.CAUGHT_UP, 0)

    perform(stage, scene)
    assert len(stage.children.seen) > 6
    assert [off_s for off_s in lags if off_s is None or abs(off_s) > 1.5] == []


def test_a_backlog_read_at_once_is_as_old_as_its_first_record_though_the_answer_led_to_the_tip() -> None:
    stage = Seen(Ways(hangs=True))

    async def scene() -> None:
        await until(lambda: stage.shard.lag_s is not None)
        assert stage.shard.lag_s == pytest.approx(stage.oldest_undone_s(), abs=0.5)
        assert stage.oldest_undone_s() > 1000
        stage.ways.dies_at = lambda text: False

    async def main() -> None:
        stage.begin()
        stage.put(["poison"])
        await anyio.sleep(1000.0)
        await stage.work(scene)

    run_virtual(main)


def test_a_crash_loop_is_failing_from_the_second_failure_on_with_the_last_words_of_the_one_that_died() -> (
    None
):
    stage = Seen(Ways(status=70))
    seen: list[ShardView] = []

    async def scene() -> None:
        await anyio.sleep(5.0)
        stage.put(["poison"])
        for _ in range(240):
            await anyio.sleep(0.5)
            seen.append(stage.shard)
        stage.ways.dies_at = lambda text: False

    perform(stage, scene)
    second = next(number for number, shard in enumerate(seen) if shard.failures == 2)
    assert {shard.state for shard in seen[second:]} == {ShardState.FAILING}
    assert ShardState.FAILING not in {shard.state for shard in seen[:second]}
    pauses = [shard for shard in seen[second:] if shard.child is None]
    assert len(pauses) > 100
    assert {shard.stderr_tail for shard in seen[second:]} == {("last words",)}
    assert {"exit code 70" in shard.last_error for shard in seen[second:]} == {True}
    assert all(shard.next_try_s is not None and shard.next_try_s <= 60 for shard in pauses)
    restarts = [shard.restarts for shard in seen]
    assert restarts == sorted(restarts)
    assert restarts[-1] > 5


def test_cloudwatch_is_told_the_lag_in_each_renewal_period_also_while_the_child_hangs() -> None:
    stage = Seen(Ways(hangs=True))
    gathered = Gathered()
    stage.meters = gathered.meters
    reported: list[Statistic] = []

    async def scene() -> None:
        stage.put(["poison"])
        await anyio.sleep(100.0)
        gathered.take()
        await anyio.sleep(20.0)
        reported.extend(
            each
            for each in gathered.statistics.take(10_000)
            if each.name in {"MillisBehindLatest", "UnfinishedAge"}
        )
        stage.ways.dies_at = lambda text: False

    perform(stage, scene)
    assert {each.dimensions["Operation"] for each in reported} == {"ProcessTask", "ApplicationTracker"}
    (own,) = (each for each in reported if each.name == "UnfinishedAge")
    assert (own.dimensions, own.unit) == ({"Operation": "ApplicationTracker"}, "Milliseconds")
    for each in reported:
        assert each.count >= 4
        assert each.least == pytest.approx(102_000, abs=5_000)
        assert each.most == pytest.approx(119_000, abs=3_000)


def test_a_crash_loop_stays_failing_and_stalled_though_its_lease_is_given_up_and_comes_back() -> None:
    stage = Seen(failures=FailureSettings(failures_most=4, degraded_ms=60_000))
    seen: list[ShardView] = []

    async def scene() -> None:
        stage.put(["poison"])
        for _ in range(1200):
            await anyio.sleep(0.5)
            seen.extend(stage.snapshots.now().shards)
        stage.ways.dies_at = lambda text: False

    perform(stage, scene)
    assert len(stage.reported("shard_degraded")) > 3
    # 180 s and the longest pause since the first failure, and two looks of the watchdog; a look at each turn of the lease.
    late = seen[2 * 260 :]
    assert {shard.state for shard in late} == {ShardState.FAILING}
    assert sum(shard.stalled for shard in late) > 0.95 * len(late)
    assert max(shard.failures for shard in late) > 8
    assert late[-1].lag_s == pytest.approx(600, abs=5)


def test_a_child_that_dies_once_while_there_is_nothing_to_do_is_forgotten_after_a_minute() -> None:
    stage = Seen()
    puppets: list[Reader] = []

    class Listed(Reader):
        def __init__(self, ways: Ways, seen: list[str]) -> None:
            super().__init__(ways, seen)
            puppets.append(self)

    stage.children.kind = Listed
    failures: list[int] = []

    async def scene() -> None:
        for _ in range(3):
            await anyio.sleep(10.0)
            puppets[-1].end(1)
            await anyio.sleep(10.0)
            failures.append(stage.shard.failures)
            await anyio.sleep(400.0)
            failures.append(stage.shard.failures)
        assert (stage.shard.state, stage.shard.stderr_tail) == (ShardState.CAUGHT_UP, ())

    perform(stage, scene)
    assert failures == [1, 0] * 3
    assert stage.reported("shard_stalled") == []


def test_a_child_that_dies_again_and_again_while_there_is_nothing_to_do_is_failing() -> None:
    stage = Seen()

    class Short(Reader):
        async def receive(self) -> bytes:
            data = b""
            with anyio.move_on_after(10.0):
                data = await super().receive()
            if not data:
                self.end(1)
            return data

    stage.children.kind = Short
    states: list[ShardState | None] = []

    async def scene() -> None:
        await anyio.sleep(60.0)
        for _ in range(400):
            await anyio.sleep(1.0)
            states.append(stage.shard.state)

    perform(stage, scene)
    assert set(states) == {ShardState.FAILING}
    assert len(stage.reported("shard_stalled")) == 1


class StartFails(Reader):
    """One that dies before it has answered anything."""

    def _answer_to(self, message: DaemonMessage) -> bytes | None:
        self.end(2)
        return None


def test_where_every_child_fails_at_its_start_one_error_says_so() -> None:
    stage = Seen()
    stage.children.kind = StartFails

    async def scene() -> None:
        await anyio.sleep(300.0)

    perform(stage, scene)
    assert len(stage.children.seen) > 5
    (reported,) = stage.reported("every_child_fails_at_start")
    assert (reported["failures"], reported["stderr"]) == (2, "last words")
    assert [level for level, event, _ in stage.log.lines if event == "every_child_fails_at_start"] == [
        "error"
    ]


def test_where_a_child_of_another_shard_got_past_its_start_it_is_a_matter_of_one_shard() -> None:
    stage = Seen()

    async def scene() -> None:
        await until(lambda: stage.shard.state is ShardState.CAUGHT_UP)
        stage.call(
            "SplitShard",
            StreamName=STREAM,
            ShardToSplit="shardId-000000000000",
            NewStartingHashKey=str(2**127),
        )
        stage.children.kind = StartFails
        await anyio.sleep(300.0)

    perform(stage, scene)
    assert len(stage.reported("child_failed")) > 5
    assert stage.reported("every_child_fails_at_start") == []


def test_a_child_that_breaks_the_protocol_is_told_of_when_it_does_and_not_when_it_has_ended() -> None:
    stage = Seen()

    class Stubborn(Reader):
        def __init__(self, ways: Ways, seen: list[str]) -> None:
            super().__init__(ways, seen)
            self.deaf_to.add("EOF")

        def _answer_to(self, message: DaemonMessage) -> bytes | None:
            return encode(Status("shardEnded"))

    stage.children.kind = Stubborn

    async def scene() -> None:
        await until(lambda: bool(stage.reported("child_failed")))

    perform(stage, scene)
    events = [event for _, event, _ in stage.log.lines if event.startswith("child_")]
    assert events[:4] == ["child_started", "child_broke_protocol", "child_ignores_eof", "child_failed"]
    assert "shardEnded" in stage.reported("child_broke_protocol")[0]["error"]


def test_a_stray_line_says_which_answer_is_still_awaited() -> None:
    stage = Seen()

    class Chatty(Reader):
        def _answer_to(self, message: DaemonMessage) -> bytes | None:
            return b"hello\n"

    stage.children.kind = Chatty

    async def scene() -> None:
        await until(lambda: bool(stage.reported("child_stray_output")))

    perform(stage, scene)
    assert stage.reported("child_stray_output")[0]["awaits"] == "status for initialize"


# Each record goes to the lane with the fewest: the first to lane 0, the second to lane 1.
TWO_LANES: Final = ConcurrencySettings(LaneCounts(2), ShardOrder.NONE, window_bytes=20_000)


def lanes_of(stage: Seen) -> LanesView:
    lanes = stage.shard.lanes
    assert lanes is not None
    return lanes


def test_lanes_are_shown_when_they_start_and_the_one_that_hangs_with_its_key_and_since_when() -> None:
    stage = Seen(Ways(hangs=True))

    async def scene() -> None:
        await anyio.sleep(10.0)
        assert (lanes_of(stage).count, lanes_of(stage).lanes, lanes_of(stage).held_s) == (2, (), None)
        stage.put(["poison", "fine"])
        await anyio.sleep(100.0)
        lanes = lanes_of(stage)
        assert lanes.slowest == 0
        assert lanes.held_s == pytest.approx(100.0, abs=2.0)
        hangs, free = lanes.lanes
        assert (hangs.number, hangs.records, hangs.cause) == (0, 1, WaitReason.CHILD)
        assert (free.number, free.records, free.cause) == (1, 0, WaitReason.NOTHING_NEW)
        assert hangs.kept_bytes == lanes.window_bytes > 0
        assert lanes.key_hash == format(crc32("k\u00fc".encode()), "08x")
        assert stage.shard.child is None
        assert [child.pid for child in stage.shard.children] == [hangs.child.pid, free.child.pid]  # type: ignore[union-attr]
        assert not stage.shard.stalled
        assert (stage.shard.state, stage.shard.cause) == (ShardState.READING, WaitReason.CHILD)
        assert stage.shard.detail == "lane 0: processRecords"
        assert stage.shard.lag_s == pytest.approx(100.0, abs=2.0)
        await anyio.sleep(300.0)
        assert (stage.shard.stalled, stage.shard.state) == (True, ShardState.STALLED)
        stage.ways.dies_at = lambda text: False

    perform(stage, scene, concurrency=TWO_LANES)


def test_a_lane_that_works_is_shown_though_another_one_has_only_to_checkpoint() -> None:
    stage = Seen(Ways(hangs=True, checkpoints=False))

    async def scene() -> None:
        stage.put(["fine", "poison"])
        await anyio.sleep(100.0)
        assert lanes_of(stage).slowest == 0
        assert (stage.shard.cause, stage.shard.detail) == (WaitReason.CHILD, "lane 1: processRecords")
        stage.ways.dies_at = lambda text: False

    perform(stage, scene, concurrency=TWO_LANES)


def test_a_full_window_is_what_the_shard_waits_for() -> None:
    stage = Seen(Ways(hangs=True))

    async def scene() -> None:
        stage.put(["poison", *(f"{number}{'x' * 500}" for number in range(99))])
        await anyio.sleep(100.0)
        assert stage.shard.cause is WaitReason.LANE
        assert stage.shard.detail.startswith("lane 0, at a record whose key has the hash ")
        assert stage.shard.waits_s == pytest.approx(100.0, abs=5.0)
        assert lanes_of(stage).window_bytes >= 20_000
        stage.ways.dies_at = lambda text: False

    perform(stage, scene, concurrency=TWO_LANES)


def test_a_lane_that_keeps_failing_makes_its_shard_failing_and_gives_its_last_words() -> None:
    stage = Seen(Ways(status=70))

    async def scene() -> None:
        stage.put(["poison", "fine"])
        await until(lambda: stage.shard.failures >= 3, within_s=60)
        shard = stage.shard
        assert (shard.state, shard.cause) == (ShardState.FAILING, WaitReason.RESTART)
        assert shard.detail.startswith("lane 0: ")
        assert shard.last_error == lanes_of(stage).lanes[0].last_error != ""
        assert shard.next_try_s is not None
        assert [lane.restarts for lane in lanes_of(stage).lanes] == [shard.restarts, 0]
        assert lanes_of(stage).lanes[1].failures == 0
        stage.ways.dies_at = lambda text: False
        await until(lambda: stage.shard.failures == 0, within_s=120)

    perform(stage, scene, concurrency=TWO_LANES)
    assert stage.seen == ["fine", "poison"]
