"""Values come together in statistic sets for CloudWatch and in series for Prometheus and OTLP."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.metrics import kcl, own
from kcl_daemon.metrics.metric import OPERATIONS, MetricLevel
from kcl_daemon.ports import NO_METERS
from tests.simulator.loop import run_virtual
from tests.unit.metrics.stage import WORKER, Gathered

ONE, TWO = "shardId-000000000001", "shardId-000000000002"


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30))
def test_a_set_is_count_sum_least_and_most_of_its_values(values: list[float]) -> None:
    gathered = Gathered()
    for value in values:
        gathered.meters.add(kcl.DISCOVERY_FOUND, value)

    reported = gathered.take()["NewLeasesDiscovered"]

    assert (reported.count, reported.least, reported.most) == (len(values), min(values), max(values))
    assert reported.total == pytest.approx(sum(values))
    assert gathered.take() == {}


def test_a_value_that_was_reported_is_not_reported_again() -> None:
    gathered = Gathered()
    gathered.meters.add(kcl.DISCOVERY_FOUND, 5)
    gathered.take()
    gathered.meters.add(kcl.DISCOVERY_FOUND, 2)

    reported = gathered.take()["NewLeasesDiscovered"]

    assert (reported.count, reported.total, reported.least, reported.most) == (1, 2.0, 2.0, 2.0)
    assert gathered.value(kcl.DISCOVERY_FOUND) == 7.0


def test_seconds_are_milliseconds_for_cloudwatch() -> None:
    gathered = Gathered()
    gathered.meters.add(kcl.PROCESS_BEHIND, 1.5, shard_id=ONE)
    reported = gathered.take()["MillisBehindLatest"]
    assert (reported.unit, reported.total) == ("Milliseconds", 1500.0)


def test_an_operation_tells_success_and_time_and_one_histogram() -> None:
    async def main() -> Gathered:
        gathered = Gathered()
        with gathered.meters.operation(kcl.DISCOVERY):
            await anyio.sleep(0.25)
        with gathered.meters.operation(kcl.DISCOVERY) as span:
            span.failed()
        with pytest.raises(ValueError, match="odd"), gathered.meters.operation(kcl.DISCOVERY):
            raise ValueError("odd")
        return gathered

    gathered = run_virtual(main)

    reported = gathered.take()
    assert (reported["Success"].count, reported["Success"].total) == (3, 1.0)
    assert (reported["Time"].count, reported["Time"].most) == (3, 250.0)
    assert reported["Time"].dimensions == {"Operation": "LeaseDiscovery", "WorkerIdentifier": WORKER}
    for outcome, count in (("success", 1), ("failure", 2)):
        assert gathered.value(OPERATIONS, operation="LeaseDiscovery", step="", outcome=outcome) == count


def test_a_cancelled_operation_is_not_counted() -> None:
    async def main() -> Gathered:
        gathered = Gathered()
        with anyio.move_on_after(1.0), gathered.meters.operation(kcl.DISCOVERY):
            await anyio.sleep_forever()
        return gathered

    assert run_virtual(main).take() == {}


def test_shards_are_told_apart_unless_their_dimension_is_turned_off() -> None:
    for dimensions, count in ((None, 2), (["Operation"], 1), ([], 1)):
        gathered = Gathered(dimensions=dimensions)
        for shard_id in (ONE, TWO):
            gathered.meters.add(kcl.PROCESS_RECORDS, 10, shard_id=shard_id)
        reported = gathered.statistics.take(10_000)
        assert len(reported) == count
        assert sum(each.total for each in reported) == 20.0
        assert all(("Operation" in each.dimensions) is (dimensions != []) for each in reported)


def test_streams_are_reported_where_there_are_many() -> None:
    gathered = Gathered()
    gathered.meters.add(kcl.PROCESS_RECORDS, 1, shard_id=ONE, stream="1:clicks:2")
    reported = gathered.take()["RecordsProcessed"]
    assert reported.dimensions == {"Operation": "ProcessTask", "ShardId": ONE, "StreamId": "1:clicks:2"}


@pytest.mark.parametrize(
    ("level", "names"),
    [
        (MetricLevel.DETAILED, {"Success", "Time", "ListLeaseKeysForWorker.Time"}),
        (MetricLevel.SUMMARY, {"Success", "Time"}),
        (None, set[str]()),
    ],
)
def test_figures_below_the_level_are_for_prometheus_only(level: MetricLevel | None, names: set[str]) -> None:
    gathered = Gathered(level=level)
    gathered.meters.done(kcl.DISCOVERY, 0.1)
    gathered.meters.done(kcl.DISCOVERY_LIST, 0.1)
    assert set(gathered.take()) == names
    assert gathered.value(OPERATIONS, operation="LeaseDiscovery", step="", outcome="success") == 1


def test_cloudwatch_is_told_nothing_that_kcl_does_not_tell() -> None:
    gathered = Gathered()
    gathered.meters.add(own.TRIMMED)
    gathered.meters.add(own.EVENTS, level="warning", event="position_trimmed")
    assert gathered.take() == {}
    assert gathered.value(own.EVENTS, level="warning", event="position_trimmed") == 1.0


def test_a_full_queue_drops_what_is_new_and_counts_it() -> None:
    gathered = Gathered(queue_most=2)
    for number in range(5):
        gathered.meters.add(kcl.PROCESS_RECORDS, 1, shard_id=f"shard-{number}")
    gathered.meters.add(kcl.PROCESS_RECORDS, 1, shard_id="shard-0")

    reported = gathered.statistics.take(10_000)

    assert sorted((each.dimensions["ShardId"], each.count) for each in reported) == [
        ("shard-0", 2),
        ("shard-1", 1),
    ]
    assert gathered.statistics.dropped == 3


def test_a_queue_that_is_half_full_calls_for_an_early_flush_once() -> None:
    gathered, calls = Gathered(queue_most=400), list[int]()
    gathered.statistics.on_half_full = lambda: calls.append(1)
    for number in range(250):
        gathered.meters.add(kcl.PROCESS_RECORDS, 1, shard_id=f"shard-{number}")
        assert len(calls) == (number + 1 >= 200)


def test_the_oldest_statistics_are_taken_first_and_the_rest_go_on_gathering() -> None:
    gathered = Gathered()
    for _ in range(2):
        for number in range(3):
            gathered.meters.add(kcl.PROCESS_RECORDS, 1, shard_id=f"shard-{number}")
    first = gathered.statistics.take(2)
    for number in range(3):
        gathered.meters.add(kcl.PROCESS_RECORDS, 1, shard_id=f"shard-{number}")
    assert gathered.statistics.waiting == 3
    rest = gathered.statistics.take(10)

    reported = [[(each.dimensions["ShardId"], each.count) for each in part] for part in (first, rest)]
    assert reported == [[("shard-0", 2), ("shard-1", 2)], [("shard-2", 3), ("shard-0", 1), ("shard-1", 1)]]


def test_gauges_and_series_of_shards_are_forgotten_and_counts_of_the_worker_stay() -> None:
    gathered = Gathered()
    gathered.meters.add(kcl.PROCESS_RECORDS, 3, shard_id=ONE)
    gathered.meters.add(kcl.ASSIGNMENT_LEASES, 7)
    gathered.meters.add(kcl.RENEWAL_LOST, 1)
    for _ in range(4):
        gathered.meters.sweep()
    assert gathered.value(kcl.ASSIGNMENT_LEASES) is None  # this worker leads no more
    assert gathered.value(kcl.PROCESS_RECORDS, shard_id=ONE) == 3.0
    for _ in range(12):
        gathered.meters.sweep()
    assert gathered.value(kcl.PROCESS_RECORDS, shard_id=ONE) is None
    assert gathered.value(kcl.RENEWAL_LOST) == 1.0


def test_a_series_that_was_forgotten_can_come_again() -> None:
    gathered = Gathered()
    gathered.meters.add(kcl.ASSIGNMENT_LEASES, 7)
    for _ in range(10):
        gathered.meters.sweep()
    gathered.meters.add(kcl.ASSIGNMENT_LEASES, 8)
    assert gathered.value(kcl.ASSIGNMENT_LEASES) == 8.0
    assert gathered.take()["TotalLeases"].total == 15.0  # what waits for CloudWatch is not forgotten


def test_a_label_that_a_metric_does_not_have_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="shard_id"):
        Gathered().meters.add(kcl.DISCOVERY_FOUND, 1, shard_id=ONE)


def test_silent_meters_take_everything() -> None:
    with NO_METERS.operation(kcl.PROCESS, shard_id=ONE) as span:
        span.failed()
    NO_METERS.add(kcl.PROCESS_RECORDS, 1, shard_id=ONE)
    NO_METERS.done(kcl.PROCESS, 1.0, False, shard_id=ONE)
