"""Several streams of a DynamoDB table as one: what follows what, and where later shards begin."""

from __future__ import annotations

from kcl_daemon.leases.lease import Lease, LeaseKey, ShardId
from kcl_daemon.shards.lineage import (
    NO_HASH_KEYS,
    InitialPosition,
    Segment,
    Shard,
    StartAt,
    in_order,
    lease_hole,
)
from kcl_daemon.shards.sync import missing_leases
from kcl_daemon.shards.table_streams import (
    following,
    joined,
    leaves,
    only_memory,
    position_of_others,
    unread,
)
from kcl_protocol.sequence import LATEST, SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber

TIP = InitialPosition(StartAt.LATEST)
OLDEST = InitialPosition(StartAt.TRIM_HORIZON)


def shard(name: str, *parents: str, number: int = 100, is_open: bool = False) -> Shard:
    ids = frozenset(ShardId(each) for each in parents)
    return Shard(ShardId(name), NO_HASH_KEYS, ids, number, None if is_open else number + 50)


def lease(name: str, at: ExtendedSequenceNumber = TRIM_HORIZON, *parents: str) -> Lease:
    ids = frozenset(ShardId(each) for each in parents)
    return Lease(LeaseKey(name), 0, at, parent_shard_ids=ids, hash_range=NO_HASH_KEYS)


# The first stream: a splits into b and c. The second begins its numbers anew.
SEGMENT = str(Segment(1_700_000_000_000, 0, 4).shard_id)
FIRST = (shard("a"), shard("b", "a", number=200), shard("c", "a", number=200, is_open=True))
SECOND = (
    shard("d", "forgotten", number=1),
    shard("e", number=1, is_open=True),
    shard("f", "d", number=2, is_open=True),
)


def parents_in(shards: tuple[Shard, ...]) -> dict[str, set[str]]:
    return {str(each.shard_id): {str(parent) for parent in each.parent_shard_ids} for each in shards}


def test_first_shards_of_a_later_stream_follow_all_last_shards_of_the_one_before() -> None:
    found = joined([FIRST, (), SECOND])
    assert parents_in(found) == {
        "a": set(),
        "b": {"a"},
        "c": {"a"},
        "d": {"b", "c"},
        "e": {"b", "c"},
        "f": {"d"},
    }
    assert [str(each.shard_id) for each in found if each.is_open] == ["e", "f"]
    assert [str(each.shard_id) for each in leaves(found)] == ["e", "f"]
    assert joined([SECOND]) == SECOND
    assert joined([]) == ()


def test_the_end_of_a_stream_has_the_roots_of_the_next_as_children() -> None:
    assert [str(each.shard_id) for each in following(ShardId("b"), [FIRST, SECOND])] == ["d", "e"]
    assert following(ShardId("b"), [FIRST]) == ()
    assert following(ShardId("b"), [FIRST, ()]) == ()


def test_parents_come_first_where_numbers_begin_anew() -> None:
    ordered = [str(each.shard_id) for each in in_order(joined([FIRST, SECOND]))]
    assert ordered == ["a", "b", "c", "d", "e", "f"]


def wanted(shards: tuple[Shard, ...], leases: list[Lease], position: InitialPosition = TIP) -> dict[str, str]:
    """What the leader creates."""
    position = position_of_others(shards, leases, position)
    found = missing_leases(unread(shards, leases), leases, position)
    return {str(each.lease_key): str(each.checkpoint) for each in found}


def test_a_later_stream_begins_at_its_oldest_change_when_the_one_before_is_finished() -> None:
    read = [lease("b", SHARD_END), lease("c", SHARD_END)]
    both = joined([FIRST, SECOND])
    assert wanted(both, read) == {"d": "TRIM_HORIZON", "e": "TRIM_HORIZON"}
    assert wanted(both, [lease("b", SHARD_END), lease("c", LATEST)]) == {}


def test_a_later_stream_begins_at_its_oldest_change_when_the_one_before_is_forgotten() -> None:
    assert wanted(SECOND, [lease("c", SHARD_END)]) == {"d": "TRIM_HORIZON", "e": "TRIM_HORIZON"}
    assert wanted(SECOND, [lease("c", LATEST)]) == {"d": "TRIM_HORIZON", "e": "TRIM_HORIZON"}


def test_shards_whose_parents_were_trimmed_while_nobody_ran_begin_at_their_oldest_change() -> None:
    later = (shard("x", "gone"), shard("y", "x", is_open=True))
    assert wanted(later, [lease("a", ExtendedSequenceNumber("105"))]) == {"x": "TRIM_HORIZON"}


def test_a_beginning_that_was_interrupted_is_completed_at_its_position() -> None:
    assert wanted(SECOND, [lease("e", LATEST)]) == {"f": "LATEST"}
    assert wanted(SECOND, [lease("e", TRIM_HORIZON)], OLDEST) == {"d": "TRIM_HORIZON"}


def test_only_leases_that_are_all_at_the_position_are_an_interrupted_beginning() -> None:
    for begun in (TRIM_HORIZON, ExtendedSequenceNumber("5"), SHARD_END):
        assert position_of_others(SECOND, [lease("e", begun), lease("f", LATEST)], TIP) == OLDEST
    assert position_of_others(SECOND, [lease("e", LATEST), lease("f", LATEST)], TIP) == TIP


def test_the_last_shards_of_a_stream_that_was_switched_off_get_a_lease_too() -> None:
    off = (FIRST[0], FIRST[1], shard("c", "a", number=200))
    assert wanted(off, [lease("b", ExtendedSequenceNumber("205"))]) == {"a": "TRIM_HORIZON"}
    assert wanted(off, [lease("a", SHARD_END), lease("b")]) == {"c": "TRIM_HORIZON"}
    assert wanted(off, [lease("b", SHARD_END), lease("c", SHARD_END)]) == {}


def test_one_finished_lease_is_kept_as_long_as_there_is_no_other() -> None:
    assert only_memory([]) is None
    assert only_memory([lease("b", SHARD_END), lease("c", SHARD_END)]) == "c"
    assert only_memory([lease("b", SHARD_END), lease("c")]) is None
    assert only_memory([lease("b", SHARD_END), lease(SEGMENT, SHARD_END)]) == "b"
    assert only_memory([lease(SEGMENT, SHARD_END)]) == SEGMENT


def test_shards_without_hash_keys_leave_no_hole() -> None:
    assert lease_hole([lease("a", SHARD_END), lease("b")]) is None
    assert lease_hole([lease("a", SHARD_END)]) is not None
