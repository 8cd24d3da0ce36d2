"""A whole daemon that reads a table's items, then its changes: under writes, killed in the middle, the copy is the table."""

from __future__ import annotations

import json
import signal
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from tests.process.daemon import PROCESSORS, Application, again_and_again, application, wait_until
from tests.process.local import Local

pytestmark = pytest.mark.timeout(300)

COPYING: Final = f"{PROCESSORS}.copying"
TABLE: Final = "snapshot-orders"
ITEMS: Final = 600


def item(number: int, version: int) -> dict[str, Any]:
    return {"id": {"S": f"item-{number % ITEMS:05}"}, "version": {"N": str(version)}}


def fill(app: Application) -> None:
    """A table with items that were written before it had a stream."""
    app.dynamodb.create_table(
        TableName=TABLE,
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    for number in range(ITEMS):
        app.dynamodb.put_item(TableName=TABLE, Item=item(number, 0))
    app.dynamodb.update_table(
        TableName=TABLE, StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_AND_OLD_IMAGES"}
    )


def noted(directory: Path) -> list[tuple[str, object]]:
    file = directory / "ledgers" / "worker" / "copy"
    text = file.read_text() if file.exists() else ""
    return [(key, image) for key, image in map(json.loads, text.splitlines())]


def copy_of(directory: Path) -> dict[str, object]:
    return {key: image for key, image in dict(noted(directory)).items() if image is not None}


def in_table(app: Application) -> dict[str, object]:
    pages = app.dynamodb.get_paginator("scan").paginate(TableName=TABLE, ConsistentRead=True)
    return {str(each["id"].get("S")): each for page in pages for each in page["Items"]}


def write(app: Application, numbers: count[int]) -> None:
    """Each call changes an item, or deletes one."""
    number = next(numbers)
    app.dynamodb.put_item(TableName=TABLE, Item=item(number * 7, number))
    if not number % 5:
        app.dynamodb.delete_item(TableName=TABLE, Key={"id": item(number * 11, 0)["id"]})


def test_a_table_is_copied_under_writes_though_the_daemon_is_killed(local: Local, tmp_path: Path) -> None:
    settings: dict[str, object] = {
        "streamName": "",
        "tableName.source": TABLE,
        "dynamoDBStreamsEndpoint": local.dynamodb_url,
        "childRecordFormat": "lambda",
        "snapshot": "true",
        "snapshotSegments": 2,
        "snapshotReadUnits": 4,
        "initialPositionInStream": "LATEST",
        "idleTimeBetweenReadsInMillis": 200,
    }
    with application(local, tmp_path, "snapshot-copy", shards=0) as app:
        fill(app)
        numbers = count(1)
        with again_and_again(lambda: write(app, numbers), 0.02):
            with app.daemon(COPYING, settings) as daemon:
                daemon.wait_for("snapshot_begun", segments=2, table=TABLE)
                wait_until(lambda: len(noted(tmp_path)) > 20, "some items are read")
                daemon.signal(signal.SIGKILL)
                daemon.end()
                assert not daemon.named("snapshot_over")
            before = len(noted(tmp_path))
            assert {key for key in app.rows() if key.startswith("shardId")} == set(), "only segments"
            with app.daemon(COPYING, settings) as daemon:
                daemon.wait_for("snapshot_segment_over", times=2)
                again = noted(tmp_path)[before:]
                daemon.wait_for("snapshot_over")
        with app.daemon(COPYING, settings) as daemon:
            wait_until(lambda: copy_of(tmp_path) == in_table(app), "the copy is the table")
            daemon.stop()
            assert not daemon.named("snapshot_begun")
        assert sum(image == item(0, 0) for _, image in again) <= 1
        assert len(again) < 2 * ITEMS, "the second daemon has gone on where the first was"
