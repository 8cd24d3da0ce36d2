"""What the metered ports, the gauges and the log tell, and who runs beside a worker for it."""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
import pytest

from kcl_daemon.app import Adapters
from kcl_daemon.config.children import ChildSettings
from kcl_daemon.config.metrics_and_page import MetricsLevel, MetricsSettings
from kcl_daemon.config.settings import Settings
from kcl_daemon.context import OUTCOMES, CallMetrics
from kcl_daemon.errors import ConfigurationError, SubscriptionTaken, Throttled, Unavailable
from kcl_daemon.exporters import MeteredWorker, telemetry_of
from kcl_daemon.fleet.lease_renewer import RenewalMetrics
from kcl_daemon.fleet.table_views import MonitoredTable
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.metrics import kcl, own
from kcl_daemon.metrics.metric import OPERATIONS
from kcl_daemon.ports import (
    NO_METERS,
    ConsumerName,
    FetchedRecords,
    IteratorKind,
    ReadFrom,
    Statistic,
    StreamRef,
)
from kcl_daemon.retrieval.readers import MeteredFanOut, MeteredKinesis
from kcl_daemon.source import source_named
from kcl_daemon.sources import StreamSources
from kcl_local.kinesis.model import KinesisModel
from tests.simulator.loop import run_virtual
from tests.simulator.memory.kinesis import MemoryKinesis
from tests.unit.changes import TableWorld
from tests.unit.fakes import CalmChance, LoopClock, MemoryLog
from tests.unit.metrics.stage import Gathered, MemoryCloudWatch
from tests.unit.retrieval.fan_out_stage import FanOutStage, Start, play
from tests.unit.troubled import Trouble, TroubledTable

STREAM, SHARD = StreamRef("words"), ShardId("shardId-000000000000")


class SlowKinesis(MemoryKinesis):
    """Takes half a second for each read, and refuses some."""

    refusals = 0

    async def get_records(
        self, stream: StreamRef, shard_id: ShardId, iterator: str, limit: int
    ) -> FetchedRecords:
        await anyio.sleep(0.5)
        if self.refusals:
            self.refusals -= 1
            raise Throttled("slow down", operation="GetRecords")
        return await super().get_records(stream, shard_id, iterator, limit)


def calls(gathered: Gathered, service: str, operation: str, outcome: str) -> float | None:
    return gathered.value(own.CALLS, service=service, operation=operation, outcome=outcome)


def test_reads_of_a_shard_are_timed_and_refusals_counted() -> None:
    gathered = Gathered()

    async def main() -> None:
        model = KinesisModel(lambda: 1_700_000_000.0 + anyio.current_time())
        model.handle("CreateStream", {"StreamName": "words", "ShardCount": 1})
        slow = SlowKinesis(model)
        kinesis = MeteredKinesis(slow, gathered.meters)
        iterator = await kinesis.get_shard_iterator(STREAM, SHARD, ReadFrom(IteratorKind.TRIM_HORIZON))
        slow.refusals = 1
        with pytest.raises(Throttled):
            await kinesis.get_records(STREAM, SHARD, iterator, 10)
        await kinesis.get_records(STREAM, SHARD, iterator, 10)

    run_virtual(main)

    reported = gathered.take()
    reads = reported["KinesisDataFetcher.getRecords.Success"]
    assert (reads.count, reads.total, reads.dimensions["ShardId"]) == (2, 1.0, SHARD)
    assert reported["KinesisDataFetcher.getRecords.Time"].least == 500.0
    assert "MillisBehindLatest" not in reported, "of what is not done the gauges tell"
    assert calls(gathered, "kinesis", "GetRecords", "throttled") == 1.0
    assert calls(gathered, "kinesis", "GetRecords", "success") == 1.0


def test_calls_of_dynamodb_streams_have_a_service_of_their_own() -> None:
    gathered = Gathered()

    async def main() -> None:
        world = TableWorld()
        kinesis = MeteredKinesis(
            StreamSources(
                {
                    source_named("kinesis"): MemoryKinesis(KinesisModel(lambda: 0.0)),
                    source_named("dynamodb"): world.changes,
                }
            ),
            gathered.meters,
        )
        await kinesis.describe_stream(world.ref)
        (shard,) = await kinesis.list_shards(world.ref)
        iterator = await kinesis.get_shard_iterator(
            world.ref, shard.shard_id, ReadFrom(IteratorKind.TRIM_HORIZON)
        )
        world.client.refusals.append("LimitExceededException")
        with pytest.raises(Throttled):
            await kinesis.get_records(world.ref, shard.shard_id, iterator, 10)
        assert await kinesis.list_streams() == ()

    run_virtual(main)
    assert calls(gathered, "dynamodbstreams", "DescribeStream", "success") == 2.0
    assert calls(gathered, "dynamodbstreams", "GetShardIterator", "success") == 1.0
    assert calls(gathered, "dynamodbstreams", "GetRecords", "throttled") == 1.0
    assert calls(gathered, "kinesis", "ListStreams", "success") == 1.0
    assert calls(gathered, "kinesis", "GetRecords", "throttled") is None


def test_calls_of_a_table_are_counted_by_what_came_of_them() -> None:
    gathered, table = Gathered(), TroubledTable()

    async def main() -> None:
        await table.ensure()
        watched = MonitoredTable(table, clock=LoopClock(), log=MemoryLog(), meters=gathered.meters)
        table.reads.extend([Trouble.THROTTLED, Trouble.FAILED_BEFORE])
        with pytest.raises(Throttled):
            await watched.get("row")
        with pytest.raises(Unavailable):
            await watched.get("row")
        await watched.get("row")
        await watched.scan()

    run_virtual(main)
    outcomes = [calls(gathered, "dynamodb", "GetItem", each) for each in ("success", "throttled", "failure")]
    assert outcomes == [1.0, 1.0, 1.0]
    assert calls(gathered, "dynamodb", "Scan", "success") == 1.0


def test_a_refusal_is_seen_to_rise_from_nothing_and_what_is_cut_off_is_not_counted() -> None:
    gathered = Gathered()

    async def main() -> None:
        counted = CallMetrics(gathered.meters, "kinesis")
        with anyio.move_on_after(1.0):
            await counted.counted("GetRecords", anyio.sleep_forever())

    run_virtual(main)
    assert [calls(gathered, "kinesis", "GetRecords", each) for each in OUTCOMES] == [0.0, 0.0, 0.0]


def test_a_subscription_counts_once_whatever_becomes_of_it() -> None:
    gathered = Gathered()

    async def scene(stage: FanOutStage, _start: Start) -> None:
        fan_out, arn = MeteredFanOut(stage.fan_out, gathered.meters), await stage.registered()
        oldest = ReadFrom(IteratorKind.TRIM_HORIZON)
        stage.fan_out.cuts.append(Unavailable("the connection broke"))
        with pytest.raises(Unavailable):
            async with fan_out.subscribe(STREAM, arn, SHARD, oldest) as subscription:
                await subscription.next()
        stage.fan_out.refusals.extend([Throttled("slow down"), SubscriptionTaken("somebody else")])
        for refusal in (Throttled, SubscriptionTaken):
            with pytest.raises(refusal):
                async with fan_out.subscribe(STREAM, arn, SHARD, oldest):
                    raise AssertionError("it was refused")

    play(scene)
    outcomes = [calls(gathered, "kinesis", "SubscribeToShard", each) for each in OUTCOMES]
    assert outcomes == [1.0, 1.0, 1.0]


def test_calls_about_consumers_are_counted() -> None:
    gathered = Gathered()

    async def scene(stage: FanOutStage, _start: Start) -> None:
        fan_out = MeteredFanOut(stage.fan_out, gathered.meters)
        arn = "arn:aws:kinesis:us-east-1:123456789012:stream/words"
        assert await fan_out.describe_consumer(ConsumerName(arn, "app")) is None
        stage.fan_out.registering.append(Throttled("slow down"))
        with pytest.raises(Throttled):
            await fan_out.register_consumer(ConsumerName(arn, "app"))
        await fan_out.register_consumer(ConsumerName(arn, "app"))

    play(scene)
    asked = [calls(gathered, "kinesis", "DescribeStreamConsumer", each) for each in OUTCOMES]
    made = [calls(gathered, "kinesis", "RegisterStreamConsumer", each) for each in OUTCOMES]
    assert (asked, made) == ([1.0, 0.0, 0.0], [1.0, 1.0, 0.0])


def test_renewals_of_a_period_are_reported_as_one_run() -> None:
    gathered = Gathered()

    async def main() -> None:
        renewals = RenewalMetrics(gathered.meters, LoopClock())
        await anyio.sleep(1.0)
        renewals.renewed(0.75, ok=True)
        renewals.renewed(0.0, ok=False)
        renewals.lost += 1
        renewals.tick(held=7)
        renewals.tick(held=6)

    run_virtual(main)

    reported = gathered.take()
    assert (reported["Success"].count, reported["Success"].total) == (2, 1.0)
    assert (reported["Time"].most, reported["Time"].least) == (1000.0, 0.0)
    assert (reported["LostLeases"].total, reported["CurrentLeases"].least) == (1.0, 6.0)
    assert reported["RenewLease.Success"].total == 1.0


# --- beside a worker


class Idle:
    """A worker that counts something, then ends as it is told."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work = work

    async def run(self) -> None:
        await self._work()

    def request_stop(self) -> None:
        """It ends by itself."""


def adapters(cloudwatch: MemoryCloudWatch | None, log: MemoryLog | None = None) -> Adapters:
    nothing: Any = None  # a worker that does nothing asks for nothing
    return Adapters(
        clock=LoopClock(),
        randomness=CalmChance(),
        kinesis=nothing,
        tables=nothing,
        transactions=nothing,
        children=nothing,
        log=log or MemoryLog(),
        cloudwatch=cloudwatch,
    )


def no_snapshot() -> None:
    """Nothing is shown here."""


def settings(**metrics: Any) -> Settings:
    return Settings("app", "words", ChildSettings(("true",)), "w-1", metrics=MetricsSettings(**metrics))


def test_where_nobody_is_told_nothing_is_counted_and_the_worker_is_as_it_was() -> None:
    base = adapters(None)
    telemetry = telemetry_of(settings(), base, snapshot=no_snapshot)
    worker: MeteredWorker = Idle(anyio.lowlevel.checkpoint)
    assert telemetry.adapters is base
    assert telemetry.adapters.meters is NO_METERS
    assert telemetry.background(worker) is worker
    none = telemetry_of(settings(level=MetricsLevel.NONE), adapters(MemoryCloudWatch()), snapshot=no_snapshot)
    assert none.adapters.meters is NO_METERS


@pytest.mark.parametrize("fails", [False, True])
def test_figures_are_reported_while_it_runs_and_the_rest_at_its_end(fails: bool) -> None:
    cloudwatch = MemoryCloudWatch()

    async def main() -> list[int]:
        telemetry = telemetry_of(settings(namespace="mine"), adapters(cloudwatch), snapshot=no_snapshot)
        after: list[int] = []

        async def work() -> None:
            telemetry.adapters.meters.add(kcl.RENEWAL_HELD, 1)
            await anyio.sleep(15.0)
            after.append(len(cloudwatch.reported))
            telemetry.adapters.meters.add(kcl.RENEWAL_HELD, 1)
            if fails:
                raise ConfigurationError("it cannot go on")

        try:
            await telemetry.background(Idle(work)).run()
        except ConfigurationError:
            assert fails
        else:
            assert not fails
        return [*after, len(cloudwatch.reported)]

    assert run_virtual(main) == [1, 2]
    assert {namespace for namespace, _ in cloudwatch.calls} == {"mine"}


class SlowCloudWatch(MemoryCloudWatch):
    """Takes its time for each call; one that is cut off has not arrived."""

    def __init__(self, takes_s: float) -> None:
        super().__init__()
        self._takes_s = takes_s

    async def put(self, namespace: str, statistics: Sequence[Statistic]) -> None:
        await anyio.sleep(self._takes_s)
        await super().put(namespace, statistics)


@pytest.mark.parametrize(("takes_s", "reported", "ends_s"), [(2.0, 3, 14.0), (1000.0, 0, 16.0)])
def test_a_call_under_way_at_the_end_is_waited_for_a_few_seconds(
    takes_s: float, reported: int, ends_s: float
) -> None:
    cloudwatch = SlowCloudWatch(takes_s)

    async def main() -> float:
        telemetry = telemetry_of(settings(), adapters(cloudwatch), snapshot=no_snapshot)

        async def work() -> None:
            telemetry.adapters.meters.add(kcl.RENEWAL_HELD, 1)
            telemetry.adapters.meters.add(kcl.RENEWAL_LOST, 1)
            await anyio.sleep(11.0)  # they are on their way since a second
            assert cloudwatch.reported == []
            telemetry.adapters.meters.add(kcl.RENEWAL_HELD, 1)

        await telemetry.background(Idle(work)).run()
        return anyio.current_time()

    assert run_virtual(main) == pytest.approx(ends_s, abs=0.1)
    assert len(cloudwatch.reported) == reported
    assert all(each.count == 1 for each in cloudwatch.reported)  # each figure once


def test_a_worker_that_is_killed_tells_nothing_more() -> None:
    cloudwatch = MemoryCloudWatch()

    async def main() -> None:
        telemetry = telemetry_of(settings(), adapters(cloudwatch), snapshot=no_snapshot)

        async def work() -> None:
            telemetry.adapters.meters.add(kcl.RENEWAL_HELD, 1)
            await anyio.sleep_forever()

        with anyio.move_on_after(3.0):
            await telemetry.background(Idle(work)).run()

    run_virtual(main)
    assert cloudwatch.reported == []


def test_the_log_of_a_worker_is_counted() -> None:
    log = MemoryLog()
    telemetry = telemetry_of(settings(), adapters(None, log), serves_metrics=True, snapshot=no_snapshot)
    telemetry.adapters.log.warning("position_trimmed")
    text = anyio.run(telemetry.exposition().render).body.decode()
    assert "kcl_positions_trimmed_total 1.0" in text
    assert log.events() == ["position_trimmed"]


def test_old_series_are_swept_while_it_runs() -> None:
    async def main() -> str:
        telemetry = telemetry_of(settings(), adapters(None), serves_metrics=True, snapshot=no_snapshot)

        async def work() -> None:
            telemetry.adapters.meters.add(kcl.ASSIGNMENT_LEASES, 5)
            telemetry.adapters.meters.add(kcl.PROCESS_EXPIRED)
            await anyio.sleep(600.0)

        await telemetry.background(Idle(work)).run()
        return (await telemetry.exposition().render()).body.decode()

    text = run_virtual(main)
    assert "kcl_fleet_leases" not in text
    assert "kcl_expired_iterators_total 1.0" in text


def test_otlp_without_its_packages_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name.startswith("kcl_daemon.telemetry.otlp"):
            raise ImportError("No module named 'opentelemetry'", name="opentelemetry")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigurationError, match=r"pip install 'kcl-daemon\[otlp\]'"):
        telemetry_of(
            settings(otlp_endpoint="http://127.0.0.1:4318/v1/metrics"), adapters(None), snapshot=no_snapshot
        )


def test_operations_are_counted_for_all_shards_together() -> None:
    gathered = Gathered()
    for number in range(3):
        gathered.meters.done(kcl.PROCESS_READ, 0.1, shard_id=f"shard-{number}")
    step = "KinesisDataFetcher.getRecords"
    assert gathered.value(OPERATIONS, operation="ProcessTask", step=step, outcome="success") == 3
