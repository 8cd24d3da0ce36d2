"""`kcl-daemon peek`: what an application has done last in a shard, and what it gets next."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.process.daemon import FAILOVER_MS, PROCESSORS, Application, application, wait_until
from tests.process.local import Local
from tests.process.looking import command, fault, no_faults
from tests.unit.records.aggregates import aggregate

pytestmark = pytest.mark.timeout(300)

SHARDS = [f"shardId-{number:012}" for number in range(3)]


def put(app: Application, shard: int, data: bytes) -> str:
    start = app.shards()[shard]["HashKeyRange"]["StartingHashKey"]
    return app.kinesis.put_record(StreamName=app.name, PartitionKey="k", ExplicitHashKey=start, Data=data)[
        "SequenceNumber"
    ]


def checkpoint(app: Application, shard: int, number: str, sub_number: int = 0) -> None:
    app.dynamodb.update_item(
        TableName=app.name,
        Key={"leaseKey": {"S": SHARDS[shard]}},
        UpdateExpression="SET checkpoint = :c, checkpointSubSequenceNumber = :s",
        ExpressionAttributeValues={":c": {"S": number}, ":s": {"N": str(sub_number)}},
    )


def peeked(local: Local, directory: Path, *words: str) -> list[dict[str, Any]]:
    ended = command(local, directory, "peek", "worker.properties", "--json", *words)
    assert ended.returncode == 0, ended.stderr
    leases: list[dict[str, Any]] = json.loads(ended.stdout)["leases"]
    return leases


def data_of(records: list[dict[str, Any]]) -> list[Any]:
    return [each["data"] for each in records]


def test_it_shows_what_is_next_and_changes_nothing(local: Local, tmp_path: Path) -> None:
    settings = {"retrievalMode": "POLLING", "failoverTimeMillis": FAILOVER_MS}
    delivered = tmp_path / "delivered"
    with application(local, tmp_path, "peek", shards=3) as app:
        file = app.write_properties("worker", f"{PROCESSORS}.decoding {delivered}", settings)
        ended = command(local, tmp_path, "peek", file)
        assert ended.returncode == 1
        assert "there is no lease table peek" in ended.stderr

        numbers = [put(app, shard, b'{"n":%d}' % shard) for shard in range(3)]
        with app.daemon(f"{PROCESSORS}.decoding {delivered}", settings) as daemon:
            wait_until(lambda: set(app.rows()) == set(SHARDS), "there are leases")
            wait_until(
                lambda: [app.rows()[each]["checkpoint"].get("S") for each in SHARDS] == numbers, "all is done"
            )
            daemon.stop()
        before = app.rows()
        leases = peeked(local, tmp_path)
        assert [each["shard"] for each in leases] == SHARDS
        assert data_of([each["at"] for each in leases]) == [{"n": 0}, {"n": 1}, {"n": 2}]
        assert {each["note"] for each in leases} == {
            "nothing is left: every record up to now is checkpointed"
        }

        whole = [put(app, 1, b"\x1b[2J"), put(app, 1, b"later")]
        leases = peeked(local, tmp_path, "--count", "2")
        assert data_of(leases[1]["next"]) == ["\x1b[2J", "later"]
        assert [each["sequenceNumber"] for each in leases[1]["next"]] == whole
        assert app.rows() == before

        ended = command(local, tmp_path, "peek", file, "--shard", "1")
        assert ended.stdout.startswith(f"shard 1: checkpoint {numbers[1]}, no owner\n  done  ")
        (line,) = (each for each in ended.stdout.splitlines() if each.startswith("  next  "))
        assert f"{whole[0]}/0  k  \\x1b[2J  (here for " in line


def test_positions_of_every_kind(local: Local, tmp_path: Path) -> None:
    with application(local, tmp_path, "peek-kinds", shards=3) as app:
        file = app.write_properties("worker", f"{PROCESSORS}.decoding {tmp_path / 'delivered'}")
        with app.daemon(f"{PROCESSORS}.decoding {tmp_path / 'delivered'}") as daemon:
            wait_until(lambda: set(app.rows()) == set(SHARDS), "there are leases")
            daemon.stop()
        key = "peek"
        first = put(app, 0, b"first")
        second = put(app, 0, b"second")
        inside = app.kinesis.put_record(
            StreamName=app.name,
            PartitionKey=key,
            Data=aggregate([(key, b"one", None), (key, b"two", None), (key, b"three", None)]),
        )
        shard = SHARDS.index(inside["ShardId"])

        checkpoint(app, 0, "TRIM_HORIZON")
        checkpoint(app, shard, inside["SequenceNumber"], 1)
        of_aggregate = peeked(local, tmp_path, "--shard", str(shard))[0]
        assert of_aggregate["at"]["data"] == "two"
        assert data_of(of_aggregate["next"]) == ["three"]

        checkpoint(app, 0, "TRIM_HORIZON")
        (oldest,) = peeked(local, tmp_path, "--shard", SHARDS[0])
        assert (oldest["at"], data_of(oldest["next"])) == (None, ["first"])
        for word, note in (("LATEST", "no checkpoint yet"), ("SHARD_END", "finished: every record")):
            checkpoint(app, 0, word)
            (lease,) = peeked(local, tmp_path, "--shard", "0")
            assert lease["next"] == []
            assert lease["note"].startswith(note)
            assert lease["finished"] is (word == "SHARD_END")

        checkpoint(app, 0, first)
        app.kinesis.split_shard(
            StreamName=app.name,
            ShardToSplit=SHARDS[0],
            NewStartingHashKey=str(int(app.shards()[0]["HashKeyRange"]["EndingHashKey"]) // 2),
        )
        assert data_of(peeked(local, tmp_path, "--shard", "0")[0]["next"]) == ["second"]
        checkpoint(app, 0, second)
        assert "the shard has ended" in peeked(local, tmp_path, "--shard", "0")[0]["note"]

        ended = command(local, tmp_path, "peek", file, "--shard", "77")
        assert ended.returncode == 1
        assert "there is no lease 77" in ended.stderr


def test_peek_notes_a_trimmed_checkpoint_and_a_throttled_read(local: Local, tmp_path: Path) -> None:
    with application(local, tmp_path, "peek-gone", shards=1) as app:
        app.write_properties("worker", f"{PROCESSORS}.decoding {tmp_path / 'delivered'}")
        with app.daemon(f"{PROCESSORS}.decoding {tmp_path / 'delivered'}") as daemon:
            wait_until(lambda: SHARDS[0] in app.rows(), "there is a lease")
            daemon.stop()
        gone = put(app, 0, b"gone")
        wait_until(
            lambda: put(app, 0, b"left") != "" and arrivals(app)[-1] > arrivals(app)[0], "a later millisecond"
        )
        checkpoint(app, 0, gone)
        trim = json.dumps({"stream": app.name, "before": arrivals(app)[-1]}).encode()
        with urlopen(Request(f"{local.kinesis_url}/_local/trim", data=trim)) as answer:
            assert answer.status == 204
        (lease,) = peeked(local, tmp_path)
        assert lease["at"] is None
        assert lease["note"] == "its checkpoint is trimmed; the oldest record left comes next"
        assert data_of(lease["next"]) == ["left"]

        fault(local, operation="GetRecords", fault="error", code="ProvisionedThroughputExceededException")
        try:
            (lease,) = peeked(local, tmp_path)
            assert lease["note"].startswith("not read: GetRecords: ")
        finally:
            no_faults(local)


def arrivals(app: Application) -> list[float]:
    iterator = app.kinesis.get_shard_iterator(
        StreamName=app.name, ShardId=SHARDS[0], ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    records = app.kinesis.get_records(ShardIterator=iterator)["Records"]
    return [
        record["ApproximateArrivalTimestamp"].timestamp()
        for record in records
        if "ApproximateArrivalTimestamp" in record
    ]
