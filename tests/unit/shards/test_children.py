"""What follows a shard."""

from __future__ import annotations

from dataclasses import replace

from kcl_daemon.leases.lease import HashRange, Lease, LeaseKey, ShardId, WorkerId
from kcl_daemon.shards.lineage import ChildShard, Shard, awaited_parents, child_leases, unfinished_parents
from kcl_protocol.sequence import SHARD_END, TRIM_HORIZON

P, Q, G = ShardId("p"), ShardId("q"), ShardId("g")


def lease(shard_id: str, *, finished: bool = False) -> Lease:
    return Lease(LeaseKey(shard_id), 3, SHARD_END if finished else TRIM_HORIZON)


def shard(shard_id: ShardId, *parents: ShardId) -> Shard:
    return Shard(shard_id, HashRange(0, 9), frozenset(parents), 1, 2)


def test_child_leases_begin_at_the_beginning_with_parents_and_hash_range() -> None:
    children = [
        ChildShard(ShardId("c2"), frozenset({P}), HashRange(5, 9)),
        ChildShard(ShardId("c1"), frozenset({P}), HashRange(0, 4)),
    ]
    assert child_leases(children) == [
        Lease(LeaseKey("c1"), 0, TRIM_HORIZON, parent_shard_ids=frozenset({P}), hash_range=HashRange(0, 4)),
        Lease(LeaseKey("c2"), 0, TRIM_HORIZON, parent_shard_ids=frozenset({P}), hash_range=HashRange(5, 9)),
    ]


def test_the_first_child_may_have_an_heir() -> None:
    children = [ChildShard(ShardId(name), frozenset({P}), HashRange(5, 9)) for name in ("c2", "c1")]
    assert [lease.lease_owner for lease in child_leases(children, WorkerId("me"))] == ["me", None]


def test_only_parents_with_an_unfinished_lease_block() -> None:
    child = replace(lease("c"), parent_shard_ids=frozenset({P, Q}))
    assert unfinished_parents(child, {P: lease("p"), Q: lease("q", finished=True)}) == {P}
    assert unfinished_parents(child, {P: None, Q: lease("q", finished=True)}) == set()
    assert unfinished_parents(child, {}) == set()


MERGED = replace(lease("c"), parent_shard_ids=frozenset({P, Q}))


def test_a_merged_shard_waits_for_a_parent_that_has_no_lease_yet() -> None:
    assert awaited_parents(MERGED, {P: lease("p"), Q: None}, [shard(P), shard(Q, G), shard(G)]) == {Q}
    assert awaited_parents(MERGED, {}, [shard(P), shard(Q)]) == {P, Q}


def test_it_does_not_wait_for_a_parent_that_has_one_or_that_kinesis_has_forgotten() -> None:
    both = {P: lease("p"), Q: lease("q", finished=True)}
    assert awaited_parents(MERGED, both, [shard(P), shard(Q)]) == set()
    assert awaited_parents(MERGED, {P: lease("p"), Q: None}, [shard(P)]) == set()
