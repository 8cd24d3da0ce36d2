"""What becomes of calls, and of those who make them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest

from kcl_daemon.errors import AwsError, IteratorExpired, Throttled, Unavailable
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.leases.row import Absent, RowUpdate
from kcl_daemon.ports import IteratorKind, ReadFrom, StreamRef
from kcl_local.kinesis.model import KinesisModel
from tests.simulator.chance import Chance
from tests.simulator.clock import EPOCH_S
from tests.simulator.faults.life import Life, Service, WorkerKilled
from tests.simulator.faults.network import Network, Trouble, WriteLimit
from tests.simulator.faults.ports import FaultyKinesis, FaultyTable, RowWrite
from tests.simulator.loop import now, run_virtual
from tests.simulator.memory.kinesis import MemoryKinesis
from tests.simulator.memory.table import MemoryTable
from tests.unit.simulator.helpers import in_lane

ADD = RowUpdate("k", add={"n": 1})


class Writes(list[RowWrite]):
    """An observer that remembers."""

    def row_written(self, write: RowWrite) -> None:
        self.append(write)


class Bench:
    """One worker, one table, one network."""

    def __init__(self, trouble: Trouble | None = None) -> None:
        self.life = Life("worker")
        self.network = Network(Chance("bench"))
        self.network.trouble[Service.DYNAMODB] = trouble or Trouble()
        self.writes = Writes()
        self.shared = MemoryTable("table", "key")
        self.table = FaultyTable(self.shared, life=self.life, network=self.network, observer=self.writes)

    async def count(self) -> object:
        """How often ADD has taken effect by now."""
        row = await self.shared.get("k")
        return None if row is None else row["n"]


def on_bench(trouble: Trouble | None, run: Callable[[Bench], Awaitable[None]]) -> None:
    async def main() -> None:
        bench = Bench(trouble)
        await bench.shared.ensure()
        await run(bench)

    run_virtual(main)


def test_an_ordinary_call_takes_a_moment_and_is_observed() -> None:
    async def run(bench: Bench) -> None:
        written = await bench.table.update(ADD)
        assert written.applied
        assert 0.002 <= now() <= 0.02
        assert bench.writes == [RowWrite(now(), "worker", "table", "k", None, written.row)]

    on_bench(None, run)


def test_a_refused_write_is_not_observed() -> None:
    async def run(bench: Bench) -> None:
        await bench.table.update(ADD)
        written = await bench.table.put({"key": "k"}, (Absent("key"),))
        assert not written.applied
        assert len(bench.writes) == 1

    on_bench(None, run)


def test_a_delete_is_observed_with_the_row_that_went() -> None:
    async def run(bench: Bench) -> None:
        await bench.table.update(ADD)
        await bench.table.delete("k")
        assert bench.writes[-1].before == {"key": "k", "n": 1}
        assert bench.writes[-1].after is None

    on_bench(None, run)


@pytest.mark.parametrize(
    ("trouble", "error", "count_at_the_error", "count_at_the_end"),
    [
        (Trouble(throttled=1.0), Throttled, None, None),
        (Trouble(lost=1.0), Unavailable, None, None),
        (Trouble(unanswered=1.0), Unavailable, 1, 1),
        (Trouble(belated=1.0), Unavailable, None, 1),
    ],
)
def test_each_trouble_with_a_write(
    trouble: Trouble, error: type[AwsError], count_at_the_error: int | None, count_at_the_end: int | None
) -> None:
    async def run(bench: Bench) -> None:
        with pytest.raises(error):
            await bench.table.update(ADD)
        assert await bench.count() == count_at_the_error
        await anyio.sleep(60)
        assert await bench.count() == count_at_the_end

    on_bench(trouble, run)


def test_a_slow_call_takes_effect_before_its_answer_arrives() -> None:
    async def run(bench: Bench) -> None:
        await bench.table.update(ADD)
        assert 1.0 <= now() <= 30.0
        assert bench.writes[0].at_s < now()

    on_bench(Trouble(slow=1.0), run)


def test_a_cancelled_write_is_still_on_its_way() -> None:
    async def run(bench: Bench) -> None:
        with anyio.move_on_after(0.001):
            await bench.table.update(ADD)
        assert await bench.count() is None
        await anyio.sleep(1)
        assert await bench.count() == 1

    on_bench(None, run)


def test_reads_are_never_belated() -> None:
    async def run(bench: Bench) -> None:
        with pytest.raises(Unavailable):
            await bench.table.get("k")

    on_bench(Trouble(belated=1.0), run)


def test_a_worker_that_is_cut_off_reaches_nothing_until_it_is_connected_again() -> None:
    async def run(bench: Bench) -> None:
        bench.life.cut_off(Service.DYNAMODB)
        with pytest.raises(Unavailable):
            await bench.table.update(ADD)
        bench.life.reconnect()
        assert (await bench.table.update(ADD)).applied

    on_bench(None, run)


def test_calm_ends_all_trouble() -> None:
    async def run(bench: Bench) -> None:
        bench.network.calm()
        assert (await bench.table.update(ADD)).applied

    on_bench(Trouble(throttled=1.0), run)


def test_a_paused_worker_gets_its_answer_when_it_goes_on() -> None:
    async def run(bench: Bench) -> None:
        answered: list[float] = []

        async def write() -> None:
            await bench.table.update(ADD)
            answered.append(now())

        in_lane(bench.life.limiter, write)
        await anyio.sleep(0.001)
        bench.life.pause()
        await anyio.sleep(100)
        assert await bench.count() == 1  # it was on its way
        assert answered == []
        bench.life.resume()
        await anyio.sleep(1)
        assert answered == [100.001]

    on_bench(None, run)


def test_a_killed_worker_makes_no_further_call_and_gets_no_answer() -> None:
    async def run(bench: Bench) -> None:
        ends: list[str] = []

        async def write() -> None:
            try:
                await bench.table.update(ADD)
                ends.append("answered")
            finally:
                with anyio.CancelScope(shield=True):
                    try:
                        await bench.table.update(ADD)
                    except WorkerKilled:
                        ends.append("killed")

        async def process() -> None:
            with anyio.CancelScope() as scope:
                bench.life.on_death(scope.cancel)
                await write()

        in_lane(bench.life.limiter, process)
        await anyio.sleep(0.001)
        bench.life.kill()
        await anyio.sleep(10)
        assert ends == ["killed"]
        assert await bench.count() == 1  # the first write was on its way, the second one never left

    on_bench(None, run)


def test_a_worker_can_be_killed_while_it_is_paused() -> None:
    async def run(bench: Bench) -> None:
        ended: list[float] = []

        async def process() -> None:
            with anyio.CancelScope() as scope:
                bench.life.on_death(scope.cancel)
                await anyio.sleep_forever()
            ended.append(now())

        in_lane(bench.life.limiter, process)
        await anyio.sleep(1)
        bench.life.pause()
        await anyio.sleep(1)
        bench.life.kill()
        bench.life.kill()
        bench.life.pause()
        await anyio.sleep(1)
        assert ended == [2.0]
        assert not bench.life.is_paused

    on_bench(None, run)


@pytest.mark.parametrize(("before", "count"), [(True, 2), (False, 3)])
def test_a_worker_dies_at_its_nth_write(before: bool, count: int) -> None:
    async def run(bench: Bench) -> None:
        bench.network.write_limits["worker"] = WriteLimit(3, before)
        await bench.table.update(ADD)
        await bench.table.update(ADD)
        with pytest.raises(WorkerKilled):
            await bench.table.update(ADD)
        assert bench.life.is_dead
        assert await bench.count() == count

    on_bench(None, run)


def test_all_wait_until_a_new_table_can_be_used() -> None:
    async def run(bench: Bench) -> None:
        fresh = MemoryTable("fresh", "key")
        first, second = (
            FaultyTable(fresh, life=Life(name), network=bench.network, observer=bench.writes)
            for name in ("first", "second")
        )
        created: dict[str, bool] = {}
        ready: list[float] = []

        async def ensure(table: FaultyTable, name: str) -> None:
            created[name] = await table.ensure()
            ready.append(now())

        async with anyio.create_task_group() as group:
            group.start_soon(ensure, first, "first")
            group.start_soon(ensure, second, "second")
        assert sorted(created.values()) == [False, True]
        assert ready[0] == ready[1] > 3.0
        assert await first.ensure() is False
        assert now() - ready[0] < 0.1

    on_bench(None, run)


def test_iterators_expire_when_the_plan_says_so() -> None:
    async def main() -> None:
        model = KinesisModel(lambda: EPOCH_S + now())
        model.handle("CreateStream", {"StreamName": "s", "ShardCount": 1})
        network = Network(Chance("kinesis"))
        kinesis = FaultyKinesis(MemoryKinesis(model), life=Life("w"), network=network)
        stream, shard_id = StreamRef("s"), ShardId("shardId-000000000000")
        start = ReadFrom(IteratorKind.TRIM_HORIZON)
        assert (await kinesis.describe_stream(stream)).name == "s"
        assert [shard.shard_id for shard in await kinesis.list_shards(stream)] == [shard_id]
        iterator = await kinesis.get_shard_iterator(stream, shard_id, start)
        assert (await kinesis.get_records(stream, shard_id, iterator, 10)).records == []
        network.trouble[Service.KINESIS] = Trouble(expired=1.0)
        with pytest.raises(IteratorExpired):
            await kinesis.get_records(stream, shard_id, iterator, 10)

    run_virtual(main)
