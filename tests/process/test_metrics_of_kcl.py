"""What CloudWatch is told is what KCL tells it: every metric of the list, and nothing else.

Whole fleets in virtual time, and scenes of what seldom happens, tell the real adapter; it speaks to the local endpoint.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import anyio
import boto3
import pytest

from kcl_daemon.aws.cloudwatch import open_cloudwatch
from kcl_daemon.aws.session import make_clients
from kcl_daemon.config.children import ChildSettings
from kcl_daemon.config.metrics_and_page import MetricsLevel, MetricsSettings
from kcl_daemon.config.retrieval import RetrievalMode
from kcl_daemon.config.services import Endpoints
from kcl_daemon.config.settings import Settings
from kcl_daemon.errors import AccessDenied, Unavailable
from kcl_daemon.ports import Statistic
from kcl_daemon.production import cloudwatch_of
from kcl_daemon.system import SystemClock
from kcl_daemon.telemetry.cloudwatch import MAX_BATCH
from kcl_daemon.telemetry.recorder import CLOUDWATCH_METRICS
from kcl_local.dynamodb import DynamoDbServer
from tests.simulator.loop import run_virtual
from tests.simulator.runner import run_plan
from tests.simulator.scenarios.all import draw_plan
from tests.unit.fakes import MemoryLog
from tests.unit.metrics.rare import SCENES
from tests.unit.metrics.stage import Gathered, MemoryCloudWatch
from tools.metrics_reference import CLOUDWATCH_OWN

# Between them they have all that a worker does day by day, whatever the seed.
SCENARIOS: Final = ("steady", "reshard_storm", "upgrade_2x")
SEED: Final = 1


@pytest.fixture(scope="module", name="server")
def _server() -> Generator[DynamoDbServer, None, None]:
    with DynamoDbServer() as server:
        yield server


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("ACCESS_KEY_ID", "local"), ("SECRET_ACCESS_KEY", "local"), ("REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)


def settings(server: DynamoDbServer, *, kinesis: str | None = None, cloudwatch: bool = True) -> Settings:
    endpoints = Endpoints(
        region_name="us-east-1",
        kinesis=kinesis or server.url,
        dynamodb=server.url,
        cloudwatch=server.cloudwatch_url if cloudwatch else None,
    )
    return Settings("app", "words", ChildSettings(("true",)), "w-1", endpoints=endpoints)


def told_by_scenarios() -> list[Statistic]:
    reported: list[Statistic] = []
    for scenario in SCENARIOS:
        cloudwatch = MemoryCloudWatch()
        outcome = run_plan(draw_plan(scenario, SEED), scenario=scenario, seed=SEED, cloudwatch=cloudwatch)
        assert outcome.violation is None, outcome.violation
        assert {namespace for namespace, _ in cloudwatch.calls} == {"application"}
        reported += cloudwatch.reported
    return reported


def told_by_scenes() -> list[Statistic]:
    reported: list[Statistic] = []
    for scene in SCENES:

        async def play(scene: Any = scene) -> list[Statistic]:
            gathered = Gathered()
            await scene(gathered.meters)
            return gathered.statistics.take(10_000)

        reported += run_virtual(play)
    return reported


async def put(server: DynamoDbServer, namespace: str, reported: Sequence[Statistic]) -> None:
    """Tell the local endpoint, as the daemon does."""
    clients = make_clients(settings(server).endpoints)
    try:
        async with open_cloudwatch(settings(server), clients, SystemClock(), MemoryLog()) as cloudwatch:
            assert cloudwatch is not None
            for start in range(0, len(reported), MAX_BATCH):
                await cloudwatch.put(namespace, reported[start : start + MAX_BATCH])
    finally:
        clients.close()


def each_once(reported: Sequence[Statistic]) -> list[Statistic]:
    """One of all shards and workers that told the same."""
    return list(
        {(each.dimensions["Operation"], each.name, *each.dimensions): each for each in reported}.values()
    )


def test_cloudwatch_is_told_every_metric_of_kcl_that_can_occur_our_own_and_no_other(
    server: DynamoDbServer,
) -> None:
    reported = each_once([*told_by_scenarios(), *told_by_scenes()])

    anyio.run(put, server, "all", reported)

    client = boto3.client("cloudwatch", region_name="us-east-1", endpoint_url=server.cloudwatch_url)
    listed: Any = [
        metric
        for page in client.get_paginator("list_metrics").paginate(Namespace="all")
        for metric in page["Metrics"]
    ]
    client.close()
    seen = {
        (
            {each["Name"]: each["Value"] for each in metric["Dimensions"]}["Operation"],
            metric["MetricName"],
            # the stream is told only where there are many
            tuple(each["Name"] for each in metric["Dimensions"] if each["Name"] != "StreamId"),
        )
        for metric in listed
    }
    wanted = {
        (metric.operation, metric.name, tuple(name for name in metric.dimensions if name != "StreamId"))
        for metric in (*CLOUDWATCH_METRICS, *CLOUDWATCH_OWN)
    }
    assert wanted - seen == set()
    assert seen - wanted == set()


@pytest.mark.parametrize(
    "mode", [pytest.param(RetrievalMode.POLLING, marks=pytest.mark.prove), RetrievalMode.FANOUT]
)
def test_figures_of_shards_are_told_apart_by_stream_where_there_are_many(mode: RetrievalMode) -> None:
    cloudwatch, scenario = MemoryCloudWatch(), "many_streams"
    plan = draw_plan(scenario, SEED)
    plan = replace(plan, retrieval=replace(plan.retrieval, mode=mode))

    outcome = run_plan(plan, scenario=scenario, seed=SEED, cloudwatch=cloudwatch)

    assert outcome.violation is None, outcome.violation
    of_shards = [each for each in cloudwatch.reported if "ShardId" in each.dimensions]
    assert {each.name for each in of_shards if "StreamId" not in each.dimensions} == set()
    behind = {each.dimensions["StreamId"] for each in of_shards if each.name == "MillisBehindLatest"}
    assert len(behind) > 5
    assert all(re.fullmatch(r"[0-9]+:stream-[0-9]+:[0-9]+", stream) for stream in behind)


def test_values_arrive_as_statistic_sets(server: DynamoDbServer) -> None:
    statistic = Statistic("Time", "Milliseconds", {"Operation": "LeaseDiscovery"}, 3, 60.0, 10.0, 30.0)
    client: Any = boto3.client("cloudwatch", region_name="us-east-1", endpoint_url=server.cloudwatch_url)

    anyio.run(put, server, "sets", [statistic])

    now = datetime.now(UTC)  # noqa: TID251 - the endpoint dates what comes without a date
    answer = client.get_metric_statistics(
        Namespace="sets",
        MetricName="Time",
        Dimensions=[{"Name": "Operation", "Value": "LeaseDiscovery"}],
        StartTime=now - timedelta(hours=1),
        EndTime=now + timedelta(hours=1),
        Period=86_400,
        Statistics=["Sum", "SampleCount", "Minimum", "Maximum"],
    )
    client.close()
    (point,) = answer["Datapoints"]
    found = point["SampleCount"], point["Sum"], point["Minimum"], point["Maximum"], point["Unit"]
    assert found == (3.0, 60.0, 10.0, 30.0, "Milliseconds")


@pytest.mark.parametrize(
    ("code", "error"), [("AccessDenied", AccessDenied), ("ServiceUnavailable", Unavailable)]
)
def test_a_refusal_is_reported_in_the_words_of_the_ports(
    server: DynamoDbServer, code: str, error: type[Exception]
) -> None:
    statistic = Statistic("Time", "Milliseconds", {}, 1, 1.0, 1.0, 1.0)

    server.cloudwatch.fail_next("PutMetricData", code)
    with pytest.raises(error, match="PutMetricData"):
        anyio.run(put, server, "fails", [statistic])


@pytest.mark.parametrize(
    ("kinesis", "cloudwatch", "level", "is_told"),
    [
        (None, True, MetricsLevel.DETAILED, True),
        (None, False, MetricsLevel.DETAILED, False),  # figures of a test must not land in an account
        ("https://kinesis.us-east-1.amazonaws.com", False, MetricsLevel.SUMMARY, True),
        (None, True, MetricsLevel.NONE, False),
    ],
)
def test_the_real_service_is_told_nothing_of_a_stream_on_this_machine(
    server: DynamoDbServer, kinesis: str | None, cloudwatch: bool, level: MetricsLevel, is_told: bool
) -> None:
    log = MemoryLog()

    async def poll() -> bool:
        base = settings(server, kinesis=kinesis, cloudwatch=cloudwatch)
        chosen = Settings(
            base.application_name, base.stream_name, base.child, base.worker_id,
            endpoints=base.endpoints, metrics=MetricsSettings(level=level),
        )  # fmt: skip
        clients = make_clients(chosen.endpoints)
        try:
            async with cloudwatch_of(chosen, clients, SystemClock(), log) as opened:
                return opened is not None
        finally:
            clients.close()

    assert anyio.run(poll) is is_told
    silenced = not is_told and level is not MetricsLevel.NONE
    assert log.events("info") == (["cloudwatch_not_used"] if silenced else [])
