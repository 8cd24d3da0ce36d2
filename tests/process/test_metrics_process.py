"""A whole daemon tells CloudWatch and a collector what it does, the rest at its end."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.process.daemon import PROCESSORS, Daemon, application, wait_until
from tests.process.local import Local

RECORDS, SHARDS = 6, 2
# The first in a second, the other after a renewal period of four.
EARLY = {"ProcessTask RecordsProcessed", "RenewAllLeases CurrentLeases"}


@pytest.fixture(name="cloudwatch")
def _cloudwatch(local: Local) -> Generator[Any, None, None]:
    session: Any = boto3.Session(
        region_name="us-east-1", aws_access_key_id="local", aws_secret_access_key="local"
    )
    with closing(session.client("cloudwatch", endpoint_url=local.cloudwatch_url)) as client:
        yield client


def metrics_in(cloudwatch: Any, namespace: str) -> dict[str, list[dict[str, str]]]:
    """Dimensions of each metric, by operation and name."""
    found: dict[str, list[dict[str, str]]] = {}
    for page in cloudwatch.get_paginator("list_metrics").paginate(Namespace=namespace):
        for metric in page["Metrics"]:
            dimensions = {each["Name"]: each["Value"] for each in metric["Dimensions"]}
            name = f"{dimensions.pop('Operation')} {metric['MetricName']}"
            found.setdefault(name, []).append(dimensions)
    return found


def test_a_daemon_tells_cloudwatch_what_it_does_and_the_rest_at_its_end(
    local: Local, tmp_path: Path, cloudwatch: Any
) -> None:
    more = {"metricsLevel": "DETAILED", "metricsBufferTimeMillis": "1000", "metricsNamespace": "team/told"}
    with application(local, tmp_path, "told", shards=SHARDS) as app:
        with app.daemon(f"{PROCESSORS}.careful", more) as daemon:
            app.put(RECORDS)
            app.wait_done()
            wait_until(
                lambda: metrics_in(cloudwatch, "team/told").keys() >= EARLY,
                "records and held leases are told",
            )
            daemon.stop()
            assert daemon.loud() == []
        app.assert_account(repeated=0)

    reported = metrics_in(cloudwatch, "team/told")
    assert reported["RenewAllLeases CurrentLeases"] == [{"WorkerIdentifier": "worker"}]
    shards = {dimensions["ShardId"] for dimensions in reported["ProcessTask RecordsProcessed"]}
    assert len(shards) == SHARDS
    assert {
        "LeaseAssignmentManager TotalLeases",
        "Scheduler:Initialize Initialize.Success",
    } <= reported.keys()
    assert "ShutdownTask RecordProcessor.shutdown.Time" in reported  # came about at the end only


def test_a_daemon_whose_figures_are_refused_works_on_and_says_so_once(local: Local, tmp_path: Path) -> None:
    # A port where nobody listens; it is no double of CloudWatch's that would be left alone.
    more = {
        "metricsLevel": "SUMMARY",
        "metricsBufferTimeMillis": "300",
        "cloudWatchClient.endpointOverride": "http://127.0.0.1:9",
        "metricsOtlpEndpoint": "http://127.0.0.1:9/v1/metrics",
        "metricsOtlpPeriodMillis": "300",
    }
    with application(local, tmp_path, "figures-refused", shards=1) as app:
        with app.daemon(f"{PROCESSORS}.careful", more) as daemon:
            app.put(RECORDS)
            app.wait_done()
            daemon.wait_for("metrics_not_sent", level="warning")
            daemon.wait_for("otlp_export_failed", level="warning")
            app.put(RECORDS)
            app.wait_done()
            daemon.stop()
            assert named(daemon) == ["metrics_not_sent", "otlp_export_failed"]
            assert daemon.plain_lines == []
        app.assert_account(repeated=0)


def named(daemon: Daemon) -> list[str]:
    return sorted(str(each["event"]) for each in daemon.loud())
