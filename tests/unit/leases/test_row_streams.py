"""Streams in lease keys and rows, where there are many."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.leases.lease import Lease, LeaseKey, ShardId, StreamIdentity, lease_key_of
from kcl_daemon.leases.row import (
    MalformedRowError,
    Row,
    checkpoint,
    is_multi_stream_row,
    lease_from_row,
    new_lease_row,
)
from kcl_protocol.sequence import TRIM_HORIZON, ExtendedSequenceNumber

CLICKS = StreamIdentity("111122223333", "clicks", 1_700_000_000)
SHARD = ShardId("shardId-000000000007")
KEY = LeaseKey("111122223333:clicks:1700000000:shardId-000000000007")
LEASE = Lease(
    KEY, 0, TRIM_HORIZON, stream=CLICKS, parent_shard_ids=frozenset({ShardId("shardId-000000000001")})
)
NAMES = st.from_regex(r"[A-Za-z0-9_.-]{1,128}", fullmatch=True)


@given(st.from_regex(r"[0-9]{12}", fullmatch=True), NAMES, st.integers(1, 2**40))
def test_an_identity_is_read_as_it_was_written(account: str, name: str, epoch: int) -> None:
    identity = StreamIdentity(account, name, epoch)
    assert StreamIdentity.parse(str(identity)) == identity
    arn = f"arn:aws-cn:kinesis:cn-north-1:{account}:stream/{name}"
    assert StreamIdentity.of_arn(arn, epoch + 0.9) == identity


@pytest.mark.parametrize(
    "text", ["", "clicks", "1:clicks", "1:clicks:0", "x:clicks:1", "1:a:b:1", "1:clicks:1:x", "1::1"]
)
def test_a_text_that_is_no_stream_identity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an identity"):
        StreamIdentity.parse(text)


def test_the_key_is_the_shard_behind_its_stream_and_the_row_names_both() -> None:
    assert lease_key_of(CLICKS, SHARD) == KEY
    assert (LEASE.shard_id, LEASE.key_of(ShardId("s-1"))) == (SHARD, "111122223333:clicks:1700000000:s-1")
    row = new_lease_row(LEASE)
    assert row == {
        "leaseKey": KEY,
        "entityType": "LEASE",
        "leaseCounter": 0,
        "ownerSwitchesSinceCheckpoint": 0,
        "checkpoint": "TRIM_HORIZON",
        "checkpointSubSequenceNumber": 0,
        "streamName": "111122223333:clicks:1700000000",
        "shardId": "shardId-000000000007",
        "parentShardId": frozenset({"shardId-000000000001"}),
    }
    assert is_multi_stream_row(row)
    assert lease_from_row(row) == LEASE


def test_a_checkpoint_writes_stream_and_shard_again() -> None:
    put = checkpoint(LEASE, ExtendedSequenceNumber("12")).put
    assert (put["streamName"], put["shardId"]) == ("111122223333:clicks:1700000000", "shardId-000000000007")


def test_where_there_is_one_stream_nothing_of_it_is_written() -> None:
    lease = Lease(LeaseKey(SHARD), 0, TRIM_HORIZON)
    assert {str(lease.shard_id), str(lease.key_of(SHARD)), str(lease_key_of(None, SHARD))} == {str(SHARD)}
    for row in (new_lease_row(lease), checkpoint(lease, ExtendedSequenceNumber("12")).put):
        assert not is_multi_stream_row(row)
        assert not row.keys() & {"streamName", "shardId"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"streamName": "clicks"},
        {"streamName": "111122223333:clicks:1700000001"},
        {"shardId": "shardId-000000000008"},
        {"shardId": "shardId-000000000006"},
        {"shardId": ""},
    ],
)
def test_a_row_whose_key_is_not_made_of_stream_and_shard_is_left_alone(wrong: Row) -> None:
    with pytest.raises(MalformedRowError, match=r"streamName|shardId"):
        lease_from_row({**new_lease_row(LEASE), **wrong})
