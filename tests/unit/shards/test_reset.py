"""Which leases a reset by hand deletes, moves and makes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.leases.lease import HashRange, Lease, LeaseKey, ShardId, WorkerId
from kcl_daemon.shards.lineage import Shard
from kcl_daemon.shards.sync import ResetKind, reset_shards, reset_stream
from kcl_protocol.sequence import LATEST, SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber

OWNER = WorkerId("w-1")
IDS = tuple(ShardId(f"shardId-{number:012d}") for number in range(6))


def shard(shard_id: ShardId, *parents: ShardId) -> Shard:
    return Shard(shard_id, HashRange(0, 1), frozenset(parents), 1)


def lease(shard_id: ShardId, checkpoint: ExtendedSequenceNumber, owner: WorkerId | None = OWNER) -> Lease:
    return Lease(LeaseKey(shard_id), 7, checkpoint, lease_owner=owner)


def test_a_stream_that_begins_anew_has_the_leases_of_a_new_application() -> None:
    parent, child, other = IDS[:3]
    leases = (lease(parent, SHARD_END, None), lease(child, ExtendedSequenceNumber("5")))
    changes = reset_stream([shard(other), shard(parent)], leases, {parent: TRIM_HORIZON, other: TRIM_HORIZON})
    assert [(change.kind, change.lease.shard_id, change.position) for change in changes] == [
        (ResetKind.DELETE, child, None),
        (ResetKind.RESET, parent, TRIM_HORIZON),
        (ResetKind.CREATE, other, TRIM_HORIZON),
    ]
    assert "finished" in changes[1].reason


def test_shards_that_were_not_named_stay() -> None:
    first, second, third = IDS[:3]
    leases = (lease(first, TRIM_HORIZON), lease(second, TRIM_HORIZON))
    changes = reset_shards([shard(third), shard(first)], leases, {first: LATEST, third: LATEST})
    assert [(change.kind, change.lease.shard_id) for change in changes] == [
        (ResetKind.RESET, first),
        (ResetKind.CREATE, third),
    ]


def test_a_reset_says_who_has_the_lease() -> None:
    owned, free = lease(IDS[0], LATEST), lease(IDS[1], LATEST, None)
    changes = reset_shards(map(shard, IDS[:2]), (owned, free), dict.fromkeys(IDS, TRIM_HORIZON))
    assert [change.reason for change in changes] == ["at LATEST, owner w-1", "at LATEST, owner nobody"]


def test_a_finished_lease_that_somebody_keeps_is_reset_with_a_warning() -> None:
    """A Java worker deletes what it once queued for clean-up, also when it is read anew."""
    kept, free = lease(IDS[0], SHARD_END, WorkerId("java-1")), lease(IDS[1], SHARD_END, None)
    changes = reset_shards(
        [shard(each.shard_id) for each in (kept, free)], (kept, free), dict.fromkeys(IDS, LATEST)
    )
    assert ["stop it first" in change.reason for change in changes] == [True, False]


@given(st.sets(st.sampled_from(IDS)), st.sets(st.sampled_from(IDS)))
def test_after_a_reset_of_the_stream_there_are_just_the_leases_of_the_starting_shards(
    starting: set[ShardId], held: set[ShardId]
) -> None:
    changes = reset_stream(
        [shard(shard_id) for shard_id in starting],
        [lease(shard_id, LATEST) for shard_id in held],
        dict.fromkeys(starting, TRIM_HORIZON),
    )
    kinds = [change.kind for change in changes]
    assert kinds == sorted(kinds, key=lambda kind: kind is not ResetKind.DELETE)  # deletions first
    left = held - {change.lease.shard_id for change in changes if change.kind is ResetKind.DELETE}
    made = {change.lease.shard_id for change in changes if change.kind is ResetKind.CREATE}
    moved = {change.lease.shard_id for change in changes if change.kind is ResetKind.RESET}
    assert left | made == starting
    assert made.isdisjoint(held)
    assert moved == left
