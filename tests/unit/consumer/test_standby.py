"""Children that are started before their lease has come, in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import anyio
import pytest
from anyio.lowlevel import checkpoint

from kcl_daemon.config.balance import LeaseSettings
from kcl_daemon.config.changes import ChangesSettings
from kcl_daemon.config.children import ChildSettings
from kcl_daemon.config.settings import Settings
from kcl_daemon.consumer.consumer import ShardConsumer
from kcl_daemon.consumer.context import ConsumerContext, StopReason
from kcl_daemon.consumer.standby import StandbyChildren
from kcl_daemon.context import WorkerContext, timings
from kcl_daemon.errors import ChildStartFailed
from kcl_daemon.fleet.lease_renewer import HeldLease
from kcl_daemon.fleet.streams import SingleStreamTracker, StreamMonitor, TrackedStream
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import Lease, LeaseKey, ShardId, Throughput, WorkerId
from kcl_daemon.ports import ChildLane, StreamRef
from kcl_daemon.progress.progress import LeaseProgress
from kcl_daemon.shards.lineage import InitialPosition, StartAt
from kcl_local.kinesis.model import KinesisModel
from kcl_protocol.sequence import TRIM_HORIZON
from tests.simulator.loop import run_virtual
from tests.simulator.memory.kinesis import MemoryKinesis
from tests.unit.consumer.puppet import Puppet
from tests.unit.fakes import CalmChance, LoopClock, MemoryLog
from tests.unit.fleet.contexts import worker_context
from tests.unit.troubled import Trouble, TroubledTable

ME, OTHER, KEY = WorkerId("me"), WorkerId("other"), LeaseKey("shardId-1")
IMPORT_S = 20.0


class Importing(Puppet):
    """Reads after a while."""

    imports_s = IMPORT_S

    async def until_reading(self) -> None:
        await anyio.sleep(self.imports_s)


@dataclass
class Starts:
    """The port Children."""

    fails: bool = False
    takes_s: float = 0.5
    started: list[Importing] = field(default_factory=list[Importing])
    lanes: list[ChildLane | None] = field(default_factory=list[ChildLane | None])
    late_lane: int | None = None

    async def start(
        self, shard_id: ShardId, stream: StreamRef | None = None, lane: ChildLane | None = None
    ) -> Importing:
        assert str(shard_id) == str(KEY)
        assert stream is not None and stream.identity is None
        await anyio.sleep(self.takes_s)
        if self.fails:
            raise ChildStartFailed("no such file")
        self.started.append(Importing())
        self.lanes.append(lane)
        if lane is not None and lane.number == self.late_lane:
            self.started[-1].imports_s += 5.0
        return self.started[-1]


class Stage:
    """A lease on its way to us, and our side of it."""

    def __init__(self, standby_ms: int = 40_000, lanes: int = 1) -> None:
        self.log, self.table, self.children = MemoryLog(), TroubledTable(), Starts()
        self.read: set[LeaseKey] = set()
        self.ready: list[tuple[float, LeaseKey]] = []
        clock = LoopClock()
        context = WorkerContext(
            worker_id=ME,
            clock=clock,
            randomness=CalmChance(),
            timings=timings(LeaseSettings(standby_ms=standby_ms)),
            log=self.log,
        )
        kinesis, stream = MemoryKinesis(KinesisModel(lambda: 0.0)), StreamRef("words")
        watch = StreamMonitor(kinesis=kinesis, stream=stream, clock=clock, log=self.log)
        tracked = TrackedStream(stream, InitialPosition(StartAt.TRIM_HORIZON), watch)
        self.standby = StandbyChildren(
            context,
            children=self.children,
            streams=SingleStreamTracker(
                tracked, kinesis=kinesis, log=self.log, check_images=ChangesSettings().check_images
            ),
            table=self.table,
            exit_grace_s=5.0,
            lanes_of=lambda stream: lanes,
            is_read=self.read.__contains__,
            on_ready=lambda key: self.ready.append((anyio.current_time(), key)),
        )

    async def stored(self) -> Lease:
        row = await TroubledTable.get(self.table, KEY)
        assert row is not None
        return lease_row.lease_from_row(row)

    async def handed_to_us(self, *, asked: bool) -> Lease:
        await self.table.ensure()
        await self.table.put(*lease_row.creation(Lease(KEY, 7, TRIM_HORIZON, lease_owner=OTHER)))
        await self.table.update(lease_row.handoff(await self.stored(), ME, standby=asked))
        self.table.calls.clear()
        return await self.stored()

    @property
    def reasons(self) -> list[object]:
        return [fields["reason"] for _, event, fields in self.log.lines if event == "standby_child_ended"]


def play(
    scene: Callable[[Stage, Lease], Awaitable[None]], stage: Stage | None = None, *, asked: bool = True
) -> None:
    async def main() -> None:
        played = stage or Stage()
        lease = await played.handed_to_us(asked=asked)
        async with anyio.create_task_group() as background:
            background.start_soon(played.standby.run)
            await checkpoint()
            await scene(played, lease)
            background.cancel_scope.cancel()

    run_virtual(main)


def test_a_child_that_stands_by_is_told_to_the_old_owner_and_taken_as_it_is() -> None:
    async def scene(stage: Stage, lease: Lease) -> None:
        stage.standby.prepare(lease)
        stage.standby.prepare(lease)
        await anyio.sleep(IMPORT_S)
        assert (await stage.stored()).awaits_standby
        await anyio.sleep(1.0)
        after = await stage.stored()
        assert (after.standby, after.lease_counter) == ("ready me", 7)
        assert [key for _, key in stage.ready] == [KEY]
        child = await stage.standby.take(KEY)
        assert stage.children.started == [child]
        stage.standby.dismiss(KEY)
        await anyio.sleep(60.0)
        assert stage.children.started[0].signals == []
        assert stage.children.started[0].heard == []
        assert await stage.standby.take(KEY) is None

    play(scene)


def test_all_children_of_a_shard_stand_by_before_the_old_owner_is_told() -> None:
    stage = Stage(lanes=3)
    stage.children.late_lane = 2

    async def scene(stage: Stage, lease: Lease) -> None:
        stage.standby.prepare(lease)
        await anyio.sleep(IMPORT_S + 1.0)
        assert stage.children.lanes == [ChildLane(number, 3) for number in (0, 1, 2)]
        assert (await stage.stored()).awaits_standby
        await anyio.sleep(10.0)
        assert (await stage.stored()).standby == "ready me"
        taken = [await stage.standby.take(KEY, ChildLane(number, 3)) for number in (2, 0)]
        assert taken == [stage.children.started[2], stage.children.started[0]]
        assert await stage.standby.take(KEY, ChildLane(2, 3)) is None, "one of them stands by"
        stage.standby.dismiss(KEY)
        await anyio.sleep(60.0)
        assert [bool(child.signals) for child in stage.children.started] == [False, True, False]

    play(scene, stage)


def test_a_lease_that_comes_early_gets_the_child_that_is_still_starting() -> None:
    async def scene(stage: Stage, lease: Lease) -> None:
        stage.standby.prepare(lease)
        assert await stage.standby.take(KEY) is stage.children.started[0]
        await anyio.sleep(60.0)
        assert stage.children.started[0].status is None
        assert stage.ready == []

    play(scene)


@pytest.mark.parametrize("ends", [False, True], ids=["while it starts", "while it ends"])
def test_a_consumer_that_is_cancelled_while_it_takes_its_child_leaves_none_behind(ends: bool) -> None:
    async def scene(stage: Stage, lease: Lease) -> None:
        stage.standby.prepare(lease)
        if ends:
            await anyio.sleep(1.0)
            stage.children.started[0].deaf_to = {"TERM"}
            stage.standby.dismiss(KEY)
        with anyio.move_on_after(0.2) as scope:
            await stage.standby.take(KEY)
        assert scope.cancelled_caught
        await anyio.sleep(30.0)
        assert [child for child in stage.children.started if child.status is None] == []
        assert await stage.standby.take(KEY) is None

    play(scene)


def test_a_lease_that_does_not_come_ends_its_child_quietly() -> None:
    async def scene(stage: Stage, lease: Lease) -> None:
        stage.standby.prepare(lease)
        await anyio.sleep(5.0)
        stage.standby.dismiss(KEY)
        await anyio.sleep(1.0)
        assert stage.children.started[0].signals == ["TERM"]
        assert stage.reasons == ["its lease did not come"]
        assert stage.log.events("warning") == []
        stage.standby.prepare(lease)
        await anyio.sleep(1.0)
        assert len(stage.children.started) == 2

    play(scene)


def test_a_child_that_ignores_sigterm_is_killed_and_nobody_gets_a_second_one_meanwhile() -> None:
    async def scene(stage: Stage, lease: Lease) -> None:
        stage.standby.prepare(lease)
        await anyio.sleep(5.0)
        child = stage.children.started[0]
        child.deaf_to = {"TERM"}
        stage.standby.dismiss(KEY)
        await anyio.sleep(1.0)
        stage.standby.prepare(lease)
        began_s = anyio.current_time()
        assert await stage.standby.take(KEY) is None
        assert anyio.current_time() - began_s == pytest.approx(4.0)
        assert child.status == -9
        assert len(stage.children.started) == 1

    play(scene)


def test_a_child_that_dies_is_forgotten_and_not_started_again_before_the_lease_has_come() -> None:
    async def scene(stage: Stage, lease: Lease) -> None:
        stage.standby.prepare(lease)
        await anyio.sleep(5.0)
        stage.children.started[0].end(3)
        await anyio.sleep(1.0)
        stage.standby.prepare(lease)
        await anyio.sleep(1.0)
        assert len(stage.children.started) == 1
        assert stage.reasons == ["it ended with 3"]
        assert (await stage.stored()).awaits_standby
        assert await stage.standby.take(KEY) is None

    play(scene)


def test_a_program_that_cannot_be_started_is_left_to_the_ordinary_start() -> None:
    stage = Stage()
    stage.children.fails = True

    async def scene(stage: Stage, lease: Lease) -> None:
        stage.standby.prepare(lease)
        assert await stage.standby.take(KEY) is None
        assert stage.reasons == ["no such file"]

    play(scene, stage)


def test_no_child_is_started_beside_one_of_the_same_shard() -> None:
    async def scene(stage: Stage, lease: Lease) -> None:
        stage.read.add(KEY)
        stage.standby.prepare(lease)
        await anyio.sleep(1.0)
        assert stage.children.started == []
        stage.read.clear()
        stage.standby.prepare(lease)
        await anyio.sleep(1.0)
        assert len(stage.children.started) == 1

    play(scene)


def test_no_child_is_started_where_the_setting_is_0() -> None:
    async def scene(stage: Stage, lease: Lease) -> None:
        stage.standby.prepare(lease)
        await anyio.sleep(30.0)
        assert stage.children.started == []
        assert await stage.standby.take(KEY) is None

    play(scene, Stage(standby_ms=0))


def test_nothing_is_told_to_an_owner_that_does_not_wait() -> None:
    async def scene(stage: Stage, lease: Lease) -> None:
        stage.standby.prepare(lease)
        await anyio.sleep(30.0)
        assert len(stage.ready) == 1
        assert "update" not in stage.table.calls

    play(scene, asked=False)


def test_a_word_without_an_answer_is_said_again() -> None:
    async def scene(stage: Stage, lease: Lease) -> None:
        stage.table.writes.extend([Trouble.FAILED_BEFORE, Trouble.FAILED_AFTER])
        stage.standby.prepare(lease)
        await anyio.sleep(21.0)
        assert stage.ready == []
        await anyio.sleep(3.0)
        assert (await stage.stored()).standby == "ready me"
        assert len(stage.ready) == 1

    play(scene)


def test_the_end_of_the_worker_ends_a_child_that_stands_by() -> None:
    stage = Stage()

    async def scene(stage: Stage, lease: Lease) -> None:
        stage.standby.prepare(lease)
        await anyio.sleep(5.0)

    play(scene, stage)
    assert stage.children.started[0].status is not None


class Waits:
    """A keeper that says that the next owner's child is still starting."""

    def awaits_standby(self, _held: HeldLease) -> bool:
        return True


@pytest.mark.parametrize("works", [True, False])
def test_only_a_consumer_that_reads_waits_for_the_next_owners_child(works: bool) -> None:
    async def main() -> None:
        context = worker_context()
        settings = Settings("words", "words", ChildSettings(("child",)), "me")
        parts = SimpleNamespace(context=context, settings=settings, renewer=Waits())
        lease = Lease(KEY, 7, TRIM_HORIZON, lease_owner=OTHER, checkpoint_owner=ME, standby="asked other")
        held = HeldLease(lease, 0.0, Throughput(1.0, now_s=0.0), LeaseProgress(context.clock.monotonic))
        consumer = ShardConsumer(parts=cast("ConsumerContext", parts), held=held)
        consumer._works = works
        held.on_change()
        assert consumer._stop_signal.reason is (StopReason.NONE if works else StopReason.STOP)
        held.lost = "it expired"
        held.on_change()
        reasons = [consumer._stop_signal.reason]
        assert reasons == [StopReason.LEASE_LOST]

    run_virtual(main)
