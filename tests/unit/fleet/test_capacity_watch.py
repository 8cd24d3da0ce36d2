"""The leader's estimate: when it is made, stored and read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from kcl_daemon.capacity.figures import Capacity, CapacityTargets, WorkerLoad, load_text
from kcl_daemon.fleet.capacity_watch import CapacityWatch, read_capacity
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.row import RowUpdate, creation
from kcl_daemon.leases.text_row import CAPACITY_KEY
from kcl_daemon.leases.worker_row import report
from kcl_daemon.ports import Tables
from kcl_protocol.sequence import TRIM_HORIZON
from tests.simulator.loop import run_virtual
from tests.simulator.memory.table import MemoryTable
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.fleet.contexts import fleet_monitor, worker_context
from tests.unit.troubled import Trouble, TroubledTable

ME, OTHER, JAVA = WorkerId("me"), WorkerId("other"), WorkerId("java")
SECOND_LEASE = Lease(LeaseKey("shardId-000000000002"), 1, TRIM_HORIZON)


class Fleet:
    """Tables of one application, shared by the watches of several workers."""

    def __init__(self) -> None:
        self.coordinator = TroubledTable("app-CoordinatorState", "key")
        self.leases = MemoryTable("app", "leaseKey", has_owner_index=True)
        self.workers = MemoryTable("app-WorkerMetricStats", "wid")
        self.tables = Tables(self.leases, self.workers, self.coordinator)
        self.log = MemoryLog()
        self.leader = ME

    async def begin(self) -> None:
        for table in (self.coordinator, self.leases, self.workers):
            await table.ensure()
        await self.add_lease(Lease(LeaseKey("shardId-000000000001"), 1, TRIM_HORIZON))
        await self.reports(ME)

    async def add_lease(self, lease: Lease) -> None:
        await self.leases.put(*creation(lease))

    async def reports(self, worker: WorkerId, *, tells: bool = True) -> None:
        now_ms = LoopClock().wall_ms()
        text = load_text(WorkerLoad(worker, now_ms, 0.1, (), left_out=1)) if tells else None
        await self.workers.update(report(worker, now_s=now_ms // 1000, load=text))

    def watch(self, worker: WorkerId = ME) -> LeaderWatch:
        return LeaderWatch(self, worker)

    async def stored(self) -> Capacity | None:
        return (await read_capacity(self.coordinator))[1]


class LeaderWatch:
    """One worker's watch and what its assigner does."""

    def __init__(self, fleet: Fleet, worker: WorkerId) -> None:
        self.fleet = fleet
        self.worker = worker
        context = worker_context(worker, log=fleet.log)
        self.monitor = fleet_monitor(context, fleet.tables)
        self.watch = CapacityWatch(
            context,
            table=fleet.coordinator,
            monitor=self.monitor,
            leads=lambda: fleet.leader == worker,
            targets=CapacityTargets(60.0),
        )

    async def assigns(self, seconds: float, *, every_s: float = 2.0) -> None:
        """The assigner runs so long."""
        end_s = anyio.current_time() + seconds
        while anyio.current_time() < end_s:
            await self.fleet.reports(self.worker)
            await self.monitor.poll()
            self.watch.assigned()
            await anyio.sleep(every_s)


def play(scene: Callable[[Fleet, LeaderWatch], Awaitable[None]]) -> Fleet:
    async def course() -> Fleet:
        fleet = Fleet()
        await fleet.begin()
        mine = fleet.watch()
        async with anyio.create_task_group() as background:
            background.start_soon(mine.watch.run)
            await scene(fleet, mine)
            background.cancel_scope.cancel()
        return fleet

    return run_virtual(course)


def writes_of(fleet: Fleet) -> int:
    return sum(call in {"put", "update"} for call in fleet.coordinator.calls)


def test_an_unchanged_estimate_is_stored_once_a_minute_and_read_once_a_term() -> None:
    async def scene(_: Fleet, mine: LeaderWatch) -> None:
        await mine.assigns(600)

    fleet = play(scene)
    assert 9 <= writes_of(fleet) <= 12
    assert fleet.coordinator.calls.count("get") == 1


def test_the_stored_estimate_counts_shards_workers_and_silent_workers() -> None:
    async def scene(fleet: Fleet, mine: LeaderWatch) -> None:
        await fleet.reports(OTHER)
        await fleet.reports(JAVA, tells=False)
        await mine.assigns(10)
        stored = await fleet.stored()
        assert stored is not None
        assert stored == mine.watch.capacity
        assert (stored.by, stored.workers, stored.silent, stored.whole.shards) == (ME, 3, 1, 1)

    play(scene)


def test_a_report_of_another_version_is_one_that_tells_nothing() -> None:
    async def scene(fleet: Fleet, mine: LeaderWatch) -> None:
        now_s = LoopClock().wall_ms() // 1000
        await fleet.workers.update(report(OTHER, now_s=now_s, load="[99]"))
        await mine.assigns(10)
        assert mine.watch.capacity is not None
        assert (mine.watch.capacity.workers, mine.watch.capacity.silent) == (2, 1)

    play(scene)


def test_a_new_lease_is_noticed_at_the_next_assignment_and_stored_in_its_time() -> None:
    async def scene(fleet: Fleet, mine: LeaderWatch) -> None:
        await mine.assigns(6)
        await fleet.add_lease(SECOND_LEASE)
        before = writes_of(fleet)
        await mine.assigns(4)
        assert mine.watch.capacity is not None
        assert mine.watch.capacity.whole.shards == 2
        assert writes_of(fleet) == before
        await mine.assigns(30)
        stored = await fleet.stored()
        assert stored is not None
        assert stored.whole.shards == 2

    play(scene)


def test_the_next_leader_goes_on_from_what_is_stored_and_the_former_one_learns_of_it() -> None:
    async def scene(fleet: Fleet, mine: LeaderWatch) -> None:
        await mine.assigns(10)
        first = await fleet.stored()
        assert first is not None
        other = fleet.watch(OTHER)
        async with anyio.create_task_group() as background:
            background.start_soon(other.watch.run)
            fleet.leader = OTHER
            other.watch.begin_term()
            await other.assigns(70)
            stored = await fleet.stored()
            assert stored is not None
            assert (stored.by, stored.since_ms) == (OTHER, first.since_ms)
            assert mine.watch.capacity == first
            await mine.watch.read()
            assert mine.watch.capacity == stored
            background.cancel_scope.cancel()

    play(scene)


def test_of_two_leaders_one_is_refused_and_the_row_stays_one_of_theirs() -> None:
    async def scene(fleet: Fleet, mine: LeaderWatch) -> None:
        await mine.assigns(4)
        await fleet.coordinator.update(RowUpdate(CAPACITY_KEY, put={"streamId": "of another"}))
        await mine.assigns(60)
        refused = await fleet.coordinator.get(CAPACITY_KEY)
        assert refused is not None
        await mine.assigns(70)
        stored = await fleet.stored()
        assert stored is not None
        assert stored.by == ME, "it has learned what the row says, and writes the next time"

    play(scene)


def test_a_write_that_fails_is_made_good_at_the_next_run() -> None:
    async def scene(fleet: Fleet, mine: LeaderWatch) -> None:
        fleet.coordinator.writes.extend([Trouble.FAILED_AFTER, Trouble.FAILED_BEFORE, Trouble.HANGS_BEFORE])
        await mine.assigns(30)
        stored = await fleet.stored()
        assert stored is not None
        assert stored.by == ME

    assert play(scene).log.events() == ["capacity_not_stored"] * 3


def test_after_a_failed_write_an_estimate_of_now_is_stored_not_the_former_leaders_again() -> None:
    async def scene(fleet: Fleet, mine: LeaderWatch) -> None:
        former = fleet.watch(OTHER)
        async with anyio.create_task_group() as background:
            background.start_soon(former.watch.run)
            fleet.leader = OTHER
            await former.assigns(4)
            background.cancel_scope.cancel()
        await fleet.add_lease(SECOND_LEASE)
        fleet.leader = ME
        fleet.coordinator.writes.append(Trouble.THROTTLED)
        await mine.assigns(6)
        stored = await fleet.stored()
        assert stored is not None
        assert (stored.by, stored.whole.shards) == (ME, 2)
        assert mine.watch.capacity == stored

    play(scene)


def test_a_worker_that_does_not_lead_stores_nothing() -> None:
    async def scene(fleet: Fleet, mine: LeaderWatch) -> None:
        fleet.leader = OTHER
        await mine.assigns(60)
        assert mine.watch.capacity is None

    assert writes_of(play(scene)) == 0
