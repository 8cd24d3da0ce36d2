"""A worker deletes the finished leases that bear its name, where whoever leads gives them away and deletes none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

import anyio

from kcl_daemon.config.balance import ShardSettings
from kcl_daemon.fleet.shard_sync import clean_own_leases
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import Lease, LeaseKey, ShardId, WorkerId
from kcl_daemon.leases.row import RowUpdate
from kcl_protocol.sequence import SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber
from tests.simulator.loop import run_virtual
from tests.simulator.memory.table import MemoryTable
from tests.unit.fakes import MemoryLog
from tests.unit.fleet.contexts import worker_context
from tests.unit.troubled import Trouble, TroubledTable

ME, JAVA = WorkerId("me"), WorkerId("java")
OLD, OLDER, OPEN = (ShardId(name) for name in ("old", "older", "open"))
MINUTE_S = 60.0
READ = ExtendedSequenceNumber("7" * 56)


class Stage:
    """A shard, its finished parent and that one's finished parent, and the cleaner of a worker that knows of both."""

    def __init__(self, settings: ShardSettings) -> None:
        self.table, self.log = TroubledTable(), MemoryLog()
        self.noticed: Collection[str] = {OLD, OLDER}
        self.leads = False
        self._settings = settings

    async def clean(self) -> None:
        await clean_own_leases(
            worker_context(ME, log=self.log),
            table=self.table,
            finished=lambda: self.noticed,
            leading=lambda: self.leads,
            settings=self._settings,
        )

    async def has(
        self,
        key: ShardId,
        at: ExtendedSequenceNumber,
        *,
        parent: ShardId | None = None,
        child: ShardId | None = None,
    ) -> None:
        lease = Lease(
            LeaseKey(key),
            3,
            at,
            lease_owner=ME,
            parent_shard_ids=frozenset(filter(None, {parent})),
            child_shard_ids=frozenset(filter(None, {child})),
        )
        await self.table.put(lease_row.new_lease_row(lease))

    async def put(self, key: ShardId, **values: str) -> None:
        await self.table.update(RowUpdate(key, put=values))

    async def keys(self) -> set[str]:
        return {str(row["leaseKey"]) for row in await MemoryTable.scan(self.table)}

    @property
    def scans(self) -> int:
        return self.table.calls.count("scan")


def play(scene: Callable[[Stage], Awaitable[None]], settings: ShardSettings | None = None) -> Stage:
    async def main() -> Stage:
        stage = Stage(settings or ShardSettings())
        await stage.table.ensure()
        await stage.has(OLDER, SHARD_END, child=OLD)
        await stage.has(OLD, SHARD_END, parent=OLDER, child=OPEN)
        await stage.has(OPEN, READ, parent=OLD)
        async with anyio.create_task_group() as background:
            background.start_soon(stage.clean)
            await scene(stage)
            background.cancel_scope.cancel()
        return stage

    return run_virtual(main)


def test_former_leases_are_deleted_after_five_minutes_parents_first() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(5 * MINUTE_S - 1)
        assert await stage.keys() == {OLDER, OLD, OPEN}
        await anyio.sleep(2)
        assert await stage.keys() == {OPEN}

    assert play(scene).log.events("info") == ["lease_deleted", "lease_deleted"]


def test_one_whose_child_has_not_begun_waits_until_it_has() -> None:
    async def scene(stage: Stage) -> None:
        await stage.put(OPEN, checkpoint=TRIM_HORIZON.sequence_number)
        await anyio.sleep(6 * MINUTE_S)
        assert await stage.keys() == {OLD, OPEN}
        await stage.put(OPEN, checkpoint=READ.sequence_number)
        await anyio.sleep(5 * MINUTE_S)
        assert await stage.keys() == {OPEN}

    play(scene)


def test_one_that_ended_just_now_waits_for_the_next_look() -> None:
    async def scene(stage: Stage) -> None:
        stage.noticed = {OLDER}
        await anyio.sleep(4.5 * MINUTE_S)
        stage.noticed = {OLDER, OLD}
        await anyio.sleep(MINUTE_S)
        assert await stage.keys() == {OLD, OPEN}, "a create of it may still be on its way"
        await anyio.sleep(5 * MINUTE_S)
        assert await stage.keys() == {OPEN}

    play(scene)


def test_a_former_lease_of_another_worker_stays_and_holds_back_those_of_its_children() -> None:
    async def scene(stage: Stage) -> None:
        await stage.put(OLDER, leaseOwner=JAVA)
        await anyio.sleep(11 * MINUTE_S)
        assert await stage.keys() == {OLDER, OLD, OPEN}

    play(scene)


def test_the_table_is_not_read_where_there_is_nothing_to_delete_or_we_lead() -> None:
    async def scene(stage: Stage) -> None:
        stage.noticed = ()
        await anyio.sleep(11 * MINUTE_S)
        stage.noticed, stage.leads = {OLD}, True
        await anyio.sleep(11 * MINUTE_S)
        assert stage.scans == 0
        stage.leads = False
        await anyio.sleep(6 * MINUTE_S)
        assert stage.scans == 1

    play(scene)


def test_nothing_goes_where_clean_up_is_off() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(60 * MINUTE_S)
        assert await stage.keys() == {OLDER, OLD, OPEN}

    play(scene, ShardSettings(cleanup_finished=False))


def test_a_table_that_refuses_and_a_row_that_is_no_lease_do_not_end_it() -> None:
    async def scene(stage: Stage) -> None:
        await stage.table.put({"leaseKey": "odd", "checkpoint": "?"})
        stage.table.reads.append(Trouble.THROTTLED)
        await anyio.sleep(6 * MINUTE_S)
        assert stage.log.events("info") == ["lease_cleanup_failed"]
        await anyio.sleep(5 * MINUTE_S)
        assert await stage.keys() == {OPEN, "odd"}

    play(scene)
