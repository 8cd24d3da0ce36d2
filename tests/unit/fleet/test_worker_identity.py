"""What a worker takes up from a daemon that was killed on its host, and in which order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from kcl_daemon.assignment.plan import LeaseLimits
from kcl_daemon.fleet.worker_identity import Predecessors
from kcl_daemon.host_ports import LeftoverRecord
from kcl_daemon.leases.expiry import FileLockState, ProcessObservation, ProcessRecord
from kcl_daemon.leases.leader import LeaderLock, lock_row
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.row import lease_from_row, new_lease_row
from kcl_daemon.leases.worker_row import Incarnation, report
from kcl_daemon.ports import Tables
from kcl_protocol.sequence import TRIM_HORIZON
from tests.simulator.loop import run_virtual
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.fleet.contexts import elector_of, worker_context
from tests.unit.troubled import Trouble, TroubledTable

ME, DEAD, NEXT, OTHER = WorkerId("me"), WorkerId("dead"), WorkerId("next"), WorkerId("other")
RECORD = ProcessRecord(DEAD, "nonce", "boot", 7, 4711, 1, 2, 3)


class Folder:
    """A state folder with the record of one dead process."""

    def __init__(self) -> None:
        self.forgotten: list[str] = []

    async def enter(self, worker_id: WorkerId, incarnation: str) -> None:
        pass

    async def poll(self) -> tuple[LeftoverRecord, ...]:
        return (
            LeftoverRecord(
                "dead.json",
                RECORD,
                ProcessObservation("boot", 2, 3, FileLockState.FREE, is_local=True, running=False),
            ),
        )

    async def forget(self, name: str) -> None:
        self.forgotten.append(name)

    async def leave_alone(self, name: str) -> None:
        pass

    async def leave(self) -> None:
        pass


class Stage:
    def __init__(self, room: int = 100) -> None:
        self.log = MemoryLog()
        self.folder = Folder()
        self.tables = Tables(
            TroubledTable(), TroubledTable("metrics", "wid"), TroubledTable("coordinator", "key")
        )
        self.taken: list[str] = []
        self.order: list[str] = []
        clock = LoopClock()
        context = worker_context(ME, clock=clock, log=self.log)
        elector = elector_of(context, self.tables.coordinator)
        take_over_from = elector.take_over_from

        def note(lock: LeaderLock) -> None:
            self.order.append("lock")
            take_over_from(lock)

        elector.take_over_from = note  # type: ignore[method-assign]
        delete = self.tables.worker_metrics.delete

        async def noted(*args: object) -> object:
            self.order.append("row")
            return await delete(*args)  # type: ignore[arg-type]

        self.tables.worker_metrics.delete = noted  # type: ignore[method-assign, assignment]
        self.predecessors = Predecessors(
            context,
            folder=self.folder,
            tables=self.tables,
            mine=Incarnation(1, "mine"),
            elector=elector,
            held=lambda: LeaseLimits(room).of(ME),
            on_taken=self._took,
            on_same_id=lambda: None,
        )

    def _took(self, lease: Lease, _began_s: float) -> None:
        self.order.append("lease")
        self.taken.append(lease.lease_key)

    async def lease(self, key: str, owner: WorkerId, checkpoint_owner: WorkerId | None = None) -> None:
        row = new_lease_row(Lease(LeaseKey(key), 5, TRIM_HORIZON, lease_owner=owner))
        if checkpoint_owner is not None:
            row = {**row, "checkpointOwner": checkpoint_owner}
        await self.tables.leases.put(row)

    async def owner(self, key: str) -> tuple[WorkerId | None, WorkerId | None, int]:
        lease = lease_from_row(await self.tables.leases.get(key) or {})
        return lease.lease_owner, lease.checkpoint_owner, lease.lease_counter

    async def reports(self, worker_id: WorkerId, nonce: str) -> None:
        incarnation = Incarnation(1, nonce)
        await self.tables.worker_metrics.update(report(worker_id, now_s=1, incarnation=incarnation))


def play(scene: Callable[[Stage], Awaitable[None]], room: int = 100) -> Stage:
    async def main() -> Stage:
        stage = Stage(room)
        for table in (stage.tables.leases, stage.tables.worker_metrics, stage.tables.coordinator):
            await table.ensure()
        await stage.reports(DEAD, "nonce")
        await scene(stage)
        return stage

    return run_virtual(main)


async def run(stage: Stage) -> None:
    await stage.predecessors.enter()
    await stage.predecessors.run()


def test_leases_of_the_dead_are_taken_and_those_of_others_are_not_touched() -> None:
    async def scene(stage: Stage) -> None:
        await stage.lease("mine-now", DEAD)
        await stage.lease("others", OTHER)
        await stage.lease("on-its-way", NEXT, DEAD)
        await run(stage)
        assert await stage.owner("mine-now") == (ME, None, 6)
        assert await stage.owner("others") == (OTHER, None, 5)
        assert await stage.owner("on-its-way") == (NEXT, None, 6)
        assert stage.taken == ["mine-now"]
        assert await stage.tables.worker_metrics.get(DEAD) is None
        assert stage.folder.forgotten == ["dead.json"]

    play(scene)


def test_the_row_goes_first_so_that_no_leader_gives_leases_back_to_the_dead() -> None:
    """Its row looks alive for a minute: whoever leads while it stands would hand leases over to it."""

    async def scene(stage: Stage) -> None:
        await stage.lease("shardId-0", DEAD)
        await stage.tables.coordinator.put(lock_row("key", LeaderLock(DEAD, "v-1", 12_000)))
        await run(stage)
        assert stage.order[0] == "row"
        assert sorted(stage.order[1:]) == ["lease", "lock"]

    play(scene)


def test_a_takeover_that_failed_half_way_goes_on_though_the_worker_row_is_gone() -> None:
    async def scene(stage: Stage) -> None:
        await stage.lease("shardId-0", DEAD)
        assert isinstance(stage.tables.leases, TroubledTable)
        stage.tables.leases.writes.append(Trouble.THROTTLED)
        await run(stage)
        assert await stage.owner("shardId-0") == (ME, None, 6)
        assert stage.folder.forgotten == ["dead.json"]

    stage = play(scene)
    assert stage.log.events("warning") == ["predecessor_takeover_failed"]


def test_a_worker_id_that_another_process_has_taken_since_proves_nothing() -> None:
    async def scene(stage: Stage) -> None:
        await stage.lease("shardId-0", DEAD)
        await stage.reports(DEAD, "another")
        await run(stage)
        assert await stage.owner("shardId-0") == (DEAD, None, 5)
        assert await stage.tables.worker_metrics.get(DEAD) is not None

    play(scene)


def test_leases_of_a_predecessor_above_our_maximum_are_released() -> None:
    async def scene(stage: Stage) -> None:
        await stage.lease("shardId-0", DEAD)
        await stage.lease("shardId-1", DEAD)
        await run(stage)
        owners = [(await stage.owner(key))[0] for key in ("shardId-0", "shardId-1")]
        assert owners.count(ME) == 1
        assert owners.count(None) == 1

    play(scene, room=1)
