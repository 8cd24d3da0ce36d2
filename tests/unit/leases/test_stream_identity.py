"""What a stream is called: by its identity, by its ARN, and in the keys of its leases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kcl_daemon.leases.lease import (
    MAX_HASH,
    Lease,
    LeaseKey,
    ShardId,
    StreamIdentity,
    TableStream,
    WorkerId,
    lease_key_of,
)
from kcl_protocol.sequence import SHARD_END, TRIM_HORIZON

TABLE = TableStream("eu-west-1", "123456789012", "orders", "2026-01-02T03:04:05.678")
TABLE_ARN = "arn:aws:dynamodb:eu-west-1:123456789012:table/orders/stream/2026-01-02T03:04:05.678"
ORDERS = StreamIdentity("123456789012", "orders", 7)


def test_an_identity_is_read_back_from_its_text() -> None:
    assert str(ORDERS) == "123456789012:orders:7"
    assert StreamIdentity.parse("123456789012:orders:7") == ORDERS
    assert ORDERS.names == {"orders", "123456789012:orders:7"}
    assert ORDERS.of_table is None


def test_the_arn_of_a_stream_says_account_and_name_and_its_creation_the_epoch() -> None:
    arn = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"
    assert StreamIdentity.of_arn(arn, 7.9) == ORDERS
    with pytest.raises(ValueError, match="not the ARN of a stream"):
        StreamIdentity.of_arn("arn:aws:kinesis:eu-west-1:123456789012:stream", 7.9)


def test_the_stream_of_a_table_is_one_by_its_arn_and_by_its_name_in_lease_keys() -> None:
    name = "eu-west-1$123456789012$orders$2026-01-02T03_04_05.678"
    assert TABLE.name == name
    assert TableStream.of(TABLE_ARN) == TableStream.of(name) == TABLE
    assert TABLE.arn == TABLE_ARN
    assert TableStream.of("orders") is None
    identity = StreamIdentity.of_arn(TABLE_ARN, 99.0)
    assert identity == StreamIdentity("123456789012", name, 1)
    assert identity.of_table == TABLE
    assert identity.names == {name, f"123456789012:{name}:1", TABLE_ARN, "orders"}


@pytest.mark.parametrize(
    ("region", "partition"), [("cn-north-1", "aws-cn"), ("us-gov-west-1", "aws-us-gov"), ("us-east-1", "aws")]
)
def test_the_arn_of_a_table_is_in_the_partition_of_its_region(region: str, partition: str) -> None:
    assert replace(TABLE, region=region).arn.startswith(f"arn:{partition}:dynamodb:{region}:")


def test_two_streams_of_one_table_are_beside_each_other() -> None:
    assert TABLE.is_beside(replace(TABLE, label="2025-01-01T00:00:00.000"))
    assert not TABLE.is_beside(replace(TABLE, table="bills"))


def test_a_lease_key_is_the_shard_and_with_several_streams_the_stream_before_it() -> None:
    shard = ShardId("shardId-0")
    assert lease_key_of(None, shard) == "shardId-0"
    assert lease_key_of(ORDERS, shard) == "123456789012:orders:7:shardId-0"
    assert Lease(LeaseKey("shardId-0"), 1, TRIM_HORIZON).shard_id == shard
    assert Lease(lease_key_of(ORDERS, shard), 1, TRIM_HORIZON, stream=ORDERS).shard_id == shard
    assert MAX_HASH == 340282366920938463463374607431768211455


def test_a_lease_is_read_by_its_owner_and_during_a_handoff_by_the_old_one() -> None:
    lease = Lease(LeaseKey("s"), 1, TRIM_HORIZON, lease_owner=WorkerId("new"))
    assert lease.actual_owner == "new"
    handed = replace(lease, checkpoint_owner=WorkerId("old"))
    assert handed.actual_owner == "old"
    assert not handed.awaits_standby
    assert replace(handed, standby="asked new").awaits_standby
    assert not replace(handed, standby="ready new").awaits_standby
    assert not replace(handed, standby="asked another").awaits_standby
    assert not replace(lease, standby="asked new").awaits_standby


def test_a_run_to_a_time_is_done_with_a_shard_that_has_ended_or_reached_it() -> None:
    lease = Lease(LeaseKey("s"), 1, TRIM_HORIZON)
    assert not lease.is_at(100)
    reached = [replace(lease, reached_ms=ms).is_at(100) for ms in (99, 100, 101)]
    assert reached == [False, True, True]
    assert replace(lease, checkpoint=SHARD_END).is_at(100)


def test_a_fencing_token_grows_with_the_time_and_where_the_clock_is_behind_by_one() -> None:
    lease = Lease(LeaseKey("s"), 1, TRIM_HORIZON)
    assert lease.next_fence(500) == 500
    assert [replace(lease, fence=499).next_fence(now_ms) for now_ms in (400, 499, 501)] == [500, 500, 501]
