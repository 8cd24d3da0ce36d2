"""`python -m kcl_local` as a process: what it says, what it takes, how it ends."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing

import boto3
import pytest

from tests.process.local import Local, kinesis_client, local_process

FIRST = "shardId-000000000000"


def test_the_environment_leads_an_sdk_there(local: Local, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in local.environment.items():
        monkeypatch.setenv(name, value)
    session = boto3.Session()

    with (
        closing(session.client("kinesis")) as kinesis,
        closing(session.client("dynamodb")) as dynamodb,
        closing(session.client("sts")) as sts,
    ):
        assert kinesis.meta.endpoint_url == local.kinesis_url
        assert dynamodb.meta.endpoint_url == local.dynamodb_url
        assert "StreamNames" in kinesis.list_streams()
        assert "TableNames" in dynamodb.list_tables()
        assert sts.get_caller_identity()["Account"] == "123456789012"


def test_streams_of_the_command_line_are_there_at_once() -> None:
    with (
        local_process("--stream", "first", "--stream", "second:3", "--iterator-ttl-s", "0") as running,
        kinesis_client(running.kinesis_url) as kinesis,
    ):
        assert len(kinesis.list_shards(StreamName="second")["Shards"]) == 3
        iterator = kinesis.get_shard_iterator(StreamName="first", ShardId=FIRST, ShardIteratorType="LATEST")[
            "ShardIterator"
        ]
        with pytest.raises(kinesis.exceptions.ExpiredIteratorException):
            kinesis.get_records(ShardIterator=iterator)


@pytest.mark.parametrize("option", ["--kinesis-port", "--dynamodb-port"])
def test_a_port_in_use_is_told(local: Local, option: str) -> None:
    port = local.kinesis_url.rpartition(":")[2]

    ended = _run(option, port)

    assert ended.returncode == 1
    assert f"'127.0.0.1', {port}" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_malformed_stream_is_told() -> None:
    ended = _run("--stream", "orders:many")

    assert ended.returncode == 2
    assert "'orders:many'" in ended.stderr


def test_a_signal_ends_it_well() -> None:
    command = [sys.executable, "-W", "error", "-m", "kcl_local"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.terminate()
        assert process.wait(timeout=10) == 0
        assert process.stderr.read() == b""


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kcl_local", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
