"""Whole daemons on the stream of a DynamoDB table: shards that roll, and changes that were trimmed."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

import pytest
from anyio.from_thread import start_blocking_portal

from kcl_local.changes.model import StreamsModel
from kcl_local.changes.stream import StreamsOptions
from kcl_local.changes.tables import NewTable
from kcl_local.server import local_endpoints
from tests.process.daemon import PROCESSORS, Application, Daemon, application, wait_until
from tests.process.local import Local

pytestmark = pytest.mark.timeout(300)

TABLE: Final = "orders"
CHANGED: Final = f"{PROCESSORS}.changed"
ITEMS: Final = 20


class Table:
    """A table with a stream, an application that reads it, and what its children have written down."""

    def __init__(self, app: Application, model: StreamsModel) -> None:
        self.app = app
        self.model = model
        self._written: dict[str, int] = defaultdict(int)

    def write(self, count: int) -> None:
        """Write so many items, each in its next version."""
        for number in range(count):
            name = f"item-{number % ITEMS}"
            self._written[name] += 1
            item = {"id": {"S": name}, "version": {"N": str(self._written[name])}}
            self.app.dynamodb.put_item(TableName=TABLE, Item=item)

    def order(self, action: str, **more: object) -> None:
        body = json.dumps({"table": TABLE, "action": action, **more}).encode()
        with urlopen(Request(f"{self.app.local.dynamodb_url}/_local/changes", body), timeout=10) as answer:
            assert answer.status == 200

    def noted(self) -> list[dict[str, Any]]:
        """In order for each shard, parents first."""
        files = sorted((self.app.directory / "ledgers" / "worker").glob("shardId-*"))
        return [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def versions(self) -> dict[str, list[int]]:
        """What was delivered of each item."""
        found: dict[str, list[int]] = defaultdict(list)
        for each in self.noted():
            if "id" in each:
                assert each["key"] == json.dumps({"id": {"S": each["id"]}}, separators=(",", ":"))
                found[each["id"]].append(each["version"])
        return found

    def is_all_there(self) -> bool:
        found = self.versions()
        return all(most in found[name] for name, most in self._written.items())

    def checkpointed(self) -> bool:
        """Whether every open shard has a position of its own."""
        rows = self.app.rows()
        checkpoints = [
            rows.get(each.shard_id, {}).get("checkpoint", {}) for each in self.model.stream(TABLE).open_shards
        ]
        return all(each.get("S", "TRIM_HORIZON") != "TRIM_HORIZON" for each in checkpoints)


@contextmanager
def table(directory: Path, options: StreamsOptions) -> Generator[Table]:
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(
            local_endpoints(streams=options, tables=[NewTable(TABLE, 2)])
        ) as endpoints,
    ):
        urls = endpoints.kinesis_url, endpoints.dynamodb_url, endpoints.cloudwatch_url, endpoints.s3_url
        keys = {"AWS_ACCESS_KEY_ID": "local", "AWS_SECRET_ACCESS_KEY": "local"}
        with application(Local(*urls, keys), directory, "changes", shards=0) as app:
            yield Table(app, endpoints.dynamodb.dynamodb.streams.model)


def reading(read: Table, more: dict[str, object] | None = None) -> AbstractContextManager[Daemon]:
    """A daemon that reads the table's stream."""
    settings: dict[str, object] = {
        "streamName": "",
        "streamArn": read.model.stream(TABLE).arn,
        "childRecordFormat": "lambda",
        "dynamoDBStreamsEndpoint": read.app.local.dynamodb_url,
        "idleTimeBetweenReadsInMillis": 200,
        "failoverTimeMillis": 6000,
        "adminPort": 0,
        **(more or {}),
    }
    return read.app.daemon(CHANGED, settings)


def shards_shown(daemon: Daemon) -> dict[str, dict[str, Any]]:
    url = daemon.wait_for("status_page_served")["url"]
    with urlopen(f"{url}status.json", timeout=10) as answer:
        snapshot = json.loads(answer.read())["snapshot"]
    return {each["shard_id"]: each for each in snapshot["shards"]}


def test_every_change_comes_once_and_in_order_while_shards_roll_and_calls_fail(tmp_path: Path) -> None:
    with table(tmp_path, StreamsOptions(shard_life_s=3.0, children_lag_s=0.5, empty_every=3)) as it:
        with reading(it) as daemon:
            daemon.wait_for("child_started", times=2)
            it.model.fail_next("DescribeStream", "ThrottlingException", times=2)
            for _ in range(8):
                it.write(40)
                it.model.fail_next("GetRecords", "LimitExceededException")
                it.model.fail_next("GetRecords", "ExpiredIteratorException")
                it.model.fail_next("GetShardIterator", "InternalServerError")
                time.sleep(1.0)  # noqa: TID251 - shards live for real seconds here
            wait_until(it.is_all_there, lambda: f"all changes are delivered\n{daemon.tail()}")
            daemon.stop()
        assert sum("ended" in each for each in it.noted()) >= 4
        for versions in it.versions().values():
            assert versions == sorted(set(versions)), "in order, and none twice"
            assert all(late == early + 1 for early, late in pairwise(versions)), "none lost"
        assert not [each for each in daemon.loud() if each["level"] != "warning"]
        assert not daemon.named("position_trimmed")


def test_a_shard_whose_changes_were_trimmed_stops_until_it_may_go_on(tmp_path: Path) -> None:
    with table(tmp_path, StreamsOptions()) as it:
        with reading(it) as daemon:
            it.write(ITEMS)
            wait_until(it.is_all_there, "all changes are delivered")
            wait_until(it.checkpointed, "both shards have a checkpoint")
            daemon.stop()
        it.write(ITEMS)
        time.sleep(1.1)  # noqa: TID251 - changes have whole seconds
        it.order("trim", before=time.time())  # noqa: TID251 - the endpoint lives in real time
        it.write(ITEMS)
        with reading(it) as daemon:
            lost = daemon.wait_for("position_trimmed", times=2, level="error")["lost"]
            assert "that are older than" in lost

            def stands() -> bool:
                shown = shards_shown(daemon)
                return [each["cause"] for each in shown.values()] == ["trimmed data"] * 2

            wait_until(stands, "the status names the cause")
            assert it.versions()["item-0"] == [1]
            daemon.stop()
        with reading(it, {"onTrimmed": "continue"}) as daemon:
            daemon.wait_for("position_trimmed", times=2, level="warning")
            wait_until(it.is_all_there, "what is left is delivered")
            daemon.stop()
        assert all(versions == [1, 3] for versions in it.versions().values())
