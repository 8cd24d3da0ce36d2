"""Which finished leases may be forgotten, and leases of a former stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings

from kcl_daemon.leases.lease import Lease, ShardId
from kcl_daemon.shards.lineage import (
    Shard,
    finished_but_open,
    leases_match_shards,
    leases_of_another,
    why_unlike,
)
from kcl_daemon.shards.sync import CleanupVerdict, judge_finished, missing_leases, new_lease
from kcl_protocol.sequence import AT_TIMESTAMP, LATEST, SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber
from tests.examples import examples
from tests.unit.shards.trees import Found, Tree, tables

NUMBER = ExtendedSequenceNumber("5000")
FAR = ExtendedSequenceNumber("99999999")


def split_once() -> tuple[Tree, Lease, list[Lease]]:
    """A tree of one split, the finished lease of the parent with its children's names, the children's leases."""
    tree = Tree(1)
    tree.split(0)
    parent, *children = tree.shards
    names = frozenset(child.shard_id for child in children)
    finished = replace(new_lease(parent, SHARD_END), child_shard_ids=names)
    return tree, finished, [new_lease(child, NUMBER) for child in children]


def verdicts(leases: list[Lease], shards: list[Shard] | None = None) -> dict[ShardId, CleanupVerdict]:
    return {judged.lease.shard_id: judged.verdict for judged in judge_finished(leases, shards)}


def test_a_finished_lease_goes_when_all_its_children_have_begun() -> None:
    tree, parent, children = split_once()
    assert verdicts([parent, *children]) == {parent.shard_id: CleanupVerdict.COMPLETED}
    assert verdicts([parent, *children], tree.shards) == {parent.shard_id: CleanupVerdict.COMPLETED}


@pytest.mark.parametrize("checkpoint", [TRIM_HORIZON, AT_TIMESTAMP])
def test_a_finished_lease_waits_while_a_child_shard_has_not_begun(checkpoint: ExtendedSequenceNumber) -> None:
    tree, parent, (first, second) = split_once()
    leases = [parent, first, replace(second, checkpoint=checkpoint)]
    for shards in (None, tree.shards):
        assert verdicts(leases, shards) == {parent.shard_id: CleanupVerdict.WAITS}


@pytest.mark.parametrize("checkpoint", [LATEST, NUMBER, SHARD_END])
def test_other_checkpoints_of_a_child_do_not_hold_it(checkpoint: ExtendedSequenceNumber) -> None:
    _, parent, (first, second) = split_once()
    leases = [parent, first, replace(second, checkpoint=checkpoint)]
    assert verdicts(leases)[parent.shard_id] is CleanupVerdict.COMPLETED


def test_it_stays_while_a_child_has_no_lease_unless_kinesis_has_forgotten_that_child() -> None:
    tree, parent, (first, second) = split_once()
    for shards in (None, tree.shards):
        assert verdicts([parent, first], shards) == {parent.shard_id: CleanupVerdict.WAITS}
    listed = [each for each in tree.shards if each.shard_id != second.shard_id]
    assert verdicts([parent, first], listed) == {parent.shard_id: CleanupVerdict.COMPLETED}


def test_children_that_the_row_does_not_name_are_found_in_the_list() -> None:
    tree, parent, children = split_once()
    nameless = replace(parent, child_shard_ids=frozenset())
    assert verdicts([nameless, *children]) == {parent.shard_id: CleanupVerdict.WAITS}
    assert verdicts([nameless, *children], tree.shards) == {parent.shard_id: CleanupVerdict.COMPLETED}
    assert verdicts([nameless, children[0]], tree.shards) == {parent.shard_id: CleanupVerdict.WAITS}


def test_a_shard_that_kinesis_has_forgotten_is_garbage_once_its_children_have_begun() -> None:
    tree, parent, (first, second) = split_once()
    nameless = replace(parent, child_shard_ids=frozenset())
    assert verdicts([nameless], []) == {parent.shard_id: CleanupVerdict.GARBAGE}
    assert verdicts([parent, first, second], tree.open()) == {parent.shard_id: CleanupVerdict.GARBAGE}
    waiting = replace(second, checkpoint=TRIM_HORIZON)
    assert verdicts([nameless, first, waiting], tree.open()) == {parent.shard_id: CleanupVerdict.WAITS}


def test_parents_go_before_their_children() -> None:
    tree, parent, children = split_once()
    tree.split(0)
    begun = [new_lease(each, NUMBER) for each in tree.shards[3:]]
    finished = replace(children[0], checkpoint=SHARD_END)
    leases = [parent, finished, children[1], *begun]
    assert verdicts(leases, tree.shards) == {
        parent.shard_id: CleanupVerdict.COMPLETED,
        finished.shard_id: CleanupVerdict.WAITS,
    }
    assert verdicts(leases[1:], tree.shards) == {finished.shard_id: CleanupVerdict.COMPLETED}


def test_each_verdict_says_why() -> None:
    _, parent, (first, second) = split_once()
    waiting = judge_finished([parent, first, replace(second, checkpoint=TRIM_HORIZON)])
    assert [judged.reason for judged in waiting] == [f"not begun yet: {second.shard_id}"]


@settings(max_examples=examples(1000), deadline=None)
@given(tables())
def test_nothing_has_to_be_created_because_something_was_forgotten(found: Found) -> None:
    """Cleaning up leads no sync astray: what is created afterwards would have been created before."""
    gone = {
        judged.lease.shard_id
        for judged in judge_finished(found.leases, found.listed)
        if judged.verdict is not CleanupVerdict.WAITS
    }
    kept = [lease for lease in found.leases if lease.shard_id not in gone]
    assert all(lease.is_finished for lease in found.leases if lease.shard_id in gone)
    by_id = {lease.shard_id: lease for lease in found.leases}
    needed = {lease.shard_id for lease in missing_leases(found.listed, kept, found.position)}
    for judged in judge_finished(found.leases, found.listed):
        children = [each for each in found.listed if judged.lease.shard_id in each.parent_shard_ids]
        if judged.lease.shard_id in gone:
            assert all(child.shard_id in by_id for child in children)
            assert not needed & {child.shard_id for child in children}


def of_another(leases: Sequence[Lease], shards: Sequence[Shard]) -> list[Lease]:
    return [lease for lease, _ in leases_of_another(leases, shards)]


def test_a_lease_that_is_behind_its_shards_first_number_is_of_a_former_stream() -> None:
    tree = Tree(4)
    shards = [replace(each, starting_sequence_number=10_000) for each in tree.shards]
    checkpoints = (NUMBER, SHARD_END, TRIM_HORIZON, FAR)
    leases = [new_lease(each, at) for each, at in zip(shards, checkpoints, strict=True)]
    assert of_another(leases, shards) == leases[:1]
    assert finished_but_open(leases, shards) == leases[1:2]
    leases[1] = replace(leases[1], child_shard_ids=frozenset({ShardId("shardId-000000000009")}))
    assert of_another(leases, shards) == leases[:2]
    assert finished_but_open(leases, shards) == []
    assert of_another(leases, []) == []


def test_positions_tell_whether_leases_are_of_these_shards_or_they_do_not() -> None:
    tree = Tree(2)
    shards = [replace(each, starting_sequence_number=10_000) for each in tree.shards]
    first, second = shards

    def reported(*positions: ExtendedSequenceNumber) -> bool | None:
        leases = [new_lease(each, at) for each, at in zip((first, second), positions, strict=True)]
        return leases_match_shards(leases, shards)

    assert reported(NUMBER, FAR) is False
    assert reported(TRIM_HORIZON, FAR) is True
    assert reported(TRIM_HORIZON, SHARD_END) is None


def test_the_leases_of_a_living_stream_are_its_own() -> None:
    tree, parent, children = split_once()
    assert of_another([parent, *children], tree.shards) == []


def test_leases_of_shards_that_the_stream_never_had_are_of_another_stream() -> None:
    """Four leases and two shards: a forgotten shard would have a lower number than those that follow it."""
    leases = [new_lease(each, TRIM_HORIZON) for each in Tree(4).shards]
    found = {lease.shard_id[-1]: why for lease, why in leases_of_another(leases, Tree(2).shards)}
    assert found == {
        "0": "the lease of shardId-000000000000 has other hash keys than the shard",
        "1": "the lease of shardId-000000000001 has other hash keys than the shard",
        "2": "the stream never had the shard shardId-000000000002 of a lease",
        "3": "the stream never had the shard shardId-000000000003 of a lease",
    }


def test_a_shard_that_is_listed_later_than_its_parents_is_no_sign_of_another_stream() -> None:
    tree, parent, children = split_once()
    before = [each for each in tree.shards if each.shard_id not in {child.shard_id for child in children}]
    far = [replace(each, checkpoint=FAR) for each in children]
    assert of_another([parent, *children, *far], before) == []


@pytest.mark.parametrize(("checkpoint", "is_own"), [(9_999, True), (10_000, False)])
def test_a_forgotten_shard_was_closed_before_the_shards_after_it_began(checkpoint: int, is_own: bool) -> None:
    tree, parent, _ = split_once()
    left = [replace(each, starting_sequence_number=10_000) for each in tree.shards if each.is_open]
    forgotten = replace(
        parent, checkpoint=ExtendedSequenceNumber(str(checkpoint)), child_shard_ids=frozenset()
    )
    assert (of_another([forgotten], left) == []) is is_own
    assert of_another([replace(forgotten, checkpoint=SHARD_END)], left) == []


def test_leases_of_which_the_stream_has_no_shard_may_be_of_any_stream() -> None:
    tree, parent, children = split_once()
    left = [each for each in tree.shards if each.is_open]
    old = replace(parent, checkpoint=NUMBER, child_shard_ids=frozenset(), hash_range=None)
    for of_dynamodb in (False, True):
        assert "has none of the shards" in str(why_unlike([old], left, of_dynamodb=of_dynamodb))
        assert why_unlike([parent], left, of_dynamodb=of_dynamodb) is None
        assert why_unlike([], left, of_dynamodb=of_dynamodb) is None
    assert why_unlike([old, *children], left, of_dynamodb=True) is None
