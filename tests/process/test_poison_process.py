"""Real children that fail at a record: it becomes a dead letter and all others are processed; or the daemon ends."""

from __future__ import annotations

import base64
import json
import stat
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import boto3
import pytest

from tests.process.daemon import PROCESSORS, Application, application, wait_until
from tests.process.local import Local

pytestmark = pytest.mark.timeout(300)

POISONED: Final = f"{PROCESSORS}.poisoned"
SHARD: Final = "shardId-000000000000"
# A search starts half a dozen interpreters, one after the other.
SEARCH_S: Final = 60.0
QUICK: Final[Mapping[str, object]] = {
    "idleTimeBetweenReadsInMillis": 200,
    "childRestartBackoffMillis": 20,
    "childRestartBackoffMaxMillis": 200,
}


def put_poison(app: Application, text: str) -> str:
    """Write a record that no child can process; its sequence number."""
    answer = app.kinesis.put_record(StreamName=app.name, Data=text.encode(), PartitionKey="bad key")
    return answer["SequenceNumber"]


def letters(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def test_a_record_that_kills_every_child_becomes_a_dead_letter(local: Local, tmp_path: Path) -> None:
    dead = tmp_path / "dead.jsonl"
    more = {
        **QUICK,
        "poisonRecordPolicy": "deadletter",
        "poisonRecordMaxFailures": 2,
        "deadLetterDestination": f"file:{dead}",
    }
    with application(local, tmp_path, "poison-letters", shards=1) as app:
        app.put(4)
        number = put_poison(app, "poison 1")
        app.put(4)
        with app.daemon(POISONED, more) as daemon:
            app.wait_done(within_s=SEARCH_S)
            event = daemon.wait_for("record_set_aside", shard_id=SHARD)
            assert (event["level"], event["sequence_number"]) == ("error", number)
            last = put_poison(app, "poison 2")
            daemon.wait_for("record_set_aside", times=2, within_s=SEARCH_S)
            # Nothing comes behind it, and nobody will meet it again: it is covered by the checkpoint.
            wait_until(lambda: app.rows()[SHARD]["checkpoint"].get("S") == last, "it is checkpointed")
            daemon.stop()
        app.assert_account()
    first, second = letters(dead)
    assert stat.S_IMODE(dead.stat().st_mode) == 0o600
    assert base64.b64decode(first["data"]) == b"poison 1"
    assert base64.b64decode(second["data"]) == b"poison 2"
    assert first["partitionKey"] == "bad key"
    assert (first["sequenceNumber"], first["shardId"], first["failures"]) == (number, SHARD, 2)
    assert "cannot read 'poison 1'" in first["stderr"][-1]


def test_a_record_of_10_mib_is_stored_in_s3_byte_for_byte(local: Local, tmp_path: Path) -> None:
    key = b"bad key"
    data = b"poison\xff" + bytes(range(256)) * 40_960
    data = data[: 10 * 1024**2 - len(key)]
    more = {
        **QUICK,
        "poisonRecordPolicy": "deadletter",
        "poisonRecordMaxFailures": 1,
        "deadLetterDestination": "s3://poison-letters/of/us?folders=day",
    }
    # Any: boto3 has no stubs here for S3.
    make: Any = boto3.client
    access = {"aws_access_key_id": "local", "aws_secret_access_key": "local", "region_name": "us-east-1"}
    with (
        application(local, tmp_path, "poison-s3", shards=1) as app,
        closing(make("s3", endpoint_url=local.s3_url, **access)) as s3,
    ):
        s3.create_bucket(Bucket="poison-letters")
        summary = app.kinesis.describe_stream_summary(StreamName=app.name)["StreamDescriptionSummary"]
        app.kinesis.update_max_record_size(StreamARN=summary["StreamARN"], MaxRecordSizeInKiB=10_240)
        app.put(4)
        number = app.kinesis.put_record(StreamName=app.name, Data=data, PartitionKey=key.decode())[
            "SequenceNumber"
        ]
        app.put(4)
        with app.daemon(POISONED, more) as daemon:
            app.wait_done(within_s=SEARCH_S)
            daemon.wait_for("record_set_aside", shard_id=SHARD)
            daemon.stop()
        app.assert_account()
        found = s3.list_objects_v2(Bucket="poison-letters")["Contents"]
        name, beside = (each["Key"] for each in found)
        assert f"/poison-s3/poison-s3/{SHARD}/{number}-0000000000" in name
        assert name.startswith("of/us/20")
        with closing(s3.get_object(Bucket="poison-letters", Key=name)["Body"]) as body:
            assert body.read() == data
        with closing(s3.get_object(Bucket="poison-letters", Key=beside)["Body"]) as body:
            letter = json.loads(body.read())
    assert beside == f"{name}.json"
    assert (letter["dataBytes"], letter["partitionKey"], letter["sequenceNumber"]) == (
        len(data),
        "bad key",
        number,
    )
    assert "data" not in letter


def test_with_the_policy_exit_a_failing_child_ends_the_daemon(local: Local, tmp_path: Path) -> None:
    with application(local, tmp_path, "poison-exit", shards=2) as app:
        app.put()
        with app.daemon(POISONED, {**QUICK, "childFailurePolicy": "exit"}) as daemon:
            app.wait_done()
            put_poison(app, "poison")
            assert daemon.end() == 1
            (failed,) = daemon.named("daemon_failed")
            assert "during processRecords" in failed["error"]
            assert set(app.owners().values()) == {None}
