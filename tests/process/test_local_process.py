"""`kcl-daemon local` as a process: what it says, what it takes, how it ends."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.process.commands import run_command
from tests.process.daemon import wait_until
from tests.process.local import Local, kinesis_client, local_process

FIRST = "shardId-000000000000"
ALL_PORTS = [
    "--kinesis-port",
    pytest.param("--dynamodb-port", marks=pytest.mark.prove),
    pytest.param("--cloudwatch-port", marks=pytest.mark.prove),
    pytest.param("--s3-port", marks=pytest.mark.prove),
]
COMMAND = [sys.executable, "-W", "error", "-m", "kcl_daemon", "local"]


def test_the_environment_leads_an_sdk_there(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in local.environment.items():
        monkeypatch.setenv(name, value)
    session = boto3.Session()
    # Any: boto3 has no stubs here for all services.
    made: Any = session.client

    with (
        closing(session.client("kinesis")) as kinesis,
        closing(session.client("dynamodb")) as dynamodb,
        closing(session.client("sts")) as sts,
        closing(session.client("cloudwatch")) as cloudwatch,
        closing(made("s3")) as s3,
        closing(made("sns")) as sns,
        closing(made("sqs")) as sqs,
    ):
        assert kinesis.meta.endpoint_url == local.kinesis_url
        assert dynamodb.meta.endpoint_url == local.dynamodb_url
        assert cloudwatch.meta.endpoint_url == local.cloudwatch_url
        assert "StreamNames" in kinesis.list_streams()
        assert "TableNames" in dynamodb.list_tables()
        assert sts.get_caller_identity()["Account"] == "123456789012"
        assert "Metrics" in cloudwatch.list_metrics()
        assert {each.meta.endpoint_url for each in (s3, sns, sqs)} == {local.s3_url}
        assert sns.create_topic(Name="news")["TopicArn"].endswith(":news")
        assert sqs.create_queue(QueueName="news")["QueueUrl"] == f"{local.s3_url}/123456789012/news"
        s3.create_bucket(Bucket="things")
        s3.put_object(Bucket="things", Key="a b/\u00e9%2F", Body=b"\0" * 100_000)
        assert s3.head_object(Bucket="things", Key="a b/\u00e9%2F")["ContentLength"] == 100_000
        with closing(s3.get_object(Bucket="things", Key="a b/\u00e9%2F")["Body"]) as body:
            assert body.read() == b"\0" * 100_000


def test_streams_of_the_command_line_are_there_at_once() -> None:
    other = "arn:aws:kinesis:us-east-1:222222222222:stream/second"
    with (
        local_process(
            *("--stream", "first", "--stream", "second:3", "--stream", f"{other}:2"), "--iterator-ttl-s", "0"
        ) as running,
        kinesis_client(running.kinesis_url) as kinesis,
    ):
        assert len(kinesis.list_shards(StreamName="second")["Shards"]) == 3
        assert len(kinesis.list_shards(StreamARN=other)["Shards"]) == 2
        iterator = kinesis.get_shard_iterator(StreamName="first", ShardId=FIRST, ShardIteratorType="LATEST")[
            "ShardIterator"
        ]
        with pytest.raises(kinesis.exceptions.ExpiredIteratorException):
            kinesis.get_records(ShardIterator=iterator)


def test_a_table_has_a_stream_whose_shards_roll(monkeypatch: pytest.MonkeyPatch) -> None:
    with local_process(
        "--table", "orders:2", "--table", "visits:1:customer,at", "--shard-life-s", "1"
    ) as local:
        for name, value in local.environment.items():
            monkeypatch.setenv(name, value)
        made: Any = boto3.Session().client
        with closing(made("dynamodbstreams")) as streams:
            assert streams.meta.endpoint_url == local.dynamodb_url
            described = _described(streams, "visits")
            assert [each["AttributeName"] for each in described["KeySchema"]] == ["customer", "at"]
            wait_until(
                lambda: len(_described(streams, "orders")["Shards"]) >= 6, "two shards have rolled twice"
            )


def _described(streams: Any, table: str) -> Any:
    (listed,) = streams.list_streams(TableName=table)["Streams"]
    return streams.describe_stream(StreamArn=listed["StreamArn"])["StreamDescription"]


@pytest.mark.parametrize("tables", [["or:4"], ["orders:0"], ["orders:4:a,b,c"], ["orders", "orders"]])
def test_a_table_that_cannot_be_is_refused(tables: list[str]) -> None:
    options = [word for table in tables for word in ("--table", table)]
    ended = subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode != 0
    assert tables[-1] in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_shell_can_evaluate_what_it_prints_and_sigterm_ends_it_well() -> None:
    script = 'eval "$(head -n 14)"; [ -n "$AWS_ENDPOINT_URL_CLOUDWATCH" ] && env'
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as endpoints:
        assert endpoints.stderr is not None
        try:
            ended = subprocess.run(
                ["sh", "-c", script],
                stdin=endpoints.stdout,
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            )
        finally:
            endpoints.terminate()
        assert endpoints.wait(timeout=60) == 0
        assert endpoints.stderr.read() == b""
    environment: dict[str, str] = {}
    for line in ended.stdout.splitlines():
        name, _, environment[name] = line.partition("=")
    assert environment["AWS_ENDPOINT_URL_KINESIS"].startswith("http://127.0.0.1:")
    assert environment["AWS_REGION"] == "us-east-1"
    assert environment["AWS_EC2_METADATA_DISABLED"] == "true"


@pytest.mark.parametrize("option", ALL_PORTS)
def test_a_port_in_use_is_reported(local: Local, option: str) -> None:
    port = local.kinesis_url.rpartition(":")[2]

    ended = _run(option, port)

    assert ended.returncode == 1
    assert f"'127.0.0.1', {port}" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("stream", ["orders:many", "orders:", "orders:0", ":4", "or ders", "orders:20000"])
def test_a_malformed_stream_is_reported(stream: str, tmp_path: Path) -> None:
    ended = run_command("local", "--stream", stream, directory=tmp_path, environment={})

    assert ended.returncode == 2
    assert stream in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_where_it_serves_can_be_written_into_a_file_and_sigint_ends_it_well(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*COMMAND, "--write", "local.env"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as endpoints:
        try:
            assert endpoints.stderr is not None
            assert endpoints.stderr.readline() == (
                "serving; Ctrl-C ends it; in another terminal: . ./local.env\n"
            )
        finally:
            endpoints.send_signal(signal.SIGINT)
        assert endpoints.wait(timeout=60) == 0
        assert endpoints.stdout is not None
        assert (endpoints.stdout.read(), endpoints.stderr.read()) == ("", "")
    assert "export AWS_ENDPOINT_URL_KINESIS=http://127.0.0.1:" in (tmp_path / "local.env").read_text("ascii")


def test_a_terminal_is_told_at_once_what_it_does() -> None:
    ours, theirs = pty.openpty()
    command = [*COMMAND, "--format", "env"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs) as endpoints:
        os.close(theirs)
        assert endpoints.stdout is not None
        try:
            said = b""
            while b"serving; " not in said or not said.endswith(b"\n"):
                said += os.read(ours, 4096)
            starting, serving = said.splitlines()
            assert starting.startswith(b"starting Kinesis, DynamoDB")
            assert serving.startswith(b"serving; Ctrl-C ends it; ")
            assert endpoints.stdout.readline().startswith(b"AWS_ENDPOINT_URL_KINESIS=http://127.0.0.1:")
        finally:
            endpoints.send_signal(signal.SIGINT)
        os.close(ours)
