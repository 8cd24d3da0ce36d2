"""`kcl-daemon put` into the local endpoints."""

from __future__ import annotations

import base64
import gzip
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from kcl_local.place import announced
from tests.process.daemon import FAILOVER_MS, PROCESSORS, application, wait_until
from tests.process.local import Local, kinesis_client
from tests.process.looking import command, fault, no_faults, program, stored, tailed
from tests.unit.records.test_producing import as_the_reference_reads_it

pytestmark = pytest.mark.timeout(300)


def orders(count: int) -> list[str]:
    return [json.dumps({"order": {"id": number}}) for number in range(count)]


def test_all_lines_arrive_once_though_parts_of_requests_are_refused(local: Local, tmp_path: Path) -> None:
    lines = orders(1200)
    (tmp_path / "orders.jsonl").write_text("\n".join(lines))
    with application(local, tmp_path, "put-parts", shards=3) as app:
        code = "ProvisionedThroughputExceededException"
        fault(local, operation="PutRecords", fault="part", code=code, times=3)
        fault(local, operation="PutRecords", fault="error", code="InternalFailure", times=2)
        ended = command(local, tmp_path, "put", "put-parts", "orders.jsonl", "--key", "order.id")

        assert ended.returncode == 0, ended.stderr
        records = stored(app.kinesis, "put-parts")
        assert sorted(record["Data"].decode() for record in records) == sorted(lines)
        assert all(
            str(json.loads(record["Data"])["order"]["id"]) == record["PartitionKey"] for record in records
        )
        assert ended.stderr.splitlines()[-1] == "put 1200 lines, 26 KiB, into put-parts"
        assert ended.stderr.count("trying again") == 1


def test_random_keys_spread_lines_and_a_given_key_keeps_them_in_order(local: Local, tmp_path: Path) -> None:
    lines = orders(60)
    (tmp_path / "orders.jsonl").write_text("\n".join(lines) + "\n")
    with application(local, tmp_path, "put-keys", shards=2) as app:
        assert command(local, tmp_path, "put", "put-keys", "orders.jsonl").returncode == 0
        assert len({record["PartitionKey"] for record in stored(app.kinesis, "put-keys")}) == 60
        words = ("put", "put-keys", "orders.jsonl", "--key-text", "k", "--rate", "1000/s")
        assert command(local, tmp_path, *words).returncode == 0
        of_key = [each for each in stored(app.kinesis, "put-keys") if each["PartitionKey"] == "k"]
        assert [each["Data"].decode() for each in of_key] == lines


def test_aggregates_are_read_by_the_reference_by_tail_and_by_the_daemon(local: Local, tmp_path: Path) -> None:
    lines = orders(400)
    (tmp_path / "orders.jsonl").write_text("\n".join(lines) + "\n")
    file = tmp_path / "delivered"
    with application(local, tmp_path, "put-aggregates", shards=2) as app:
        words = ("put", "put-aggregates", "orders.jsonl", "--key", "order.id", "--aggregate")
        ended = command(local, tmp_path, *words)
        assert ended.stderr == "put 400 lines, 8.5 KiB, into put-aggregates as 2 records\n"
        records = stored(app.kinesis, "put-aggregates")
        assert len(records) == 2
        by_reference = [each for record in records for each in as_the_reference_reads_it(record["Data"])]
        assert sorted(data.decode() for _, data in by_reference) == sorted(lines)

        seen = tailed(local, tmp_path, "put-aggregates")
        assert sorted(each["data"]["order"]["id"] for each in seen) == list(range(400))
        assert {each["subSequenceNumber"] for each in seen if each["shard"].endswith("0")} == set(
            range(sum(each["shard"].endswith("0") for each in seen))
        )

        settings = {"retrievalMode": "POLLING", "failoverTimeMillis": FAILOVER_MS}
        with app.daemon(f"{PROCESSORS}.decoding {file}", settings) as daemon:
            wait_until(
                lambda: file.exists() and len(file.read_text("ascii").splitlines()) == 400, "400 delivered"
            )
            daemon.stop()
        delivered = [
            bytes.fromhex(json.loads(line)[0]).decode() for line in file.read_text("ascii").splitlines()
        ]
        assert sorted(delivered) == sorted(lines)


def test_lines_in_base64_and_gzip(local: Local, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(base64.b64encode(b"\0\n\xff") + b"\n")
    with application(local, tmp_path, "put-packed", shards=1) as app:
        assert command(local, tmp_path, "put", "put-packed", "lines", "--base64", "--gzip").returncode == 0
        (record,) = stored(app.kinesis, "put-packed")
        assert gzip.decompress(record["Data"]) == b"\0\n\xff"


def test_lines_that_cannot_be_put_are_named_and_the_others_are_put(local: Local, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(
        b'{"id":"a"}\n\nplain\n{"id":{}}\n{"id":""}\n'
        + json.dumps({"id": "large", "x": "x" * 2**21}).encode()
        + b'\n{"id":"b"}'
    )
    with application(local, tmp_path, "put-bad", shards=1) as app:
        ended = command(local, tmp_path, "put", "put-bad", "lines", "--key", "id")
        assert ended.returncode == 1
        assert [record["PartitionKey"] for record in stored(app.kinesis, "put-bad")] == ["a", "b"]
        said = ended.stderr.splitlines()
        for number, why in (
            (2, "it is empty"),
            (3, "it is no JSON"),
            (4, "neither a text"),
            (5, "0 characters"),
        ):
            (line,) = (each for each in said if each.startswith(f"lines, line {number} is not put: "))
            assert why in line
        (large,) = (each for each in said if each.startswith("lines, line 6 is not put: "))
        assert "takes no record of" in large
        assert said[-1] == "put 2 lines, 20 B, into put-bad; 5 not put"


def test_a_typed_line_is_put_at_once_and_ctrl_c_says_how_many(local: Local, tmp_path: Path) -> None:
    with application(local, tmp_path, "put-typed", shards=1) as app:
        words = ("put", "put-typed", "--key-text", "k")
        with program(*words, directory=tmp_path, environment=local.environment) as running:
            running.write(b"first\nsec")
            wait_until(lambda: data_of(stored(app.kinesis, "put-typed")) == ["first"], "the first is there")
            running.write(b"ond\r\n")
            wait_until(
                lambda: data_of(stored(app.kinesis, "put-typed")) == ["first", "second"], "so is the second"
            )
            running.process.send_signal(signal.SIGINT)
            assert running.end() == 130
            assert running.said == "put 2 lines, 11 B, into put-typed\n"


def data_of(records: list[dict[str, Any]]) -> list[str]:
    return [record["Data"].decode() for record in records]


def test_ctrl_c_ends_what_is_tried_again_and_again(local: Local, tmp_path: Path) -> None:
    with application(local, tmp_path, "put-refused", shards=1):
        fault(local, operation="PutRecords", fault="error", code="InternalFailure", times=1000)
        try:
            words = ("put", "put-refused")
            with program(*words, directory=tmp_path, environment=local.environment) as running:
                running.write(b"first\n")
                wait_until(lambda: "trying again" in running.said, "it tries again")
                running.process.send_signal(signal.SIGTERM)
                assert running.end() == 143
                assert running.said.splitlines()[1:] == [
                    "put 0 lines, 0 B, into put-refused",
                    "line 1 and what comes after it may not be put",
                ]
        finally:
            no_faults(local)


def test_a_stream_that_is_not_there_is_said_in_one_line(local: Local, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("a\n")
    ended = command(local, tmp_path, "put", "nowhere", "lines")
    assert ended.returncode == 1
    assert "there is no stream nowhere in us-east-1; check its name, --region" in ended.stderr
    assert "lines, line 1 and what comes after it may not be put" in ended.stderr
    assert "Traceback" not in ended.stderr
    ended = command(local, tmp_path, "put", "no/stream", "lines")
    assert ended.returncode == 2
    arn = "arn:aws:dynamodb:us-east-1:123456789012:table/orders/stream/2026-01-01T00:00:00.000"
    assert command(local, tmp_path, "put", arn, "lines").returncode == 2


def test_local_finds_the_endpoints_of_this_user(
    local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    environment = {"AWS_PROFILE": "none", "AWS_CONFIG_FILE": str(tmp_path / "none")}
    with program("put", "--local", "orders", directory=tmp_path, environment=environment) as running:
        assert running.end() == 1
        assert "no local endpoints of yours answer; start them with `kcl-daemon local" in running.said
    with announced(local.environment), kinesis_client(local.kinesis_url) as kinesis:
        with program("put", "--local", "put-local", directory=tmp_path, environment=environment) as running:
            running.write(b"a\n")
            running.close()
            assert running.end() == 1
            assert "the local endpoints have no stream put-local; start them with" in running.said
        kinesis.create_stream(StreamName="put-local", ShardCount=1)
        with program("put", "--local", "put-local", directory=tmp_path, environment=environment) as running:
            running.write(b"a\n")
            running.close()
            assert running.end() == 0, running.said
        assert data_of(stored(kinesis, "put-local")) == ["a"]
