"""The rows of many streams as DynamoDB has them."""

from __future__ import annotations

from unittest.mock import ANY

import pytest

from kcl_daemon.leases import row as lease_row
from kcl_daemon.leases.lease import MAX_HASH, HashRange, Lease, ShardId, StreamIdentity, lease_key_of
from kcl_protocol.sequence import TRIM_HORIZON, ExtendedSequenceNumber
from tests.contract.table_rows import ME, NUMBER, SHARD, Stage

pytestmark = pytest.mark.anyio

CLICKS = StreamIdentity("111122223333", "clicks", 1_700_000_000)
KEY = f"111122223333:clicks:1700000000:{SHARD}"
PARENTS = frozenset({ShardId("shardId-000000000001")})
CREATED = {
    "leaseKey": {"S": KEY},
    "entityType": {"S": "LEASE"},
    "leaseCounter": {"N": "0"},
    "ownerSwitchesSinceCheckpoint": {"N": "0"},
    "checkpoint": {"S": "TRIM_HORIZON"},
    "checkpointSubSequenceNumber": {"N": "0"},
    "startingHashKey": {"S": "0"},
    "endingHashKey": {"S": str(MAX_HASH)},
    "streamName": {"S": "111122223333:clicks:1700000000"},
    "shardId": {"S": SHARD},
    "parentShardId": {"SS": ["shardId-000000000001"]},
}


async def test_a_lease_of_one_of_many_streams_from_its_creation_to_its_end(stage: Stage) -> None:
    table, renewer = stage.tables.leases, stage.renewer()
    lease = Lease(
        lease_key_of(CLICKS, SHARD),
        0,
        TRIM_HORIZON,
        parent_shard_ids=PARENTS,
        hash_range=HashRange(0, MAX_HASH),
        stream=CLICKS,
    )
    assert (await table.put(*lease_row.creation(lease))).applied
    assert stage.stored(table, KEY) == CREATED
    await table.update(lease_row.assignment(lease, ME))
    assert await table.owned_keys(ME) == [KEY]
    row = await table.get(KEY)
    assert row is not None
    held = await renewer.claim(lease_row.lease_from_row(row))
    assert held is not None
    await renewer.write_children(held, frozenset({ShardId("shardId-000000000009")}))
    await renewer.checkpoint(held, ExtendedSequenceNumber(NUMBER))
    expected = {
        **CREATED,
        "leaseOwner": {"S": ME},
        "leaseCounter": {"N": "3"},
        "checkpoint": {"S": NUMBER},
        "childShardIds": {"SS": ["shardId-000000000009"]},
        "daemonFence": {"N": ANY},  # by the clock
    }
    assert stage.stored(table, KEY) == expected


async def test_a_row_as_java_writes_it_is_read_whole(stage: Stage) -> None:
    stage.store(stage.tables.leases, CREATED)
    row = await stage.tables.leases.get(KEY)
    assert row is not None
    lease = lease_row.lease_from_row(row)
    assert (lease.stream, lease.shard_id, lease.parent_shard_ids) == (CLICKS, SHARD, PARENTS)
