"""What DynamoDB Streams promises to whoever reads a table's changes, as AWS documents it: asked of every server alike."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

Promise = Callable[["Streams"], None]
_SHARD_ID: Final = re.compile(r"shardId-[0-9]{20}-[0-9a-f]{8}")
_NUMBER: Final = re.compile(r"[0-9]{21,40}")
_LABEL: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}")
_BOTH: Final = "NEW_AND_OLD_IMAGES"
_names = count(1)


def _now() -> datetime:
    return datetime.now(UTC)  # noqa: TID251 - the servers live in real time


@dataclass(frozen=True)
class Streams:
    """A server. `differences`: promises that it does not keep, and what it does instead."""

    name: str
    dynamodb: DynamoDBClient
    streams: Any  # botocore has the client, and no stub of it is installed
    differences: Mapping[str, str] = field(default_factory=dict[str, str])

    def table(self, view: str = _BOTH, keys: Sequence[str] = ("id",)) -> Table:
        name = f"orders-{next(_names)}"
        schema: Any = [
            {"AttributeName": key, "KeyType": kind}
            for key, kind in zip(keys, ("HASH", "RANGE"), strict=False)
        ]
        view_type: Any = {"StreamEnabled": True, "StreamViewType": view}
        self.dynamodb.create_table(
            TableName=name,
            KeySchema=schema,
            AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in keys],
            BillingMode="PAY_PER_REQUEST",
            StreamSpecification=view_type,
        )
        return Table(self, name)

    def refused(self, operation: str, /, **arguments: object) -> str:
        with pytest.raises(ClientError) as raised:
            getattr(self.streams, operation)(**arguments)
        answer: Any = raised.value.response
        return str(answer["Error"]["Code"])


@dataclass(frozen=True)
class Table:
    server: Streams
    name: str

    @property
    def arn(self) -> str:
        """Of its latest stream."""
        described: Any = self.server.dynamodb.describe_table(TableName=self.name)["Table"]
        return str(described["LatestStreamArn"])

    def put(self, key: str, **attributes: object) -> None:
        self.server.dynamodb.put_item(TableName=self.name, Item={"id": {"S": key}, **attributes})  # type: ignore[dict-item]

    def switch(self, view: str | None) -> None:
        wanted: dict[str, object] = {"StreamEnabled": view is not None}
        if view:
            wanted["StreamViewType"] = view
        self.server.dynamodb.update_table(TableName=self.name, StreamSpecification=wanted)  # type: ignore[arg-type]

    def described(self, arn: str | None = None) -> Any:
        return self.server.streams.describe_stream(StreamArn=arn or self.arn)["StreamDescription"]

    def iterator(self, kind: str, arn: str | None = None, **more: object) -> str:
        arn = arn or self.arn
        shard_id = self.described(arn)["Shards"][0]["ShardId"]
        answer = self.server.streams.get_shard_iterator(
            StreamArn=arn, ShardId=shard_id, ShardIteratorType=kind, **more
        )
        return str(answer["ShardIterator"])

    def read(self, iterator: str, **more: object) -> Any:
        return self.server.streams.get_records(ShardIterator=iterator, **more)

    def changes(self, arn: str | None = None) -> list[Any]:
        """All that its one shard has."""
        return list(self.read(self.iterator("TRIM_HORIZON", arn))["Records"])

    def kinds(self) -> list[tuple[str, str]]:
        return [(each["eventName"], each["dynamodb"]["Keys"]["id"]["S"]) for each in self.changes()]

    def after(self, kind: str, **more: Any) -> list[str]:
        """The keys that are read from there."""
        records = self.read(self.iterator(kind, **more))["Records"]
        return [each["dynamodb"]["Keys"]["id"]["S"] for each in records]


def a_stream_has_the_table_in_its_arn_and_a_time_as_its_label(server: Streams) -> None:
    table = server.table()
    described: Any = server.dynamodb.describe_table(TableName=table.name)["Table"]
    label = described["LatestStreamLabel"]
    assert _LABEL.fullmatch(label)
    assert described["LatestStreamArn"] == f"{described['TableArn']}/stream/{label}"
    assert described["StreamSpecification"] == {"StreamEnabled": True, "StreamViewType": _BOTH}


def a_list_of_streams_has_those_of_a_table(server: Streams) -> None:
    first, _second = server.table(), server.table()
    (only,) = server.streams.list_streams(TableName=first.name)["Streams"]
    assert only == {
        "StreamArn": first.arn,
        "TableName": first.name,
        "StreamLabel": first.arn.split("/stream/")[1],
    }


def a_list_of_streams_comes_in_pages(server: Streams) -> None:
    made = {server.table().arn for _ in range(3)}
    seen: list[str] = []
    more: dict[str, str] = {}
    while True:
        page = server.streams.list_streams(Limit=1, **more)
        assert len(page["Streams"]) <= 1
        seen += [each["StreamArn"] for each in page["Streams"]]
        if "LastEvaluatedStreamArn" not in page:
            break
        more = {"ExclusiveStartStreamArn": page["LastEvaluatedStreamArn"]}
    assert len(seen) == len(set(seen))
    assert made <= set(seen)


def a_stream_is_described(server: Streams) -> None:
    table = server.table("NEW_IMAGE", ("id", "at"))
    described = table.described()
    assert (described["StreamArn"], described["TableName"]) == (table.arn, table.name)
    assert (described["StreamStatus"], described["StreamViewType"]) == ("ENABLED", "NEW_IMAGE")
    assert described["KeySchema"] == [
        {"AttributeName": "id", "KeyType": "HASH"},
        {"AttributeName": "at", "KeyType": "RANGE"},
    ]
    assert abs(described["CreationRequestDateTime"] - _now()) < timedelta(minutes=2)


def a_shard_has_an_id_and_a_number_it_starts_at(server: Streams) -> None:
    (shard,) = server.table().described()["Shards"]
    assert _SHARD_ID.fullmatch(shard["ShardId"])
    assert _NUMBER.fullmatch(shard["SequenceNumberRange"]["StartingSequenceNumber"])
    assert "EndingSequenceNumber" not in shard["SequenceNumberRange"]
    assert "ParentShardId" not in shard


def an_open_shard_has_no_children(server: Streams) -> None:
    table = server.table()
    shard_id = table.described()["Shards"][0]["ShardId"]
    chosen = {"Type": "CHILD_SHARDS", "ShardId": shard_id}
    answer = server.streams.describe_stream(StreamArn=table.arn, ShardFilter=chosen)
    assert answer["StreamDescription"]["Shards"] == []


def writes_are_changes_in_their_order(server: Streams) -> None:
    table = server.table()
    table.put("a", n={"N": "1"})
    table.put("a", n={"N": "2"})
    server.dynamodb.delete_item(TableName=table.name, Key={"id": {"S": "a"}})
    first, second, third = (each["dynamodb"] for each in table.changes())
    assert table.kinds() == [("INSERT", "a"), ("MODIFY", "a"), ("REMOVE", "a")]
    one, two = ({"id": {"S": "a"}, "n": {"N": number}} for number in "12")
    assert [each.get("OldImage") for each in (first, second, third)] == [None, one, two]
    assert [each.get("NewImage") for each in (first, second, third)] == [one, two, None]


def a_change_says_what_it_is(server: Streams) -> None:
    table = server.table()
    table.put("a")
    (change,) = table.changes()
    assert change["eventSource"] == "aws:dynamodb"
    assert change["eventID"]
    assert re.fullmatch(r"1\.[0-9]", change["eventVersion"])
    assert _NUMBER.fullmatch(change["dynamodb"]["SequenceNumber"])
    assert change["dynamodb"]["StreamViewType"] == _BOTH
    assert change["dynamodb"]["SizeBytes"] > 0


def a_change_has_its_region(server: Streams) -> None:
    table = server.table()
    table.put("a")
    assert table.changes()[0]["awsRegion"] == "us-east-1"


def the_size_is_that_of_keys_and_images(server: Streams) -> None:
    table = server.table()
    table.put("a", data={"S": "x" * 1000})
    assert table.changes()[0]["dynamodb"]["SizeBytes"] == len("idaidadata") + 1000


def the_time_of_a_change_is_in_whole_seconds(server: Streams) -> None:
    table = server.table()
    table.put("a")
    at = table.changes()[0]["dynamodb"]["ApproximateCreationDateTime"]
    assert at.microsecond == 0
    assert abs(at - _now()) < timedelta(minutes=2)


def numbers_grow_from_the_start_of_the_shard(server: Streams) -> None:
    table = server.table()
    for index in range(20):
        table.put(f"{index}")
    start = int(table.described()["Shards"][0]["SequenceNumberRange"]["StartingSequenceNumber"])
    numbers = [int(each["dynamodb"]["SequenceNumber"]) for each in table.changes()]
    assert [start, *numbers] == sorted([start, *numbers])
    assert len(set(numbers)) == 20


def the_view_says_which_images_there_are(server: Streams) -> None:
    for view, images in (
        ("KEYS_ONLY", set[str]()),
        ("NEW_IMAGE", {"NewImage"}),
        ("OLD_IMAGE", {"OldImage"}),
        (_BOTH, {"NewImage", "OldImage"}),
    ):
        table = server.table(view)
        table.put("a")
        table.put("a", n={"N": "2"})
        body = table.changes()[1]["dynamodb"]
        assert body["StreamViewType"] == view
        assert {name for name in body if name.endswith("Image")} == images


def values_of_all_kinds_come_as_they_were_written(server: Streams) -> None:
    table = server.table()
    item = {
        "n": {"N": "12345678901234567890.5"},
        "b": {"B": b"\x00\xff"},
        "ss": {"SS": ["a", "b"]},
        "bs": {"BS": [b"a"]},
        "l": {"L": [{"B": b"x"}, {"BOOL": False}, {"NULL": True}]},
        "m": {"M": {"é": {"M": {"s": {"S": "日"}}}}},
    }
    table.put("a", **item)
    assert table.changes()[0]["dynamodb"]["NewImage"] == {"id": {"S": "a"}, **item}


def a_write_that_changes_nothing_is_no_change(server: Streams) -> None:
    table = server.table()
    table.put("a", n={"N": "1"})
    table.put("a", n={"N": "1"})
    server.dynamodb.delete_item(TableName=table.name, Key={"id": {"S": "b"}})
    assert table.kinds() == [("INSERT", "a")]


def a_refused_write_is_no_change(server: Streams) -> None:
    table = server.table()
    table.put("a")
    with pytest.raises(ClientError, match="ConditionalCheckFailed"):
        server.dynamodb.put_item(
            TableName=table.name,
            Item={"id": {"S": "a"}, "n": {"N": "1"}},
            ConditionExpression="attribute_not_exists(id)",
        )
    assert table.kinds() == [("INSERT", "a")]


def an_update_of_an_absent_item_is_one_insert(server: Streams) -> None:
    table = server.table()
    server.dynamodb.update_item(
        TableName=table.name,
        Key={"id": {"S": "a"}},
        UpdateExpression="SET n = :n",
        ExpressionAttributeValues={":n": {"N": "1"}},
    )
    assert table.kinds() == [("INSERT", "a")]
    (change,) = table.changes()
    assert change["dynamodb"]["NewImage"] == {"id": {"S": "a"}, "n": {"N": "1"}}


def a_batch_is_as_many_changes(server: Streams) -> None:
    table = server.table()
    table.put("a")
    server.dynamodb.batch_write_item(
        RequestItems={
            table.name: [
                {"PutRequest": {"Item": {"id": {"S": "b"}}}},
                {"DeleteRequest": {"Key": {"id": {"S": "a"}}}},
            ]
        }
    )
    assert sorted(table.kinds()) == [("INSERT", "a"), ("INSERT", "b"), ("REMOVE", "a")]


def a_transaction_is_all_of_its_changes_or_none(server: Streams) -> None:
    table = server.table()
    one, two = ({"Put": {"TableName": table.name, "Item": {"id": {"S": key}}}} for key in "ab")
    server.dynamodb.transact_write_items(TransactItems=[one])  # type: ignore[list-item]
    one["Put"]["ConditionExpression"] = "attribute_not_exists(id)"
    with pytest.raises(ClientError, match="TransactionCanceled"):
        server.dynamodb.transact_write_items(TransactItems=[two, one])  # type: ignore[list-item]
    table.put("c")
    assert table.kinds() == [("INSERT", "a"), ("INSERT", "c")]


def each_position_begins_where_it_says(server: Streams) -> None:
    table = server.table()
    for key in "abc":
        table.put(key)
    second = table.changes()[1]["dynamodb"]["SequenceNumber"]
    latest = table.iterator("LATEST")
    table.put("d")
    assert table.after("TRIM_HORIZON") == ["a", "b", "c", "d"]
    assert table.after("AT_SEQUENCE_NUMBER", SequenceNumber=second) == ["b", "c", "d"]
    assert table.after("AFTER_SEQUENCE_NUMBER", SequenceNumber=second) == ["c", "d"]
    assert [each["dynamodb"]["Keys"]["id"]["S"] for each in table.read(latest)["Records"]] == ["d"]


def a_time_is_a_position_too(server: Streams) -> None:
    table = server.table()
    table.put("a")
    past = _now() - timedelta(minutes=1)
    assert table.after("AT_TIMESTAMP", Timestamp=past) == ["a"]
    future = past + timedelta(days=1)
    shard_id = table.described()["Shards"][0]["ShardId"]
    arguments = {"StreamArn": table.arn, "ShardId": shard_id, "ShardIteratorType": "AT_TIMESTAMP"}
    assert server.refused("get_shard_iterator", **arguments, Timestamp=future) == "ValidationException"


def the_first_number_of_a_shard_is_a_position(server: Streams) -> None:
    table = server.table()
    table.put("a")
    start = table.described()["Shards"][0]["SequenceNumberRange"]["StartingSequenceNumber"]
    assert table.after("AT_SEQUENCE_NUMBER", SequenceNumber=start) == ["a"]


def a_number_outside_the_shard_is_refused(server: Streams) -> None:
    table = server.table()
    table.put("a")
    shard = table.described()["Shards"][0]
    place = {"StreamArn": table.arn, "ShardId": shard["ShardId"]}
    for number in (str(10**39), "1".zfill(21), "x" * 21):
        for kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
            arguments = {**place, "ShardIteratorType": kind, "SequenceNumber": number}
            assert server.refused("get_shard_iterator", **arguments) == "ValidationException"
    arguments = {**place, "ShardIteratorType": "AT_SEQUENCE_NUMBER"}
    assert server.refused("get_shard_iterator", **arguments) == "ValidationException"


def reading_goes_on_page_by_page(server: Streams) -> None:
    table = server.table()
    for key in "abcde":
        table.put(key)
    iterator, sizes = table.iterator("TRIM_HORIZON"), list[int]()
    for _ in range(4):
        answer = table.read(iterator, Limit=2)
        sizes.append(len(answer["Records"]))
        iterator = answer["NextShardIterator"]
    assert sizes == [2, 2, 1, 0]


def a_page_has_no_more_than_1000_changes(server: Streams) -> None:
    table = server.table()
    for start in range(0, 1025, 25):
        puts = [{"PutRequest": {"Item": {"id": {"S": f"{start + each}"}}}} for each in range(25)]
        server.dynamodb.batch_write_item(RequestItems={table.name: puts})  # type: ignore[dict-item]
    answer = table.read(table.iterator("TRIM_HORIZON"))
    rest = table.read(answer["NextShardIterator"])
    assert (len(answer["Records"]), len(rest["Records"])) == (1000, 25)
    assert "NextShardIterator" in rest


def a_page_has_no_more_than_a_mebibyte(server: Streams) -> None:
    table = server.table("NEW_IMAGE")
    for index in range(4):
        table.put(f"{index}", data={"S": "x" * 350_000})
    answer = table.read(table.iterator("TRIM_HORIZON"))
    assert len(answer["Records"]) == 2
    assert len(table.read(answer["NextShardIterator"])["Records"]) == 2


def a_page_of_more_than_1000_is_refused(server: Streams) -> None:
    table = server.table()
    code = server.refused("get_records", ShardIterator=table.iterator("TRIM_HORIZON"), Limit=1001)
    assert code in {"LimitExceededException", "ValidationException"}


def what_is_not_there_is_not_found(server: Streams) -> None:
    table = server.table()
    other = table.arn.replace(f"/{table.name}/", "/nowhere/")
    assert server.refused("describe_stream", StreamArn=other) == "ResourceNotFoundException"
    arguments = {"ShardId": "shardId-00000000000000000000-00000000", "ShardIteratorType": "LATEST"}
    assert server.refused("get_shard_iterator", StreamArn=other, **arguments) == "ResourceNotFoundException"
    code = server.refused("get_shard_iterator", StreamArn=table.arn, **arguments)
    assert code == "ResourceNotFoundException"


def an_iterator_that_is_none_is_refused(server: Streams) -> None:
    assert server.refused("get_records", ShardIterator="nonsense") == "ValidationException"


def a_stream_that_is_switched_off_is_read_to_its_end(server: Streams) -> None:
    table = server.table()
    table.put("a")
    arn = table.arn
    table.switch(None)
    table.put("b")
    described = table.described(arn)
    assert described["StreamStatus"] in {"DISABLING", "DISABLED"}
    assert "EndingSequenceNumber" in described["Shards"][0]["SequenceNumberRange"]
    answer = table.read(table.iterator("TRIM_HORIZON", arn))
    assert [each["dynamodb"]["Keys"]["id"]["S"] for each in answer["Records"]] == ["a"]
    following = answer.get("NextShardIterator")
    assert following is None or "NextShardIterator" not in table.read(following)


def a_stream_that_is_switched_on_again_is_another(server: Streams) -> None:
    table = server.table()
    first = table.arn
    table.put("a")
    table.switch(None)
    table.switch("KEYS_ONLY")
    table.put("b")
    assert first != table.arn
    listed = server.streams.list_streams(TableName=table.name)["Streams"]
    assert {each["StreamArn"] for each in listed} == {first, table.arn}
    assert [each["dynamodb"]["Keys"]["id"]["S"] for each in table.changes(first)] == ["a"]
    assert table.kinds() == [("INSERT", "b")]


def the_stream_of_a_deleted_table_can_be_read(server: Streams) -> None:
    table = server.table()
    table.put("a")
    arn = table.arn
    server.dynamodb.delete_table(TableName=table.name)
    assert [each["eventName"] for each in table.changes(arn)][:1] == ["INSERT"]


PROMISES: Final[tuple[Promise, ...]] = tuple(
    each
    for each in tuple(globals().values())
    if getattr(each, "__annotations__", {}) == {"server": "Streams", "return": "None"}
)


def held_to(server: Streams, promise: Promise) -> None:
    """A promise that a server is said not to keep must be broken: else the note is wrong."""
    if promise.__name__ not in server.differences:
        promise(server)
        return
    with pytest.raises((AssertionError, ClientError, KeyError, pytest.fail.Exception)):
        promise(server)


def connected(name: str, dynamodb_url: str, streams_url: str, differences: Mapping[str, str]) -> Streams:
    access: dict[str, Any] = {
        "region_name": "us-east-1",
        "aws_access_key_id": "local",
        "aws_secret_access_key": "local",
        "config": Config(retries={"total_max_attempts": 1}),
    }
    return Streams(
        name,
        boto3.client("dynamodb", endpoint_url=dynamodb_url, **access),
        boto3.client("dynamodbstreams", endpoint_url=streams_url, **access),
        differences,
    )
