"""One worker that takes leases over real rows, beside a keeper that renews them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from kcl_daemon.config.balance import LeaseSettings
from kcl_daemon.context import timings
from kcl_daemon.fleet.lease_renewer import HeldLease, MalformedRowLog
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import MAX_HASH, HashRange, Lease, LeaseKey, WorkerId
from kcl_daemon.leases.row import Row, lease_from_row, renewal
from kcl_daemon.migrations.kcl2_taking import LeaseTaker, ShuffleLeader, TakingOptions
from kcl_local.kinesis.model import KinesisModel
from kcl_protocol.sequence import SHARD_END, TRIM_HORIZON
from tests.simulator.loop import run_virtual
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.fleet.contexts import lease_renewer, words_sync, worker_context
from tests.unit.fleet.slow_kinesis import SlowKinesis
from tests.unit.troubled import Trouble, TroubledTable

ME, OTHER = WorkerId("me"), WorkerId("other")


class Stage:
    """A taker with its keeper over an empty table and a stream of four shards."""

    def __init__(self) -> None:
        clock, self.log, periods = LoopClock(), MemoryLog(), timings(LeaseSettings())
        context = worker_context(ME, clock=clock, log=self.log)
        self.table = TroubledTable()
        model = KinesisModel(lambda: clock.wall_ms() / 1000)
        model.handle("CreateStream", {"StreamName": "words", "ShardCount": 4})
        self.kinesis = SlowKinesis(model)
        self.found: list[LeaseKey] = []
        self.renewer = lease_renewer(context, self.table)
        self.renewer.keeps_finished = True
        self.leader = ShuffleLeader(context)
        self.taker = LeaseTaker(
            context,
            table=self.table,
            renewer=self.renewer,
            leader=self.leader,
            shard_sync=words_sync(context, self.table, self.kinesis),
            options=TakingOptions(failover_s=periods.failover_s),
            malformed=MalformedRowLog(self.log),
            on_found=self._found,
        )

    def _found(self, held: HeldLease) -> None:
        self.found.append(held.key)

    async def has_lease(
        self,
        number: int,
        owner: WorkerId | None,
        *,
        finished: bool = False,
        handed_by: WorkerId | None = None,
    ) -> LeaseKey:
        """A lease is in the table already."""
        width = (MAX_HASH + 1) // 4
        key = LeaseKey(f"shardId-{number:012d}")
        position = SHARD_END if finished else TRIM_HORIZON
        hash_range = HashRange(number * width, (number + 1) * width - 1)
        lease = Lease(key, 3, position, lease_owner=owner, hash_range=hash_range)
        row = lease_row.new_lease_row(lease)
        handed = {} if handed_by is None else {"checkpointOwner": handed_by}
        await TroubledTable.put(self.table, {**row, **handed})
        return key

    async def lease(self, key: LeaseKey) -> Lease:
        row = next(row for row in await self.rows() if row["leaseKey"] == key)
        return lease_from_row(row)

    async def rows(self) -> list[Row]:
        return list(self.table._rows.values())

    async def owners(self) -> list[object]:
        return [row.get("leaseOwner") for row in await self.rows()]

    async def renew_forever(self, *keys: LeaseKey) -> None:
        """The other worker lives."""
        while True:
            await anyio.sleep(3)
            for key in keys:
                lease = await self.lease(key)
                if lease.lease_owner == OTHER:
                    self.table._store(key, {**self.table._rows[key], "leaseCounter": lease.lease_counter + 1})


def play(
    scene: Callable[[Stage], Awaitable[None]], *, before: Callable[[Stage], Awaitable[object]] | None = None
) -> Stage:
    """Run taker and keeper beside a scene."""

    async def main() -> Stage:
        stage = Stage()
        await stage.table.ensure()
        if before is not None:
            await before(stage)
        async with anyio.create_task_group() as background:
            background.start_soon(stage.renewer.run)
            background.start_soon(stage.taker.run)
            await scene(stage)
            background.cancel_scope.cancel()
        return stage

    return run_virtual(main)


def test_the_first_worker_of_a_new_application_makes_the_leases_and_takes_them() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(0.5)
        assert await stage.owners() == ["me"] * 4
        assert sorted(stage.found) == sorted(stage.renewer.held)
        await anyio.sleep(60)
        assert len(stage.renewer.held) == 4

    assert play(scene).log.events("warning") == []


def test_a_dead_workers_leases_are_taken_when_they_have_stood_still() -> None:
    async def before(stage: Stage) -> None:
        for number in range(4):
            await stage.has_lease(number, OTHER)

    async def scene(stage: Stage) -> None:
        await anyio.sleep(19)
        assert len(stage.found) == 1  # stolen, as from a worker that lives
        await anyio.sleep(2)
        assert len(stage.found) == 4

    play(scene, before=before)


def test_a_share_of_a_living_workers_leases_is_stolen_one_in_each_run() -> None:
    keys: list[LeaseKey] = []

    async def before(stage: Stage) -> None:
        keys.extend([await stage.has_lease(number, OTHER) for number in range(4)])

    async def scene(stage: Stage) -> None:
        async with anyio.create_task_group() as background:
            background.start_soon(stage.renew_forever, *keys)
            await anyio.sleep(0.5)
            assert len(stage.found) == 1
            await anyio.sleep(100)
            assert len(stage.found) == 2
            assert sorted(map(str, await stage.owners())) == ["me", "me", "other", "other"]
            background.cancel_scope.cancel()

    play(scene, before=before)


def test_leases_of_an_earlier_process_of_this_worker_are_held_again_at_once() -> None:
    async def before(stage: Stage) -> None:
        for number in range(4):
            await stage.has_lease(number, ME)

    async def scene(stage: Stage) -> None:
        await anyio.sleep(0.5)
        assert len(stage.found) == 4

    play(scene, before=before)


def test_a_lease_that_is_still_being_handed_to_us_is_left_to_its_old_owner() -> None:
    async def before(stage: Stage) -> None:
        for number in range(4):
            await stage.has_lease(number, ME, handed_by=OTHER)

    async def scene(stage: Stage) -> None:
        await anyio.sleep(0.5)
        assert stage.found == []

    play(scene, before=before)


def test_a_finished_lease_is_taken_and_renewed_without_a_consumer() -> None:
    async def before(stage: Stage) -> None:
        for number in range(4):
            await stage.has_lease(number, None)
        await stage.has_lease(9, None, finished=True)

    async def scene(stage: Stage) -> None:
        await anyio.sleep(0.5)
        key = LeaseKey("shardId-000000000009")
        assert stage.renewer.holds(key)
        assert key not in stage.found
        counter = (await stage.lease(key)).lease_counter
        await anyio.sleep(60)
        assert (await stage.lease(key)).lease_counter > counter + 5

    play(scene, before=before)


def test_a_take_whose_answer_got_lost_is_held() -> None:
    async def before(stage: Stage) -> None:
        for number in range(4):
            await stage.has_lease(number, None)
        stage.table.writes.extend([Trouble.FAILED_AFTER] * 4)

    async def scene(stage: Stage) -> None:
        await anyio.sleep(0.5)
        assert len(stage.found) == 4

    play(scene, before=before)


def test_a_take_that_lands_after_all_is_held_in_the_next_run() -> None:
    async def before(stage: Stage) -> None:
        for number in range(4):
            await stage.has_lease(number, None)
        stage.table.writes.extend([Trouble.LATE] * 4)

    async def scene(stage: Stage) -> None:
        await anyio.sleep(0.5)
        assert stage.found == []
        await stage.table.land()
        await anyio.sleep(21)
        assert len(stage.found) == 4

    play(scene, before=before)


def test_a_throttled_take_is_tried_three_times_and_a_failed_run_soon_again() -> None:
    async def before(stage: Stage) -> None:
        for number in range(4):
            await stage.has_lease(number, None)
        stage.table.writes.extend([Trouble.THROTTLED] * 12)

    async def scene(stage: Stage) -> None:
        await anyio.sleep(0.5)
        assert stage.table.calls.count("update") == 12
        await anyio.sleep(1)
        assert len(stage.found) == 4

    assert play(scene, before=before).log.events("warning") == ["lease_taking_failed"]


def test_a_table_that_cannot_be_read_is_asked_again_sooner_than_in_a_period() -> None:
    async def before(stage: Stage) -> None:
        stage.table.reads.extend([Trouble.FAILED_BEFORE] * 3)

    async def scene(stage: Stage) -> None:
        await anyio.sleep(8)
        assert len(stage.found) == 4

    play(scene, before=before)


def test_once_settled_nothing_more_is_taken() -> None:
    async def before(stage: Stage) -> None:
        for number in range(4):
            await stage.has_lease(number, None)
        stage.table.reads.append(Trouble.FAILED_BEFORE)

    async def scene(stage: Stage) -> None:
        await stage.taker.settle()
        await anyio.sleep(60)
        assert await stage.owners() == [None] * 4

    play(scene, before=before)


def test_settling_waits_for_a_take_that_is_under_way() -> None:
    async def before(stage: Stage) -> None:
        for number in range(4):
            await stage.has_lease(number, None)
        stage.table.writes.append(Trouble.HANGS_AFTER)

    async def scene(stage: Stage) -> None:
        await anyio.sleep(0.1)
        await stage.taker.settle()
        assert len(stage.renewer.held) == 4

    play(scene, before=before)


def test_a_malformed_row_is_reported_once() -> None:
    async def before(stage: Stage) -> None:
        await TroubledTable.put(stage.table, {"leaseKey": "shardId-bad", "checkpoint": "soon"})

    async def scene(stage: Stage) -> None:
        await anyio.sleep(60)

    assert play(scene, before=before).log.events("error") == ["lease_row_malformed"]


def test_a_lease_stolen_from_us_by_another_is_lost_to_our_consumer() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(0.5)
        key = stage.found[0]
        held = stage.renewer.held[key]
        await TroubledTable.update(stage.table, lease_row.steal_or_take(await stage.lease(key), OTHER))
        await anyio.sleep(5)
        assert held.lost is not None
        assert not (await TroubledTable.update(stage.table, renewal(held.lease, None))).applied

    play(scene)


def test_leases_are_taken_while_kinesis_does_not_answer() -> None:
    async def before(stage: Stage) -> None:
        stage.kinesis.takes_s = 380.0
        for number in range(2):
            await stage.has_lease(number, None)

    async def scene(stage: Stage) -> None:
        await anyio.sleep(60.0)
        assert len(stage.found) == 2
        assert stage.leader.leads

    play(scene, before=before)


def test_leases_are_complete_once_each_shard_has_one_and_this_worker_leads() -> None:
    async def before(stage: Stage) -> None:
        stage.kinesis.takes_s = 20.5
        await stage.has_lease(0, None)

    async def scene(stage: Stage) -> None:
        await anyio.sleep(20.0)
        assert stage.found, "the one that is there is read meanwhile"
        assert not stage.taker.complete
        await anyio.sleep(40.0)
        assert len(stage.taker.complete) == 4

    play(scene, before=before)


def test_leases_of_which_one_cannot_be_read_are_not_complete() -> None:
    async def before(stage: Stage) -> None:
        await TroubledTable.put(stage.table, {"leaseKey": "shardId-bad", "checkpoint": "soon"})

    async def scene(stage: Stage) -> None:
        await anyio.sleep(60)
        assert stage.leader.leads
        assert not stage.taker.complete

    play(scene, before=before)


def test_only_who_leads_by_shuffle_says_which_leases_are_complete() -> None:
    keys: list[LeaseKey] = []

    async def before(stage: Stage) -> None:
        keys.extend([await stage.has_lease(number, OTHER) for number in range(4)])

    async def scene(stage: Stage) -> None:
        async with anyio.create_task_group() as background:
            background.start_soon(stage.renew_forever, *keys)
            await anyio.sleep(60.0)
            assert not stage.leader.leads
            assert not stage.taker.complete
            background.cancel_scope.cancel()

    play(scene, before=before)
