"""`RecordDistributionStrategy` of the local Kinesis: what AUTO allows, and what is refused."""

from __future__ import annotations

import base64
from typing import cast

import pytest

from kcl_local.kinesis.stream import stream_arn
from tests.unit.local.world import HASHES, STREAM, World

ARN = stream_arn(STREAM)
AUTO, BY_KEY = "AUTO", "USER_PARTITION_KEY"
ON_DEMAND = {"StreamMode": "ON_DEMAND"}
DATA = base64.b64encode(b"x").decode()


def made(**more: object) -> World:
    world = World()
    world.call("CreateStream", StreamName=STREAM, StreamModeDetails=ON_DEMAND, **more)
    return world


def told(world: World) -> object:
    answer = world.call("DescribeStreamSummary", StreamName=STREAM)
    return cast("dict[str, object]", answer["StreamDescriptionSummary"]).get("RecordDistributionStrategy")


def set_to(world: World, strategy: str) -> None:
    world.call("UpdateStreamRecordDistributionStrategy", StreamARN=ARN, RecordDistributionStrategy=strategy)


def test_only_an_on_demand_stream_has_a_record_distribution() -> None:
    world = World()
    world.create()
    assert told(world) is None
    assert told(made()) == BY_KEY
    assert told(made(RecordDistributionStrategy=AUTO)) == AUTO


def test_the_record_distribution_can_be_switched_at_any_time() -> None:
    world = made()
    set_to(world, AUTO)
    assert told(world) == AUTO
    set_to(world, BY_KEY)
    assert told(world) == BY_KEY
    assert world.refused("PutRecord", StreamName=STREAM, Data=DATA) == "InvalidArgumentException"


def test_a_stream_that_becomes_provisioned_goes_by_key_again() -> None:
    world = made(RecordDistributionStrategy=AUTO)
    world.call("UpdateStreamMode", StreamARN=ARN, StreamModeDetails={"StreamMode": "PROVISIONED"})
    assert told(world) is None
    world.call("UpdateStreamMode", StreamARN=ARN, StreamModeDetails=ON_DEMAND)
    assert told(world) == BY_KEY


@pytest.mark.parametrize("strategy", [AUTO, BY_KEY])
def test_a_provisioned_stream_takes_none(strategy: str) -> None:
    world = World()
    given = {"RecordDistributionStrategy": strategy}
    assert (
        world.refused("CreateStream", StreamName=STREAM, ShardCount=1, **given) == "InvalidArgumentException"
    )
    world.create()
    assert (
        world.refused("UpdateStreamRecordDistributionStrategy", StreamARN=ARN, **given)
        == "InvalidArgumentException"
    )


def test_an_unknown_one_and_a_stream_by_name_are_refused() -> None:
    world = made()
    operation = "UpdateStreamRecordDistributionStrategy"
    assert world.refused(operation, StreamARN=ARN, RecordDistributionStrategy="EVEN") == "ValidationException"
    assert world.refused(operation, StreamARN=ARN) == "ValidationException"
    by_name = {"StreamName": STREAM, "RecordDistributionStrategy": AUTO}
    assert world.refused(operation, **by_name) == "ValidationException"
    assert told(world) == BY_KEY


def test_records_are_spread_evenly_whatever_their_keys() -> None:
    world = made(RecordDistributionStrategy=AUTO)
    for _ in range(8):
        world.call("PutRecord", StreamName=STREAM, Data=DATA, PartitionKey="k", ExplicitHashKey="0")
    assert [len(world.read(world.iterator(shard)).records) for shard in range(4)] == [2, 2, 2, 2]


def test_a_record_without_a_key_has_none_when_it_is_read() -> None:
    world = made(RecordDistributionStrategy=AUTO)
    world.call("PutRecord", StreamName=STREAM, Data=DATA)
    records = [{"Data": DATA, "PartitionKey": None}, {"Data": DATA, "PartitionKey": "k"}]
    world.call("PutRecords", StreamName=STREAM, Records=records)
    found: list[dict[str, object]] = []
    for shard in range(4):
        answer = world.call("GetRecords", ShardIterator=world.iterator(shard))
        found += cast("list[dict[str, object]]", answer["Records"])
    assert [each.get("PartitionKey", "absent") for each in found] == ["absent", "absent", "k"]


@pytest.mark.parametrize(
    ("record", "code"),
    [
        ({"Data": DATA, "PartitionKey": ""}, "ValidationException"),
        ({"Data": DATA, "PartitionKey": 7}, "ValidationException"),
        ({"Data": DATA, "ExplicitHashKey": str(HASHES)}, "InvalidArgumentException"),
        ({"PartitionKey": "k"}, "ValidationException"),
    ],
)
def test_a_wrong_record_is_refused_though_the_stream_distributes_by_itself(
    record: dict[str, object], code: str
) -> None:
    world = made(RecordDistributionStrategy=AUTO)
    assert world.refused("PutRecord", StreamName=STREAM, **record) == code
