"""What shows that leases are not those of a stream: a name may be that of another stream than before."""

from __future__ import annotations

import pytest

from kcl_daemon.leases.lease import MAX_HASH, HashRange, Lease, LeaseKey, ShardId, WorkerId
from kcl_daemon.shards.lineage import (
    Shard,
    created_ms,
    first_hole,
    in_order,
    leases_match_shards,
    leases_of_another,
    parents_first,
    why_unlike,
)
from kcl_protocol.sequence import SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber


def name(number: int) -> ShardId:
    return ShardId(f"shardId-{number:012}")


def shard(number: int, start: int = 100, keys: tuple[int, int] = (0, 9), *, is_open: bool = True) -> Shard:
    return Shard(name(number), HashRange(*keys), frozenset(), start, None if is_open else start + 50)


def lease(
    shard_id: ShardId,
    checkpoint: ExtendedSequenceNumber | int = TRIM_HORIZON,
    keys: tuple[int, int] | None = None,
    *,
    children: frozenset[ShardId] = frozenset(),
    parents: frozenset[ShardId] = frozenset(),
) -> Lease:
    at = ExtendedSequenceNumber(str(checkpoint)) if isinstance(checkpoint, int) else checkpoint
    hash_range = None if keys is None else HashRange(*keys)
    return Lease(
        LeaseKey(shard_id),
        1,
        at,
        child_shard_ids=children,
        parent_shard_ids=parents,
        hash_range=hash_range,
    )


def why(one: Lease, *shards: Shard) -> str | None:
    return next((reason for _, reason in leases_of_another([one], shards)), None)


def test_a_lease_of_a_listed_shard_is_at_or_after_its_first_record() -> None:
    assert why(lease(name(0), 100), shard(0)) is None
    assert why(lease(name(0), 101), shard(0)) is None
    assert why(lease(name(0)), shard(0)) is None
    assert "before the first record" in (why(lease(name(0), 99), shard(0)) or "")


def test_a_lease_of_a_listed_shard_has_its_hash_keys_if_it_has_any() -> None:
    assert why(lease(name(0), keys=(0, 9)), shard(0)) is None
    assert "other hash keys" in (why(lease(name(0), keys=(0, 8)), shard(0)) or "")


def test_only_a_closed_shard_has_children() -> None:
    ended = lease(name(0), SHARD_END, children=frozenset({name(1)}))
    assert "names child shards" in (why(ended, shard(0)) or "")
    assert why(ended, shard(0, is_open=False)) is None
    assert why(lease(name(0), SHARD_END), shard(0)) is None


def test_a_higher_number_than_any_shard_of_the_stream_was_never_its() -> None:
    assert "never had" in (why(lease(name(1)), shard(0)) or "")
    assert "never had" in (why(lease(name(9)), shard(0), shard(8)) or "")
    assert why(lease(name(7)), shard(0), shard(8)) is None
    assert why(lease(name(1), parents=frozenset({name(0)})), shard(0)) is None, "listed a little later"
    assert why(lease(name(1))) is None, "nothing is known of the stream"


def test_names_that_have_no_number_prove_nothing() -> None:
    odd = Shard(ShardId("odd"), HashRange(0, 9), frozenset(), 100)
    assert why(lease(name(5)), odd) is None
    assert why(lease(ShardId("odd")), shard(0)) is None


@pytest.mark.parametrize(
    ("keys", "is_beside"),
    [((9, 20), False), ((0, 3), False), ((20, 30), True), ((10, 20), True)],
)
def test_a_forgotten_shard_was_closed_before_those_that_have_its_keys_now(
    keys: tuple[int, int], is_beside: bool
) -> None:
    forgotten = [lease(name(1), checkpoint, keys) for checkpoint in (99, 100, 101)]
    reasons = [why(each, shard(5)) for each in forgotten]
    assert [reason is None for reason in reasons] == [True, is_beside, is_beside]
    assert why(lease(name(1), 101, (9, 20)), shard(5, keys=(20, 30))) is not None
    for sentinel in (TRIM_HORIZON, SHARD_END):
        assert why(lease(name(1), sentinel, keys), shard(5)) is None
    assert why(lease(name(1), 101), shard(5)) is None, "its keys are not known"


def test_positions_prove_that_leases_belong_to_shards_or_do_not_or_nothing() -> None:
    assert leases_match_shards([lease(name(0), 100)], [shard(0)]) is True
    assert leases_match_shards([lease(name(0), 99)], [shard(0)]) is False
    assert leases_match_shards([lease(name(0))], [shard(0)]) is None


def test_leases_are_unlike_a_stream_whose_shards_they_contradict_or_of_which_they_have_none() -> None:
    assert "before the first record" in (
        why_unlike([lease(name(0), 99)], [shard(0)], of_dynamodb=False) or ""
    )
    assert why_unlike([lease(name(0), 99)], [shard(0)], of_dynamodb=True) is None
    none_of_them = why_unlike([lease(name(3)), lease(name(2))], [shard(5)], of_dynamodb=False)
    assert none_of_them == f"the stream has none of the shards of the leases, such as {name(2)}"
    assert why_unlike([lease(name(3), SHARD_END)], [shard(5)], of_dynamodb=False) is None
    assert why_unlike([lease(name(3)), lease(name(5))], [shard(5)], of_dynamodb=False) is None


def test_only_ids_of_dynamodb_say_when_a_shard_was_created() -> None:
    assert created_ms(ShardId("shardId-00000001700000000000-abcdef")) == 1_700_000_000_000
    assert created_ms(name(7)) is None


def test_shards_that_name_each_other_as_parents_are_all_listed() -> None:
    one, two = (
        Shard(name(0), HashRange(0, 9), frozenset({name(1)}), 1),
        Shard(name(1), HashRange(0, 9), frozenset({name(0)}), 2),
    )
    assert {each.shard_id for each in in_order([one, two])} == {name(0), name(1)}


def test_keys_beyond_the_last_one_leave_no_hole() -> None:
    assert first_hole([HashRange(0, MAX_HASH)]) is None
    assert first_hole([HashRange(0, MAX_HASH + 5)]) is None
    assert first_hole([HashRange(0, MAX_HASH - 1)]) == HashRange(MAX_HASH, MAX_HASH)


def test_a_finished_lease_waits_for_nobody_and_keeps_its_place() -> None:
    ended, first = lease(name(0), SHARD_END), lease(name(1))
    waits = lease(name(2), parents=frozenset({name(1)}))
    assert parents_first([ended, first, waits], max_depth=0) == [ended, first]
    assert parents_first([waits, first, ended], max_depth=1) == [first, ended, waits]
    assert parents_first([ended, waits, first], max_depth=1) == [ended, first, waits]
    owned = Lease(LeaseKey(name(2)), 1, TRIM_HORIZON, WorkerId("w"), parent_shard_ids=frozenset({name(1)}))
    assert parents_first([owned, first], max_depth=0) == [first, owned]
