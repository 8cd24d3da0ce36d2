"""The local CloudWatch as AWS's own SDK sees it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from kcl_local.dynamodb import DynamoDbServer

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture(scope="module", name="server")
def _server() -> Generator[DynamoDbServer, None, None]:
    with DynamoDbServer() as server:
        yield server


@pytest.fixture(name="cloudwatch")
def _cloudwatch(server: DynamoDbServer) -> Generator[Any, None, None]:
    session: Any = boto3.Session(
        region_name="us-east-1", aws_access_key_id="local", aws_secret_access_key="local"
    )
    config = Config(retries={"total_max_attempts": 1}, read_timeout=60)
    with closing(session.client("cloudwatch", endpoint_url=server.cloudwatch_url, config=config)) as client:
        yield client


def _datum(name: str, value: float) -> dict[str, object]:
    dimensions = [{"Name": "Operation", "Value": "ProcessTask" * 5}]
    return {"MetricName": name, "Value": value, "Timestamp": NOON, "Dimensions": dimensions}


def test_metrics_are_kept_and_summed_up(server: DynamoDbServer, cloudwatch: Any) -> None:
    before = server.cloudwatch.calls["PutMetricData"]
    cloudwatch.put_metric_data(Namespace="sums", MetricData=[_datum("m", value) for value in (1.0, 2.0)])

    answer = cloudwatch.get_metric_statistics(
        Namespace="sums",
        MetricName="m",
        Dimensions=_datum("m", 0)["Dimensions"],
        StartTime=NOON - timedelta(minutes=1),
        EndTime=NOON + timedelta(minutes=1),
        Period=60,
        Statistics=["Sum", "SampleCount"],
    )

    (point,) = answer["Datapoints"]
    assert (point["Sum"], point["SampleCount"]) == (3.0, 2.0)
    assert server.cloudwatch.calls["PutMetricData"] == before + 1


def test_a_large_request_which_the_sdk_compresses_is_understood(cloudwatch: Any) -> None:
    cloudwatch.put_metric_data(Namespace="large", MetricData=[_datum(f"m{n}", 1.0) for n in range(300)])

    assert len(cloudwatch.list_metrics(Namespace="large")["Metrics"]) == 300


def test_it_fails_on_demand(server: DynamoDbServer, cloudwatch: Any) -> None:
    server.cloudwatch.fail_next("PutMetricData", "Throttling")

    with pytest.raises(ClientError, match="Throttling"):
        cloudwatch.put_metric_data(Namespace="fails", MetricData=[_datum("m", 1.0)])

    cloudwatch.put_metric_data(Namespace="fails", MetricData=[_datum("m", 1.0)])
