"""`kcl-daemon tail` of the local endpoints, alone and beside a daemon."""

from __future__ import annotations

import gzip
import json
import os
import pty
import signal
import subprocess
import zlib
from pathlib import Path
from typing import Final

import pytest

from kcl_daemon.leases.lease import MAX_HASH
from tests.process.daemon import (
    FAILOVER_MS,
    PROCESSORS,
    Application,
    again_and_again,
    application,
    run_daemon,
    wait_until,
)
from tests.process.local import Local, local_process
from tests.process.looking import COMMAND, command, fault, no_faults, program, tailed
from tests.process.test_schema_registry import AVRO, glue_client, order
from tests.unit.records.aggregates import aggregate
from tests.unit.retrieval.registry import CLICKS, framed

pytestmark = pytest.mark.timeout(300)

PROTO: Final = 'syntax = "proto3";\nmessage Order { int64 id = 1; string name = 2; }\n'
FIRST: Final = "shardId-000000000000"


def put(app: Application, *payloads: bytes, key: str = "k") -> None:
    for data in payloads:
        app.kinesis.put_record(StreamName=app.name, PartitionKey=key, Data=data)


def test_content_is_opened(local: Local, tmp_path: Path) -> None:
    with application(local, tmp_path, "tail-content", shards=1) as app, glue_client(local) as glue:
        put(app, b'{"a": 1.10}', b"text", b"\xff\x00", gzip.compress(b'{"b":2}'), zlib.compress(b"packed"))
        put(app, aggregate([("a", gzip.compress(b"1"), None), ("b", b'{"c":3}', None)]))
        avro = glue.create_schema(
            SchemaName="tail-order",
            DataFormat="AVRO",
            Compatibility="NONE",
            SchemaDefinition=json.dumps(AVRO),
        )["SchemaVersionId"]
        proto = glue.create_schema(
            SchemaName="tail-proto", DataFormat="PROTOBUF", Compatibility="NONE", SchemaDefinition=PROTO
        )["SchemaVersionId"]
        put(app, framed(order(7), avro), framed(order(8), avro, packed=True))
        put(app, framed(b"\x00\x08\x09\x12\x01x", proto))
        put(app, framed(order(10), CLICKS), framed(b"", avro))

        seen = tailed(local, tmp_path, "tail-content")
        data = [each.get("data", each.get("dataBase64")) for each in seen]
        assert data[:9] == [
            {"a": 1.1},
            "text",
            "/wA=",
            {"b": 2},
            "packed",
            "1",
            {"c": 3},
            {"id": 7},
            {"id": 8},
        ]
        assert data[9] == {"id": "9", "name": "x"}
        assert "dataBase64" in seen[10]
        assert seen[3]["compression"] == "gzip"
        assert [each["subSequenceNumber"] for each in seen[5:7]] == [0, 1]
        assert [each["partitionKey"] for each in seen[5:7]] == ["a", "b"]
        assert seen[7]["schema"] == {"name": "tail-order", "versionId": avro, "dataFormat": "AVRO"}
        assert {each["shard"] for each in seen} == {FIRST}


def test_a_terminal_gets_no_control_characters(local: Local, tmp_path: Path) -> None:
    with application(local, tmp_path, "tail-terminal", shards=1) as app:
        put(app, b"\x1b[2J\nred", b"\x00\xff", ("x" * 5000).encode(), key="a\x07b")
        leader, follower = pty.openpty()
        words = ("tail", app.name, "--from", "TRIM_HORIZON", "--until", "tip")
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        ended = subprocess.run(
            [*COMMAND, *words], env={**kept, **local.environment}, stdout=follower, timeout=60, check=True
        )
        os.close(follower)
        shown = b""
        while True:
            try:
                piece = os.read(leader, 65536)
            except OSError:
                break
            shown += piece
        os.close(leader)
        assert ended.returncode == 0
        assert b"\x1b[2J" not in shown
        assert b"\\x1b[2J\\nred" in shown
        assert b"a\\x07b" in shown
        assert b"(no text, 2 B: 00 ff)" in shown
        assert b"(5000 characters; all of them with --json)" in shown
        assert b"\x1b[36m" in shown, "a key is in colour"


def test_tail_shows_only_records_that_its_options_choose(local: Local, tmp_path: Path) -> None:
    with application(local, tmp_path, "tail-chosen", shards=2) as app:
        for number in range(8):
            put(
                app,
                json.dumps({"n": number, "type": "paid" if number % 2 else "new"}).encode(),
                key=f"k{number}",
            )
        put(app, gzip.compress(b'{"n":9,"type":"paid"}'), key="packed")

        paid = tailed(local, tmp_path, app.name, "--filter", '{"data": {"type": ["paid"]}}')
        assert sorted(each["data"]["n"] for each in paid) == [1, 3, 5, 7, 9]
        assert [each["data"]["n"] for each in tailed(local, tmp_path, app.name, "--key", "k3")] == [3]
        assert [each["data"]["n"] for each in tailed(local, tmp_path, app.name, "--grep", '"n":9')] == [9]
        assert len(tailed(local, tmp_path, app.name, "-n", "3")) == 3
        of_first = tailed(local, tmp_path, app.name, "--shard", "0")
        assert {each["shard"] for each in of_first} == {FIRST}
        assert len(of_first) < 9
        ended = command(
            local, tmp_path, "tail", app.name, "--since", "1h", "--until", "tip", "--key", "k2", "-l"
        )
        assert ended.stdout.count("\n") == 1
        assert '/0  k2  {"n": 2, "type": "new"}' in ended.stdout
        assert ended.stderr == "1 record of 9 shown\n"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("nowhere",), 1, "there is no stream nowhere in us-east-1"),
        (
            ("tail-wrong", "--shard", "7"),
            1,
            "the stream tail-wrong has no shard 7; it has shardId-000000000000",
        ),
        (("tail-wrong", "--filter", '{"dat": ["x"]}'), 2, "a record has no such field"),
        (
            ("tail-wrong", "--filter", '{"eventName": ["INSERT"]}'),
            2,
            "only records of a DynamoDB stream have these",
        ),
        (("tail-wrong", "--from", "yesterday"), 2, "is not a position"),
        (("tail-wrong", "--from", "2999-01-01T00:00:00Z"), 2, "it is in the future"),
        (("tail-wrong", "--until", "LATEST"), 2, "is neither tip nor a time"),
        (("tail-wrong", "--local", "--region", "eu-west-1"), 2, "--local needs no --region"),
        (("a b",), 2, "neither the name of a stream nor an ARN"),
        (("arn:aws:kinesis:x",), 2, "not the ARN of a stream"),
    ],
)
def test_tail_explains_options_that_cannot_be_met(
    local: Local, tmp_path: Path, words: tuple[str, ...], code: int, said: str
) -> None:
    with application(local, tmp_path, "tail-wrong", shards=0) as app:
        if not app.kinesis.list_streams(Limit=1000)["StreamNames"].count("tail-wrong"):
            app.create_stream(1)
        ended = command(local, tmp_path, "tail", *words)
        assert (ended.returncode, said in ended.stderr) == (code, True), ended.stderr
        assert "Traceback" not in ended.stderr


def test_a_reshard_is_followed_and_ctrl_c_ends_it(local: Local, tmp_path: Path) -> None:
    with application(local, tmp_path, "tail-reshard", shards=2) as app:
        words = ("tail", app.name, "--from", "TRIM_HORIZON", "--json")
        with program(*words, directory=tmp_path, environment=local.environment) as running:
            put(app, b"0")
            wait_until(lambda: len(running.lines) == 1, "the first is shown")
            app.kinesis.split_shard(
                StreamName=app.name, ShardToSplit=FIRST, NewStartingHashKey=str(MAX_HASH // 4)
            )
            for number in range(20):
                put(app, str(number).encode(), key=str(number))
            app.kinesis.merge_shards(
                StreamName=app.name,
                ShardToMerge="shardId-000000000003",
                AdjacentShardToMerge="shardId-000000000001",
            )
            for number in range(20, 40):
                put(app, str(number).encode(), key=str(number))
            wait_until(lambda: len(running.lines) == 41, lambda: f"{len(running.lines)} lines")
            running.process.send_signal(signal.SIGINT)
            assert running.end() == 130
            assert running.said == ""
            by_key = sorted((each["data"] for each in running.documents), key=int)
            assert by_key == ["0", *map(str, range(40))]


def test_a_reader_of_its_output_may_leave(local: Local, tmp_path: Path) -> None:
    with application(local, tmp_path, "tail-head", shards=1) as app:
        words = ("tail", app.name, "--from", "TRIM_HORIZON")
        with program(*words, directory=tmp_path, environment=local.environment) as running:
            assert running.process.stdout is not None
            put(app, b"one")
            wait_until(lambda: len(running.lines) == 1, "the first is shown")
        kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        put(app, *[b"x" * 1000] * 100)
        ended = subprocess.run(
            ["bash", "-c", 'set -o pipefail; "$@" | head -n 1', "bash", *COMMAND, *words],
            env={**kept, **local.environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (ended.returncode, ended.stderr) == (0, "")


def test_it_reads_a_stream_of_a_table_by_its_arn(local: Local, tmp_path: Path) -> None:
    with application(local, tmp_path, "tail-table", shards=0) as app:
        made = app.dynamodb.create_table(
            TableName="tail-table",
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
            StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"},
        )["TableDescription"]
        app.dynamodb.put_item(TableName="tail-table", Item={"id": {"S": "a"}})
        (seen,) = tailed(local, tmp_path, made.get("LatestStreamArn", ""))
        assert seen["data"]["dynamodb"]["Keys"] == {"id": {"S": "a"}}


def test_troubles_of_the_service_are_said_once_and_lose_nothing(local: Local, tmp_path: Path) -> None:
    with application(local, tmp_path, "tail-troubles", shards=1) as app:
        put(app, *map(str.encode, "abcdefgh"))
        code = "ProvisionedThroughputExceededException"
        fault(local, operation="GetRecords", fault="error", code=code, times=1)
        fault(local, operation="GetShardIterator", fault="error", code=code, times=1)
        try:
            words = ("tail", app.name, "--from", "TRIM_HORIZON", "--until", "tip", "--json")
            ended = command(local, tmp_path, *words)
        finally:
            no_faults(local)
        assert [json.loads(line)["data"] for line in ended.stdout.splitlines()] == list("abcdefgh")
        assert ended.stderr.count("reading more slowly") == 1


def test_a_daemon_beside_it_is_not_throttled_and_keeps_its_leases(tmp_path: Path) -> None:
    """The daemon reads 2.5 times a second: with tail's one that leaves room for a busy machine, where reads come in
    bunches. How little room is enough is tested in virtual time (`test_follow.py`)."""
    with local_process("--throttle") as local, application(local, tmp_path, "tail-beside", shards=2) as app:
        settings = {
            "retrievalMode": "POLLING",
            "idleTimeBetweenReadsInMillis": 400,
            "failoverTimeMillis": FAILOVER_MS,
        }
        file = app.write_properties("worker", f"{PROCESSORS}.decoding {tmp_path / 'delivered'}", settings)
        words = ("--properties", file, "--log-level", "info,kcl_daemon.retrieval=debug")
        data = bytes(range(256)) * 40

        def write() -> None:
            app.kinesis.put_records(
                StreamName=app.name, Records=[{"Data": data, "PartitionKey": str(key)} for key in range(12)]
            )

        with run_daemon(tmp_path, *words, environment=local.environment) as daemon:
            write()
            wait_until(lambda: len(lines_of(tmp_path / "delivered")) == 12, "the daemon is at work")
            code = "ProvisionedThroughputExceededException"
            fault(local, operation="GetRecords", fault="error", code=code)
            daemon.wait_for("read_throttled")  # as a refusal looks
            with again_and_again(write, 0.1):
                more = ("tail", app.name, "--from", "TRIM_HORIZON", "--json", "-n", "600")
                with program(*more, directory=tmp_path, environment=local.environment) as running:
                    assert running.end() == 0
                    assert running.said == ""
                    assert len(running.lines) == 600
            assert len(lines_of(tmp_path / "delivered")) > 400
            assert len(daemon.named("read_throttled")) == 1
            assert set(app.owners().values()) == {"worker"}
            daemon.stop()
        before, tables = app.rows(), sorted(app.all_tables())
        assert len(tailed(local, tmp_path, app.name, "-n", "100")) == 100
        assert (app.rows(), sorted(app.all_tables())) == (before, tables)
        described = app.kinesis.describe_stream_summary(StreamName=app.name)["StreamDescriptionSummary"]
        assert app.kinesis.list_stream_consumers(StreamARN=described["StreamARN"])["Consumers"] == []


def lines_of(file: Path) -> list[str]:
    return file.read_text("ascii").splitlines() if file.exists() else []
