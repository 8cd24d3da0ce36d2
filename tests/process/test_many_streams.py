"""A whole daemon that reads several streams: each by itself, its children told of which they are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.process.daemon import PROCESSORS, Application, application, wait_until
from tests.process.local import Local

pytestmark = pytest.mark.timeout(300)

OF_STREAMS: Final = f"{PROCESSORS}.of_streams"
SHARD: Final = "shardId-000000000000"
MANY: Final[Mapping[str, object]] = {
    "streamName": "",
    "streamNames": "many-left, many-right@TRIM_HORIZON, many-later",
    "initialPositionInStream": "TRIM_HORIZON",
    "idleTimeBetweenReadsInMillis": 200,
    "streamListRefreshMillis": 500,
}


def create(app: Application, name: str, shards: int) -> str:
    """A stream; its identity, by which its leases are called."""
    app.kinesis.create_stream(StreamName=name, ShardCount=shards)
    waiter = app.kinesis.get_waiter("stream_exists")
    waiter.wait(StreamName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 90})
    summary = app.kinesis.describe_stream_summary(StreamName=name)["StreamDescriptionSummary"]
    account = summary["StreamARN"].split(":")[4]
    return f"{account}:{name}:{int(summary['StreamCreationTimestamp'].timestamp())}"


def put(app: Application, name: str, count: int) -> None:
    """Records with the name of their stream, all into one shard."""
    records = [f"{name} {number}" for number in range(count)]
    for data in records:
        app.kinesis.put_record(StreamName=name, Data=data.encode(), PartitionKey="k", ExplicitHashKey="0")


def noted(directory: Path, stream: str, shard_id: str = SHARD) -> list[dict[str, Any]]:
    """What the children of a shard have written down."""
    file = directory / "ledgers" / "worker" / f"{stream}.{shard_id}"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def data(directory: Path, stream: str) -> list[str]:
    """The records that the first shard's children were given."""
    return [each["data"] for each in noted(directory, stream) if "data" in each]


def test_streams_are_read_side_by_side_and_one_that_is_missing_is_awaited(
    local: Local, tmp_path: Path
) -> None:
    with application(local, tmp_path, "many", shards=0) as app:
        left, right = create(app, "many-left", 2), create(app, "many-right", 1)
        put(app, "many-left", 5)
        with app.daemon(OF_STREAMS, MANY) as daemon:
            put(app, "many-right", 3)
            wait_until(lambda: len(data(tmp_path, "many-left")) == 5, "the records of the first stream")
            wait_until(lambda: len(data(tmp_path, "many-right")) == 3, "the records of the second stream")
            daemon.wait_for("stream_not_found", stream="many-later")
            later = create(app, "many-later", 1)
            put(app, "many-later", 2)
            wait_until(lambda: len(data(tmp_path, "many-later")) == 2, "the records of the third stream")
            daemon.stop()
        assert len(daemon.named("stream_not_found", level="error")) == 1
        assert data(tmp_path, "many-right") == [f"many-right {number}" for number in range(3)]
        keys = {f"{left}:{SHARD}", f"{left}:shardId-000000000001", f"{right}:{SHARD}", f"{later}:{SHARD}"}
        rows = {key: row for key, row in app.rows().items() if row.get("entityType", {}).get("S") == "LEASE"}
        assert rows.keys() == keys
        row = rows[f"{right}:{SHARD}"]
        assert (row["streamName"], row["shardId"]) == ({"S": right}, {"S": SHARD})
        assert row["checkpoint"].get("S", "").isdecimal()
        (reported,) = (each for each in noted(tmp_path, "many-left") if "data" not in each)
        assert (reported["KCL_STREAM_NAME"], reported["KCL_SHARD_ID"]) == ("many-left", SHARD)
        assert reported["KCL_STREAM_ARN"] == reported["streamArn"]
        assert reported["streamArn"].endswith(":stream/many-left")
        _refuses_one(app)


def _refuses_one(app: Application) -> None:
    """The table is one of many streams by now."""
    with app.daemon(OF_STREAMS, {"streamName": "many-left"}, worker="other") as daemon:
        assert daemon.end() != 0
        said = "\n".join([*daemon.plain_lines, *map(str, daemon.loud())])
        assert "the lease table many is of many streams" in said
        assert "applicationName" in said
