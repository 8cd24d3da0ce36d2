"""The Kinesis model: where reading begins, and for how long an iterator is good."""

from __future__ import annotations

import pytest

from kcl_local.kinesis.arguments import KinesisOptions
from tests.unit.local.world import HASHES, START_S, STREAM, World, shard_id


class TestIterators:
    def test_each_type_begins_at_its_place(self) -> None:
        world = World()
        world.create()
        numbers: list[int] = []
        for index in range(4):
            world.now_s = START_S + index
            numbers.append(world.put(b"%d" % index))
        latest = world.iterator(0, "LATEST")
        world.put(b"new")

        def first(iterator: str) -> bytes:
            return world.read(iterator, Limit=1).records[0][1]

        assert first(world.iterator(0, "TRIM_HORIZON")) == b"0"
        assert first(latest) == b"new"
        assert first(world.iterator(0, "AT_SEQUENCE_NUMBER", StartingSequenceNumber=str(numbers[2]))) == b"2"
        assert (
            first(world.iterator(0, "AFTER_SEQUENCE_NUMBER", StartingSequenceNumber=str(numbers[2]))) == b"3"
        )
        assert first(world.iterator(0, "AT_TIMESTAMP", Timestamp=START_S + 1.5)) == b"2"
        assert first(world.iterator(0, "AT_TIMESTAMP", Timestamp=START_S + 1)) == b"1"
        assert first(world.iterator(0, "AT_TIMESTAMP", Timestamp=START_S - 9)) == b"0"

    def test_latest_on_an_empty_shard_sees_the_next_record(self) -> None:
        world = World()
        world.create()
        latest = world.iterator(0, "LATEST")
        world.put(b"new")

        assert [data for _, data in world.read(latest).records] == [b"new"]

    def test_a_shard_begins_at_its_starting_sequence_number(self) -> None:
        world = World()
        world.create()
        start = str(world.shards()[0].first_number)
        world.put(b"only")

        for kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
            assert len(world.read(world.iterator(0, kind, StartingSequenceNumber=start)).records) == 1

    def test_a_number_that_the_shard_never_issued_is_refused(self) -> None:
        world = World()
        world.create(2)
        here = world.put(b"here", 0)
        there = world.put(b"there", HASHES - 1)
        for number in (there, here + 1, here + 2**24, 0, 7, 10**56, "x", "9" * 5000):
            refusal = world.refused(
                "GetShardIterator",
                StreamName=STREAM,
                ShardId=shard_id(0),
                ShardIteratorType="AFTER_SEQUENCE_NUMBER",
                StartingSequenceNumber=str(number),
            )
            assert refusal == "InvalidArgumentException", number

    def test_a_number_of_an_earlier_stream_of_the_same_name_is_refused(self) -> None:
        world = World()
        world.create()
        old = world.put(b"old")
        world.call("DeleteStream", StreamName=STREAM)
        world.create()
        world.put(b"new")

        assert (
            world.refused(
                "GetShardIterator",
                StreamName=STREAM,
                ShardId=shard_id(0),
                ShardIteratorType="AT_SEQUENCE_NUMBER",
                StartingSequenceNumber=str(old),
            )
            == "InvalidArgumentException"
        )

    @pytest.mark.parametrize(
        ("arguments", "code"),
        [
            ({"ShardIteratorType": "MIDDLE"}, "ValidationException"),
            ({}, "ValidationException"),
            ({"ShardIteratorType": "AT_SEQUENCE_NUMBER"}, "InvalidArgumentException"),
            ({"ShardIteratorType": "AT_TIMESTAMP"}, "InvalidArgumentException"),
            ({"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": START_S + 1}, "InvalidArgumentException"),
        ],
    )
    def test_a_start_that_says_nothing_is_refused(self, arguments: dict[str, object], code: str) -> None:
        world = World()
        world.create()

        assert world.refused("GetShardIterator", StreamName=STREAM, ShardId=shard_id(0), **arguments) == code

    def test_an_iterator_is_good_for_its_life(self) -> None:
        world = World(KinesisOptions(iterator_ttl_s=5))
        world.create()
        iterator = world.iterator(0)
        world.now_s += 4.999
        fresh = world.read(iterator).next_iterator
        world.now_s += 0.001

        assert world.refused("GetRecords", ShardIterator=iterator) == "ExpiredIteratorException"
        assert world.read(str(fresh)).records == []

    def test_rubbish_or_another_streams_iterator_is_refused(self) -> None:
        world = World()
        world.create()
        world.call("CreateStream", StreamName="other", ShardCount=1)
        iterator = world.iterator(0)
        other_arn = "arn:aws:kinesis:us-east-1:123456789012:stream/other"

        assert world.refused("GetRecords", ShardIterator="rubbish") == "InvalidArgumentException"
        assert world.refused("GetRecords", ShardIterator=iterator[:-4]) == "InvalidArgumentException"
        assert (
            world.refused("GetRecords", ShardIterator=iterator, StreamARN=other_arn)
            == "InvalidArgumentException"
        )
        assert world.refused("GetRecords", ShardIterator=iterator, Limit=10_001) == "ValidationException"
        world.call("DeleteStream", StreamName=STREAM)
        assert world.refused("GetRecords", ShardIterator=iterator) == "ResourceNotFoundException"
