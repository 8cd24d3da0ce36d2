"""Every byte that the real daemon gives a child, against the protocol's own rules: they bind, whoever reads."""

from __future__ import annotations

import json
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any, Final

import pytest

from tests.dropin.libraries import PROCESSORS
from tests.dropin.resharding import QUICK, split
from tests.process.daemon import Application, application, wait_until
from tests.process.local import Local

pytestmark = pytest.mark.timeout(300)

KEYS: Final = ("plain", 'a "quote" and a \\', "\u00e9\U0001f600\u2028\u2029", "<&>/")
PAYLOADS: Final = (b"", b"\xff\xfe\x00", b"x" * (1024 * 1024 - 256))
FIELDS: Final = {
    "initialize": ["action", "shardId", "sequenceNumber", "subSequenceNumber", "fencingToken"],
    "processRecords": ["action", "records", "millisBehindLatest"],
    "checkpoint": ["action", "sequenceNumber", "subSequenceNumber", "error"],
    "shutdownRequested": ["action"],
    "leaseLost": ["action"],
    "shardEnded": ["action"],
}
RECORD: Final = [
    "data", "partitionKey", "sequenceNumber", "approximateArrivalTimestamp", "subSequenceNumber", "action",
]  # fmt: skip


def put(app: Application) -> None:
    """One record for each key and payload."""
    for key in KEYS:
        for payload in PAYLOADS:
            app.kinesis.put_record(StreamName=app.name, PartitionKey=key, Data=payload)


def wait_heard(file: Path, records: int) -> None:
    """Wait until the child has been given so many records."""

    def heard() -> int:
        return file.read_bytes().count(b'"action":"record"') if file.exists() else 0

    wait_until(lambda: heard() >= records, lambda: f"{heard()} of {records} records are heard")


def test_every_byte_is_as_the_protocol_says(local: Local, tmp_path: Path) -> None:
    file = tmp_path / "heard"
    with application(local, tmp_path, "dropin-wire", shards=1) as app:
        put(app)
        with app.daemon(f"{sys.executable} {PROCESSORS / 'tap.py'} {file}", QUICK) as daemon:
            wait_heard(file, len(KEYS) * len(PAYLOADS))
            (shard,) = app.shards()
            split(app, shard["ShardId"], open_then=2)
            wait_until(lambda: b"shardEnded" in file.read_bytes(), "the shard has ended")
            daemon.wait_for("child_started", times=3)
            daemon.stop()
    data = file.read_bytes()
    assert data.isascii()
    assert data.endswith(b"\n")
    assert b"\r" not in data
    lines = data.removesuffix(b"\n").split(b"\n")
    assert b"" not in lines
    messages: list[dict[str, Any]] = [json.loads(line) for line in lines]
    for line, message in zip(lines, messages, strict=True):
        check(line, message)
    actions = [message["action"] for message in messages]
    assert set(actions) == set(FIELDS)
    assert messages[0]["sequenceNumber"] == "TRIM_HORIZON"
    check_records([record for message in messages for record in message.get("records", [])])


def check(line: bytes, message: dict[str, Any]) -> None:
    """Fields in their order, nothing that is not there, no blanks, whole numbers, no object but a record."""
    assert list(message) == FIELDS[message["action"]]
    assert line == json.dumps(message, separators=(",", ":")).encode("ascii").replace(b"\\u007f", b"\x7f")
    for name, value in message.items():
        if name == "records":
            for record in value:
                assert list(record) == RECORD
                assert record["action"] == "record"
                assert type(record["approximateArrivalTimestamp"]) is int
                assert type(record["subSequenceNumber"]) is int
        else:
            assert value is None or type(value) in {str, int}
    if message["action"] == "checkpoint":
        assert message["error"] is None


def check_records(records: list[dict[str, Any]]) -> None:
    """What was put is what came, in its order and once: nothing was in the way of it."""
    expected = [(key, payload) for key in KEYS for payload in PAYLOADS]
    found = [(record["partitionKey"], b64decode(record["data"], validate=True)) for record in records]
    assert found == expected
