"""The local endpoints as AWS's own SDK sees them."""

from __future__ import annotations

import json
from collections.abc import Generator
from datetime import UTC, datetime
from threading import Barrier, Thread
from typing import TYPE_CHECKING, cast
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError

from kcl_local.dynamodb import DynamoDbServer
from kcl_local.faults import DROP
from kcl_local.kinesis.arguments import MIB, KinesisOptions, ReadLimits
from tests.process.local import InProcess, dynamodb_client, in_process

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_kinesis.type_defs import PutRecordsRequestEntryTypeDef

STREAM = "orders"
ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
FIRST = "shardId-000000000000"
ROUNDS = 60


@pytest.fixture(scope="module", name="world")
def _world() -> Generator[InProcess, None, None]:
    """With throttling; every test makes its own stream and table."""
    with in_process(KinesisOptions(limits=ReadLimits())) as running:
        yield running


def _code(caught: pytest.ExceptionInfo[ClientError]) -> str:
    return caught.value.response.get("Error", {}).get("Code", "")


def _iterator(world: InProcess, stream: str, shard_id: str = FIRST) -> str:
    return world.kinesis.get_shard_iterator(
        StreamName=stream, ShardId=shard_id, ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]


class TestKinesis:
    def test_a_record_goes_there_and_back(self, world: InProcess) -> None:
        world.kinesis.create_stream(StreamName="simple", ShardCount=1)
        put = world.kinesis.put_record(StreamName="simple", Data=b"\x00data\xff", PartitionKey="käse")

        answer = world.kinesis.get_records(ShardIterator=_iterator(world, "simple"))

        (record,) = answer["Records"]
        assert record["Data"] == b"\x00data\xff"
        assert record.get("PartitionKey") == "käse"
        assert record["SequenceNumber"] == put["SequenceNumber"]
        arrived = record.get("ApproximateArrivalTimestamp")
        assert arrived is not None
        assert arrived.timestamp() == world.clock.now_s
        assert answer["MillisBehindLatest"] == 0
        assert answer["ResponseMetadata"]["RequestId"]

    def test_a_split_shard_ends_with_its_children(self, world: InProcess) -> None:
        world.kinesis.create_stream(StreamName="split", ShardCount=1)
        world.kinesis.put_record(StreamName="split", Data=b"before", PartitionKey="k")
        world.kinesis.split_shard(StreamName="split", ShardToSplit=FIRST, NewStartingHashKey=str(2**127))

        answer = world.kinesis.get_records(ShardIterator=_iterator(world, "split"))

        assert [record["Data"] for record in answer["Records"]] == [b"before"]
        assert "NextShardIterator" not in cast("dict[str, object]", answer)
        assert [
            (child["ShardId"], child["ParentShards"], child["HashKeyRange"])
            for child in answer["ChildShards"]
        ] == [
            (
                "shardId-000000000001",
                [FIRST],
                {"StartingHashKey": "0", "EndingHashKey": str(2**127 - 1)},
            ),
            (
                "shardId-000000000002",
                [FIRST],
                {"StartingHashKey": str(2**127), "EndingHashKey": str(2**128 - 1)},
            ),
        ]

    def test_a_merge_is_reported_by_the_child(self, world: InProcess) -> None:
        world.kinesis.create_stream(StreamName="merge", ShardCount=2)
        world.kinesis.merge_shards(
            StreamName="merge", ShardToMerge=FIRST, AdjacentShardToMerge="shardId-000000000001"
        )

        left, _, merged = world.kinesis.list_shards(StreamName="merge")["Shards"]

        assert (merged.get("ParentShardId"), merged.get("AdjacentParentShardId")) == (
            FIRST,
            "shardId-000000000001",
        )
        assert int(left["SequenceNumberRange"].get("EndingSequenceNumber", "0")) < int(
            merged["SequenceNumberRange"]["StartingSequenceNumber"]
        )

    def test_pages_are_read_by_the_token_alone(self, world: InProcess) -> None:
        """Boto's own paginator repeats the name beside the token, which this refuses as the service does."""
        world.kinesis.create_stream(StreamName="pages", ShardCount=3)

        first = world.kinesis.list_shards(StreamName="pages", MaxResults=2)
        token = first.get("NextToken", "")
        second = world.kinesis.list_shards(NextToken=token)

        assert [len(page["Shards"]) for page in (first, second)] == [2, 1]
        with pytest.raises(world.kinesis.exceptions.InvalidArgumentException):
            world.kinesis.list_shards(StreamName="pages", NextToken=token)

    def test_a_filter_and_its_timestamp_are_understood(self, world: InProcess) -> None:
        world.kinesis.create_stream(StreamName="filters", ShardCount=1)
        created_s = world.clock.now_s
        between = datetime.fromtimestamp(created_s + 30, tz=UTC)
        world.clock.now_s += 60
        world.kinesis.split_shard(StreamName="filters", ShardToSplit=FIRST, NewStartingHashKey="1")

        before = world.kinesis.list_shards(
            StreamName="filters", ShardFilter={"Type": "AT_TIMESTAMP", "Timestamp": between}
        )
        latest = world.kinesis.list_shards(StreamName="filters", ShardFilter={"Type": "AT_LATEST"})

        assert [shard["ShardId"] for shard in before["Shards"]] == [FIRST]
        assert len(latest["Shards"]) == 2

    def test_an_arn_does_for_a_name(self, world: InProcess) -> None:
        world.kinesis.create_stream(StreamName=STREAM, ShardCount=1)
        record: PutRecordsRequestEntryTypeDef = {"Data": b"1", "PartitionKey": "k"}
        world.kinesis.put_records(StreamARN=ARN, Records=[record] * 3)
        iterator = world.kinesis.get_shard_iterator(
            StreamARN=ARN, ShardId=FIRST, ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]

        answer = world.kinesis.get_records(ShardIterator=iterator, StreamARN=ARN)

        assert len(answer["Records"]) == 3
        summary = world.kinesis.describe_stream_summary(StreamARN=ARN)["StreamDescriptionSummary"]
        assert (summary["StreamName"], summary["StreamStatus"]) == (STREAM, "ACTIVE")
        assert summary["StreamCreationTimestamp"].timestamp() == world.clock.now_s

    def test_an_old_iterator_has_expired(self, world: InProcess) -> None:
        world.kinesis.create_stream(StreamName="expiry", ShardCount=1)
        iterator = _iterator(world, "expiry")
        world.clock.now_s += 300

        with pytest.raises(world.kinesis.exceptions.ExpiredIteratorException):
            world.kinesis.get_records(ShardIterator=iterator)

    def test_an_iterator_that_is_none_is_an_invalid_argument(self, world: InProcess) -> None:
        with pytest.raises(world.kinesis.exceptions.InvalidArgumentException):
            world.kinesis.get_records(ShardIterator="none")

    def test_a_number_never_issued_is_an_invalid_argument(self, world: InProcess) -> None:
        world.kinesis.create_stream(StreamName="numbers", ShardCount=1)

        with pytest.raises(world.kinesis.exceptions.InvalidArgumentException):
            world.kinesis.get_shard_iterator(
                StreamName="numbers",
                ShardId=FIRST,
                ShardIteratorType="AFTER_SEQUENCE_NUMBER",
                StartingSequenceNumber="49" * 28,
            )

    def test_ten_mebibytes_fill_an_answer_and_five_seconds(self, world: InProcess) -> None:
        world.kinesis.create_stream(StreamName="large", ShardCount=1)
        record: PutRecordsRequestEntryTypeDef = {"Data": bytes(MIB - 1), "PartitionKey": "k"}
        world.kinesis.put_records(StreamName="large", Records=[record] * 6)
        world.kinesis.put_records(StreamName="large", Records=[record] * 6)
        answer = world.kinesis.get_records(ShardIterator=_iterator(world, "large"))
        assert len(answer["Records"]) == 10

        with pytest.raises(world.kinesis.exceptions.ProvisionedThroughputExceededException):
            world.kinesis.get_records(ShardIterator=answer["NextShardIterator"])
        world.clock.now_s += 5

        assert len(world.kinesis.get_records(ShardIterator=answer["NextShardIterator"])["Records"]) == 2

    def test_an_internal_failure_has_status_500(self, world: InProcess) -> None:
        world.fail_kinesis("ListStreams", "InternalFailure")

        with pytest.raises(ClientError) as caught:
            world.kinesis.list_streams()

        assert _code(caught) == "InternalFailure"
        assert caught.value.response.get("ResponseMetadata", {}).get("HTTPStatusCode") == 500
        world.kinesis.list_streams()

    def test_a_dropped_call_gets_no_answer(self, world: InProcess) -> None:
        world.kinesis.list_streams()
        world.fail_kinesis("ListStreams", DROP)

        with pytest.raises(ConnectionClosedError):
            world.kinesis.list_streams()

        world.kinesis.list_streams()

    def test_an_operation_that_is_not_implemented_is_unknown(self, world: InProcess) -> None:
        with pytest.raises(ClientError) as caught:
            world.kinesis.describe_limits()

        assert _code(caught) == "UnknownOperationException"

    @pytest.mark.parametrize(
        ("target", "body", "code"),
        [
            ("Kinesis_20131202.ListStreams", b"{", "SerializationException"),
            ("Kinesis_20131202.ListStreams", b"[]", "SerializationException"),
            ("Other_20131202.ListStreams", b"{}", "UnknownOperationException"),
        ],
    )
    def test_a_malformed_request_is_refused_with_the_code_of_aws(
        self, world: InProcess, target: str, body: bytes, code: str
    ) -> None:
        request = Request(world.endpoints.kinesis_url, data=body, headers={"X-Amz-Target": target})

        with pytest.raises(HTTPError) as caught:
            urlopen(request, timeout=60)

        with caught.value as answer:
            assert answer.code == 400
            assert json.loads(answer.read())["__type"] == code


class TestDynamoDb:
    def test_never_two_win_one_condition(self, world: InProcess) -> None:
        _create_table(world.dynamodb, "races")
        winners: list[int] = []
        starts = Barrier(2)

        def contend(number: int) -> None:
            with dynamodb_client(world.endpoints.dynamodb_url) as client:
                for round_number in range(ROUNDS):
                    starts.wait(timeout=90)
                    if _take(client, str(round_number), str(number)):
                        winners.append(round_number)

        threads = [Thread(target=contend, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert sorted(winners) == list(range(ROUNDS))

    def test_a_failed_condition_returns_the_item_that_is_there(self, world: InProcess) -> None:
        _create_table(world.dynamodb, "old")
        world.dynamodb.put_item(TableName="old", Item={"leaseKey": {"S": "a"}, "leaseOwner": {"S": "me"}})

        with pytest.raises(world.dynamodb.exceptions.ConditionalCheckFailedException) as caught:
            world.dynamodb.update_item(
                TableName="old",
                Key={"leaseKey": {"S": "a"}},
                UpdateExpression="SET leaseOwner = :you",
                ConditionExpression="leaseOwner = :you",
                ExpressionAttributeValues={":you": {"S": "you"}},
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )

        assert caught.value.response.get("Item") == {"leaseKey": {"S": "a"}, "leaseOwner": {"S": "me"}}

    def test_an_index_made_with_the_table_can_be_queried(self, world: InProcess) -> None:
        _create_table(world.dynamodb, "indexed")
        for key, owner in (("a", "me"), ("b", "you"), ("c", "me")):
            item = {"leaseKey": {"S": key}, "leaseOwner": {"S": owner}}
            world.dynamodb.put_item(TableName="indexed", Item=item)

        answer = world.dynamodb.query(
            TableName="indexed",
            IndexName="by-owner",
            KeyConditionExpression="leaseOwner = :me",
            ExpressionAttributeValues={":me": {"S": "me"}},
        )

        assert sorted(item["leaseKey"].get("S", "") for item in answer["Items"]) == ["a", "c"]

    @pytest.mark.parametrize("lost", [DROP, "InternalServerError"])
    def test_a_lost_answer_has_taken_effect(self, world: InProcess, lost: str) -> None:
        table = f"lost-{lost}"
        _create_table(world.dynamodb, table)
        world.endpoints.dynamodb.fail_next("PutItem", lost, after=True)

        with pytest.raises((ConnectionClosedError, ClientError)):
            world.dynamodb.put_item(TableName=table, Item={"leaseKey": {"S": "a"}})

        assert "Item" in world.dynamodb.get_item(TableName=table, Key={"leaseKey": {"S": "a"}})

    @pytest.mark.parametrize(
        ("code", "status"), [("ProvisionedThroughputExceededException", 400), ("InternalServerError", 500)]
    )
    def test_a_refused_call_has_not_taken_effect(self, world: InProcess, code: str, status: int) -> None:
        table = f"refused-{status}"
        _create_table(world.dynamodb, table)
        before = world.endpoints.dynamodb.calls["PutItem"]
        world.endpoints.dynamodb.fail_next("PutItem", code, times=2)

        for _ in range(2):
            with pytest.raises(ClientError) as caught:
                world.dynamodb.put_item(TableName=table, Item={"leaseKey": {"S": "a"}})
            assert _code(caught) == code
            assert caught.value.response.get("ResponseMetadata", {}).get("HTTPStatusCode") == status

        assert "Item" not in world.dynamodb.get_item(TableName=table, Key={"leaseKey": {"S": "a"}})
        assert world.endpoints.dynamodb.calls["PutItem"] == before + 2

    def test_there_is_one_server_in_a_process(self, world: InProcess) -> None:
        with pytest.raises(RuntimeError, match=world.endpoints.dynamodb_url):
            DynamoDbServer().start()


def _create_table(client: DynamoDBClient, name: str) -> None:
    client.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": "leaseKey", "KeyType": "HASH"}],
        AttributeDefinitions=[
            {"AttributeName": "leaseKey", "AttributeType": "S"},
            {"AttributeName": "leaseOwner", "AttributeType": "S"},
        ],
        GlobalSecondaryIndexes=[
            {
                "IndexName": "by-owner",
                "KeySchema": [{"AttributeName": "leaseOwner", "KeyType": "HASH"}],
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            }
        ],
        BillingMode="PAY_PER_REQUEST",
    )


def _take(client: DynamoDBClient, key: str, owner: str) -> bool:
    """Write the row if it is not there; whether this call did."""
    try:
        client.put_item(
            TableName="races",
            Item={"leaseKey": {"S": key}, "leaseOwner": {"S": owner}},
            ConditionExpression="attribute_not_exists(leaseKey)",
        )
    except client.exceptions.ConditionalCheckFailedException:
        return False
    return True
