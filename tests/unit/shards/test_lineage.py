"""Order and generations, and the lives of whole lineages: nothing is forgotten, nothing begins before its parents end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_daemon.leases.lease import MAX_HASH, Lease, LeaseKey, ShardId, WorkerId
from kcl_daemon.shards.lineage import (
    ChildShard,
    InitialPosition,
    Shard,
    StartAt,
    awaited_parents,
    child_leases,
    children_by_parent,
    generations,
    parents_first,
    waiting_depths,
)
from kcl_daemon.shards.sync import (
    CleanupVerdict,
    Generations,
    has_started,
    judge_finished,
    leases_for_empty_table,
    missing_leases,
    new_lease,
)
from kcl_protocol.sequence import SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber
from tests.examples import examples
from tests.unit.shards.trees import NEWEST, OLDEST, Tree, shard, trees

BEGUN = ExtendedSequenceNumber("99999999")
STEPS = ("split", "merge", "begin", "finish", "sync", "clean", "forget", "crash")


def unfinished(shards: list[Shard]) -> list[Lease]:
    return [new_lease(each, TRIM_HORIZON) for each in shards]


def test_children_are_found_by_their_parents() -> None:
    tree = Tree(2)
    tree.split(0)
    first = tree.shards[0].shard_id
    assert children_by_parent(tree.shards) == {first: {each.shard_id for each in tree.shards[2:]}}


@given(trees())
def test_no_lease_is_in_a_group_with_or_before_one_of_its_parents(tree: Tree) -> None:
    groups = generations(unfinished(tree.shards))
    seen: set[ShardId] = set()
    for group in groups:
        ids = {lease.shard_id for lease in group}
        assert all(lease.parent_shard_ids <= seen for lease in group)
        assert group
        seen |= ids
    assert seen == {each.shard_id for each in tree.shards}


@given(trees())
def test_a_lease_waits_for_as_many_generations_as_are_unfinished_before_it(tree: Tree) -> None:
    depths = waiting_depths(reversed(unfinished(tree.shards)))
    for each in tree.shards:
        assert depths[LeaseKey(each.shard_id)] == 1 + max(
            (depths[LeaseKey(parent)] for parent in each.parent_shard_ids), default=-1
        )
    finished = [replace(lease, checkpoint=SHARD_END) for lease in unfinished(tree.shards)]
    assert waiting_depths(finished) == {}


def test_parents_come_first_and_what_only_waits_is_left_out_unless_somebody_has_it() -> None:
    tree = Tree(1)
    tree.split(0)
    tree.split(0)
    leases = unfinished(tree.shards)
    root, first, second, *youngest = leases
    assert parents_first(reversed(leases), 0) == [root]
    assert {lease.shard_id for lease in parents_first(leases, 1)} == {
        lease.shard_id for lease in (root, first, second)
    }
    owned = replace(youngest[0], lease_owner=WorkerId("me"))
    assert parents_first([owned, root, first, second], 0) == [root, owned]


def test_a_lineage_of_thousands_of_generations_is_counted_without_recursion() -> None:
    shards = [shard(0, 0, MAX_HASH)]
    for number in range(1, 5_000):
        shards.append(shard(number, 0, MAX_HASH, (shards[-1],)))
    leases = unfinished(shards)
    assert max(waiting_depths(reversed(leases)).values()) == 4_999
    assert len(generations(leases)) == 5_000


class Lives:
    """A stream, a lease table and everything that may happen to them, each step as the rules say."""

    def __init__(self, tree: Tree, position: InitialPosition, generations: Generations) -> None:
        self.tree = tree
        self.position = position
        self.generations = generations
        self.forgotten: set[ShardId] = set()
        self.is_steered_by_hand = False
        self.leases: dict[ShardId, Lease] = {}
        self.begun: set[ShardId] = set()
        self._create(leases_for_empty_table(self._open_at_start(), position))

    def _open_at_start(self) -> list[Shard]:
        if self.position.at is StartAt.LATEST:
            return self.tree.open()
        return [each for each in self.tree.shards if not each.parent_shard_ids]

    def shards(self) -> list[Shard]:
        """What Kinesis lists."""
        return [each for each in self.tree.shards if each.shard_id not in self.forgotten]

    def do(self, step: str, index: int) -> None:
        ready = [lease for lease in self.leases.values() if not lease.is_finished and self.may_begin(lease)]
        match step:
            case "split" | "merge":
                getattr(self.tree, step)(index)
            case "begin" if ready:
                self.begin(ready[index % len(ready)])
            case "finish" if ready:
                self.finish(ready[index % len(ready)])
            case "crash" if ready:
                self.finish(ready[index % len(ready)], dies=True)
            case "sync":
                self.sync()
            case "clean":
                self.clean()
            case "forget":
                self.forget()
            case _:
                pass

    def may_begin(self, lease: Lease) -> bool:
        parents = (self.leases.get(parent) for parent in lease.parent_shard_ids)
        return all(parent is None or parent.is_finished for parent in parents)

    def begin(self, lease: Lease) -> None:
        self.begun.add(lease.shard_id)
        self.leases[lease.shard_id] = replace(lease, checkpoint=BEGUN)

    def finish(self, lease: Lease, *, dies: bool = False) -> None:
        """Read a closed shard to its end: child leases, their names, SHARD_END; or die after the first of them."""
        self.begin(lease)
        shards = {each.shard_id: each for each in self.tree.shards}
        if shards[lease.shard_id].is_open:
            return
        children = self.tree.children(lease.shard_id)
        for child in child_leases(
            ChildShard(each.shard_id, each.parent_shard_ids, each.hash_range) for each in children
        ):
            if child.shard_id not in self.leases and awaited_parents(child, self.leases, self.shards()):
                return
            self._create([child])
            if dies:
                return
        names = frozenset(child.shard_id for child in children)
        self.leases[lease.shard_id] = replace(lease, checkpoint=SHARD_END, child_shard_ids=names)

    def sync(self) -> None:
        self._create(
            missing_leases(self.shards(), self.leases.values(), self.position, generations=self.generations)
        )

    def clean(self) -> None:
        for judged in judge_finished(self.leases.values(), self.shards()):
            if judged.verdict is not CleanupVerdict.WAITS:
                del self.leases[judged.lease.shard_id]

    def forget(self) -> None:
        """Kinesis forgets its oldest shard, if it was finished."""
        oldest = self.shards()[0]
        lease = self.leases.get(oldest.shard_id)
        if not oldest.is_open and (lease is None or lease.is_finished):
            self.forgotten.add(oldest.shard_id)

    def _create(self, leases: list[Lease]) -> None:
        for lease in leases:
            if lease.shard_id in self.leases:
                continue
            if not self.is_steered_by_hand:
                assert lease.shard_id not in self.begun, f"{lease.shard_id} is read a second time"
                self.assert_nothing_later_has_begun(lease.shard_id)
            self.leases[lease.shard_id] = lease

    def assert_nothing_later_has_begun(self, shard_id: ShardId) -> None:
        for child in self.tree.children(shard_id):
            assert child.shard_id not in self.begun, f"{child.shard_id} began before {shard_id} had a lease"
            self.assert_nothing_later_has_begun(child.shard_id)

    def live_on(self) -> None:
        """Finish whatever can be finished, with syncs and clean-ups in between, until nothing changes."""
        while True:
            before = dict(self.leases)
            for lease in list(self.leases.values()):
                if not lease.is_finished and self.may_begin(lease):
                    self.finish(lease)
            self.sync()
            self.clean()
            if self.leases == before:
                return


@settings(max_examples=examples(1000), deadline=None)
@given(
    tree=trees(),
    position=st.sampled_from([OLDEST, NEWEST]),
    generations=st.sampled_from(Generations),
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 20)), max_size=25),
)
def test_every_open_shard_is_reached_once_and_never_before_its_parents(
    tree: Tree, position: InitialPosition, generations: Generations, steps: list[tuple[str, int]]
) -> None:
    lives = Lives(tree, position, generations)
    for step, index in steps:
        lives.do(step, index)
    lives.live_on()
    for each in tree.open():
        assert each.shard_id in lives.begun, f"{each.shard_id} was never read"
        assert has_started(lives.leases[each.shard_id])
    open_ids = {each.shard_id for each in tree.open()}
    assert {lease.shard_id for lease in lives.leases.values() if not lease.is_finished} == open_ids


@pytest.mark.parametrize("position", [OLDEST, NEWEST])
def test_after_rows_were_deleted_by_hand_every_open_shard_is_reached_again(position: InitialPosition) -> None:
    tree = Tree(2)
    for index in (0, 1, 2):
        tree.split(index)
    tree.merge(1)
    for gone in [each.shard_id for each in tree.shards]:
        lives = Lives(tree, position, Generations.ONE)
        lives.live_on()
        lives.is_steered_by_hand = True
        lives.leases.pop(gone, None)
        lives.begun.clear()
        lives.live_on()
        assert {each.shard_id for each in tree.open()} <= lives.leases.keys()
