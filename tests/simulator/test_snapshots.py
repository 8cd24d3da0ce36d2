"""What a worker tells of itself, asked in the middle of a run of whole workers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import anyio
import pytest

from kcl_daemon.app import Adapters, Application
from kcl_daemon.config.settings import Settings
from kcl_daemon.leases.lease import StreamIdentity
from kcl_daemon.progress.progress import WaitReason
from kcl_daemon.telemetry.shards import ShardView
from kcl_daemon.telemetry.snapshot import LeaseView, Snapshot
from kcl_daemon.worker import Worker
from tests.simulator.chance import Chance
from tests.simulator.faults.behaviour import Behaviour, ChildrenPlan, Mischief
from tests.simulator.faults.life import Service
from tests.simulator.fleet import workers as fleet
from tests.simulator.fleet.world import Sabotage, World
from tests.simulator.loop import run_virtual
from tests.simulator.plans.plan import CutOff, Plan, Planned, Start, StreamAppears
from tests.simulator.trace import Trace

QUIET = Plan(
    shards=4,
    records_per_s=8.0,
    events=(Planned(0.0, Start()), Planned(5.0, Start())),
    calm_at_s=1000.0,
    ends_at_s=1000.0,
    children_plan=ChildrenPlan(behaviour=Behaviour()),
)


class Run:
    """A world in which every worker can be asked."""

    def __init__(self, plan: Plan) -> None:
        self.world = World(plan, Chance("snapshots"), Trace(), Sabotage())
        self.assembled: list[Application] = []

    def build(self, settings: Settings, adapters: Adapters) -> Worker:
        # A lease that is released for its failing children begins anew.
        settings = replace(settings, failures=replace(settings.failures, failures_most=0))
        self.assembled.append(Application(settings, adapters))
        return self.assembled[-1].worker

    @property
    def now(self) -> list[Snapshot]:
        return [assembled.snapshots.now() for assembled in self.assembled]

    def sorted_by_role(self) -> tuple[Application, Application]:
        """The leader and the other one."""
        first, second = self.assembled
        return (first, second) if first.snapshots.now().leads else (second, first)


def during(plan: Plan, monkeypatch: pytest.MonkeyPatch, poll: Callable[[Run], Awaitable[None]]) -> None:
    async def course() -> None:
        run = Run(plan)
        monkeypatch.setattr(fleet, "build", run.build)
        run.world.begin()
        await poll(run)

    run_virtual(course)


def test_two_workers_tell_who_leads_and_what_they_read(monkeypatch: pytest.MonkeyPatch) -> None:
    async def poll(run: Run) -> None:
        await anyio.sleep(90)
        leader, other = run.sorted_by_role()
        leads, follows = leader.snapshots.now(), other.snapshots.now()
        assert (leads.leads, follows.leads) == (True, False)
        assert leads.leader == follows.leader == leads.worker_id
        assert leads.leaderless_s is follows.leaderless_s is None
        assert leads.started
        assert not leads.stopping
        assert len(leads.fleet) == 4
        assert {worker.worker_id for worker in leads.workers} == {leads.worker_id, follows.worker_id}
        assert sum(worker.leases for worker in leads.workers) == 4
        shards = [*leads.shards, *follows.shards]
        assert {shard.key for shard in shards} == {lease.key for lease in leads.fleet}
        for snapshot in (leads, follows):
            assert snapshot.renewed_s is not None
            assert snapshot.renewed_s < 6
            assert {lease.key for lease in leads.fleet if lease.owner == snapshot.worker_id} == {
                shard.key for shard in snapshot.shards
            }
        for shard in shards:
            assert shard.records > 0
            assert shard.child is not None
            assert shard.child.restarts == 0
            assert not shard.stalled
            assert shard.idle_s < 10
            assert shard.checkpoint.isdigit()
        assert any(shard.bytes_per_s > 0 for shard in shards)
        assert {move.key for move in leads.moves} == {lease.key for lease in leads.fleet}
        assert [move.ago_s for move in leads.moves] == sorted(move.ago_s for move in leads.moves)

    during(QUIET, monkeypatch, poll)


def test_one_who_does_not_lead_reads_the_tables_when_asked_and_not_too_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def poll(run: Run) -> None:
        await anyio.sleep(90)
        _, other = run.sorted_by_role()
        assert other.snapshots.now().fleet_age_s is None
        assert other.snapshots.now().fleet == ()
        asked = await other.snapshots.asked()
        assert len(asked.fleet) == 4
        assert len(asked.workers) == 2
        assert asked.fleet_age_s is not None
        assert asked.fleet_age_s < 1
        await anyio.sleep(3)
        again = await other.snapshots.asked()
        assert again.fleet_age_s is not None
        assert 2.9 < again.fleet_age_s < 4.5
        await anyio.sleep(3)
        later = await other.snapshots.asked()
        assert later.fleet_age_s is not None
        assert later.fleet_age_s < 1

    during(QUIET, monkeypatch, poll)


def test_who_cannot_read_the_tables_says_how_old_its_news_is(monkeypatch: pytest.MonkeyPatch) -> None:
    async def poll(run: Run) -> None:
        await anyio.sleep(90)
        leader, other = run.sorted_by_role()
        await other.snapshots.asked()
        run.world.happen(CutOff(run.assembled.index(other), Service.DYNAMODB, 60.0))
        await anyio.sleep(30)
        snapshot = await other.snapshots.asked()
        assert snapshot.fleet_age_s is not None
        assert snapshot.fleet_age_s > 29
        assert snapshot.shards == ()
        assert snapshot.renewed_s is None
        await anyio.sleep(20)
        assert (await other.snapshots.asked()).leaderless_s is not None
        assert leader.snapshots.now().leaderless_s is None

    during(QUIET, monkeypatch, poll)


def test_shards_whose_children_fail_tell_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    children_plan = ChildrenPlan(behaviour=Behaviour(), mischief={Mischief.EXIT: 1.0})
    plan = Plan(
        shards=2,
        records_per_s=8.0,
        events=(Planned(0.0, Start()),),
        calm_at_s=1000.0,
        ends_at_s=1000.0,
        children_plan=children_plan,
    )

    async def poll(run: Run) -> None:
        assert run.world.fleet.workers == []
        await anyio.sleep(0.5)
        assert not run.now[0].started
        assert run.now[0].shards == ()
        await anyio.sleep(150)
        (snapshot,) = run.now
        assert len(snapshot.shards) == 2
        for shard in snapshot.shards:
            assert shard.stalled
            assert shard.failures > 3
            assert shard.cause in {WaitReason.RESTART, WaitReason.STARTING, WaitReason.CHILD}
            assert "ended" in shard.detail
            assert shard.records == 0
        run.world.fleet.workers[0].stop()
        assert run.now[0].stopping

    during(plan, monkeypatch, poll)


def test_shards_of_many_streams_tell_name_and_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    async def poll(run: Run) -> None:
        await anyio.sleep(90)
        (snapshot,) = run.now
        reported: list[ShardView | LeaseView] = [*snapshot.shards, *snapshot.fleet]
        assert {shard.stream for shard in reported} == {"clicks", "orders"}
        for shard in reported:
            assert shard.key == f"{shard.stream_id}:{shard.shard_id}"
            assert shard.stream == StreamIdentity.parse(str(shard.stream_id)).name

    alone = (QUIET.events[0], Planned(0.0, StreamAppears(1, 2)))
    during(replace(QUIET, streams=("clicks", "orders"), events=alone), monkeypatch, poll)
