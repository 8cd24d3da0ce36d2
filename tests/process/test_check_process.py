"""`kcl-daemon check --with-aws` against local endpoints: what it finds, and that it leaves nothing behind."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from urllib.request import Request, urlopen

import boto3
import pytest

from tests.process.commands import run_command
from tests.process.daemon import PROCESSORS, Application, application
from tests.process.local import Local

pytestmark = pytest.mark.timeout(300)

CAREFUL = f"{PROCESSORS}.careful"


def check(app: Application, file: str, *words: str) -> CompletedProcess[str]:
    """Run the command to its end in the application's directory."""
    return run_command(
        *("check", file, "--with-aws", *words), directory=app.directory, environment=app.local.environment
    )


def findings(done: CompletedProcess[str], name: str) -> list[str]:
    """The lines about AWS."""
    return [
        line
        for line in done.stdout.splitlines()
        if line.removeprefix("error: ").startswith(("stream ", "ListShards", "Get", f"table {name}"))
    ]


def test_an_application_is_looked_at_before_and_after_its_first_start(local: Local, tmp_path: Path) -> None:
    name = "check-me"
    with application(local, tmp_path, name, shards=2) as app:
        file = app.write_properties("w", CAREFUL, {"retrievalMode": "POLLING"})
        before = check(app, file)
        assert (before.returncode, before.stderr) == (0, "")
        missing = (
            "does not exist; the daemon creates it if needed; CreateTable and calls on its rows: NOT TRIED, as it would "
            "create a table"
        )
        assert findings(before, name) == [
            f"stream {name}: ACTIVE",
            "ListShards: 2 shards",
            "GetRecords: allowed",
            f"table {name}: {missing}",
            f"table {name}-WorkerMetricStats: {missing}",
            f"table {name}-CoordinatorState: {missing}",
        ]
        app.put(1)
        with app.daemon(CAREFUL, worker="w") as daemon:
            app.wait_done()
            daemon.stop()
        rows = app.rows()
        with_registry = {
            "schemaRegistry": "decode",
            "glueClient.endpointOverride": local.dynamodb_url,
            "retrievalMode": "POLLING",
            "poisonRecordPolicy": "deadletter",
            "deadLetterDestination": "kinesis:dead",
            "metricsLevel": "SUMMARY",
        }
        app.kinesis.create_stream(StreamName="dead", ShardCount=1)
        after = check(app, app.write_properties("w", CAREFUL, with_registry))
        assert after.returncode == 0
        assert "schema registry: GetSchemaVersion is allowed" in after.stdout
        assert "dead letters: kinesis:dead: is there; takes letters of up to 1048576 bytes" in after.stdout
        assert "dead letters: kinesis:dead: storing a letter: NOT TRIED" in after.stdout
        assert "warning: deadLetterDestination takes letters of up to 1 MiB" in after.stdout
        assert "schema registry" not in before.stdout
        assert "dead letters" not in before.stdout
        assert "PutMetricData" not in before.stdout
        assert f"CloudWatch {name}: PutMetricData: NOT TRIED" in after.stdout
        assert "SubscribeToShard" not in before.stdout
        for table in (name, f"{name}-WorkerMetricStats", f"{name}-CoordinatorState"):
            assert f"table {table}: rows can be read and written" in after.stdout
        assert app.rows() == rows


def test_places_of_dead_letters_are_asked_for(local: Local, tmp_path: Path) -> None:
    topic = "arn:aws:sns:us-east-1:123456789012:check-dead"
    more = {
        "poisonRecordPolicy": "deadletter",
        "deadLetterDestination": f"sns:{topic}",
        "deadLetterOverflow": "s3://check-letters/large",
    }
    access = {"aws_access_key_id": "local", "aws_secret_access_key": "local", "region_name": "us-east-1"}
    # Any: boto3 has no stubs here for these services.
    make: Any = boto3.client
    with (
        application(local, tmp_path, "check-letters", shards=1) as app,
        closing(make("s3", endpoint_url=local.s3_url, **access)) as s3,
        closing(make("sns", endpoint_url=local.s3_url, **access)) as sns,
    ):
        file = app.write_properties("w", CAREFUL, more)
        before = check(app, file)
        assert before.returncode == 1
        assert (
            f"error: dead letters: sns:{topic}: InvalidRequest: GetTopicAttributes: NotFound" in before.stdout
        )
        assert (
            "error: dead letters: s3://check-letters/large: InvalidRequest: HeadBucket: 404" in before.stdout
        )
        assert before.stdout.count("create it, or correct the property") == 2
        s3.create_bucket(Bucket="check-letters")
        sns.create_topic(Name="check-dead")
        after = check(app, file)
        assert (after.returncode, after.stderr) == (0, "")
        assert f"dead letters: sns:{topic}: is there; takes letters of up to 262144 bytes" in after.stdout
        assert "dead letters: s3://check-letters/large: is there; takes letters of any size" in after.stdout
        assert "warning" not in after.stdout
        fault = {"operation": "HeadBucket", "fault": "error", "code": "AccessDenied"}
        order = Request(f"{local.s3_url}/_local/faults", data=json.dumps(fault).encode())
        urlopen(order, timeout=60).close()
        denied = check(app, file)
        assert denied.returncode == 0
        assert (
            "dead letters: s3://check-letters/large: storing a letter: NOT TRIED, as it would store a letter, "
            "and we may not ask for it" in denied.stdout
        )
        assert "Contents" not in s3.list_objects_v2(Bucket="check-letters")


def test_of_enhanced_fan_out_the_consumer_is_asked_for_and_the_rest_named(
    local: Local, tmp_path: Path
) -> None:
    name = "check-fan-out"
    with application(local, tmp_path, name, shards=1) as app:
        file = app.write_properties("w", CAREFUL, {"retrievalMode": "FANOUT"})
        done = check(app, file)
        assert (done.returncode, done.stderr) == (0, "")
        assert f"consumer {name}: does not exist; the daemon registers it" in done.stdout
        assert "RegisterStreamConsumer: NOT TRIED" in done.stdout
        assert "SubscribeToShard: NOT TRIED" in done.stdout
        assert "GetRecords" not in done.stdout


def test_a_stream_that_is_not_there_is_reported_with_advice(local: Local, tmp_path: Path) -> None:
    with application(local, tmp_path, "check-nothing", shards=0) as app:
        done = check(app, app.write_properties("w", CAREFUL))
        assert done.returncode == 1
        (line,) = (line for line in done.stdout.splitlines() if line.startswith("error: stream "))
        assert "ResourceNotFoundException" in line
        assert "check streamName" in line


def test_endpoints_that_do_not_answer_are_findings(local: Local, tmp_path: Path) -> None:
    with application(local, tmp_path, "check-nowhere", shards=0) as app:
        names = ("kinesisEndpoint", "dynamoDBEndpoint", "glueClient.endpointOverride")
        nowhere = {**dict.fromkeys(names, "http://127.0.0.1:1"), "schemaRegistry": "decode"}
        done = check(app, app.write_properties("w", CAREFUL, nowhere))
        assert done.returncode == 1
        assert done.stdout.count("check the network") == 5
