"""The model of DynamoDB Streams: shards over time, positions, and what is lost."""

from __future__ import annotations

from typing import Any, Final

import pytest

from kcl_local.changes.model import StreamsModel
from kcl_local.changes.stream import Shard, Stream, StreamsOptions, item_bytes
from kcl_local.kinesis.arguments import ServiceError

START_S: Final = 1_795_190_400.25
HOUR_S: Final = 3600.0
STEADY: Final = StreamsOptions(life_jitter=0)
TABLE: Final = "orders"


class World:
    """The model, its time, and a table with a stream."""

    def __init__(self, options: StreamsOptions = STEADY, shards: int = 1) -> None:
        self.now_s = START_S
        self.model = StreamsModel(lambda: self.now_s, options)
        self.stream = self.model.enable(TABLE, shards=shards)

    @property
    def open_shard(self) -> Shard:
        (shard,) = self.model.stream(TABLE).open_shards
        return shard

    def put(self, key: str = "a", **attributes: dict[str, object]) -> str:
        number = self.model.write(TABLE, None, {"id": {"S": key}, **attributes})
        assert number is not None
        return number

    def listed(self, stream: Stream | None = None, **more: object) -> list[Any]:
        arn = (stream or self.stream).arn
        answer: Any = self.model.handle("DescribeStream", {"StreamArn": arn, **more})
        return list(answer["StreamDescription"]["Shards"])

    def iterator(self, shard_id: str, kind: str = "TRIM_HORIZON", number: str | None = None) -> str:
        arguments = {"StreamArn": self.stream.arn, "ShardId": shard_id, "ShardIteratorType": kind}
        if number is not None:
            arguments["SequenceNumber"] = number
        return str(self.model.handle("GetShardIterator", arguments)["ShardIterator"])

    def read(self, iterator: str, **more: object) -> tuple[list[str], str | None]:
        answer: Any = self.model.handle("GetRecords", {"ShardIterator": iterator, **more})
        keys = [each["dynamodb"]["Keys"]["id"]["S"] for each in answer["Records"]]
        return keys, answer.get("NextShardIterator")

    def refused(self, operation: str, /, **arguments: object) -> str:
        with pytest.raises(ServiceError) as caught:
            self.model.handle(operation, arguments)
        return caught.value.code


def test_a_shard_rolls_after_its_life() -> None:
    world = World()
    first = world.open_shard.shard_id
    world.put("before")
    world.now_s += 4 * HOUR_S
    world.put("after")
    parent, child = world.listed()
    assert (parent["ShardId"], child["ParentShardId"]) == (first, first)
    assert child["ShardId"].split("-")[1] == f"{int((START_S + 4 * HOUR_S) * 1000):020}"
    numbers = [
        parent["SequenceNumberRange"]["StartingSequenceNumber"],
        parent["SequenceNumberRange"]["EndingSequenceNumber"],
        child["SequenceNumberRange"]["StartingSequenceNumber"],
    ]
    assert sorted(set(numbers), key=int) == numbers
    assert world.read(world.iterator(first)) == (["before"], None)
    assert world.read(world.iterator(child["ShardId"]))[0] == ["after"]


def test_lives_differ_by_the_jitter_and_are_the_same_in_every_run() -> None:
    def opened() -> list[str]:
        world = World(StreamsOptions(life_jitter=0.2), shards=8)
        world.now_s += 12 * HOUR_S
        return [shard["ShardId"] for shard in world.listed()]

    shard_ids = opened()
    lives_s = {(int(each.split("-")[1]) / 1000 - START_S) / HOUR_S for each in shard_ids} - {0.0}
    assert len(lives_s) > 8
    assert 4 * 0.8 <= min(lives_s) < 4 < max(lives_s)
    assert opened() == shard_ids


def test_a_split_shard_has_two_children_that_share_its_keys() -> None:
    world = World()
    for index in range(100):
        world.put(f"{index}")
    parent = world.open_shard.shard_id
    children = world.model.split(TABLE, parent)
    for index in range(100):
        world.put(f"{index}")
    listed = world.listed(ShardFilter={"Type": "CHILD_SHARDS", "ShardId": parent})
    assert sorted(children) == [shard["ShardId"] for shard in listed]
    left, right = (set(world.read(world.iterator(each))[0]) for each in children)
    assert not left & right
    assert min(len(left), len(right)) > 20
    assert len(left | right) == 100


def test_a_key_stays_in_the_lineage_of_its_shard() -> None:
    world = World(shards=4)
    world.put()
    holder = world.stream.holder({"S": "a"}).shard_id
    (child,) = world.model.roll(TABLE, holder)
    world.put()
    assert len(world.read(world.iterator(holder))[0]) == len(world.read(world.iterator(child))[0]) == 1


def test_the_child_of_an_ended_shard_comes_with_the_next_change() -> None:
    world = World()
    parent = world.open_shard.shard_id
    assert world.model.end(TABLE) == []
    assert [shard["ShardId"] for shard in world.listed()] == [parent]
    world.put()
    assert world.listed()[1]["ParentShardId"] == parent


def test_a_list_may_lag_behind_an_end_and_behind_children() -> None:
    world = World(StreamsOptions(life_jitter=0, closing_lag_s=10, children_lag_s=20))
    world.model.roll(TABLE)

    def seen() -> list[bool]:
        return ["EndingSequenceNumber" in each["SequenceNumberRange"] for each in world.listed()]

    assert seen() == [False]
    world.now_s += 10
    assert seen() == [True]
    world.now_s += 10
    assert seen() == [True, False]


def test_a_list_of_shards_has_pages_of_100() -> None:
    world = World(shards=250)
    shard_ids: list[str] = []
    more: dict[str, str] = {}
    sizes: list[int] = []
    while True:
        answer: Any = world.model.handle("DescribeStream", {"StreamArn": world.stream.arn, **more})
        page = answer["StreamDescription"]
        sizes.append(len(page["Shards"]))
        shard_ids += [shard["ShardId"] for shard in page["Shards"]]
        if "LastEvaluatedShardId" not in page:
            break
        more = {"ExclusiveStartShardId": page["LastEvaluatedShardId"]}
    assert sizes == [100, 100, 50]
    assert shard_ids == sorted(set(shard_ids))
    assert world.refused("DescribeStream", StreamArn=world.stream.arn, Limit=101) == "ValidationException"


def test_changes_older_than_a_day_are_trimmed() -> None:
    world = World(StreamsOptions(shard_life_s=48 * HOUR_S, life_jitter=0))
    shard_id = world.open_shard.shard_id
    old = world.put("old")
    from_start = world.iterator(shard_id)
    world.now_s += HOUR_S
    new = world.put("new")
    world.now_s = START_S + 24 * HOUR_S + 1
    place = {"StreamArn": world.stream.arn, "ShardId": shard_id}
    for kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
        code = world.refused("GetShardIterator", **place, ShardIteratorType=kind, SequenceNumber=old)
        assert code == "TrimmedDataAccessException"
        assert world.iterator(shard_id, kind, new)
    assert world.read(world.iterator(shard_id))[0] == ["new"]
    assert world.refused("GetRecords", ShardIterator=from_start) == "ExpiredIteratorException"


def test_an_iterator_may_be_overtaken_by_the_horizon() -> None:
    world = World()
    world.put()
    iterator = world.iterator(world.open_shard.shard_id)
    world.now_s += 60
    world.model.trim(TABLE, world.now_s)
    assert world.refused("GetRecords", ShardIterator=iterator) == "TrimmedDataAccessException"
    assert world.read(world.iterator(world.open_shard.shard_id))[0] == []


def test_a_closed_shard_is_gone_a_day_after_its_end() -> None:
    world = World()
    first = world.open_shard.shard_id
    world.now_s += 28 * HOUR_S
    assert first in [shard["ShardId"] for shard in world.listed()]
    world.now_s += 1
    shards = world.listed()
    assert first not in [shard["ShardId"] for shard in shards]
    assert shards[0]["ParentShardId"] == first
    place = {"StreamArn": world.stream.arn, "ShardId": first, "ShardIteratorType": "TRIM_HORIZON"}
    assert world.refused("GetShardIterator", **place) == "ResourceNotFoundException"


def test_a_day_of_a_busy_table_has_thousands_of_shards_and_keeps_no_more() -> None:
    world = World(shards=280)
    for _ in range(72):
        world.now_s += HOUR_S
        world.put()
    assert len(world.stream.open_shards) == 280
    assert 7 * 280 <= len(world.stream.shards) <= 8 * 280


def test_numbers_get_more_digits() -> None:
    world = World()
    early = world.put("a")
    world.now_s += 5 * HOUR_S
    late = world.put("a", n={"N": "2"})
    assert (len(early), len(late)) == (21, 22)


def test_a_disabled_stream_ends_and_is_kept_for_a_day() -> None:
    world = World(StreamsOptions(life_jitter=0, changing_s=5), shards=2)

    def status() -> object:
        answer: Any = world.model.handle("DescribeStream", {"StreamArn": world.stream.arn})
        return answer["StreamDescription"]["StreamStatus"]

    assert status() == "ENABLING"
    world.now_s += 5
    assert status() == "ENABLED"
    world.model.disable(TABLE)
    assert status() == "DISABLING"
    world.now_s += 12 * HOUR_S
    assert status() == "DISABLED"
    assert len(world.listed()) == 2
    assert all("EndingSequenceNumber" in shard["SequenceNumberRange"] for shard in world.listed())
    with pytest.raises(ValueError, match="no enabled stream"):
        world.put()
    world.now_s += 13 * HOUR_S
    assert world.refused("DescribeStream", StreamArn=world.stream.arn) == "ResourceNotFoundException"


def test_a_table_may_have_several_streams_one_after_the_other() -> None:
    world = World()
    with pytest.raises(ValueError, match="has an enabled stream"):
        world.model.enable(TABLE)
    world.model.disable(TABLE)
    second = world.model.enable(TABLE, "KEYS_ONLY")  # in the same millisecond
    assert second.arn > world.stream.arn
    listed: Any = world.model.handle("ListStreams", {"TableName": TABLE})
    assert [each["StreamArn"] for each in listed["Streams"]] == [second.arn, world.stream.arn]
    assert not {shard["ShardId"] for shard in world.listed(second)} & {
        shard["ShardId"] for shard in world.listed()
    }


def test_an_iterator_expires_after_a_quarter_of_an_hour() -> None:
    world = World()
    iterator = world.iterator(world.open_shard.shard_id)
    world.now_s += 15 * 60 - 1
    assert world.read(iterator)[0] == []
    world.now_s += 1
    assert world.refused("GetRecords", ShardIterator=iterator) == "ExpiredIteratorException"


def test_some_answers_are_empty_though_there_is_more() -> None:
    world = World(StreamsOptions(empty_every=2))
    for key in "abc":
        world.put(key)
    world.model.end(TABLE)
    iterator: str | None = world.iterator(world.listed()[0]["ShardId"])
    pages: list[list[str]] = []
    while iterator is not None:
        keys, iterator = world.read(iterator, Limit=1)
        pages.append(keys)
    assert pages == [["a"], [], ["b"], [], ["c"]]


def test_a_shard_does_not_get_all_the_empty_answers_because_of_how_others_are_read() -> None:
    world = World(StreamsOptions(empty_every=2))
    for key in "abc":
        world.put(key)
    one = world.iterator(world.open_shard.shard_id)
    world.model.roll(TABLE)
    other = world.iterator(world.open_shard.shard_id)
    world.read(other)
    assert world.read(one, Limit=1)[0] == ["a"]


def test_an_item_that_expires_is_removed_by_the_service() -> None:
    world = World()
    world.model.write(TABLE, {"id": {"S": "a"}}, None, by_ttl=True)
    answer: Any = world.model.handle(
        "GetRecords", {"ShardIterator": world.iterator(world.open_shard.shard_id)}
    )
    (change,) = answer["Records"]
    assert change["eventName"] == "REMOVE"
    assert change["userIdentity"] == {"Type": "Service", "PrincipalId": "dynamodb.amazonaws.com"}


@pytest.mark.parametrize("view", ["KEYS_ONLY", "NEW_IMAGE", "OLD_IMAGE", "NEW_AND_OLD_IMAGES"])
def test_filled_changes_are_as_written_ones(view: str) -> None:
    world = World()
    world.model.enable("filled", view, keys=("id", "100%"))
    world.model.fill("filled", 3, 500, "it-")
    shard = world.model.stream("filled").open_shards[0]
    world.stream = world.model.stream("filled")
    answer: Any = world.model.handle("GetRecords", {"ShardIterator": world.iterator(shard.shard_id)})
    filled = answer["Records"][2]
    item = {"id": {"S": "it-2"}, "100%": {"N": "0"}}
    new = filled["dynamodb"].get("NewImage", {**item, "data": {"S": "x"}})
    assert (
        item_bytes(item) + item_bytes(new) == pytest.approx(500, abs=10)
        or "NewImage" not in filled["dynamodb"]
    )
    world.model.write("filled", None, new, size=500)
    answer = world.model.handle("GetRecords", {"ShardIterator": world.iterator(shard.shard_id)})
    written = answer["Records"][3]
    for each in (filled, written):
        del each["eventID"], each["dynamodb"]["SequenceNumber"]
    assert filled == written


def test_a_call_is_told_to_fail() -> None:
    world = World()
    iterator = world.iterator(world.open_shard.shard_id)
    world.model.fail_next("GetRecords", "LimitExceededException")
    assert world.refused("GetRecords", ShardIterator=iterator) == "LimitExceededException"
    assert world.read(iterator)[0] == []
