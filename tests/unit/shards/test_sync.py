"""Which leases a stream needs (reference: M1 - M6)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_daemon.leases.lease import MAX_HASH, HashRange, Lease, LeaseKey, ShardId
from kcl_daemon.shards.shard import InitialPosition, Shard, StartAt
from kcl_daemon.shards.sync import first_hole, lease_hole, leases_for_empty_table, missing_leases, new_lease
from kcl_protocol.sequence import AT_TIMESTAMP, LATEST, SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber
from tests.unit.shards.trees import Tree, lineages, shard

OLDEST = InitialPosition(StartAt.TRIM_HORIZON)
NEWEST = InitialPosition(StartAt.LATEST)
SINCE = InitialPosition(StartAt.TIMESTAMP, 1000.0)
positions = st.sampled_from([OLDEST, NEWEST, SINCE])


def documented_example() -> list[Shard]:
    """0+1 -> 6, 2+3 -> 7, 6+7 -> 8, 5 -> 9+10, 4 open (reference: M5b)."""
    closed = 99_999
    roots = [Shard(ShardId(f"shardId-{n}"), HashRange(n, n), frozenset(), n) for n in range(6)]

    def child(number: int, *parents: int) -> Shard:
        return Shard(
            ShardId(f"shardId-{number}"),
            HashRange(0, 9),
            frozenset(ShardId(f"shardId-{p}") for p in parents),
            number,
        )

    def close(each: Shard) -> Shard:
        return Shard(
            each.shard_id, each.hash_range, each.parent_shard_ids, each.starting_sequence_number, closed
        )

    return [
        *(close(root) if root.shard_id != "shardId-4" else root for root in roots),
        close(child(6, 0, 1)),
        close(child(7, 2, 3)),
        child(8, 6, 7),
        child(9, 5),
        child(10, 5),
    ]


def created(
    shards: list[Shard], existing: list[str], position: InitialPosition
) -> dict[str, ExtendedSequenceNumber]:
    keys = [LeaseKey(key) for key in existing]
    return {lease.lease_key: lease.checkpoint for lease in missing_leases(shards, keys, position)}


def test_the_documented_example_at_latest() -> None:
    assert created(documented_example(), ["shardId-4", "shardId-5", "shardId-7"], NEWEST) == {
        "shardId-6": LATEST
    }


def test_the_documented_example_from_the_beginning() -> None:
    existing = ["shardId-4", "shardId-5", "shardId-7"]
    assert created(documented_example(), existing, OLDEST) == {
        "shardId-0": TRIM_HORIZON,
        "shardId-1": TRIM_HORIZON,
    }
    assert created(documented_example(), existing, SINCE) == {
        "shardId-0": AT_TIMESTAMP,
        "shardId-1": AT_TIMESTAMP,
    }


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
    assert created(tree.shards, [each.shard_id for each in tree.open()], OLDEST) == {}


def test_a_shard_whose_parent_has_a_lease_gets_none_yet() -> None:
    tree = Tree(1)
    tree.split(0)
    assert created(tree.shards, ["shardId-000000000000"], OLDEST) == {}


def test_a_lineage_of_ten_thousand_generations_is_walked_without_recursion() -> None:
    shards = [shard(0, 0, MAX_HASH)]
    for number in range(1, 10_000):
        parent = shards[-1]
        shards[-1] = Shard(
            parent.shard_id, parent.hash_range, parent.parent_shard_ids, parent.starting_sequence_number, 1
        )
        shards.append(shard(number, 0, MAX_HASH, (parent,)))
    assert created(shards, [], OLDEST) == {"shardId-000000000000": TRIM_HORIZON}


class SlowOracle:
    """The rules of M5 read again, by plain recursion and without memory, to check the fast walk against."""

    def __init__(self, shards: list[Shard], existing: frozenset[str], position: InitialPosition) -> None:
        self.by_id = {each.shard_id: each for each in shards}
        self.existing = existing
        self.position = position

    def marked(self, shard_id: ShardId) -> bool:
        """M5.4: not a descendant, and reading begins in the past."""
        return (
            shard_id in self.by_id
            and shard_id not in self.existing
            and self.position.at is not StartAt.LATEST
            and not self.descends(shard_id)
        )

    def descends(self, shard_id: ShardId) -> bool:
        """M5.2."""
        if shard_id not in self.by_id:
            return shard_id in self.existing
        if shard_id in self.existing:
            return True
        parents = [parent for parent in self.by_id[shard_id].parent_shard_ids if parent in self.by_id]
        return any(self.descends(parent) or self.marked(parent) for parent in parents)

    def relevant(self) -> set[ShardId]:
        """The open shards without a lease, and their ancestors as far as the nearest with a lease."""
        pending = [
            each.shard_id
            for each in self.by_id.values()
            if each.is_open and each.shard_id not in self.existing
        ]
        seen: set[ShardId] = set()
        while pending:
            current = pending.pop()
            if current not in seen:
                seen.add(current)
                if current not in self.existing:
                    pending.extend(
                        parent for parent in self.by_id[current].parent_shard_ids if parent in self.by_id
                    )
        return seen - {ShardId(key) for key in self.existing}

    def wanted(self) -> dict[str, ExtendedSequenceNumber]:
        """M5.3 and M5.5."""
        result: dict[str, ExtendedSequenceNumber] = {}
        relevant = self.relevant()
        for shard_id in relevant:
            if self.marked(shard_id) or (self.by_id[shard_id].is_open and not self.descends(shard_id)):
                result[shard_id] = self.position.checkpoint
        for shard_id in relevant:
            if self.descends(shard_id):
                for parent in self.by_id[shard_id].parent_shard_ids:
                    if parent in self.by_id and parent not in self.existing and not self.descends(parent):
                        result[parent] = self.position.checkpoint
        return result


@settings(max_examples=1000, deadline=None)
@given(data=st.data(), shards=lineages(), position=positions)
def test_what_is_created_equals_the_slow_oracle(
    data: st.DataObject, shards: list[Shard], position: InitialPosition
) -> None:
    existing = frozenset(data.draw(st.sets(st.sampled_from([str(each.shard_id) for each in shards]))))
    assert created(shards, sorted(existing), position) == SlowOracle(shards, existing, position).wanted()


@settings(max_examples=300, deadline=None)
@given(data=st.data(), shards=lineages(), position=positions)
def test_every_open_shard_ends_up_reachable(
    data: st.DataObject, shards: list[Shard], position: InitialPosition
) -> None:
    existing = set(data.draw(st.sets(st.sampled_from([each.shard_id for each in shards]))))
    have = existing | {
        lease.shard_id for lease in missing_leases(shards, [LeaseKey(key) for key in existing], position)
    }
    by_id = {each.shard_id: each for each in shards}

    def reachable(shard_id: ShardId) -> bool:
        return shard_id in have or any(
            reachable(parent) for parent in by_id[shard_id].parent_shard_ids if parent in by_id
        )

    assert all(reachable(each.shard_id) for each in shards if each.is_open)


@given(shards=lineages(), position=positions)
def test_a_second_sync_creates_nothing(shards: list[Shard], position: InitialPosition) -> None:
    first = [lease.lease_key for lease in missing_leases(shards, [], position)]
    assert missing_leases(shards, first, position) == []


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
