"""The stream of a table as `kcl-daemon local` has it: what `POST /_local/changes` does, faults, and `--table`."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import orjson
import pytest
from botocore.exceptions import ClientError, ConnectionClosedError

from kcl_local.changes.tables import NewTable
from kcl_local.dynamodb import DynamoDbServer
from kcl_local.faults import DROP
from tests.contract.streams_promises import Streams, Table, connected


class Local:
    def __init__(self, server: DynamoDbServer) -> None:
        self.server = server
        self.streams: Streams = connected("ours", server.url, server.url, {})

    def table(self, name: str, shards: int = 1, keys: tuple[str, ...] = ("id",)) -> Table:
        self.server.dynamodb.streams.tables.create(NewTable(name, shards, keys))
        return Table(self.streams, name)

    def order(self, table: Table, action: str, /, **more: object) -> list[str]:
        body = orjson.dumps({"table": table.name, "action": action, **more})
        with urlopen(Request(f"{self.server.url}/_local/changes", body)) as response:
            answer: Any = orjson.loads(response.read())
        return list(answer["shards"])

    def refused(self, table: Table, action: str, /, **more: object) -> str:
        with pytest.raises(HTTPError) as caught:
            self.order(table, action, **more)
        assert caught.value.code == 400
        return caught.value.read().decode()


@pytest.fixture(scope="module")
def local() -> Generator[Local]:
    with DynamoDbServer() as server:
        yield Local(server)


def test_a_table_is_created_with_its_shards_and_keys(local: Local) -> None:
    table = local.table("visits", 3, ("customer", "at"))
    described = table.described()
    assert [each["AttributeName"] for each in described["KeySchema"]] == ["customer", "at"]
    assert len(described["Shards"]) == 3
    with pytest.raises(ValueError, match="there is a table visits already"):
        local.table("visits")


def test_shards_roll_split_and_end_when_told(local: Local) -> None:
    table = local.table("reshaped")
    (first,) = local.order(table, "roll")
    left, right = local.order(table, "split", shard=first)
    assert local.order(table, "end", shard=left) == []
    parents = {each["ShardId"]: each.get("ParentShardId") for each in table.described()["Shards"]}
    assert parents[left] == parents[right] == first
    assert "is closed already" in local.refused(table, "roll", shard=left)
    assert "does not exist" in local.refused(table, "split", shard="shardId-1")


def test_a_stream_is_filled_and_trimmed(local: Local) -> None:
    table = local.table("filled")
    local.order(table, "fill", count=1500, size=2048)
    first = table.read(table.iterator("TRIM_HORIZON"))
    assert len(first["Records"]) == 512
    assert first["Records"][7]["dynamodb"]["Keys"] == {"id": {"S": "item-7"}}
    local.order(table, "trim", before=2_000_000_000)
    with pytest.raises(ClientError, match="TrimmedDataAccessException"):
        table.read(first["NextShardIterator"])


def test_a_stream_is_switched_off_and_on_and_its_table_knows(local: Local) -> None:
    table = local.table("switched", 2)
    first = table.arn
    local.order(table, "disable")
    assert "StreamSpecification" not in local.streams.dynamodb.describe_table(TableName=table.name)["Table"]
    assert table.arn == first
    assert "switched off already" in local.refused(table, "disable")
    assert "no enabled stream" in local.refused(table, "roll")
    local.order(table, "enable", view="NEW_IMAGE")
    assert table.arn != first
    assert table.described()["StreamViewType"] == "NEW_IMAGE"
    assert len(table.described()["Shards"]) == 2
    assert "switched on already" in local.refused(table, "enable")


def test_an_item_expires(local: Local) -> None:
    table = local.table("expiring")
    table.put("a")
    local.order(table, "expire", key={"id": {"S": "a"}})
    assert table.kinds() == [("INSERT", "a"), ("REMOVE", "a")]
    assert table.changes()[1]["userIdentity"]["Type"] == "Service"
    assert "has no such item" in local.refused(table, "expire", key={"id": {"S": "a"}})
    assert "there is no table" in local.refused(Table(local.streams, "none"), "expire")
    assert "nothing is done" in local.refused(table, "dance")


def test_calls_are_counted_and_fail_as_told(local: Local) -> None:
    table = local.table("faulty")
    iterator = table.iterator("LATEST")
    before = local.server.calls["GetRecords"]
    local.server.fail_next("GetRecords", "LimitExceededException")
    assert local.streams.refused("get_records", ShardIterator=iterator) == "LimitExceededException"
    local.server.fail_next("GetRecords", DROP)
    with pytest.raises(ConnectionClosedError):
        table.read(iterator)
    order = orjson.dumps({"operation": "GetRecords", "fault": "error", "code": "InternalServerError"})
    with urlopen(Request(f"{local.server.url}/_local/faults", order)) as response:
        assert response.status == 204
    assert local.streams.refused("get_records", ShardIterator=iterator) == "InternalServerError"
    assert table.read(iterator)["Records"] == []
    assert local.server.calls["GetRecords"] == before + 4
    assert (
        local.streams.refused("get_records", ShardIterator=iterator, Limit=1001) == "LimitExceededException"
    )


def test_a_call_that_breaks_moto_leaves_no_change(local: Local) -> None:
    table = local.table("broken")
    with pytest.raises(ClientError):
        local.streams.dynamodb.execute_statement(Statement="UPDATE broken SET z=2 WHERE id='h'")
    table.put("a")
    assert table.kinds() == [("INSERT", "a")]


def test_statements_are_changes(local: Local) -> None:
    table = local.table("partiql")
    execute = local.streams.dynamodb.execute_statement
    execute(Statement="INSERT INTO partiql VALUE {'id': 'h'}")
    execute(Statement="UPDATE partiql SET z=? WHERE id=?", Parameters=[{"N": "2"}, {"S": "h"}])
    execute(Statement="DELETE FROM partiql WHERE id='h'")
    assert [kind for kind, _ in table.kinds()] == ["INSERT", "MODIFY", "REMOVE"]
