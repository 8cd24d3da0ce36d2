"""What every adapter of the port `Kinesis` promises."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest

from kcl_daemon.errors import (
    AccessDenied,
    AwsError,
    InvalidRequest,
    IteratorExpired,
    StreamNotFound,
    Throttled,
    Unavailable,
)
from kcl_daemon.leases.lease import MAX_HASH, HashRange, ShardId
from kcl_daemon.ports import IteratorKind, ReadFrom, StreamRef
from kcl_daemon.shards.lineage import ChildShard, InitialPosition, StartAt
from kcl_local.faults import DROP
from kcl_local.kinesis.arguments import DEFAULTS, MIB, KinesisOptions, ReadLimits
from tests.contract.kinesis_backends import BACKENDS, START_S, Account, KinesisBackend

pytestmark = pytest.mark.anyio

HALF = 2**127
FIRST, SECOND, THIRD = (f"shardId-{number:012}" for number in range(3))
ARN = "arn:aws:kinesis:us-east-1:123456789012:stream/orders"
FROM_START = ReadFrom(IteratorKind.TRIM_HORIZON)
START_MS = round(START_S * 1000)


@pytest.fixture(params=BACKENDS, ids=lambda backend: backend.name)
def backend(request: pytest.FixtureRequest) -> KinesisBackend:
    found = request.param
    assert isinstance(found, KinesisBackend)
    return found


@pytest.fixture
async def account(backend: KinesisBackend) -> AsyncGenerator[Account, None]:
    async with backend.open(DEFAULTS) as opened:
        yield opened


async def test_a_stream_is_described_by_name_and_by_arn(account: Account) -> None:
    stream = account.create()
    by_name = await account.kinesis.describe_stream(stream)
    assert (by_name.name, by_name.arn, by_name.status) == ("orders", ARN, "ACTIVE")
    assert by_name.creation_time_s == pytest.approx(START_S, abs=0.001)
    assert await account.kinesis.describe_stream(StreamRef("orders", ARN)) == by_name


async def test_the_arn_goes_before_the_name(account: Account) -> None:
    account.create()
    account.put()
    stream = StreamRef("another name", ARN)
    assert (await account.kinesis.describe_stream(stream)).name == "orders"
    assert len(await account.kinesis.list_shards(stream)) == 1
    assert len((await account.read(stream, FIRST, FROM_START)).records) == 1


@pytest.mark.parametrize("stream", [StreamRef("none"), StreamRef("none", ARN)], ids=["by name", "by ARN"])
async def test_a_missing_stream_is_not_found(account: Account, stream: StreamRef) -> None:
    with pytest.raises(StreamNotFound, match="DescribeStreamSummary"):
        await account.kinesis.describe_stream(stream)
    with pytest.raises(StreamNotFound, match="ListShards"):
        await account.kinesis.list_shards(stream)
    with pytest.raises(StreamNotFound, match="GetShardIterator"):
        await account.iterator(stream, FIRST)


async def test_a_missing_shard_is_not_found(account: Account) -> None:
    stream = account.create()
    with pytest.raises(StreamNotFound):
        await account.iterator(stream, SECOND)


async def test_a_stream_deleted_while_it_is_read_is_not_found(account: Account) -> None:
    stream = account.create()
    iterator = await account.iterator(stream, FIRST)
    account.model.handle("DeleteStream", {"StreamName": "orders"})
    with pytest.raises(StreamNotFound, match="GetRecords"):
        await account.kinesis.get_records(stream, ShardId(FIRST), iterator, 1)


async def test_an_open_shard_tells_its_range_and_start(account: Account) -> None:
    stream = account.create(shards=2)
    shards = await account.kinesis.list_shards(stream)
    assert [shard.shard_id for shard in shards] == [FIRST, SECOND]
    assert [shard.hash_range for shard in shards] == [HashRange(0, HALF - 1), HashRange(HALF, MAX_HASH)]
    assert all(shard.is_open and not shard.parent_shard_ids for shard in shards)
    assert all(shard.starting_sequence_number > 10**50 for shard in shards)


async def test_list_streams_gives_every_page(account: Account) -> None:
    names = [f"stream-{number:03d}" for number in range(205)]
    for name in names:
        account.model.handle("CreateStream", {"StreamName": name, "ShardCount": 1})
    streams = await account.kinesis.list_streams()
    assert [each.name for each in streams] == names
    assert account.model.calls["ListStreams"] == 3
    described = await account.kinesis.describe_stream(StreamRef(names[7]))
    assert streams[7] == replace(described, retention_s=None)  # a list does not say it
    assert described.retention_s == 86_400


async def test_list_shards_gives_every_page(account: Account) -> None:
    stream = account.create(shards=2_100)
    shards = await account.kinesis.list_shards(stream)
    assert len({shard.shard_id for shard in shards}) == len(shards) == 2_100
    assert account.model.calls["ListShards"] == 3


async def test_a_filter_holds_over_all_pages(account: Account) -> None:
    stream = account.create(shards=1_100)
    account.split(FIRST, 5)
    latest = await account.kinesis.list_shards(stream, InitialPosition(StartAt.LATEST))
    assert len(latest) == 1_101
    assert FIRST not in {shard.shard_id for shard in latest}
    assert account.model.calls["ListShards"] == 2


async def test_a_split_shard_has_an_end_and_two_children(account: Account) -> None:
    stream = account.create()
    account.wall.now_s += 1
    account.split(FIRST, HALF)
    parent, low, high = await account.kinesis.list_shards(stream)
    assert not parent.is_open
    assert parent.ending_sequence_number is not None
    assert parent.ending_sequence_number >= parent.starting_sequence_number
    assert low.parent_shard_ids == high.parent_shard_ids == frozenset({ShardId(FIRST)})
    assert (low.hash_range, high.hash_range) == (HashRange(0, HALF - 1), HashRange(HALF, MAX_HASH))
    assert low.is_open
    assert high.is_open


async def test_a_merged_shard_has_two_parents(account: Account) -> None:
    stream = account.create(shards=2)
    account.merge(FIRST, SECOND)
    shards = await account.kinesis.list_shards(stream)
    assert [shard.is_open for shard in shards] == [False, False, True]
    assert shards[2].parent_shard_ids == frozenset({ShardId(FIRST), ShardId(SECOND)})
    assert shards[2].hash_range == HashRange(0, MAX_HASH)


async def test_the_start_chooses_the_shards_that_were_open_then(account: Account) -> None:
    stream = account.create()
    account.wall.now_s += 100
    account.split(FIRST, HALF)
    account.wall.now_s += 100

    async def shard_ids(start: InitialPosition | None) -> list[str]:
        return [shard.shard_id for shard in await account.kinesis.list_shards(stream, start)]

    assert await shard_ids(None) == [FIRST, SECOND, THIRD]
    assert await shard_ids(InitialPosition(StartAt.TRIM_HORIZON)) == [FIRST]
    assert await shard_ids(InitialPosition(StartAt.LATEST)) == [SECOND, THIRD]
    assert await shard_ids(InitialPosition(StartAt.TIMESTAMP, START_S + 50.5)) == [FIRST]
    assert await shard_ids(InitialPosition(StartAt.TIMESTAMP, START_S + 150.5)) == [SECOND, THIRD]


async def test_a_stream_that_is_being_created_is_unavailable(backend: KinesisBackend) -> None:
    async with backend.open(KinesisOptions(creating_s=10)) as account:
        stream = account.create()
        assert (await account.kinesis.describe_stream(stream)).status == "CREATING"
        with pytest.raises(Unavailable):
            await account.kinesis.list_shards(stream)
        account.wall.now_s += 10
        assert len(await account.kinesis.list_shards(stream)) == 1


@pytest.mark.parametrize("data", [b"", b"\x00", bytes(range(256)), "grüße".encode(), b"x" * 100_000])
async def test_data_is_the_base64_text_of_what_was_put(account: Account, data: bytes) -> None:
    stream = account.create()
    account.put(data)
    (record,) = (await account.read(stream, FIRST, FROM_START)).records
    assert record.data == base64.b64encode(data).decode()


@pytest.mark.parametrize("key", ["k", "grüße 日本語 \U0001f600", '"\\\n\t\x01', " "])
async def test_the_partition_key_is_as_it_was_put(account: Account, key: str) -> None:
    stream = account.create()
    account.put(key=key)
    (record,) = (await account.read(stream, FIRST, FROM_START)).records
    assert record.partition_key == key


async def test_a_record_has_its_number_and_its_arrival_to_the_millisecond(account: Account) -> None:
    stream = account.create()
    numbers: list[str] = []
    arrivals = [0, 1, 333, 1_999, 86_399_999]
    for after_ms in arrivals:
        account.wall.now_s = (START_MS + after_ms) / 1000
        numbers.append(account.put())
    records = (await account.read(stream, FIRST, FROM_START)).records
    assert [record.sequence_number for record in records] == numbers
    assert [record.approximate_arrival_timestamp for record in records] == [
        START_MS + after_ms for after_ms in arrivals
    ]
    assert all(record.sub_sequence_number == 0 for record in records)
    assert sorted(numbers, key=int) == numbers


async def test_an_empty_open_shard_gives_nothing_but_an_iterator(account: Account) -> None:
    stream = account.create()
    fetched = await account.read(stream, FIRST, FROM_START)
    assert list(fetched.records) == []
    assert fetched.next_iterator
    assert (fetched.millis_behind_latest, fetched.child_shards, fetched.payload.data_bytes) == (0, (), 0)


async def test_reading_goes_on_where_it_was(account: Account) -> None:
    stream = account.create()
    numbers = [account.put() for _ in range(7)]
    iterator: str | None = await account.iterator(stream, FIRST)
    read: list[list[str]] = []
    for _ in range(4):
        assert iterator is not None
        fetched = await account.kinesis.get_records(stream, ShardId(FIRST), iterator, 3)
        read.append([record.sequence_number for record in fetched.records])
        iterator = fetched.next_iterator
    assert read == [numbers[:3], numbers[3:6], numbers[6:], []]


async def test_each_kind_of_iterator_begins_where_it_says(account: Account) -> None:
    stream = account.create()
    numbers: list[str] = []
    for second in range(5):
        account.wall.now_s = START_S + second
        numbers.append(account.put())

    async def first(read_from: ReadFrom) -> str | None:
        records = (await account.read(stream, FIRST, read_from)).records
        return records[0].sequence_number if records else None

    assert await first(FROM_START) == numbers[0]
    assert await first(ReadFrom(IteratorKind.AT_SEQUENCE_NUMBER, sequence_number=numbers[2])) == numbers[2]
    assert await first(ReadFrom(IteratorKind.AFTER_SEQUENCE_NUMBER, sequence_number=numbers[2])) == numbers[3]
    assert await first(ReadFrom(IteratorKind.LATEST)) is None
    assert await first(ReadFrom(IteratorKind.AT_TIMESTAMP, timestamp_s=START_S + 2)) == numbers[2]
    assert await first(ReadFrom(IteratorKind.AT_TIMESTAMP, timestamp_s=START_S + 2.001)) == numbers[3]


async def test_latest_gives_what_comes_afterwards(account: Account) -> None:
    stream = account.create()
    account.put()
    iterator = await account.iterator(stream, FIRST, IteratorKind.LATEST)
    later = account.put()
    fetched = await account.kinesis.get_records(stream, ShardId(FIRST), iterator, 10)
    assert [record.sequence_number for record in fetched.records] == [later]


async def test_a_split_shard_ends_with_its_children(account: Account) -> None:
    stream = account.create()
    account.put()
    account.split(FIRST, HALF)
    fetched = await account.read(stream, FIRST, FROM_START)
    assert len(fetched.records) == 1
    assert fetched.next_iterator is None
    parents = frozenset({ShardId(FIRST)})
    assert fetched.child_shards == (
        ChildShard(ShardId(SECOND), parents, HashRange(0, HALF - 1)),
        ChildShard(ShardId(THIRD), parents, HashRange(HALF, MAX_HASH)),
    )


async def test_merged_shards_end_with_their_common_child(account: Account) -> None:
    stream = account.create(shards=2)
    account.merge(FIRST, SECOND)
    child = ChildShard(ShardId(THIRD), frozenset({ShardId(FIRST), ShardId(SECOND)}), HashRange(0, MAX_HASH))
    for shard_id in (FIRST, SECOND):
        fetched = await account.read(stream, shard_id, FROM_START)
        assert (fetched.next_iterator, fetched.child_shards) == (None, (child,))


async def test_only_the_last_answer_of_a_closed_shard_names_children(account: Account) -> None:
    stream = account.create()
    for _ in range(3):
        account.put()
    account.split(FIRST, HALF)
    iterator = await account.iterator(stream, FIRST)
    first = await account.kinesis.get_records(stream, ShardId(FIRST), iterator, 2)
    assert first.next_iterator is not None
    assert first.child_shards == ()
    last = await account.kinesis.get_records(stream, ShardId(FIRST), first.next_iterator, 2)
    assert last.next_iterator is None
    assert len(last.child_shards) == 2


async def test_an_old_iterator_has_expired(account: Account) -> None:
    stream = account.create()
    iterator = await account.iterator(stream, FIRST)
    account.wall.now_s += 301
    with pytest.raises(IteratorExpired, match="GetRecords"):
        await account.kinesis.get_records(stream, ShardId(FIRST), iterator, 1)


async def test_a_mangled_iterator_is_an_invalid_request(account: Account) -> None:
    stream = account.create()
    with pytest.raises(InvalidRequest):
        await account.kinesis.get_records(stream, ShardId(FIRST), "mangled", 1)


async def test_a_limit_out_of_range_is_an_invalid_request(account: Account) -> None:
    stream = account.create()
    iterator = await account.iterator(stream, FIRST)
    for limit in (0, 10_001):
        with pytest.raises(InvalidRequest):
            await account.kinesis.get_records(stream, ShardId(FIRST), iterator, limit)


async def test_too_many_reads_are_throttled(backend: KinesisBackend) -> None:
    async with backend.open(KinesisOptions(limits=ReadLimits())) as account:
        stream = account.create()
        iterator = await account.iterator(stream, FIRST)
        for _ in range(5):
            await account.kinesis.get_records(stream, ShardId(FIRST), iterator, 1)
        with pytest.raises(Throttled, match="GetRecords"):
            await account.kinesis.get_records(stream, ShardId(FIRST), iterator, 1)
        account.wall.now_s += 1.001
        await account.kinesis.get_records(stream, ShardId(FIRST), iterator, 1)


async def test_one_answer_has_at_most_ten_mebibytes(account: Account) -> None:
    stream = account.create()
    data = bytes(MIB - 1)
    for _ in range(12):
        account.put(data, key="k")
    iterator: str | None = await account.iterator(stream, FIRST)
    counts: list[int] = []
    for _ in range(2):
        assert iterator is not None
        fetched = await account.kinesis.get_records(stream, ShardId(FIRST), iterator, 10_000)
        counts.append(len(fetched.records))
        characters = sum(len(record.data) for record in fetched.records)
        assert characters <= fetched.payload.size_bytes <= characters + 1_000 * len(fetched.records)
        iterator = fetched.next_iterator
    assert counts == [10, 2]


async def test_millis_behind_latest_is_the_age_of_what_is_still_to_read(account: Account) -> None:
    stream = account.create()
    account.put()
    account.wall.now_s += 2.5
    account.put()
    account.wall.now_s += 1.25
    iterator = await account.iterator(stream, FIRST)
    first = await account.kinesis.get_records(stream, ShardId(FIRST), iterator, 1)
    assert first.millis_behind_latest == 1_250
    assert first.next_iterator is not None
    last = await account.kinesis.get_records(stream, ShardId(FIRST), first.next_iterator, 1)
    assert last.millis_behind_latest == 0


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("ProvisionedThroughputExceededException", Throttled),
        ("LimitExceededException", Throttled),
        ("KMSThrottlingException", Throttled),
        ("ResourceInUseException", Unavailable),
        ("InternalFailure", Unavailable),
        ("ServiceUnavailable", Unavailable),
        (DROP, Unavailable),
        ("AccessDeniedException", AccessDenied),
        ("ExpiredTokenException", AccessDenied),
        ("KMSAccessDeniedException", AccessDenied),
        ("InvalidArgumentException", InvalidRequest),
        ("ValidationException", InvalidRequest),
        ("ResourceNotFoundException", StreamNotFound),
    ],
)
async def test_a_failure_is_reported_in_our_words_and_not_tried_again(
    account: Account, code: str, kind: type[AwsError]
) -> None:
    stream = account.create()
    iterator = await account.iterator(stream, FIRST)
    account.model.fail_next("GetRecords", code)
    with pytest.raises(AwsError) as raised:
        await account.kinesis.get_records(stream, ShardId(FIRST), iterator, 1)
    assert type(raised.value) is kind
    assert raised.value.operation == "GetRecords"
    assert account.model.calls["GetRecords"] == 1
    await account.kinesis.get_records(stream, ShardId(FIRST), iterator, 1)


@pytest.mark.parametrize("operation", ["DescribeStreamSummary", "ListShards", "GetShardIterator"])
async def test_every_call_names_itself_in_errors(account: Account, operation: str) -> None:
    stream = account.create()
    account.model.fail_next(operation, "LimitExceededException")
    with pytest.raises(Throttled) as raised:
        await account.kinesis.describe_stream(stream)
        await account.kinesis.list_shards(stream)
        await account.iterator(stream, FIRST)
    assert raised.value.operation == operation
