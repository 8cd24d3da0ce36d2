"""What every adapter of the port `FanOut` does."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import anyio
import pytest

from kcl_daemon.errors import (
    ConsumerLimitReached,
    InvalidRequest,
    StreamNotFound,
    SubscriptionTaken,
    Throttled,
    Unavailable,
)
from kcl_daemon.leases.lease import MAX_HASH, ShardId
from kcl_daemon.ports import (
    ConsumerName,
    ConsumerStatus,
    IteratorKind,
    PushedRecords,
    ReadFrom,
    StreamConsumer,
    StreamRef,
    Subscription,
)
from kcl_daemon.records.payload import key_text
from kcl_local.faults import ResponseFault, ResponseFaultKind
from kcl_local.kinesis.arguments import FanOutRules as FanOutOptions
from kcl_local.kinesis.arguments import KinesisOptions
from kcl_local.kinesis.stream import stream_arn
from tests.contract.fan_out_backends import APP, BACKENDS, STREAMED, FanOutAccount, FanOutBackend

pytestmark = pytest.mark.anyio
STREAM = StreamRef("words")
FIRST = ShardId("shardId-000000000000")
OLDEST = ReadFrom(IteratorKind.TRIM_HORIZON)
LATEST = ReadFrom(IteratorKind.LATEST)


@pytest.fixture(name="backend", params=BACKENDS, ids=lambda backend: backend.name)
def _backend(request: pytest.FixtureRequest) -> FanOutBackend:
    assert isinstance(request.param, FanOutBackend)
    return request.param


@pytest.fixture(name="account")
async def _account(backend: FanOutBackend) -> AsyncGenerator[FanOutAccount, None]:
    async with backend.open(KinesisOptions()) as account:
        yield account


async def registered(account: FanOutAccount) -> str:
    """A consumer that can read; its ARN."""
    return (await account.fan_out.register_consumer(APP)).arn


async def event(subscription: Subscription) -> PushedRecords:
    with anyio.fail_after(60):
        pushed = await subscription.next()
    assert pushed is not None, "the subscription has ended"
    return pushed


def data(pushed: PushedRecords) -> list[str]:
    return [record.data for record in pushed.payload.decoded()]


async def test_a_consumer_is_registered_and_found(account: FanOutAccount) -> None:
    assert await account.fan_out.describe_consumer(APP) is None

    made = await account.fan_out.register_consumer(APP)

    assert made.status is ConsumerStatus.CREATING
    active = StreamConsumer(made.arn, ConsumerStatus.ACTIVE)
    assert await account.fan_out.describe_consumer(APP) == active
    assert await account.fan_out.describe_consumer(made.arn) == active
    with pytest.raises(Unavailable, match="ResourceInUse"):
        await account.fan_out.register_consumer(APP)


async def test_the_limit_of_consumers_is_no_throttling(backend: FanOutBackend) -> None:
    async with backend.open(KinesisOptions(fan_out=FanOutOptions(consumers_max=1))) as account:
        await account.fan_out.register_consumer(APP)
        with pytest.raises(ConsumerLimitReached):
            await account.fan_out.register_consumer(ConsumerName(APP.stream_arn, "other"))


async def test_no_stream_means_no_consumer(account: FanOutAccount) -> None:
    nowhere = ConsumerName(stream_arn("nowhere"), "app")
    assert await account.fan_out.describe_consumer(nowhere) is None
    with pytest.raises(StreamNotFound):
        await account.fan_out.register_consumer(nowhere)


async def test_records_are_pushed_until_the_shard_ends(account: FanOutAccount) -> None:
    number = account.put(b"a")
    async with account.fan_out.subscribe(STREAM, await registered(account), FIRST, OLDEST) as subscription:
        first = await event(subscription)
        assert data(first) == ["YQ=="]
        assert first.continuation == number
        assert (first.millis_behind_latest, first.child_shards) == (0, ())

        account.put(b"b")
        assert data(await event(subscription)) == ["Yg=="]

        account.split(FIRST, MAX_HASH // 2)
        last = await event(subscription)
        assert last.continuation is None
        assert [child.parent_shard_ids for child in last.child_shards] == [frozenset({FIRST})] * 2


async def test_records_without_a_key_are_pushed_among_others(account: FanOutAccount) -> None:
    arn = APP.stream_arn
    mode = {"StreamModeDetails": {"StreamMode": "ON_DEMAND"}}
    account.model.handle("UpdateStreamMode", {"StreamARN": arn, **mode})
    auto = {"StreamARN": arn, "RecordDistributionStrategy": "AUTO"}
    account.model.handle("UpdateStreamRecordDistributionStrategy", auto)
    keys: list[str | None] = ["k", None, "k"]
    for key in keys:
        account.model.handle("PutRecord", {"StreamARN": arn, "Data": "AA==", "PartitionKey": key})
    async with account.fan_out.subscribe(STREAM, await registered(account), FIRST, OLDEST) as subscription:
        found = (await event(subscription)).payload.records
    assert [key_text(each) for each in found] == keys


async def test_an_idle_subscription_tells_where_to_go_on_and_ends(account: FanOutAccount) -> None:
    arn = await registered(account)
    account.put(b"before")
    async with account.fan_out.subscribe(STREAM, arn, FIRST, LATEST) as subscription:
        account.wait(5)
        idle = await event(subscription)
        assert (len(idle.payload), idle.child_shards) == (0, ())
        account.wait(295)
        with anyio.fail_after(60):
            assert await subscription.next() is None
    account.put(b"a")
    after = ReadFrom(IteratorKind.AFTER_SEQUENCE_NUMBER, sequence_number=idle.continuation)
    async with account.fan_out.subscribe(STREAM, arn, FIRST, after) as subscription:
        assert data(await event(subscription)) == ["YQ=="]


async def test_positions_are_those_of_iterators(account: FanOutAccount) -> None:
    arn = await registered(account)
    numbers = [account.put(bytes([65 + index])) for index in range(3)]
    at_s = account.wall.now_s
    account.wait(1)
    account.put(b"D")
    for read_from, expected in (
        (ReadFrom(IteratorKind.AT_SEQUENCE_NUMBER, sequence_number=numbers[1]), ["Qg==", "Qw==", "RA=="]),
        (ReadFrom(IteratorKind.AFTER_SEQUENCE_NUMBER, sequence_number=numbers[1]), ["Qw==", "RA=="]),
        (ReadFrom(IteratorKind.AT_TIMESTAMP, timestamp_s=at_s + 0.5), ["RA=="]),
    ):
        account.wait(6)  # else the subscription before is protected
        async with account.fan_out.subscribe(STREAM, arn, FIRST, read_from) as subscription:
            assert data(await event(subscription)) == expected


async def test_a_subscription_is_protected_and_then_taken_over(account: FanOutAccount) -> None:
    arn = await registered(account)
    async with account.fan_out.subscribe(STREAM, arn, FIRST, LATEST) as older:
        with pytest.raises(SubscriptionTaken):
            async with account.fan_out.subscribe(STREAM, arn, FIRST, LATEST):
                pass
        account.wait(5)
        async with account.fan_out.subscribe(STREAM, arn, FIRST, LATEST) as newer:
            with pytest.raises(SubscriptionTaken), anyio.fail_after(60):
                while True:
                    await older.next()
            account.put(b"a")
            while not (pushed := await event(newer)).payload:
                pass
            assert data(pushed) == ["YQ=="]


async def test_a_missing_shard_or_consumer_is_stream_not_found(account: FanOutAccount) -> None:
    arn = await registered(account)
    with pytest.raises(StreamNotFound):
        async with account.fan_out.subscribe(STREAM, arn, ShardId("shardId-000000000009"), OLDEST):
            pass
    async with account.fan_out.subscribe(STREAM, arn, FIRST, OLDEST) as subscription:
        account.model.handle("DeregisterStreamConsumer", {"ConsumerARN": arn})
        with pytest.raises(StreamNotFound), anyio.fail_after(60):
            await subscription.next()
    assert await account.fan_out.describe_consumer(arn) is None
    account.wait(6)
    with pytest.raises(StreamNotFound):
        async with account.fan_out.subscribe(STREAM, arn, FIRST, OLDEST):
            pass


async def test_refusals_are_told_apart(account: FanOutAccount) -> None:
    arn = await registered(account)
    for code, expected in (
        ("LimitExceededException", Throttled),
        ("InvalidArgumentException", InvalidRequest),
        ("InternalFailure", Unavailable),
    ):
        account.model.fail_next("SubscribeToShard", code)
        with pytest.raises(expected):
            async with account.fan_out.subscribe(STREAM, arn, FIRST, OLDEST):
                pass


@pytest.mark.parametrize("streamed", STREAMED, ids=lambda backend: backend.name)
@pytest.mark.parametrize("kind", [ResponseFaultKind.CUT, ResponseFaultKind.SHORT, ResponseFaultKind.CORRUPT])
async def test_a_stream_that_breaks_off_over_http_gives_what_came_before(
    kind: ResponseFaultKind, streamed: FanOutBackend
) -> None:
    async with streamed.open(KinesisOptions(fan_out=FanOutOptions(event_bytes_max=1))) as account:
        arn = await registered(account)
        account.put(b"a")
        account.put(b"b")
        account.model.troubles.add("SubscribeToShard", ResponseFault(kind, event=1))
        async with account.fan_out.subscribe(STREAM, arn, FIRST, OLDEST) as subscription:
            assert data(await event(subscription)) == ["YQ=="]
            with pytest.raises(Unavailable), anyio.fail_after(60):
                await subscription.next()


@pytest.mark.parametrize("streamed", STREAMED, ids=lambda backend: backend.name)
async def test_an_exception_inside_a_stream_is_reported_as_the_refusal_that_it_is(
    streamed: FanOutBackend,
) -> None:
    async with streamed.open(KinesisOptions()) as account:
        arn = await registered(account)
        account.put(b"a")
        account.model.troubles.add(
            "SubscribeToShard",
            ResponseFault(ResponseFaultKind.EXCEPTION, event=0, code="KMSThrottlingException"),
        )
        async with account.fan_out.subscribe(STREAM, arn, FIRST, OLDEST) as subscription:
            with pytest.raises(Throttled), anyio.fail_after(60):
                await subscription.next()


@pytest.mark.parametrize("streamed", STREAMED, ids=lambda backend: backend.name)
async def test_who_takes_slowly_holds_up_nobody_else(streamed: FanOutBackend) -> None:
    async with streamed.open(KinesisOptions()) as account:
        arn = await registered(account)
        account.split(FIRST, MAX_HASH // 2)
        for _ in range(8):
            account.put(bytes(256 * 1024))
            account.put(bytes(256 * 1024), hash_key=MAX_HASH - 1)
        async with (
            account.fan_out.subscribe(STREAM, arn, ShardId("shardId-000000000001"), OLDEST) as slow,
            account.fan_out.subscribe(STREAM, arn, ShardId("shardId-000000000002"), OLDEST) as fast,
        ):
            for subscription in (fast, slow):
                got = 0
                while got < 8:
                    got += len((await event(subscription)).payload)
