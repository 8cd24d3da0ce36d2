"""Real children that fail at a record: it becomes a dead letter and all others are processed; or the daemon ends."""

from __future__ import annotations

import base64
import json
import stat
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
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


@pytest.mark.parametrize("is_overflow", [False, True], ids=["destination", "overflow"])
def test_a_record_of_10_mib_is_stored_in_s3_byte_for_byte(
    is_overflow: bool, local: Local, tmp_path: Path
) -> None:
    key, bucket = b"bad key", f"poison-letters-{int(is_overflow)}"
    data = b"poison\xff" + bytes(range(256)) * 40_960
    data = data[: 10 * 1024**2 - len(key)]
    with (
        application(local, tmp_path, bucket, shards=1) as app,
        service("s3", local.s3_url) as s3,
        service("sqs", local.s3_url) as sqs,
    ):
        s3.create_bucket(Bucket=bucket)
        queue = sqs.create_queue(QueueName=bucket)["QueueUrl"]
        folder = f"s3://{bucket}/of/us?folders=day"
        summary = app.kinesis.describe_stream_summary(StreamName=app.name)["StreamDescriptionSummary"]
        app.kinesis.update_max_record_size(StreamARN=summary["StreamARN"], MaxRecordSizeInKiB=10_240)
        app.put(4)
        put = app.kinesis.put_record(StreamName=app.name, Data=data, PartitionKey=key.decode())
        number = put["SequenceNumber"]
        app.put(4)
        more = {
            **QUICK,
            "poisonRecordPolicy": "deadletter",
            "poisonRecordMaxFailures": 1,
            "deadLetterDestination": f"sqs:{queue}" if is_overflow else folder,
            **({"deadLetterOverflow": folder} if is_overflow else {}),
        }
        with app.daemon(POISONED, more) as daemon:
            app.wait_done(within_s=SEARCH_S)
            daemon.wait_for("record_set_aside", shard_id=SHARD)
            daemon.stop()
        app.assert_account()
        name, beside = (each["Key"] for each in s3.list_objects_v2(Bucket=bucket)["Contents"])
        assert name.startswith("of/us/20")
        assert name.endswith(f"/{bucket}/{bucket}/{SHARD}/{number}-0000000000")
        assert beside == f"{name}.json"
        assert read(s3, bucket, name) == data
        letter = json.loads(read(s3, bucket, beside))
        assert "data" not in letter
        if is_overflow:
            (message,) = sqs.receive_message(QueueUrl=queue)["Messages"]
            letter = json.loads(message["Body"])
            assert (letter["data"], letter["dataAt"]) == (None, f"s3://{bucket}/{name}")
    told = (letter["dataBytes"], letter["partitionKey"], letter["sequenceNumber"])
    assert told == (len(data), key.decode(), number)


@contextmanager
def service(name: str, url: str) -> Generator[Any]:
    # Any: boto3 has no stubs here for these services.
    make: Any = boto3.client
    access = {"aws_access_key_id": "local", "aws_secret_access_key": "local", "region_name": "us-east-1"}
    with closing(make(name, endpoint_url=url, **access)) as made:
        yield made


def read(s3: Any, bucket: str, key: str) -> bytes:
    with closing(s3.get_object(Bucket=bucket, Key=key)["Body"]) as body:
        return bytes(body.read())


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
