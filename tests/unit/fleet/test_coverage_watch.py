"""What the leader says of shards that nobody reads: of its own leases that it cannot renew, too."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

import anyio

from kcl_daemon.coverage import UnreadShard
from kcl_daemon.fleet.coverage_watch import CoverageWatch, UnreadFigures
from kcl_daemon.leases.holds import Hold
from kcl_daemon.leases.lease import Lease, LeaseKey, StreamIdentity, WorkerId, lease_key_of
from kcl_daemon.leases.row import new_lease_row
from kcl_daemon.metrics.metric import Metric
from kcl_protocol.sequence import SHARD_END, TRIM_HORIZON
from tests.simulator.loop import run_virtual
from tests.unit.fakes import MemoryLog
from tests.unit.fleet.contexts import fleet_monitor, worker_context
from tests.unit.fleet.test_capacity_watch import ME, OTHER, Fleet

KEY = LeaseKey("shardId-000000000001")


class Figures:
    """The last value of each series."""

    def __init__(self) -> None:
        self.last: dict[tuple[str, str], float] = {}

    def add(self, metric: Metric, value: float = 1.0, /, **labels: str) -> None:
        assert metric.family is not None
        self.last[metric.family.name, "".join(labels.values())] = value


class Leader:
    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.leads, self.figures = fleet, True, Figures()
        self.pauses: list[Hold] = []
        self.found: tuple[UnreadShard, ...] | None = None
        context = replace(worker_context(ME, log=MemoryLog()), meters=self.figures)  # type: ignore[arg-type]
        self.monitor = fleet_monitor(context, fleet.tables)
        self.watch = CoverageWatch(
            context, self.monitor, leads=lambda: self.leads, pauses=lambda: self.pauses
        )

    async def polls(self, seconds: float, *, renews: bool = True) -> None:
        end_s = anyio.current_time() + seconds
        while anyio.current_time() < end_s:
            await self.fleet.reports(ME)
            if renews:
                for row in await self.fleet.leases.scan():
                    counter = row["leaseCounter"]
                    assert isinstance(counter, int)
                    await self.fleet.leases.put({**row, "leaseCounter": counter + 1})
            await self.monitor.poll()
            self.watch.polled()
            self.found = self.watch.unread
            await anyio.sleep(2.0)

    @property
    def causes(self) -> dict[str, str]:
        return {each.key: each.cause for each in self.unread}

    @property
    def unread(self) -> tuple[UnreadShard, ...]:
        """After the last poll."""
        assert self.found is not None
        return self.found


def play(*leases: Lease, scene: Callable[[Leader], Awaitable[None]]) -> Leader:
    async def course() -> Leader:
        fleet = Fleet()
        await fleet.begin()
        for lease in leases:
            await fleet.leases.put(new_lease_row(lease))
        leader = Leader(fleet)
        await scene(leader)
        return leader

    return run_virtual(course)


def mine(owner: WorkerId | None = ME, key: LeaseKey = KEY) -> Lease:
    return Lease(key, 1, TRIM_HORIZON, lease_owner=owner)


def test_a_lease_of_the_leader_that_it_cannot_renew_is_unread_and_ends_when_it_is_renewed() -> None:
    async def scene(leader: Leader) -> None:
        await leader.polls(60, renews=False)
        (found,) = leader.unread
        assert (found.cause, found.owner) == ("silent owner", ME)
        assert 50 <= found.seconds <= 62
        assert leader.figures.last["kcl_shards_unread", ""] == 1
        await leader.polls(10)

    leader = play(mine(), scene=scene)
    assert leader.unread == ()
    assert leader.figures.last["kcl_shards_unread", ""] == 0
    assert leader.figures.last["kcl_shard_unread_seconds", KEY] == 0


def test_a_worker_that_does_not_lead_does_not_know() -> None:
    async def scene(leader: Leader) -> None:
        await leader.polls(4)
        leader.leads = False
        assert leader.watch.unread is None

    play(mine(None), scene=scene)


def test_a_lease_without_an_owner_a_paused_one_and_a_finished_one_are_told_apart() -> None:
    async def scene(leader: Leader) -> None:
        leader.pauses = [Hold(by="ann", reason="deploy", since_ms=0, lease_key="shardId-000000000002")]
        await leader.polls(10)

    done = Lease(LeaseKey("shardId-000000000003"), 1, SHARD_END)
    found = play(mine(None), mine(key=LeaseKey("shardId-000000000002")), done, scene=scene)
    assert found.causes == {KEY: "no owner", "shardId-000000000002": "paused"}


def test_leases_of_many_streams_are_told_with_their_stream() -> None:
    stream = StreamIdentity("123456789012", "orders", 7)
    key = lease_key_of(stream, mine().shard_id)
    found = play(replace(mine(OTHER, key), stream=stream), mine(), scene=lambda leader: leader.polls(4))
    assert found.causes == {}
    found = play(replace(mine(None, key), stream=stream), mine(), scene=lambda leader: leader.polls(4))
    assert found.causes == {key: "no owner"}
    assert found.figures.last["kcl_shard_unread_seconds", f"{KEY}123456789012:orders:7"] >= 0


def test_a_leader_that_was_none_for_a_while_begins_anew() -> None:
    async def scene(leader: Leader) -> None:
        await leader.polls(20)
        assert leader.unread[0].seconds >= 18
        await anyio.sleep(500)
        await leader.polls(4)

    assert play(mine(None), scene=scene).unread[0].seconds <= 6


def test_of_many_unread_shards_a_hundred_have_a_series_and_none_of_them_is_called_read() -> None:
    figures = Figures()
    taking = UnreadFigures(figures)  # type: ignore[arg-type]
    first = [UnreadShard(f"shardId-{number:012d}", "no owner", "", 200.0 - number) for number in range(150)]
    taking.take(first)
    series = [name for name in figures.last if name[0] == "kcl_shard_unread_seconds"]
    assert (len(series), figures.last["kcl_shards_unread", ""]) == (100, 150)
    longest = replace(first[149], seconds=900.0)
    taking.take([longest, *first[:149]])
    assert figures.last["kcl_shard_unread_seconds", first[99].key] == 101.0, (
        "it has lost its place, and is unread"
    )
    taking.take([])
    assert {figures.last[name] for name in series} == {101.0, 0.0}
