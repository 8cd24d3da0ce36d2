"""Making leases complete beside a leader's other work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskGroup

from kcl_daemon.fleet.assigner import BackgroundSync
from kcl_daemon.leases.lease import Lease
from kcl_daemon.leases.row import lease_from_row
from kcl_local.kinesis.model import KinesisModel
from tests.simulator.loop import run_virtual
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.fleet.contexts import words_sync, worker_context
from tests.unit.fleet.slow_kinesis import SlowKinesis
from tests.unit.troubled import TroubledTable


class Stage:
    """A stream of four shards and an empty table."""

    def __init__(self) -> None:
        clock, self.log = LoopClock(), MemoryLog()
        model = KinesisModel(lambda: clock.wall_ms() / 1000)
        model.handle("CreateStream", {"StreamName": "words", "ShardCount": 4})
        self.kinesis, self.table, self.late = SlowKinesis(model), TroubledTable(), 0
        context = worker_context(clock=clock, log=self.log)
        shard_sync = words_sync(context, self.table, self.kinesis)
        self.completion = BackgroundSync(context, shard_sync, on_late=self._created_late)
        self.completion.begin()

    def _created_late(self) -> None:
        self.late += 1

    async def leases(self) -> list[Lease]:
        return [lease_from_row(row) for row in await TroubledTable.scan(self.table)]

    async def ensure(self, background: TaskGroup) -> bool:
        return await self.completion.ensure(await self.leases(), background)


def play(scene: Callable[[Stage, TaskGroup], Awaitable[None]]) -> None:
    async def main() -> None:
        stage = Stage()
        await stage.table.ensure()
        async with anyio.create_task_group() as background:
            await scene(stage, background)
            background.cancel_scope.cancel()

    run_virtual(main)


def test_the_assigner_waits_for_leases_that_are_created_in_time() -> None:
    async def scene(stage: Stage, background: TaskGroup) -> None:
        stage.kinesis.takes_s = 1.5
        assert await stage.ensure(background)
        assert len(await stage.leases()) == 4
        assert not await stage.ensure(background)
        assert stage.late == 0

    play(scene)


def test_a_slow_shard_sync_goes_on_in_the_background_and_is_reported_when_it_has_created_leases() -> None:
    async def scene(stage: Stage, background: TaskGroup) -> None:
        stage.kinesis.takes_s = 30.0
        began_s = anyio.current_time()
        assert await stage.ensure(background), "time has passed"
        assert not await stage.ensure(background), "it is under way"
        assert anyio.current_time() - began_s == 2.0
        await anyio.sleep(28.1)
        assert (len(await stage.leases()), stage.late, stage.kinesis.lists) == (4, 1, 1)

    play(scene)


def test_a_look_that_was_stopped_does_nothing_more_and_is_in_nobodys_way() -> None:
    async def scene(stage: Stage, background: TaskGroup) -> None:
        stage.kinesis.takes_s = 30.0
        await stage.ensure(background)
        stage.completion.stop()
        await anyio.sleep(60.0)
        assert await stage.leases() == []
        stage.kinesis.takes_s = 0.0
        stage.completion.begin()
        assert await stage.ensure(background)

    play(scene)


def test_a_loop_that_was_ended_and_run_again_begins_anew() -> None:
    async def scene(stage: Stage, background: TaskGroup) -> None:
        stage.kinesis.takes_s = 30.0
        with anyio.move_on_after(10.0):
            async with anyio.create_task_group() as loop:
                await stage.ensure(loop)
        stage.kinesis.takes_s = 0.0
        assert await stage.ensure(background)
        assert len(await stage.leases()) == 4

    play(scene)
