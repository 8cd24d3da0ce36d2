"""The Kinesis model: streams of other accounts, streams made anew, what is trimmed, what may change in a stream."""

from __future__ import annotations

import base64
from typing import cast

import pytest

from kcl_local.kinesis.arguments import MIB, ServiceError
from tests.unit.local.fan_out import following, register, subscribe
from tests.unit.local.world import ARN, HASHES, START_S, STREAM, World, shard_id

FOREIGN = "arn:aws:kinesis:us-east-1:222222222222:stream/orders"


def _summary(world: World, **naming: object) -> dict[str, object]:
    answer = world.call("DescribeStreamSummary", **naming)
    return cast("dict[str, object]", answer["StreamDescriptionSummary"])


class TestAccounts:
    def test_a_stream_of_another_account_is_named_by_its_arn_only(self) -> None:
        world = World()
        world.create(1)
        world.call("CreateStream", StreamARN=FOREIGN, ShardCount=3)

        assert _summary(world, StreamARN=FOREIGN)["StreamARN"] == FOREIGN
        assert _summary(world, StreamARN=FOREIGN)["StreamName"] == STREAM
        assert _summary(world, StreamARN=FOREIGN)["OpenShardCount"] == 3
        assert _summary(world, StreamName=STREAM)["StreamARN"] == ARN
        assert _summary(world, StreamName=STREAM)["OpenShardCount"] == 1
        assert world.call("ListStreams")["StreamNames"] == [STREAM]

    def test_every_call_takes_the_arn_of_a_stream(self) -> None:
        world = World()
        world.call("CreateStream", StreamARN=FOREIGN, ShardCount=1)
        by_arn = {"StreamARN": FOREIGN}
        world.call("PutRecord", Data="AA==", PartitionKey="k", **by_arn)
        world.call("PutRecords", Records=[{"Data": "AA==", "PartitionKey": "k"}], **by_arn)
        world.call("SplitShard", ShardToSplit=shard_id(0), NewStartingHashKey=str(HASHES // 2), **by_arn)
        merged = {"ShardToMerge": shard_id(1), "AdjacentShardToMerge": shard_id(2)}
        world.call("MergeShards", **merged, **by_arn)
        world.call("UpdateShardCount", TargetShardCount=2, ScalingType="UNIFORM_SCALING", **by_arn)
        world.call("IncreaseStreamRetentionPeriod", RetentionPeriodHours=48, **by_arn)
        world.call("DecreaseStreamRetentionPeriod", RetentionPeriodHours=24, **by_arn)
        world.call("DescribeStream", **by_arn)
        assert len(world.shards(StreamName=None, **by_arn)) == 6
        place = {"ShardId": shard_id(0), "ShardIteratorType": "TRIM_HORIZON"}
        iterator = str(world.call("GetShardIterator", **place, **by_arn)["ShardIterator"])
        assert len(world.read(iterator, **by_arn).records) == 2
        world.call("DeleteStream", **by_arn)

        assert world.refused("DescribeStream", **by_arn) == "ResourceNotFoundException"

    def test_a_consumer_of_a_stream_with_a_given_arn_reads_it(self) -> None:
        world = World()
        world.call("CreateStream", StreamARN=FOREIGN, ShardCount=1)
        answer = world.call("RegisterStreamConsumer", StreamARN=FOREIGN, ConsumerName="app")
        consumer = cast("dict[str, str]", answer["Consumer"])["ConsumerARN"]
        assert consumer.startswith(FOREIGN)
        world.call("PutRecord", StreamARN=FOREIGN, Data="AA==", PartitionKey="k")

        assert following(subscribe(world, consumer)).data == [b"\0"]

    def test_an_iterator_of_one_account_is_not_good_in_the_other(self) -> None:
        world = World()
        world.create()
        world.call("CreateStream", StreamARN=FOREIGN, ShardCount=1)

        refusal = world.refused("GetRecords", ShardIterator=world.iterator(0), StreamARN=FOREIGN)

        assert refusal == "InvalidArgumentException"


class TestMadeAnew:
    def test_a_new_stream_has_a_new_time_and_none_of_the_old_numbers(self) -> None:
        world = World()
        world.create()
        old = str(world.put(b"old"))
        world.now_s += 60
        world.call("DeleteStream", StreamName=STREAM)
        world.create()

        assert _summary(world, StreamName=STREAM)["StreamCreationTimestamp"] == START_S + 60
        new = world.put(b"new")
        assert new > int(old)
        for kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
            with pytest.raises(ServiceError) as caught:
                world.iterator(0, kind, StartingSequenceNumber=old)
            assert caught.value.code == "InvalidArgumentException"

    def test_a_new_stream_does_not_know_the_consumers_of_the_old_one(self) -> None:
        world = World()
        world.create()
        arn = register(world)
        world.call("DeleteStream", StreamName=STREAM, EnforceConsumerDeletion=True)
        world.create()

        assert world.refused("DescribeStreamConsumer", ConsumerARN=arn) == "ResourceNotFoundException"


class TestTrimming:
    def test_records_before_a_trim_are_gone_and_their_positions_lead_to_the_first_that_is_left(self) -> None:
        world = World()
        world.create()
        numbers: list[str] = []
        for index in range(4):
            world.now_s = START_S + index
            numbers.append(str(world.put(b"%d" % index)))

        world.model.trim(STREAM, START_S + 2)

        def first(kind: str, **more: object) -> bytes:
            return world.read(world.iterator(0, kind, **more)).records[0][1]

        assert first("TRIM_HORIZON") == b"2"
        assert first("AT_TIMESTAMP", Timestamp=START_S) == b"2"
        for kind in ("AT_SEQUENCE_NUMBER", "AFTER_SEQUENCE_NUMBER"):
            assert first(kind, StartingSequenceNumber=numbers[0]) == b"2"

    def test_closed_shards_from_before_are_gone(self) -> None:
        world = World()
        world.create()
        world.split(0, HASHES // 2)
        world.now_s += 1

        world.model.trim(ARN, world.now_s)

        assert [shard.shard_id for shard in world.shards()] == [shard_id(1), shard_id(2)]
        with pytest.raises(ServiceError) as caught:
            world.iterator(0)
        assert caught.value.code == "ResourceNotFoundException"

    def test_a_subscription_goes_on_at_what_is_left_and_ends_with_its_shard(self) -> None:
        world = World()
        world.create()
        subscription = subscribe(world, register(world))
        world.put(b"old")
        world.now_s += 1
        world.model.trim(STREAM, world.now_s)
        world.put(b"new")
        assert following(subscription).data == [b"new"]

        world.put(b"unread")
        world.split(0, HASHES // 2)
        world.now_s += 1
        world.model.trim(STREAM, world.now_s)
        with pytest.raises(ServiceError, match="ResourceNotFoundException"):
            subscription.next_event()

    def test_a_trim_before_an_earlier_trim_restores_no_record(self) -> None:
        world = World()
        world.create()
        world.put(b"old")
        world.now_s += 2
        world.model.trim(STREAM, world.now_s)
        world.model.trim(STREAM, START_S)

        assert world.read(world.iterator(0)).records == []

    def test_a_stream_must_be_there(self) -> None:
        with pytest.raises(ServiceError, match="ResourceNotFoundException"):
            World().model.trim("none", START_S)


class TestChanges:
    def test_a_stream_may_have_records_of_ten_mebibytes(self) -> None:
        world = World()
        world.call("CreateStream", StreamName=STREAM, ShardCount=1, MaxRecordSizeInKiB=10_240)
        assert _summary(world, StreamName=STREAM)["MaxRecordSizeInKiB"] == 10_240
        data = bytes(10 * MIB - 3)

        number = world.put(data)

        assert world.read(world.iterator(0)).records == [(number, data)]
        assert following(subscribe(world, register(world))).data == [data]
        larger = base64.b64encode(data + b"\0").decode()
        refusal = world.refused("PutRecord", StreamName=STREAM, Data=larger, PartitionKey="key")
        assert refusal == "ValidationException"

    def test_the_size_of_records_can_be_changed(self) -> None:
        world = World()
        world.create()
        assert _summary(world, StreamName=STREAM)["MaxRecordSizeInKiB"] == 1024
        world.call("UpdateMaxRecordSize", StreamARN=ARN, MaxRecordSizeInKiB=2048)
        world.put(bytes(2 * MIB - 3))

        refusal = world.refused("UpdateMaxRecordSize", StreamARN=ARN, MaxRecordSizeInKiB=1023)
        assert refusal == "ValidationException"

    def test_the_mode_can_be_changed(self) -> None:
        world = World()
        world.create()
        world.call("UpdateStreamMode", StreamARN=ARN, StreamModeDetails={"StreamMode": "ON_DEMAND"})

        assert _summary(world, StreamName=STREAM)["StreamModeDetails"] == {"StreamMode": "ON_DEMAND"}
        for details in ({"StreamMode": "FREE"}, None):
            refusal = world.refused("UpdateStreamMode", StreamARN=ARN, StreamModeDetails=details)
            assert refusal == "ValidationException"
