"""The Kinesis model: putting and getting records."""

from __future__ import annotations

import base64
import hashlib
from typing import cast

import pytest

from kcl_local.kinesis.arguments import MIB, KinesisOptions, ReadLimits
from tests.unit.local.world import HASHES, START_S, STREAM, World, shard_id

HOUR_S = 3600


def test_records_come_back_in_order_and_once() -> None:
    world = World()
    world.create()
    numbers = [world.put(b"%d" % index) for index in range(5)]

    first = world.read(world.iterator(0), Limit=3)
    assert first.next_iterator is not None
    second = world.read(first.next_iterator)

    assert first.records + second.records == [(number, b"%d" % index) for index, number in enumerate(numbers)]
    assert numbers == sorted(set(numbers))
    assert len(str(numbers[0])) == 56


def test_the_partition_key_decides_by_its_md5() -> None:
    world = World()
    world.create(4)
    keys = [f"key-{index}" for index in range(20)]

    answer = world.call(
        "PutRecords", StreamName=STREAM, Records=[{"Data": "", "PartitionKey": key} for key in keys]
    )

    for key, record in zip(keys, cast("list[dict[str, str]]", answer["Records"]), strict=True):
        key_hash = int(hashlib.md5(key.encode()).hexdigest(), 16)
        assert record["ShardId"] == shard_id(key_hash * 4 // HASHES)


def test_an_explicit_hash_key_decides_before_the_partition_key() -> None:
    world = World()
    world.create(2)
    world.put(b"left", 2**127 - 1)
    world.put(b"right", 2**127)

    assert [data for _, data in world.read(world.iterator(0)).records] == [b"left"]
    assert [data for _, data in world.read(world.iterator(1)).records] == [b"right"]


@pytest.mark.parametrize(
    ("record", "code"),
    [
        ({"PartitionKey": "k"}, "ValidationException"),
        ({"Data": "", "PartitionKey": ""}, "ValidationException"),
        ({"Data": "", "PartitionKey": "k" * 257}, "ValidationException"),
        ({"Data": "no base64!", "PartitionKey": "k"}, "SerializationException"),
        ({"Data": "", "PartitionKey": "k", "ExplicitHashKey": str(HASHES)}, "InvalidArgumentException"),
        ({"Data": "", "PartitionKey": "k", "ExplicitHashKey": "-1"}, "InvalidArgumentException"),
    ],
)
def test_a_bad_record_is_refused_and_nothing_of_its_batch_is_stored(
    record: dict[str, object], code: str
) -> None:
    world = World()
    world.create()
    good = {"Data": "", "PartitionKey": "k"}

    assert world.refused("PutRecord", StreamName=STREAM, **record) == code
    assert world.refused("PutRecords", StreamName=STREAM, Records=[good, record]) == code
    assert world.read(world.iterator(0)).records == []


def test_a_record_may_have_one_mebibyte_with_its_key() -> None:
    world = World()
    world.create()
    fits = base64.b64encode(bytes(MIB - 3)).decode()
    too_much = base64.b64encode(bytes(MIB - 2)).decode()

    world.call("PutRecord", StreamName=STREAM, Data=fits, PartitionKey="key")

    assert (
        world.refused("PutRecord", StreamName=STREAM, Data=too_much, PartitionKey="key")
        == "ValidationException"
    )


def test_a_batch_has_one_to_five_hundred_records() -> None:
    world = World()
    world.create()
    record = {"Data": "", "PartitionKey": "k"}

    world.call("PutRecords", StreamName=STREAM, Records=[record] * 500)

    assert world.refused("PutRecords", StreamName=STREAM, Records=[record] * 501) == "ValidationException"
    assert world.refused("PutRecords", StreamName=STREAM, Records=[]) == "ValidationException"
    assert world.refused("PutRecords", StreamName=STREAM, Records="none") == "ValidationException"
    large = {"Data": base64.b64encode(bytes(MIB - 1)).decode(), "PartitionKey": "k"}
    assert world.refused("PutRecords", StreamName=STREAM, Records=[large] * 11) == "InvalidArgumentException"


class TestShardEnd:
    def test_the_answer_with_the_last_record_ends_a_closed_shard(self) -> None:
        world = World()
        world.create()
        world.put(b"0")
        world.put(b"1")
        world.split(0, 1)

        first = world.read(world.iterator(0), Limit=1)
        last = world.read(str(first.next_iterator), Limit=1)

        assert first.children is None
        assert (last.next_iterator, last.children) == (None, [shard_id(1), shard_id(2)])
        assert last.millis_behind == 0

    def test_the_ending_number_leads_to_the_end(self) -> None:
        world = World()
        world.create(2)
        world.put(b"0")
        world.merge(0, 1)
        end = str(world.shards()[0].last_number)

        page = world.read(world.iterator(0, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=end))

        assert (page.records, page.next_iterator, page.children) == ([], None, [shard_id(2)])

    def test_a_child_shard_is_reported_with_parents_and_hashes(self) -> None:
        world = World()
        world.create(2)
        world.merge(0, 1)

        answer = world.call("GetRecords", ShardIterator=world.iterator(0))

        assert answer["ChildShards"] == [
            {
                "ShardId": shard_id(2),
                "ParentShards": [shard_id(0), shard_id(1)],
                "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": str(HASHES - 1)},
            }
        ]

    def test_records_put_after_a_split_go_to_the_children(self) -> None:
        world = World()
        world.create()
        world.split(0, HASHES // 2)
        world.put(b"upper", HASHES - 1)

        assert world.read(world.iterator(0)).records == []
        assert world.read(world.iterator(1)).records == []
        assert len(world.read(world.iterator(2)).records) == 1


class TestLag:
    def test_millis_behind_is_the_age_of_the_next_unread_record(self) -> None:
        world = World()
        world.create()
        world.put(b"0")
        world.now_s += 2
        world.put(b"1")
        world.now_s += 1.5

        first = world.read(world.iterator(0), Limit=1)
        second = world.read(str(first.next_iterator), Limit=1)

        assert (first.millis_behind, second.millis_behind) == (1500, 0)

    def test_millis_behind_is_above_zero_while_a_record_is_unread(self) -> None:
        world = World()
        world.create()
        world.put(b"0")
        world.put(b"1")

        assert world.read(world.iterator(0), Limit=1).millis_behind == 1

    def test_a_clock_that_goes_back_does_not_put_records_out_of_order(self) -> None:
        world = World()
        world.create()
        world.put(b"0")
        world.now_s -= 3600
        world.put(b"1")

        answer = world.call("GetRecords", ShardIterator=world.iterator(0))

        arrivals = [
            each["ApproximateArrivalTimestamp"] for each in cast("list[dict[str, float]]", answer["Records"])
        ]
        assert arrivals == [START_S, START_S]


class TestLimits:
    def test_an_answer_has_at_most_ten_mebibytes(self) -> None:
        world = World()
        world.create()
        for _ in range(12):
            world.put(bytes(MIB - 3))

        first = world.read(world.iterator(0))
        second = world.read(str(first.next_iterator))

        assert (len(first.records), len(second.records)) == (10, 2)

    def test_one_record_larger_than_an_answer_is_given_all_the_same(self) -> None:
        world = World(KinesisOptions(answer_bytes_max=10))
        world.create()
        world.put(bytes(20))
        world.put(b"1")

        assert len(world.read(world.iterator(0)).records) == 1

    def test_the_sixth_read_within_a_second_is_refused(self) -> None:
        world = World(KinesisOptions(limits=ReadLimits()))
        world.create(2)
        iterator = world.iterator(0)
        for _ in range(5):
            world.read(iterator)
        assert world.refused("GetRecords", ShardIterator=iterator) == "ProvisionedThroughputExceededException"
        world.read(world.iterator(1))

        world.now_s += 1

        world.read(iterator)

    def test_after_ten_mebibytes_a_shard_gives_nothing_for_five_seconds(self) -> None:
        world = World(KinesisOptions(limits=ReadLimits()))
        world.create()
        for _ in range(11):
            world.put(bytes(MIB - 3))
        following = str(world.read(world.iterator(0)).next_iterator)

        world.now_s += 4.9
        assert (
            world.refused("GetRecords", ShardIterator=following) == "ProvisionedThroughputExceededException"
        )
        world.now_s += 0.1

        assert len(world.read(following).records) == 1

    def test_answers_within_the_rate_are_not_refused(self) -> None:
        world = World(KinesisOptions(limits=ReadLimits()))
        world.create()
        iterator: str | None = world.iterator(0)
        for _ in range(6):
            world.put(bytes(MIB - 3))
            page = world.read(str(iterator))
            iterator = page.next_iterator
            world.now_s += 0.5

            assert len(page.records) == 1


class TestRetention:
    def test_records_older_than_the_retention_are_gone(self) -> None:
        world = World()
        world.create()
        world.put(b"old")
        world.now_s += 1
        world.put(b"new")
        world.now_s = START_S + 24 * HOUR_S

        assert len(world.read(world.iterator(0)).records) == 2
        world.now_s += 0.001
        assert [data for _, data in world.read(world.iterator(0)).records] == [b"new"]

    def test_the_number_of_a_forgotten_record_leads_to_the_oldest_kept(self) -> None:
        world = World()
        world.create(2)
        old = world.put(b"old")
        elsewhere = world.put(b"elsewhere", HASHES - 1)
        world.now_s += 1
        world.put(b"new")
        world.now_s = START_S + 24 * HOUR_S + 0.5
        world.read(world.iterator(0))

        page = world.read(world.iterator(0, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=str(old)))

        assert [data for _, data in page.records] == [b"new"]
        assert (
            world.refused(
                "GetShardIterator",
                StreamName=STREAM,
                ShardId=shard_id(0),
                ShardIteratorType="AT_SEQUENCE_NUMBER",
                StartingSequenceNumber=str(elsewhere),
            )
            == "InvalidArgumentException"
        )

    def test_a_shorter_retention_takes_effect_at_once(self) -> None:
        world = World(KinesisOptions(retention_hours=48))
        world.create()
        world.put(b"old")
        world.now_s += 30 * HOUR_S
        assert len(world.read(world.iterator(0)).records) == 1

        world.call("DecreaseStreamRetentionPeriod", StreamName=STREAM, RetentionPeriodHours=24)

        assert world.read(world.iterator(0)).records == []
