"""What every adapter of the port `Kinesis` promises about streams of other accounts, made anew, trimmed and scaled."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from kcl_daemon.errors import InvalidRequest, StreamNotFound
from kcl_daemon.leases.lease import ShardId
from kcl_daemon.ports import IteratorKind, ReadFrom, StreamRef
from kcl_daemon.shards.lineage import InitialPosition, StartAt
from kcl_local.kinesis.arguments import DEFAULTS, MIB
from tests.contract.kinesis_backends import BACKENDS, START_S, Account, KinesisBackend

pytestmark = pytest.mark.anyio

FIRST, SECOND, THIRD = (f"shardId-{number:012}" for number in range(3))
FOREIGN = "arn:aws:kinesis:us-east-1:222222222222:stream/orders"
FROM_START = ReadFrom(IteratorKind.TRIM_HORIZON)
BY_NUMBER = (IteratorKind.AT_SEQUENCE_NUMBER, IteratorKind.AFTER_SEQUENCE_NUMBER)


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.name)
async def account(request: pytest.FixtureRequest) -> AsyncGenerator[Account, None]:
    backend = request.param
    assert isinstance(backend, KinesisBackend)
    async with backend.open(DEFAULTS) as opened:
        yield opened


async def test_streams_of_one_name_in_two_accounts_are_two(account: Account) -> None:
    own = account.create()
    account.put()
    account.model.handle("CreateStream", {"StreamARN": FOREIGN, "ShardCount": 2})
    foreign = StreamRef("orders", FOREIGN)

    assert (await account.kinesis.describe_stream(foreign)).arn == FOREIGN
    assert (await account.kinesis.describe_stream(own)).arn != FOREIGN
    assert len(await account.kinesis.list_shards(foreign)) == 2
    assert len(await account.kinesis.list_shards(own)) == 1
    assert len((await account.read(foreign, FIRST, FROM_START)).records) == 0
    assert len((await account.read(own, FIRST, FROM_START)).records) == 1


async def test_a_summary_says_how_records_are_distributed_and_notices_the_switch(account: Account) -> None:
    stream = account.create_auto()
    summary = await account.kinesis.describe_stream(stream)
    assert summary.distribution == "AUTO"
    other = {"StreamARN": summary.arn, "RecordDistributionStrategy": "USER_PARTITION_KEY"}
    account.model.handle("UpdateStreamRecordDistributionStrategy", other)
    assert (await account.kinesis.describe_stream(stream)).distribution == "USER_PARTITION_KEY"
    assert (await account.kinesis.describe_stream(account.create("others"))).distribution is None


@pytest.mark.parametrize("shard_id", [FIRST, SECOND, THIRD])
async def test_records_without_a_key_are_read_among_others(account: Account, shard_id: str) -> None:
    stream = account.create_auto()
    keys: list[str | None] = [None, "k", None]
    for key in keys:
        for _ in range(4):
            account.model.handle("PutRecord", {"StreamName": "orders", "Data": "AA==", "PartitionKey": key})
    found = (await account.read(stream, shard_id, FROM_START)).records
    assert [each.partition_key for each in found] == keys


async def test_a_stream_made_anew_has_another_time_and_refuses_old_positions(account: Account) -> None:
    stream = account.create()
    number = account.put()
    iterator = await account.iterator(stream, FIRST)
    account.wall.now_s += 60
    account.model.handle("DeleteStream", {"StreamName": "orders"})
    account.create()
    account.put()

    created_s = (await account.kinesis.describe_stream(stream)).creation_time_s
    assert created_s == pytest.approx(START_S + 60, abs=0.001)
    for kind in BY_NUMBER:
        with pytest.raises(InvalidRequest, match="GetShardIterator"):
            await account.read(stream, FIRST, ReadFrom(kind, sequence_number=number))
    with pytest.raises(StreamNotFound, match="GetRecords"):
        await account.kinesis.get_records(stream, ShardId(FIRST), iterator, 1)


async def test_a_position_older_than_the_retention_leads_to_the_oldest_record(account: Account) -> None:
    stream = account.create()
    old = account.put()
    account.wall.now_s += 25 * 3600
    kept = account.put()

    starts = [
        FROM_START,
        ReadFrom(IteratorKind.AT_TIMESTAMP, timestamp_s=START_S),
        *(ReadFrom(kind, sequence_number=old) for kind in BY_NUMBER),
    ]
    for start in starts:
        records = (await account.read(stream, FIRST, start)).records
        assert [record.sequence_number for record in records] == [kept], start


async def test_an_iterator_outlives_what_is_trimmed_behind_it(account: Account) -> None:
    stream = account.create()
    account.put()
    account.wall.now_s += 1
    iterator = await account.iterator(stream, FIRST)
    account.model.trim("orders", account.wall.now_s)
    kept = account.put()

    fetched = await account.kinesis.get_records(stream, ShardId(FIRST), iterator, 10)

    assert [record.sequence_number for record in fetched.records] == [kept]


async def test_a_closed_shard_is_not_found_once_it_is_trimmed(account: Account) -> None:
    stream = account.create()
    iterator = await account.iterator(stream, FIRST)
    account.split(FIRST, 2**127)
    account.wall.now_s += 1
    account.model.trim("orders", account.wall.now_s)

    assert [shard.shard_id for shard in await account.kinesis.list_shards(stream)] == [SECOND, THIRD]
    with pytest.raises(StreamNotFound):
        await account.kinesis.get_records(stream, ShardId(FIRST), iterator, 10)


async def test_scaling_leaves_as_many_open_shards_as_were_asked_for(account: Account) -> None:
    stream = account.create(shards=3)
    account.wall.now_s += 1
    reported = {"StreamName": "orders", "TargetShardCount": 5, "ScalingType": "UNIFORM_SCALING"}
    account.model.handle("UpdateShardCount", reported)

    latest = await account.kinesis.list_shards(stream, InitialPosition(StartAt.LATEST))
    assert len(latest) == 5
    everything = await account.kinesis.list_shards(stream)
    assert {shard.shard_id for shard in everything if shard.is_open} == {shard.shard_id for shard in latest}
    known = {shard.shard_id for shard in everything}
    assert all(shard.parent_shard_ids <= known for shard in everything)


async def test_a_record_may_have_ten_mebibytes_where_the_stream_allows_it(account: Account) -> None:
    stream = account.create()
    reported = {
        "StreamARN": (await account.kinesis.describe_stream(stream)).arn,
        "MaxRecordSizeInKiB": 10_240,
    }
    account.model.handle("UpdateMaxRecordSize", reported)
    data = bytes(range(256)) * (10 * MIB // 256 - 1)
    account.put(data)

    (record,) = (await account.read(stream, FIRST, FROM_START)).records

    assert len(record.data) == -(-len(data) // 3) * 4
