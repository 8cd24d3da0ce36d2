"""Consumers and subscriptions of a `World`, in short."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import pytest

from kcl_local.kinesis.arguments import ServiceError
from kcl_local.kinesis.read_write import Subscription
from tests.unit.local.world import ARN, World, shard_id


@dataclass(frozen=True, slots=True)
class Event:
    """One event; without a number to continue at where the shard ends."""

    data: list[bytes]
    continue_at: str | None
    millis_behind: int
    children: list[str] | None


def register(world: World, name: str = "app") -> str:
    """RegisterStreamConsumer; its ARN."""
    answer = world.call("RegisterStreamConsumer", StreamARN=ARN, ConsumerName=name)
    return str(cast("dict[str, object]", answer["Consumer"])["ConsumerARN"])


def status(world: World, consumer_arn: str) -> str:
    """What DescribeStreamConsumer says."""
    answer = world.call("DescribeStreamConsumer", ConsumerARN=consumer_arn)
    return str(cast("dict[str, object]", answer["ConsumerDescription"])["ConsumerStatus"])


def listed(world: World, **more: object) -> tuple[list[str], str | None]:
    """One page of ListStreamConsumers: names, and the token of the next."""
    answer = world.call("ListStreamConsumers", StreamARN=ARN, **more)
    names = [entry["ConsumerName"] for entry in cast("list[dict[str, str]]", answer["Consumers"])]
    return names, cast("str | None", answer.get("NextToken"))


def subscribe(world: World, consumer_arn: str, kind: str = "TRIM_HORIZON", **more: object) -> Subscription:
    """SubscribeToShard to the first shard."""
    return world.model.subscribe(
        {
            "ConsumerARN": consumer_arn,
            "ShardId": shard_id(0),
            "StartingPosition": {"Type": kind, **more},
        }
    )


def refused_subscription(world: World, arguments: Mapping[str, object]) -> str:
    """The code with which SubscribeToShard is refused."""
    with pytest.raises(ServiceError) as caught:
        world.model.subscribe(arguments)
    return caught.value.code


def ended_by(subscription: Subscription) -> str:
    """The exception that ends it."""
    with pytest.raises(ServiceError) as caught:
        subscription.next_event()
    assert subscription.ended
    assert subscription.next_event() is None
    return caught.value.code


def following(subscription: Subscription) -> Event:
    """The event that is due now."""
    event = subscription.next_event()
    assert event is not None
    records = cast("list[dict[str, str]]", event["Records"])
    children = cast("list[dict[str, str]] | None", event.get("ChildShards"))
    return Event(
        data=[base64.b64decode(record["Data"]) for record in records],
        continue_at=cast("str | None", event.get("ContinuationSequenceNumber")),
        millis_behind=cast("int", event["MillisBehindLatest"]),
        children=None if children is None else [child["ShardId"] for child in children],
    )
