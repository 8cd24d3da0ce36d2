"""Holes in what is read, and when to believe in one."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given

from kcl_daemon.leases.lease import MAX_HASH, HashRange, Lease, LeaseKey
from kcl_daemon.shards.lineage import (
    HoleWatch,
    Shard,
    first_hole,
    lease_hole,
    missing_hash_ranges,
    without_range,
)
from kcl_daemon.shards.sync import new_lease
from kcl_protocol.sequence import SHARD_END, TRIM_HORIZON
from tests.unit.shards.trees import Tree, lineages

HERE, THERE = HashRange(0, 4), HashRange(7, 9)


def test_holes() -> None:
    assert first_hole([HashRange(0, MAX_HASH)]) is None
    assert first_hole([HashRange(5, MAX_HASH), HashRange(0, 4)]) is None
    assert first_hole([HashRange(0, 9), HashRange(5, MAX_HASH)]) is None  # overlaps are fine
    assert first_hole([]) == HashRange(0, MAX_HASH)
    assert first_hole([HashRange(1, MAX_HASH)]) == HashRange(0, 0)
    assert first_hole([HashRange(0, 4), HashRange(7, MAX_HASH)]) == HashRange(5, 6)
    assert first_hole([HashRange(0, 4)]) == HashRange(5, MAX_HASH)
    assert first_hole([HashRange(0, MAX_HASH), HashRange(3, 4)]) is None


@given(lineages())
def test_open_shards_leave_no_hole_and_any_missing_one_does(shards: list[Shard]) -> None:
    leases = [new_lease(each, TRIM_HORIZON) for each in shards if each.is_open]
    assert lease_hole(leases) is None
    for gone in leases:
        assert lease_hole([lease for lease in leases if lease is not gone]) is not None


def test_finished_leases_cover_nothing() -> None:
    lease = Lease(LeaseKey("s"), 1, SHARD_END, hash_range=HashRange(0, MAX_HASH))
    assert lease_hole([lease]) == HashRange(0, MAX_HASH)


def test_a_lease_whose_hashes_are_not_known_hides_no_hole() -> None:
    tree = Tree(3)
    leases = [new_lease(each, TRIM_HORIZON) for each in tree.shards]
    old = Lease(LeaseKey("shardId-old"), 1, TRIM_HORIZON)
    assert lease_hole([*leases, old]) is None
    assert lease_hole([*leases[1:], old]) == leases[0].hash_range


def test_a_hole_is_believed_when_it_was_the_same_in_so_many_audits_in_a_row() -> None:
    watch = HoleWatch().seen(HERE).seen(HERE)
    assert not watch.is_believed(3)
    assert watch.seen(HERE).is_believed(3)
    assert not watch.seen(THERE).is_believed(2)
    assert not watch.seen(None).seen(HERE).is_believed(2)
    assert not HoleWatch().is_believed(1)
    assert watch.seen(HERE).seen(HERE).is_believed(3)


def test_missing_ranges_are_found_for_unfinished_leases_of_listed_shards() -> None:
    tree = Tree(3)
    bare = [replace(new_lease(each, TRIM_HORIZON), hash_range=None) for each in tree.shards]
    leases = [bare[0], replace(bare[1], checkpoint=SHARD_END), new_lease(tree.shards[2], TRIM_HORIZON)]
    assert without_range(leases) == [bare[0]]
    assert missing_hash_ranges(leases, tree.shards) == [(bare[0], tree.shards[0].hash_range)]
    assert missing_hash_ranges(leases, tree.shards[1:]) == []
