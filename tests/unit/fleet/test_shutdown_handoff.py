"""What a worker does before it stops reading."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from kcl_daemon.assignment.plan import by_lease_count
from kcl_daemon.fleet.shutdown_handoff import ShutdownHandoff
from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.leader import LEADER_KEY, LeaderLock, lock_from_row, lock_row
from kcl_daemon.leases.lease import Lease, LeaseKey, WorkerId
from kcl_daemon.leases.worker_row import report
from kcl_daemon.ports import Tables
from kcl_protocol.sequence import TRIM_HORIZON
from tests.simulator.loop import run_virtual
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.fleet.contexts import elector_of, fleet_monitor, lease_renewer, worker_context
from tests.unit.troubled import Trouble, TroubledTable

ME, A, B, LEADER = WorkerId("me"), WorkerId("a"), WorkerId("b"), WorkerId("a")


class Stage:
    """A worker that holds four leases and has left the list of workers; `a` leads."""

    def __init__(self, *, grace_s: float = 20.0, graceful: bool = True) -> None:
        self.clock, self.log = LoopClock(), MemoryLog()
        self.leases = TroubledTable()
        self.workers = TroubledTable("metrics", "wid")
        self.coordinator = TroubledTable("coordinator", "key")
        context = worker_context(ME, clock=self.clock, log=self.log)
        self.renewer = lease_renewer(context, self.leases)
        self.called_away: list[LeaseKey] = []
        self.shutdown = ShutdownHandoff(
            context,
            renewer=self.renewer,
            monitor=fleet_monitor(context, Tables(self.leases, self.workers, self.coordinator)),
            elector=elector_of(context, self.coordinator),
            place=by_lease_count if graceful else None,
            grace_s=grace_s,
        )

    async def begin(self, leases: int = 4) -> None:
        for table in (self.leases, self.workers, self.coordinator):
            await table.ensure()
        for number in range(leases):
            await self.has_lease(f"mine-{number}", ME)
        lock = LeaderLock(LEADER, "v-1", 30_000, assignment_epoch="before")
        await self.coordinator.put(lock_row("key", lock))

    async def has_lease(self, name: str, owner: WorkerId) -> None:
        await self.leases.put(*lease_row.creation(Lease(LeaseKey(name), 3, TRIM_HORIZON, lease_owner=owner)))
        if owner == ME:
            row = await TroubledTable.get(self.leases, name)
            assert row is not None
            held = self.renewer.adopt(lease_row.lease_from_row(row), moved_s=anyio.current_time())
            held.on_change = lambda: self.called_away.append(held.key)

    async def has_peers(self, *peers: WorkerId, reading: int = 10, stands_by: bool = False) -> None:
        for peer in peers:
            now_s = self.clock.wall_ms() // 1000
            await self.workers.update(report(peer, now_s=now_s, stands_by=stands_by))
            for number in range(reading):
                await self.has_lease(f"{peer}-{number}", peer)

    async def live(self, *peers: WorkerId) -> None:
        """Peers renew one of their leases each second; for ever."""
        while True:
            await anyio.sleep(1.0)
            for peer in peers:
                row = await TroubledTable.get(self.leases, f"{peer}-0")
                assert row is not None
                await TroubledTable.update(
                    self.leases, lease_row.renewal(lease_row.lease_from_row(row), None)
                )

    async def gives_up(self) -> None:
        """What follows a farewell."""
        for held in self.renewer.held.values():
            await self.renewer.release_lease(held)

    async def mine(self) -> dict[tuple[str | None, str | None], int]:
        """How many of the leases that were ours have these two owners."""
        owners: dict[tuple[str | None, str | None], int] = {}
        for row in await TroubledTable.scan(self.leases):
            lease = lease_row.lease_from_row(row)
            if lease.lease_key.startswith("mine"):
                key = (lease.lease_owner, lease.checkpoint_owner)
                owners[key] = owners.get(key, 0) + 1
        return owners


def play(scene: Callable[[Stage], Awaitable[None]], stage: Callable[[], Stage] = Stage) -> None:
    async def main() -> None:
        made = stage()
        async with anyio.create_task_group() as background:
            background.start_soon(made.renewer.run)
            await scene(made)
            background.cancel_scope.cancel()

    run_virtual(main)


def test_the_next_owners_are_named_and_have_time_to_look_while_children_work_on() -> None:
    async def scene(stage: Stage) -> None:
        await stage.begin()
        await stage.has_peers(A, B)
        began_s = anyio.current_time()
        async with anyio.create_task_group() as background:
            background.start_soon(stage.live, A, B)
            await stage.shutdown.begin_handoff()
            background.cancel_scope.cancel()
        assert 2.9 < anyio.current_time() - began_s < 3.1
        assert await stage.mine() == {("a", "me"): 2, ("b", "me"): 2}
        assert stage.called_away == []
        lock = lock_from_row(await TroubledTable.get(stage.coordinator, LEADER_KEY))
        assert lock is not None
        assert lock.assignment_epoch not in {None, "before"}
        assert lock.version == "v-1"

    play(scene)


@pytest.mark.parametrize("ready_s", [8.0, 30.0])
def test_next_owners_that_stand_by_get_half_of_the_childrens_time_to_be_ready(ready_s: float) -> None:
    async def become_ready(stage: Stage, key: str, after_s: float) -> None:
        await anyio.sleep(after_s)
        row = await TroubledTable.get(stage.leases, key)
        assert row is not None
        await stage.leases.update(lease_row.ready(lease_row.lease_from_row(row)))

    async def scene(stage: Stage) -> None:
        await stage.begin(leases=2)
        await stage.has_peers(A, stands_by=True)
        began_s = anyio.current_time()
        async with anyio.create_task_group() as background:
            background.start_soon(stage.live, A)
            background.start_soon(become_ready, stage, "mine-0", 6.0)
            background.start_soon(become_ready, stage, "mine-1", ready_s)
            await stage.shutdown.begin_handoff()
            background.cancel_scope.cancel()
        assert anyio.current_time() - began_s == pytest.approx(min(ready_s, 10.0), abs=0.6)
        assert set(stage.called_away) == ({"mine-0", "mine-1"} if ready_s < 10 else {"mine-0"})

    play(scene)


def test_the_child_of_a_next_owner_that_has_left_is_not_waited_for() -> None:
    async def scene(stage: Stage) -> None:
        await stage.begin(leases=2)
        await stage.has_peers(A, stands_by=True)

        async def leave() -> None:
            await anyio.sleep(1.0)
            await stage.workers.delete(A)

        began_s = anyio.current_time()
        async with anyio.create_task_group() as background:
            background.start_soon(leave)
            await stage.shutdown.begin_handoff()
        assert anyio.current_time() - began_s < 7.0

    play(scene)


def test_peers_that_look_rarely_are_waited_for_but_not_for_long() -> None:
    async def scene(stage: Stage) -> None:
        await stage.begin()
        await stage.has_peers(A, reading=0)
        began_s = anyio.current_time()
        await stage.shutdown.begin_handoff()
        assert anyio.current_time() - began_s == 5.0
        assert await stage.mine() == {("a", "me"): 4}

    play(scene)


def test_without_leases_or_peers_nothing_is_waited_for() -> None:
    async def without_peers(stage: Stage) -> None:
        await stage.begin()
        await stage.shutdown.begin_handoff()
        assert anyio.current_time() == 0.0
        assert await stage.mine() == {("me", None): 4}

    async def without_leases(stage: Stage) -> None:
        await stage.begin(leases=0)
        await stage.has_peers(A)
        stage.leases.calls.clear()
        await stage.shutdown.begin_handoff()
        assert anyio.current_time() == 0.0
        assert stage.leases.calls == []

    play(without_peers)
    play(without_leases)


def test_a_row_that_is_old_is_no_peer() -> None:
    async def scene(stage: Stage) -> None:
        await stage.begin()
        await stage.workers.update(report(A, now_s=stage.clock.wall_ms() // 1000 - 300))
        await stage.shutdown.begin_handoff()
        assert await stage.mine() == {("me", None): 4}

    play(scene)


def test_with_little_time_or_without_graceful_handoffs_leases_are_released_as_ever() -> None:
    async def scene(stage: Stage) -> None:
        await stage.begin()
        await stage.has_peers(A)
        await stage.shutdown.begin_handoff()
        assert anyio.current_time() == 0.0
        assert await stage.mine() == {("me", None): 4}

    play(scene, lambda: Stage(grace_s=1.0))
    play(scene, lambda: Stage(graceful=False))


def test_a_fleet_that_cannot_be_read_is_not_waited_for() -> None:
    async def scene(stage: Stage) -> None:
        await stage.begin()
        await stage.has_peers(A)
        stage.leases.reads.append(Trouble.THROTTLED)
        await stage.shutdown.begin_handoff()
        assert anyio.current_time() == 0.0
        assert await stage.mine() == {("me", None): 4}
        assert "shutdown_handoff_failed" in stage.log.events("warning")

    async def hanging(stage: Stage) -> None:
        await stage.begin()
        await stage.has_peers(A)
        stage.leases.reads.append(Trouble.HANGS_BEFORE)
        await stage.shutdown.begin_handoff()
        assert anyio.current_time() < 3.4

    play(scene)
    play(hanging)


def test_a_write_that_fails_is_no_reason_to_leave_the_others() -> None:
    async def scene(stage: Stage) -> None:
        await stage.begin()
        await stage.has_peers(A)
        stage.leases.writes.append(Trouble.THROTTLED)
        await stage.shutdown.begin_handoff()
        assert await stage.mine() == {("a", "me"): 3, ("me", None): 1}

    play(scene)


def test_a_lease_announced_to_a_worker_that_leaves_meanwhile_is_released() -> None:
    async def scene(stage: Stage) -> None:
        await stage.begin()
        await stage.has_peers(A, B)
        async with anyio.create_task_group() as background:
            background.start_soon(stage.live, A)
            async with anyio.create_task_group() as shutdown:
                shutdown.start_soon(stage.shutdown.begin_handoff)
                await anyio.sleep(1.0)
                await stage.workers.delete(B)
            background.cancel_scope.cancel()
        await stage.gives_up()
        assert await stage.mine() == {("a", None): 2, (None, None): 2}

    play(scene)


def test_a_handoff_that_the_leader_began_to_a_worker_that_has_left_is_a_release() -> None:
    async def scene(stage: Stage) -> None:
        await stage.begin(leases=2)
        await stage.has_peers(A)
        row = await TroubledTable.get(stage.leases, "mine-0")
        assert row is not None
        await TroubledTable.update(stage.leases, lease_row.handoff(lease_row.lease_from_row(row), B))
        async with anyio.create_task_group() as background:
            background.start_soon(stage.live, A)
            await stage.shutdown.begin_handoff()
            background.cancel_scope.cancel()
        await stage.gives_up()
        assert await stage.mine() == {("a", None): 1, (None, None): 1}

    play(scene)


def test_a_handoff_that_the_leader_began_to_a_worker_that_stops_at_the_same_time_is_a_release() -> None:
    async def scene(stage: Stage) -> None:
        await stage.begin(leases=2)
        await stage.has_peers(A, B)
        row = await TroubledTable.get(stage.leases, "mine-0")
        assert row is not None
        await TroubledTable.update(stage.leases, lease_row.handoff(lease_row.lease_from_row(row), B))
        async with anyio.create_task_group() as shutdown:
            shutdown.start_soon(stage.shutdown.begin_handoff)
            await anyio.sleep(1.0)
            await stage.workers.delete(B)
            await anyio.sleep(1.0)
            await stage.gives_up()
            shutdown.cancel_scope.cancel()
        assert await stage.mine() == {("a", None): 1, (None, None): 1}

    play(scene)


def test_a_lease_announced_to_a_worker_without_sign_of_life_is_released() -> None:
    async def scene(stage: Stage) -> None:
        await stage.begin()
        await stage.has_peers(A, B)  # B died a moment ago: its row is fresh, its leases do not move
        began_s = anyio.current_time()
        async with anyio.create_task_group() as background:
            background.start_soon(stage.live, A)
            await stage.shutdown.begin_handoff()
            background.cancel_scope.cancel()
        assert anyio.current_time() - began_s == pytest.approx(4.5)
        await stage.gives_up()
        assert await stage.mine() == {("a", None): 2, (None, None): 2}

    play(scene)


def test_a_report_is_a_sign_of_life_and_who_has_no_leases_need_not_show_one() -> None:
    async def scene(stage: Stage) -> None:
        await stage.begin()
        await stage.has_peers(A)
        await stage.has_peers(B, reading=0)
        async with anyio.create_task_group() as background:
            background.start_soon(stage.shutdown.begin_handoff)
            await anyio.sleep(2.0)
            await stage.workers.update(report(A, now_s=stage.clock.wall_ms() // 1000))
        await stage.gives_up()
        assert set(await stage.mine()) <= {("a", None), ("b", None)}

    play(scene)


def test_a_next_owner_without_leases_whose_report_is_late_gets_none() -> None:
    """Found by the simulator, `everything` 189: the row of a stopped worker could not be deleted."""

    async def scene(stage: Stage) -> None:
        await stage.begin()
        await stage.workers.update(report(A, now_s=stage.clock.wall_ms() // 1000 - 50))
        await stage.shutdown.begin_handoff()
        await stage.gives_up()
        assert await stage.mine() == {(None, None): 4}

    play(scene)


def test_a_next_owner_that_renews_its_leases_gets_more_though_the_date_of_its_report_is_old() -> None:
    async def scene(stage: Stage) -> None:
        await stage.begin()
        await stage.has_peers(A)
        await stage.workers.update(report(A, now_s=stage.clock.wall_ms() // 1000 - 50))
        async with anyio.create_task_group() as background:
            background.start_soon(stage.live, A)
            await stage.shutdown.begin_handoff()
            background.cancel_scope.cancel()
        await stage.gives_up()
        assert await stage.mine() == {("a", None): 4}

    play(scene)


def test_with_less_time_than_a_renewal_takes_nobody_is_judged() -> None:
    async def scene(stage: Stage) -> None:
        await stage.begin()
        await stage.has_peers(A)
        await stage.shutdown.begin_handoff()
        assert anyio.current_time() < 3.1
        await stage.gives_up()
        assert await stage.mine() == {("a", None): 4}

    play(scene, lambda: Stage(grace_s=6.0))


def test_a_look_back_that_gets_no_answer_changes_nothing() -> None:
    async def scene(stage: Stage) -> None:
        await stage.begin()
        await stage.has_peers(A)
        async with anyio.create_task_group() as background:
            background.start_soon(stage.shutdown.begin_handoff)
            await anyio.sleep(1.0)
            stage.leases.reads.append(Trouble.HANGS_BEFORE)
        await stage.gives_up()
        assert await stage.mine() == {("a", None): 4}
        assert "shutdown_handoff_not_checked" in stage.log.events("debug")

    play(scene)
