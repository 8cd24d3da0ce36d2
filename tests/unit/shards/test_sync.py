"""Which leases a stream needs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings

from kcl_daemon.leases.lease import MAX_HASH, HashRange, Lease, ShardId
from kcl_daemon.shards.lineage import InitialPosition, Shard, in_order, unexpected_children
from kcl_daemon.shards.sync import Generations, leases_for_empty_table, missing_leases
from kcl_protocol.sequence import AT_TIMESTAMP, LATEST, SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber
from tests.examples import examples
from tests.unit.shards.oracle import SlowOracle
from tests.unit.shards.trees import (
    NEWEST,
    OLDEST,
    SINCE,
    Found,
    Tree,
    leases_of,
    lineages,
    positions,
    shard,
    tables,
)

CASES = 1000


def documented_example() -> list[Shard]:
    """0+1 -> 6, 2+3 -> 7, 6+7 -> 8, 5 -> 9+10, 4 open."""

    def made(number: int, *parents: int, is_open: bool = False) -> Shard:
        ids = frozenset(ShardId(f"shardId-{parent}") for parent in parents)
        return Shard(ShardId(f"shardId-{number}"), HashRange(0, 9), ids, number, None if is_open else 99_999)

    return [
        *(made(number, is_open=number == 4) for number in range(6)),
        made(6, 0, 1),
        made(7, 2, 3),
        made(8, 6, 7, is_open=True),
        made(9, 5, is_open=True),
        made(10, 5, is_open=True),
    ]


def created(
    shards: list[Shard],
    leases: Iterable[Lease],
    position: InitialPosition,
    generations: Generations = Generations.ONE,
) -> dict[str, ExtendedSequenceNumber]:
    found = missing_leases(shards, leases, position, generations=generations)
    return {lease.shard_id: lease.checkpoint for lease in found}


EXAMPLE_LEASES = leases_of(documented_example(), "shardId-4", "shardId-5", "shardId-7")


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (NEWEST, {"shardId-6": LATEST}),
        (OLDEST, {"shardId-0": TRIM_HORIZON, "shardId-1": TRIM_HORIZON}),
        (SINCE, {"shardId-0": AT_TIMESTAMP, "shardId-1": AT_TIMESTAMP}),
    ],
    ids=["latest", "trim-horizon", "timestamp"],
)
def test_the_documented_example(
    position: InitialPosition, expected: dict[str, ExtendedSequenceNumber]
) -> None:
    assert created(documented_example(), EXAMPLE_LEASES, position) == expected


def test_the_documented_example_with_all_layers() -> None:
    later = dict.fromkeys(("shardId-8", "shardId-9", "shardId-10"), TRIM_HORIZON)
    example = documented_example()
    assert created(example, EXAMPLE_LEASES, NEWEST, Generations.ALL) == {"shardId-6": LATEST, **later}
    roots = dict.fromkeys(("shardId-0", "shardId-1", "shardId-6"), TRIM_HORIZON)
    assert created(example, EXAMPLE_LEASES, OLDEST, Generations.ALL) == {**roots, **later}
    since = created(example, EXAMPLE_LEASES, SINCE, Generations.ALL)
    assert since == dict.fromkeys((*roots, *later), AT_TIMESTAMP)


def test_an_empty_table_gets_a_lease_for_each_listed_shard_in_order() -> None:
    tree = Tree(3)
    tree.split(1)
    leases = leases_for_empty_table(reversed(tree.shards), SINCE)
    assert [lease.shard_id for lease in leases] == [each.shard_id for each in tree.shards]
    assert {lease.checkpoint for lease in leases} == {AT_TIMESTAMP}
    assert all(lease.lease_counter == 0 and lease.lease_owner is None for lease in leases)


def test_nothing_is_missing_where_every_open_shard_has_a_lease() -> None:
    tree = Tree(2)
    tree.split(0)
    open_ids = [each.shard_id for each in tree.open()]
    for generations in Generations:
        assert created(tree.shards, leases_of(tree.shards, *open_ids), OLDEST, generations) == {}


def test_a_shard_whose_parent_is_still_read_gets_none_yet() -> None:
    tree = Tree(1)
    tree.split(0)
    assert created(tree.shards, leases_of(tree.shards, "shardId-000000000000"), OLDEST) == {}


@pytest.mark.parametrize("position", [OLDEST, NEWEST, SINCE])
def test_a_shard_whose_parent_is_finished_begins_at_its_beginning_whatever_the_position(
    position: InitialPosition,
) -> None:
    tree = Tree(1)
    tree.split(0)
    parent = leases_of(tree.shards, "shardId-000000000000", at=SHARD_END)
    first, second = (each.shard_id for each in tree.open())
    assert created(tree.shards, parent, position) == {first: TRIM_HORIZON, second: TRIM_HORIZON}
    both = [*parent, *leases_of(tree.shards, first)]
    assert created(tree.shards, both, position) == {second: TRIM_HORIZON}


def test_a_merged_shard_with_one_finished_parent_waits_for_the_other() -> None:
    tree = Tree(2)
    tree.merge(0)
    left, right = "shardId-000000000000", "shardId-000000000001"
    finished = leases_of(tree.shards, left, at=SHARD_END)
    assert created(tree.shards, [*finished, *leases_of(tree.shards, right)], NEWEST) == {}
    assert created(tree.shards, finished, OLDEST) == {right: TRIM_HORIZON}


def test_a_forgotten_parent_that_still_has_a_lease_is_waited_for() -> None:
    tree = Tree(1)
    tree.split(0)
    parent = leases_of(tree.shards, "shardId-000000000000")
    assert created(tree.open(), parent, NEWEST) == {}
    finished = [replace(lease, checkpoint=SHARD_END) for lease in parent]
    assert created(tree.open(), finished, NEWEST) == {each.shard_id: TRIM_HORIZON for each in tree.open()}


def test_a_child_of_an_open_shard_is_left_alone() -> None:
    tree = Tree(1)
    tree.split(0)
    parent, *children = tree.shards
    reopened = [replace(parent, ending_sequence_number=None), *children]
    assert unexpected_children(reopened) == {each.shard_id for each in children}
    assert created(reopened, [], NEWEST) == {parent.shard_id: LATEST}


def test_a_lineage_of_ten_thousand_generations_is_walked_without_recursion() -> None:
    shards = [shard(0, 0, MAX_HASH)]
    for number in range(1, 10_000):
        shards[-1] = replace(shards[-1], ending_sequence_number=1)
        shards.append(shard(number, 0, MAX_HASH, (shards[-1],)))
    assert created(shards, [], OLDEST) == {"shardId-000000000000": TRIM_HORIZON}
    assert len(created(shards, [], OLDEST, Generations.ALL)) == 10_000


@settings(max_examples=examples(CASES), deadline=None)
@given(tables())
def test_created_leases_equal_those_of_the_slow_oracle(found: Found) -> None:
    expected = SlowOracle(found.listed, found.leases, found.position).created()
    assert created(found.listed, found.leases, found.position) == expected


@settings(max_examples=examples(CASES), deadline=None)
@given(tables())
def test_leases_created_in_all_layers_equal_those_of_the_slow_oracle(found: Found) -> None:
    expected = SlowOracle(found.listed, found.leases, found.position, all_layers=True).created()
    assert created(found.listed, found.leases, found.position, Generations.ALL) == expected


@settings(max_examples=examples(CASES), deadline=None)
@given(tables())
def test_it_is_what_kcl_creates_where_no_lease_is_finished_or_forgotten(found: Found) -> None:
    listed = {each.shard_id for each in found.listed}
    leases = [
        replace(lease, checkpoint=LATEST if lease.is_finished else lease.checkpoint)
        for lease in found.leases
        if lease.shard_id in listed
    ]
    expected = SlowOracle(found.listed, leases, found.position, plain=True).created()
    assert created(found.listed, leases, found.position) == expected


@settings(max_examples=examples(300), deadline=None)
@given(tables())
def test_missing_leases_are_in_order_with_parents_and_hash_ranges(found: Found) -> None:
    leases = missing_leases(found.listed, found.leases, found.position, generations=Generations.ALL)
    by_id = {each.shard_id: each for each in found.listed}
    shards = [by_id[lease.shard_id] for lease in leases]
    assert shards == in_order(shards)
    assert all(
        (lease.hash_range, lease.parent_shard_ids) == (each.hash_range, each.parent_shard_ids)
        for lease, each in zip(leases, shards, strict=True)
    )


@given(shards=lineages(), position=positions)
def test_a_second_sync_creates_nothing(shards: list[Shard], position: InitialPosition) -> None:
    for generations in Generations:
        first = missing_leases(shards, [], position, generations=generations)
        assert missing_leases(shards, first, position, generations=generations) == []


@pytest.mark.parametrize("generations", Generations)
def test_after_a_finished_shard_its_child_comes_first_and_the_child_of_that_waits(
    generations: Generations,
) -> None:
    first = shard(0, 0, 9)
    second = shard(1, 0, 9, (first,))
    third = shard(2, 0, 9, (second,))
    tree = [*(replace(each, ending_sequence_number=9_999) for each in (first, second)), third]
    found = created(tree, leases_of(tree, first.shard_id, at=SHARD_END), OLDEST, generations)
    now, later = {second.shard_id: TRIM_HORIZON}, {third.shard_id: TRIM_HORIZON}
    assert found == (now if generations is Generations.ONE else now | later)
