"""The Kinesis model: streams as a whole, ListShards and resharding."""

from __future__ import annotations

from typing import cast

import pytest

from kcl_local.kinesis.arguments import KinesisOptions, ServiceError
from tests.unit.local.world import ARN, HASHES, START_S, STREAM, World, shard_id

HOUR_S = 3600


def test_a_stream_is_described_as_it_was_created() -> None:
    world = World()
    world.create(3)

    answer = world.call("DescribeStreamSummary", StreamName=STREAM)

    summary = cast("dict[str, object]", answer["StreamDescriptionSummary"])
    assert summary["StreamARN"] == ARN
    assert summary["StreamStatus"] == "ACTIVE"
    assert summary["StreamCreationTimestamp"] == START_S
    assert summary["OpenShardCount"] == 3
    assert summary["RetentionPeriodHours"] == 24


def test_a_name_can_be_had_once_until_it_is_deleted() -> None:
    world = World()
    world.create()
    assert world.refused("CreateStream", StreamName=STREAM, ShardCount=1) == "ResourceInUseException"

    world.call("DeleteStream", StreamName=STREAM)

    assert world.refused("ListShards", StreamName=STREAM) == "ResourceNotFoundException"
    world.create(2)
    assert len(world.shards()) == 2


def test_a_new_stream_is_creating_for_the_set_time() -> None:
    world = World(KinesisOptions(creating_s=10))
    world.create()
    world.now_s += 9.999
    assert world.refused("ListShards", StreamName=STREAM) == "ResourceInUseException"
    assert (
        world.refused("PutRecord", StreamName=STREAM, Data="", PartitionKey="k")
        == "ResourceNotFoundException"
    )
    summary = world.call("DescribeStreamSummary", StreamName=STREAM)["StreamDescriptionSummary"]
    assert cast("dict[str, object]", summary)["StreamStatus"] == "CREATING"

    world.now_s += 0.001

    assert len(world.shards()) == 1


def test_streams_are_listed_by_name_in_pages() -> None:
    world = World()
    for name in ("c", "a", "b"):
        world.call("CreateStream", StreamName=name, StreamModeDetails={"StreamMode": "ON_DEMAND"})

    first = world.call("ListStreams", Limit=2)
    second = world.call("ListStreams", Limit=2, NextToken=first["NextToken"])

    assert (first["StreamNames"], first["HasMoreStreams"]) == (["a", "b"], True)
    assert (second["StreamNames"], second["HasMoreStreams"]) == (["c"], False)
    assert "NextToken" not in second


def test_describe_stream_pages_by_shard() -> None:
    world = World()
    world.create(3)

    answer = world.call("DescribeStream", StreamName=STREAM, Limit=1, ExclusiveStartShardId=shard_id(0))

    described = cast("dict[str, object]", answer["StreamDescription"])
    assert [shard["ShardId"] for shard in cast("list[dict[str, str]]", described["Shards"])] == [shard_id(1)]
    assert described["HasMoreShards"] is True


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({}, "InvalidArgumentException"),
        ({"StreamARN": "arn:aws:kinesis:us-east-1:999999999999:stream/orders"}, "ResourceNotFoundException"),
        ({"StreamARN": ARN, "StreamName": "other"}, "InvalidArgumentException"),
        ({"StreamARN": ARN.replace("us-east-1", "eu-west-1")}, "InvalidArgumentException"),
        ({"StreamARN": "orders"}, "InvalidArgumentException"),
        ({"StreamName": 7}, "ValidationException"),
        ({"StreamName": "other"}, "ResourceNotFoundException"),
    ],
)
def test_a_stream_named_badly_is_refused(arguments: dict[str, object], code: str) -> None:
    world = World()
    world.create()

    assert world.refused("ListShards", **arguments) == code


@pytest.mark.parametrize(
    "arguments",
    [
        {"StreamName": "no spaces", "ShardCount": 1},
        {"StreamName": STREAM},
        {"StreamName": STREAM, "ShardCount": 0},
        {"StreamName": STREAM, "ShardCount": True},
        {"StreamName": STREAM, "StreamModeDetails": {"StreamMode": "OTHER"}},
        {"StreamName": STREAM, "StreamModeDetails": "ON_DEMAND"},
    ],
)
def test_a_malformed_creation_is_refused(arguments: dict[str, object]) -> None:
    assert World().refused("CreateStream", **arguments) == "ValidationException"


def test_the_arn_stands_for_the_name_everywhere() -> None:
    world = World()
    world.create(2)
    world.call("SplitShard", StreamARN=ARN, ShardToSplit=shard_id(0), NewStartingHashKey="5")
    world.call("MergeShards", StreamARN=ARN, ShardToMerge=shard_id(3), AdjacentShardToMerge=shard_id(2))
    world.call(
        "PutRecords", StreamARN=ARN, Records=[{"Data": "", "PartitionKey": "k", "ExplicitHashKey": "0"}]
    )
    world.call("IncreaseStreamRetentionPeriod", StreamARN=ARN, RetentionPeriodHours=48)
    world.call("UpdateShardCount", StreamARN=ARN, TargetShardCount=4, ScalingType="UNIFORM_SCALING")

    answer = world.call(
        "GetShardIterator", StreamARN=ARN, ShardId=shard_id(4), ShardIteratorType="TRIM_HORIZON"
    )
    assert len(world.read(str(answer["ShardIterator"]), StreamARN=ARN).records) == 1
    assert len(world.call("ListShards", StreamARN=ARN)["Shards"]) == len(world.shards())  # type: ignore[arg-type]


class TestListShards:
    def test_pages_follow_each_other_by_the_token_alone(self) -> None:
        world = World()
        world.create(5)

        found: list[str] = []
        answer = world.call("ListShards", StreamName=STREAM, MaxResults=2, ExclusiveStartShardId=shard_id(0))
        while True:
            shards = cast("list[dict[str, str]]", answer["Shards"])
            assert len(shards) <= 2
            found += [shard["ShardId"] for shard in shards]
            if "NextToken" not in answer:
                break
            answer = world.call("ListShards", NextToken=answer["NextToken"], MaxResults=2)

        assert found == [shard_id(index) for index in range(1, 5)]

    @pytest.mark.parametrize(
        "background",
        [
            {"StreamName": STREAM},
            {"StreamARN": ARN},
            {"ExclusiveStartShardId": shard_id(0)},
            {"ShardFilter": {"Type": "AT_LATEST"}},
        ],
    )
    def test_a_token_must_come_alone(self, background: dict[str, object]) -> None:
        world = World()
        world.create(2)
        token = world.call("ListShards", StreamName=STREAM, MaxResults=1)["NextToken"]

        assert world.refused("ListShards", NextToken=token, **background) == "InvalidArgumentException"

    def test_a_token_keeps_the_filter_and_expires(self) -> None:
        world = World()
        world.create(2)
        world.split(0, 1)
        answer = world.call("ListShards", StreamName=STREAM, MaxResults=1, ShardFilter={"Type": "AT_LATEST"})

        rest = world.call("ListShards", NextToken=answer["NextToken"])
        world.now_s += 300

        names = [shard["ShardId"] for shard in cast("list[dict[str, str]]", rest["Shards"])]
        assert names == [shard_id(2), shard_id(3)]
        assert world.refused("ListShards", NextToken=answer["NextToken"]) == "ExpiredNextTokenException"

    def test_a_token_of_a_stream_made_anew_is_refused(self) -> None:
        world = World()
        world.create(2)
        token = world.call("ListShards", StreamName=STREAM, MaxResults=1)["NextToken"]
        world.call("DeleteStream", StreamName=STREAM)
        world.create(2)

        assert world.refused("ListShards", NextToken=token) == "ResourceNotFoundException"

    def test_rubbish_is_no_token(self) -> None:
        assert World().refused("ListShards", NextToken="rubbish") == "InvalidArgumentException"

    @pytest.mark.parametrize(
        ("shard_filter", "code"),
        [
            ({"Type": "SOMEHOW"}, "ValidationException"),
            ({}, "ValidationException"),
            ({"Type": "AFTER_SHARD_ID"}, "InvalidArgumentException"),
            ({"Type": "AT_TIMESTAMP"}, "InvalidArgumentException"),
            ({"Type": "FROM_TIMESTAMP", "Timestamp": "today"}, "ValidationException"),
        ],
    )
    def test_a_bad_filter_is_refused(self, shard_filter: dict[str, object], code: str) -> None:
        world = World()
        world.create()

        assert world.refused("ListShards", StreamName=STREAM, ShardFilter=shard_filter) == code

    def test_each_filter_lets_its_shards_through(self) -> None:
        world = World()
        world.create(2)
        world.now_s = START_S + 100
        world.split(0, 1)  # closes 0, opens 2 and 3
        world.now_s = START_S + 200
        world.merge(2, 3)  # opens 4

        assert world.filtered("AT_LATEST") == [1, 4]
        assert world.filtered("AT_TRIM_HORIZON") == [0, 1]
        assert world.filtered("FROM_TRIM_HORIZON") == [0, 1, 2, 3, 4]
        assert world.filtered("AFTER_SHARD_ID", ShardId=shard_id(2)) == [3, 4]
        assert world.filtered("AT_TIMESTAMP", Timestamp=START_S + 150) == [1, 2, 3]
        assert world.filtered("AT_TIMESTAMP", Timestamp=START_S - 50) == [0, 1]
        assert world.filtered("FROM_TIMESTAMP", Timestamp=START_S + 150) == [1, 2, 3, 4]
        assert world.filtered("FROM_TIMESTAMP", Timestamp=START_S + 50) == [0, 1, 2, 3, 4]

    def test_a_split_in_the_millisecond_of_creation_does_not_count_twice(self) -> None:
        world = World()
        world.create()
        world.split(0, 1)

        assert world.filtered("AT_TRIM_HORIZON") == [0]
        assert world.filtered("AT_TIMESTAMP", Timestamp=START_S) == [0]

    def test_expired_shards_vanish_and_their_children_become_the_oldest(self) -> None:
        world = World()
        world.create(2)
        world.now_s += HOUR_S
        world.split(0, 1)
        world.now_s += 24 * HOUR_S
        assert world.filtered("AT_TRIM_HORIZON") == [0, 1]

        world.now_s += 0.001

        assert world.filtered("AT_TRIM_HORIZON") == [1, 2, 3]
        assert [shard.shard_id for shard in world.shards()] == [shard_id(1), shard_id(2), shard_id(3)]
        assert world.shards()[1].parents == (shard_id(0),)
        assert (
            world.refused(
                "GetShardIterator", StreamName=STREAM, ShardId=shard_id(0), ShardIteratorType="LATEST"
            )
            == "ResourceNotFoundException"
        )


class TestResharding:
    def test_a_split_gives_two_children_that_share_the_hashes(self) -> None:
        world = World()
        world.create()
        world.split(0, HASHES // 4)

        parent, lower, upper = world.shards()

        assert (lower.start_hash, lower.end_hash) == (0, HASHES // 4 - 1)
        assert (upper.start_hash, upper.end_hash) == (HASHES // 4, HASHES - 1)
        assert lower.parents == upper.parents == (parent.shard_id,)
        assert parent.last_number is not None
        assert parent.first_number < parent.last_number < lower.first_number < upper.first_number

    def test_a_merge_gives_one_child_with_two_parents(self) -> None:
        world = World()
        world.create(2)
        world.merge(1, 0)

        left, right, merged = world.shards()

        assert (merged.start_hash, merged.end_hash) == (0, HASHES - 1)
        assert merged.parents == (right.shard_id, left.shard_id)
        assert merged.first_number > max(left.last_number or 0, right.last_number or 0)

    def test_shards_that_are_closed_or_not_adjacent_cannot_be_resharded(self) -> None:
        world = World()
        world.create(3)
        with pytest.raises(ServiceError, match="not adjacent"):
            world.merge(0, 2)
        with pytest.raises(ServiceError, match="not inside"):
            world.split(1, 0)
        with pytest.raises(ServiceError, match="not adjacent"):
            world.merge(1, 1)
        world.split(0, 1)
        with pytest.raises(ServiceError, match="already been"):
            world.split(0, 2)
        with pytest.raises(ServiceError, match="already been"):
            world.merge(0, 1)
        assert (
            world.refused(
                "SplitShard", StreamName=STREAM, ShardToSplit=shard_id(1), NewStartingHashKey="1" * 5000
            )
            == "InvalidArgumentException"
        )

    @pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (2, 4), (4, 2), (5, 7), (1, 1)])
    def test_scaling_leaves_equal_ranges(self, before: int, after: int) -> None:
        world = World()
        world.create(before)

        world.call(
            "UpdateShardCount", StreamName=STREAM, TargetShardCount=after, ScalingType="UNIFORM_SCALING"
        )

        still_open = sorted(shard.start_hash for shard in world.shards() if shard.last_number is None)
        assert still_open == [index * HASHES // after for index in range(after)]

    @pytest.mark.parametrize("target", [1, 7])
    def test_scaling_by_more_than_two_is_refused(self, target: int) -> None:
        world = World()
        world.create(3)

        assert (
            world.refused(
                "UpdateShardCount", StreamName=STREAM, TargetShardCount=target, ScalingType="UNIFORM_SCALING"
            )
            == "LimitExceededException"
        )


def test_scaling_knows_one_type() -> None:
    world = World()
    world.create()

    assert (
        world.refused("UpdateShardCount", StreamName=STREAM, TargetShardCount=2, ScalingType="OTHER")
        == "ValidationException"
    )


def test_retention_grows_and_shrinks_by_its_own_operations() -> None:
    world = World()
    world.create()
    world.call("IncreaseStreamRetentionPeriod", StreamName=STREAM, RetentionPeriodHours=48)

    assert (
        world.refused("IncreaseStreamRetentionPeriod", StreamName=STREAM, RetentionPeriodHours=24)
        == "InvalidArgumentException"
    )
    assert (
        world.refused("DecreaseStreamRetentionPeriod", StreamName=STREAM, RetentionPeriodHours=72)
        == "InvalidArgumentException"
    )
    world.call("DecreaseStreamRetentionPeriod", StreamName=STREAM, RetentionPeriodHours=24)


def test_calls_are_counted_and_fail_on_demand_without_effect() -> None:
    world = World()
    world.model.fail_next("CreateStream", "InternalFailure", times=2)

    assert world.refused("CreateStream", StreamName=STREAM, ShardCount=1) == "InternalFailure"
    assert world.refused("CreateStream", StreamName=STREAM, ShardCount=1) == "InternalFailure"
    world.create()

    assert world.model.calls == {"CreateStream": 3}
    assert world.refused("SubscribeToShard") == "UnknownOperationException"


def test_a_failure_of_an_operation_that_does_not_exist_cannot_be_asked_for() -> None:
    with pytest.raises(ValueError, match="GetRecord"):
        World().model.fail_next("GetRecord", "InternalFailure")
    with pytest.raises(ValueError, match="times"):
        World().model.fail_next("GetRecords", "InternalFailure", times=0)
