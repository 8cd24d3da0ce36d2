"""CloudWatch is told in time, in batches, and never waited for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import anyio

from kcl_daemon.errors import AccessDenied, AwsError
from kcl_daemon.metrics import kcl, own
from kcl_daemon.ports import Statistic
from kcl_daemon.telemetry.cloudwatch import MAX_BATCH, CloudWatchExporter
from tests.simulator.loop import run_virtual
from tests.unit.fakes import LoopClock, MemoryLog
from tests.unit.metrics.stage import Gathered, MemoryCloudWatch


class Troubled(MemoryCloudWatch):
    """Refuses, or never answers, as it is told."""

    refusal: AwsError | None = None
    hangs = False

    async def put(self, namespace: str, statistics: Sequence[Statistic]) -> None:
        if self.hangs:
            await anyio.sleep_forever()
        if self.refusal is not None:
            raise self.refusal
        self.at_s.append(anyio.current_time())
        await super().put(namespace, statistics)

    def __init__(self) -> None:
        super().__init__()
        self.at_s: list[float] = []


class Stage:
    def __init__(self, *, queue_most: int = 10_000) -> None:
        self.gathered = Gathered(queue_most=queue_most)
        self.cloudwatch = Troubled()
        self.log = MemoryLog()
        self.publisher = CloudWatchExporter(
            self.gathered.statistics,
            cloudwatch=self.cloudwatch,
            namespace="app",
            buffer_s=10.0,
            meters=self.gathered.meters,
            clock=LoopClock(),
            log=self.log,
        )

    def some(self, count: int, first: int = 0) -> None:
        for number in range(first, first + count):
            self.gathered.meters.add(kcl.PROCESS_RECORDS, 1, shard_id=f"shard-{number}")


def play(scene: Callable[[Stage], Awaitable[None]], stage: Stage | None = None) -> Stage:
    async def main() -> Stage:
        played = stage or Stage()
        async with anyio.create_task_group() as background:
            background.start_soon(played.publisher.run)
            await scene(played)
            background.cancel_scope.cancel()
        return played

    return run_virtual(main)


def test_values_within_the_buffer_time_are_reported_together_at_its_end() -> None:
    async def scene(stage: Stage) -> None:
        for _ in range(4):
            stage.gathered.meters.add(kcl.RENEWAL_HELD, 3)
            await anyio.sleep(4.0)

    stage = play(scene)
    assert stage.cloudwatch.at_s == [10.0]
    ((namespace, (held,)),) = stage.cloudwatch.calls
    assert (namespace, held.name, held.count) == ("app", "CurrentLeases", 3)


def test_nothing_is_reported_where_nothing_happens() -> None:
    async def scene(_stage: Stage) -> None:
        await anyio.sleep(100.0)

    assert play(scene).cloudwatch.calls == []


def test_many_sets_wait_for_the_buffer_time_like_few() -> None:
    async def scene(stage: Stage) -> None:
        for _ in range(10):
            stage.some(1000)
            await anyio.sleep(1.0)
        await anyio.sleep(0.5)

    stage = play(scene)
    assert stage.cloudwatch.at_s == [10.0, 10.0]
    assert {each.count for each in stage.cloudwatch.reported} == {10}


def test_a_queue_that_is_half_full_does_not_wait_but_flushes_keep_a_second_apart() -> None:
    async def scene(stage: Stage) -> None:
        await anyio.sleep(0.5)
        for second in range(3):
            stage.some(200, first=200 * second)
            await anyio.sleep(1.0)

    assert play(scene, Stage(queue_most=400)).cloudwatch.at_s == [1.0, 2.0, 3.0]


def test_a_call_has_no_more_sets_than_it_may() -> None:
    async def scene(stage: Stage) -> None:
        stage.some(2 * MAX_BATCH + 1)
        await anyio.sleep(10.5)

    sizes = [len(statistics) for _, statistics in play(scene).cloudwatch.calls]
    assert sizes == [MAX_BATCH, MAX_BATCH, 1]


def test_failures_are_reported_once_counted_and_not_tried_again() -> None:
    async def scene(stage: Stage) -> None:
        stage.cloudwatch.refusal = AccessDenied("not authorized", operation="PutMetricData")
        for _ in range(5):
            stage.some(3)
            await anyio.sleep(10.0)
        stage.cloudwatch.refusal = None
        stage.some(1)
        await anyio.sleep(10.0)

    stage = play(scene)
    warnings = [fields for level, _, fields in stage.log.lines if level == "warning"]
    (warning,) = warnings
    assert "cloudwatch:PutMetricData" in str(warning["advice"])
    assert stage.log.events("info") == ["metrics_sent_again"]
    assert stage.gathered.value(own.CLOUDWATCH_LOST) in {
        12.0,
        15.0,
    }  # the last of them may just have been told
    assert len(stage.cloudwatch.reported) <= 4


def test_a_call_without_an_answer_is_given_up_after_five_seconds() -> None:
    async def scene(stage: Stage) -> None:
        stage.cloudwatch.hangs = True
        stage.some(1)
        await anyio.sleep(14.9)
        assert stage.log.events() == []
        await anyio.sleep(0.2)

    stage = play(scene)
    assert stage.log.events() == ["metrics_not_sent"]
    assert stage.gathered.value(own.CLOUDWATCH_LOST) == 1.0


def test_metrics_dropped_by_a_full_queue_are_reported_with_advice() -> None:
    async def scene(stage: Stage) -> None:
        stage.some(9)
        await anyio.sleep(10.5)

    stage = play(scene, Stage(queue_most=5))
    ((_, event, fields),) = stage.log.lines
    assert (event, fields["count"]) == ("metrics_dropped", 4)
    assert "metricsMaxQueueSize" in str(fields["advice"])


def test_the_rest_is_reported_at_the_end_under_cancellation_too() -> None:
    async def main() -> Stage:
        stage = Stage()
        stage.some(2)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await stage.publisher.shutdown()
        return stage

    assert len(run_virtual(main).cloudwatch.reported) == 2


def test_the_end_does_not_wait_for_a_service_that_does_not_answer() -> None:
    async def main() -> float:
        stage = Stage()
        stage.cloudwatch.hangs = True
        stage.some(2 * MAX_BATCH)
        await stage.publisher.shutdown()
        return anyio.current_time()

    assert run_virtual(main) <= 5.1


def test_metrics_left_by_a_cancelled_flush_are_reported_by_the_next() -> None:
    async def main() -> Stage:
        stage = Stage()
        stage.cloudwatch.hangs = True
        stage.some(MAX_BATCH + 7)
        with anyio.move_on_after(1.0):
            await stage.publisher.flush()
        stage.cloudwatch.hangs = False
        await stage.publisher.shutdown()
        return stage

    assert (
        len(run_virtual(main).cloudwatch.reported) == 7
    )  # of the first batch nobody knows whether it arrived
