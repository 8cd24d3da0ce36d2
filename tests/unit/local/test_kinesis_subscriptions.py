"""The Kinesis model: what a subscription gives, when, and how it ends."""

from __future__ import annotations

import pytest

from kcl_local.kinesis.arguments import MIB, FanOutRules, KinesisOptions, ReadLimits
from tests.unit.local.fan_out import ended_by, following, refused_subscription, register, subscribe
from tests.unit.local.world import ARN, START_S, STREAM, World, shard_id


def _world(options: KinesisOptions | None = None) -> tuple[World, str]:
    world = World(options or KinesisOptions())
    world.create()
    return world, register(world)


def test_records_come_and_then_those_that_are_put_later() -> None:
    world, arn = _world()
    world.put(b"1")
    number = world.put(b"2")
    subscription = subscribe(world, arn)

    event = following(subscription)
    assert (event.data, event.continue_at, event.children) == ([b"1", b"2"], str(number), None)
    assert subscription.next_event() is None
    rings: list[str] = []
    subscription.ring(lambda: rings.append("now"))
    world.put(b"3")
    assert rings == ["now"]
    assert following(subscription).data == [b"3"]


def test_each_kind_of_position_begins_at_its_place() -> None:
    world, arn = _world(KinesisOptions(fan_out=FanOutRules(protected_s=0)))
    numbers: list[str] = []
    for index in range(4):
        world.now_s = START_S + index
        numbers.append(str(world.put(b"%d" % index)))
    latest = subscribe(world, arn, "LATEST")
    world.put(b"new")
    assert following(latest).data == [b"new"]

    def first(kind: str, **more: object) -> bytes:
        return following(subscribe(world, arn, kind, **more)).data[0]

    assert first("TRIM_HORIZON") == b"0"
    assert first("AT_SEQUENCE_NUMBER", SequenceNumber=numbers[2]) == b"2"
    assert first("AFTER_SEQUENCE_NUMBER", SequenceNumber=numbers[2]) == b"3"
    assert first("AT_TIMESTAMP", Timestamp=START_S + 1) == b"1"


def test_an_event_without_records_comes_when_there_was_none_for_a_while() -> None:
    world, arn = _world()
    subscription = subscribe(world, arn, "LATEST")
    assert subscription.due_in_s() == 5
    world.now_s += 4.9
    assert subscription.next_event() is None
    assert subscription.due_in_s() == pytest.approx(0.1)

    world.now_s += 0.1
    event = following(subscription)

    assert (event.data, event.millis_behind, event.children) == ([], 0, None)
    assert subscription.next_event() is None


def test_every_event_tells_where_to_continue_even_without_records() -> None:
    world, arn = _world()
    subscription = subscribe(world, arn)
    world.now_s += 5
    first = following(subscription).continue_at
    world.now_s += 5
    second = following(subscription).continue_at
    assert first is not None
    assert second is not None
    assert int(first) < int(second)
    world.put(b"later")

    for kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
        world.now_s += 5
        for number in (first, second):
            subscription = subscribe(world, register(world, f"{kind}-{number}"), kind, SequenceNumber=number)
            assert following(subscription).data == [b"later"]
        assert len(world.read(world.iterator(0, kind, StartingSequenceNumber=second)).records) == 1


def test_an_event_is_bounded_and_tells_how_far_behind_it_is() -> None:
    world, arn = _world()
    for _ in range(3):
        world.put(bytes(MIB // 2 - 10))
    world.now_s += 2
    subscription = subscribe(world, arn)

    first, second = following(subscription), following(subscription)

    assert (len(first.data), first.millis_behind) == (2, 2_000)
    assert (len(second.data), second.millis_behind) == (1, 0)


def test_a_consumer_gets_no_more_than_its_share_where_limits_hold() -> None:
    world, arn = _world(KinesisOptions(limits=ReadLimits()))
    for _ in range(2):
        world.put(bytes(MIB - 4))
    subscription = subscribe(world, arn)

    following(subscription)
    assert subscription.next_event() is None
    assert subscription.due_in_s() == pytest.approx(0.5, abs=0.01)
    world.now_s += 0.5
    following(subscription)


def test_the_end_of_the_shard_ends_it_with_the_children_and_no_continuation() -> None:
    world, arn = _world()
    world.put(b"last")
    subscription = subscribe(world, arn)
    following(subscription)
    world.split(0, 7)

    event = following(subscription)

    assert (event.data, event.continue_at) == ([], None)
    assert event.children == [shard_id(1), shard_id(2)]
    assert subscription.ended
    assert subscription.next_event() is None


def test_the_last_records_of_a_closed_shard_come_with_its_children() -> None:
    world, arn = _world()
    world.put(b"last")
    world.split(0, 7)

    event = following(subscribe(world, arn))

    assert (event.data, event.continue_at) == ([b"last"], None)
    assert event.children == [shard_id(1), shard_id(2)]


def test_a_subscription_ends_after_five_minutes() -> None:
    world, arn = _world()
    subscription = subscribe(world, arn)
    world.now_s += 299
    following(subscription)
    assert subscription.due_in_s() == 1
    world.put(b"too late")
    world.now_s += 1

    assert subscription.next_event() is None
    assert subscription.ended


def test_a_second_subscription_is_refused_at_first_and_takes_over_later() -> None:
    world, arn = _world()
    older = subscribe(world, arn)
    again = {"ConsumerARN": arn, "ShardId": shard_id(0), "StartingPosition": {"Type": "LATEST"}}
    world.now_s += 4.999
    assert refused_subscription(world, again) == "ResourceInUseException"
    rings: list[str] = []
    older.ring(lambda: rings.append("overtaken"))
    world.now_s += 0.001

    newer = subscribe(world, arn)

    assert rings == ["overtaken"]
    assert ended_by(older) == "ResourceInUseException"
    world.put(b"1")
    assert following(newer).data == [b"1"]


def test_the_protection_outlives_a_subscription_that_was_closed() -> None:
    world, arn = _world()
    subscribe(world, arn).close()
    again = {"ConsumerARN": arn, "ShardId": shard_id(0), "StartingPosition": {"Type": "LATEST"}}

    assert refused_subscription(world, again) == "ResourceInUseException"


def test_consumers_do_not_disturb_each_other() -> None:
    world, arn = _world()
    first, second = subscribe(world, arn), subscribe(world, register(world, "other"))
    world.put(b"1")

    assert following(first).data == following(second).data == [b"1"]


def test_it_ends_with_its_consumer_and_with_its_stream() -> None:
    world, arn = _world()
    other = register(world, "other")
    first, second = subscribe(world, arn), subscribe(world, other)
    rings: list[str] = []
    first.ring(lambda: rings.append("first"))
    second.ring(lambda: rings.append("second"))

    world.call("DeregisterStreamConsumer", ConsumerARN=arn)
    assert rings[0] == "first"
    assert ended_by(first) == "ResourceNotFoundException"
    world.call("DeleteStream", StreamName=STREAM, EnforceConsumerDeletion=True)
    assert rings[-1] == "second"
    assert ended_by(second) == "ResourceNotFoundException"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"ConsumerARN": f"{ARN}/consumer/none:1"}, "ResourceNotFoundException"),
        ({"ConsumerARN": None}, "ValidationException"),
        ({"ShardId": shard_id(1)}, "ResourceNotFoundException"),
        ({"StartingPosition": None}, "ValidationException"),
        ({"StartingPosition": {"Type": "MIDDLE"}}, "ValidationException"),
        ({"StartingPosition": {"Type": "AT_SEQUENCE_NUMBER"}}, "InvalidArgumentException"),
        (
            {"StartingPosition": {"Type": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": "1"}},
            "InvalidArgumentException",
        ),
        (
            {"StartingPosition": {"Type": "AT_TIMESTAMP", "Timestamp": START_S + 9}},
            "InvalidArgumentException",
        ),
    ],
)
def test_a_subscription_that_makes_no_sense_is_refused(change: dict[str, object], code: str) -> None:
    world, arn = _world()
    arguments = {"ConsumerARN": arn, "ShardId": shard_id(0), "StartingPosition": {"Type": "LATEST"}}

    assert refused_subscription(world, arguments | change) == code
    assert world.model.calls["SubscribeToShard"] == 1
    subscribe(world, arn)  # and it has not cost the next one its turn


def test_a_consumer_that_is_being_created_cannot_read() -> None:
    world, arn = _world(KinesisOptions(fan_out=FanOutRules(creating_s=1)))
    arguments = {"ConsumerARN": arn, "ShardId": shard_id(0), "StartingPosition": {"Type": "LATEST"}}

    assert refused_subscription(world, arguments) == "ResourceInUseException"
    world.now_s += 1
    subscribe(world, arn)


def test_a_subscription_is_refused_by_a_failure_on_demand() -> None:
    world, arn = _world()
    world.model.fail_next("SubscribeToShard", "LimitExceededException")
    arguments = {"ConsumerARN": arn, "ShardId": shard_id(0), "StartingPosition": {"Type": "LATEST"}}

    assert refused_subscription(world, arguments) == "LimitExceededException"
    subscribe(world, arn)
