"""The Kinesis model: consumers with enhanced fan-out, from registering to deregistering."""

from __future__ import annotations

from typing import cast

import pytest

from kcl_local.kinesis.arguments import FanOutRules, KinesisOptions
from tests.unit.local.fan_out import listed, register, status, subscribe
from tests.unit.local.world import ARN, START_S, STREAM, World


def test_a_consumer_is_found_by_its_arn_and_by_its_name() -> None:
    world = World()
    world.create()

    arn = register(world)

    assert arn == f"{ARN}/consumer/app:{int(START_S)}"
    by_arn = world.call("DescribeStreamConsumer", ConsumerARN=arn)
    assert by_arn == world.call("DescribeStreamConsumer", StreamARN=ARN, ConsumerName="app")
    assert by_arn["ConsumerDescription"] == {
        "ConsumerName": "app",
        "ConsumerARN": arn,
        "ConsumerStatus": "ACTIVE",
        "ConsumerCreationTimestamp": START_S,
        "StreamARN": ARN,
    }


def test_a_consumer_is_creating_for_its_moment_and_deleting_for_another() -> None:
    world = World(KinesisOptions(fan_out=FanOutRules(creating_s=3, deleting_s=2)))
    world.create()

    arn = register(world)
    assert status(world, arn) == "CREATING"
    world.now_s += 3
    assert status(world, arn) == "ACTIVE"

    world.call("DeregisterStreamConsumer", ConsumerARN=arn)
    assert status(world, arn) == "DELETING"
    assert world.refused("DeregisterStreamConsumer", ConsumerARN=arn) == "ResourceInUseException"
    world.now_s += 2
    assert world.refused("DescribeStreamConsumer", ConsumerARN=arn) == "ResourceNotFoundException"


def test_registering_says_creating_even_where_that_is_over_at_once() -> None:
    world = World()
    world.create()

    answer = world.call("RegisterStreamConsumer", StreamARN=ARN, ConsumerName="app")

    assert cast("dict[str, object]", answer["Consumer"])["ConsumerStatus"] == "CREATING"


def test_a_name_is_taken_once() -> None:
    world = World()
    world.create()
    arn = register(world)

    taken = world.refused("RegisterStreamConsumer", StreamARN=ARN, ConsumerName="app")
    assert taken == "ResourceInUseException"
    world.call("DeregisterStreamConsumer", StreamARN=ARN, ConsumerName="app")
    world.now_s += 1
    assert register(world) != arn
    assert world.refused("DescribeStreamConsumer", ConsumerARN=arn) == "ResourceNotFoundException"


def test_a_stream_has_twenty_consumers() -> None:
    world = World()
    world.create()
    for number in range(20):
        register(world, f"app-{number}")

    assert (
        world.refused("RegisterStreamConsumer", StreamARN=ARN, ConsumerName="more")
        == "LimitExceededException"
    )
    summary = world.call("DescribeStreamSummary", StreamName=STREAM)["StreamDescriptionSummary"]
    assert cast("dict[str, object]", summary)["ConsumerCount"] == 20
    world.call("DeregisterStreamConsumer", StreamARN=ARN, ConsumerName="app-7")
    register(world, "more")


def test_five_can_be_creating_at_a_time() -> None:
    world = World(KinesisOptions(fan_out=FanOutRules(creating_s=1)))
    world.create()
    for number in range(5):
        register(world, f"app-{number}")

    assert (
        world.refused("RegisterStreamConsumer", StreamARN=ARN, ConsumerName="more")
        == "LimitExceededException"
    )
    world.now_s += 1
    register(world, "more")


def test_consumers_are_listed_in_pages() -> None:
    world = World()
    world.create()
    for name in ("c", "a", "b"):
        register(world, name)

    names, token = listed(world, MaxResults=2)
    assert names == ["a", "b"]
    assert listed(world, MaxResults=2, NextToken=token) == (["c"], None)
    assert world.refused("ListStreamConsumers", StreamARN=ARN, NextToken="x") == "InvalidArgumentException"
    both = {"NextToken": token, "StreamCreationTimestamp": START_S}
    assert world.refused("ListStreamConsumers", StreamARN=ARN, **both) == "InvalidArgumentException"


@pytest.mark.parametrize(
    ("operation", "arguments", "code"),
    [
        ("RegisterStreamConsumer", {"StreamName": STREAM, "ConsumerName": "app"}, "ValidationException"),
        ("RegisterStreamConsumer", {"StreamARN": ARN, "ConsumerName": "a/b"}, "ValidationException"),
        (
            "RegisterStreamConsumer",
            {"StreamARN": ARN + "x", "ConsumerName": "app"},
            "ResourceNotFoundException",
        ),
        ("DescribeStreamConsumer", {"ConsumerName": "app"}, "InvalidArgumentException"),
        ("DescribeStreamConsumer", {"ConsumerARN": ARN}, "InvalidArgumentException"),
        ("DescribeStreamConsumer", {"ConsumerARN": f"{ARN}/consumer/app:1"}, "ResourceNotFoundException"),
        (
            "DeregisterStreamConsumer",
            {"StreamARN": ARN, "ConsumerName": "none"},
            "ResourceNotFoundException",
        ),
        ("ListStreamConsumers", {}, "ValidationException"),
    ],
)
def test_a_call_that_names_no_consumer_is_refused(
    operation: str, arguments: dict[str, object], code: str
) -> None:
    world = World()
    world.create()

    assert world.refused(operation, **arguments) == code


def test_a_stream_with_consumers_is_deleted_by_force_only() -> None:
    world = World()
    world.create()
    arn = register(world)
    subscription = subscribe(world, arn)

    assert world.refused("DeleteStream", StreamName=STREAM) == "ResourceInUseException"
    world.call("DeleteStream", StreamName=STREAM, EnforceConsumerDeletion=True)
    assert world.refused("DescribeStreamConsumer", ConsumerARN=arn) == "ResourceNotFoundException"
    assert not subscription.ended  # it learns when it looks
    world.create()
    assert listed(world) == ([], None)
