"""Which shards the demo splits and merges."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_local.demo.stream import (
    ShardView,
    local_session,
    middle_hash,
    shard_to_split,
    shards_to_merge,
)


def shard(name: str, first: int, last: int, *parents: str, is_open: bool = True) -> ShardView:
    return ShardView(name, first, last, parents, is_open)


@given(st.integers(0, 2**128 - 2), st.integers(1, 2**128 - 1))
def test_both_halves_of_a_split_have_something(first: int, last: int) -> None:
    if first < last:
        assert first < middle_hash(shard("a", first, last)) <= last


def test_the_first_open_shard_is_split() -> None:
    shards = [shard("c", 20, 29), shard("a", 0, 9, is_open=False), shard("b", 10, 19)]
    chosen = shard_to_split(shards)
    assert chosen is not None
    assert chosen.shard_id == "b"


def test_nothing_is_split_where_nothing_is_open() -> None:
    assert shard_to_split([shard("a", 0, 9, is_open=False)]) is None


def test_original_neighbours_are_merged_rather_than_fresh_ones() -> None:
    shards = [
        shard("a", 0, 9, is_open=False),
        shard("b", 10, 19),
        shard("c", 20, 29),
        shard("d", 0, 4, "a"),
        shard("e", 5, 9, "a"),
    ]
    pair = shards_to_merge(shards)
    assert pair is not None
    assert [one.shard_id for one in pair] == ["b", "c"]


def test_the_halves_of_a_lone_shard_are_merged_again() -> None:
    pair = shards_to_merge([shard("a", 0, 9, is_open=False), shard("b", 0, 4, "a"), shard("c", 5, 9, "a")])
    assert pair is not None
    assert [one.shard_id for one in pair] == ["b", "c"]


def test_shards_with_a_gap_between_them_are_not_merged() -> None:
    assert shards_to_merge([shard("a", 0, 9), shard("b", 11, 19)]) is None


def test_the_users_profile_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "there-is-no-such-profile")
    client = local_session().client("kinesis", endpoint_url="http://127.0.0.1:1")
    assert client.meta.endpoint_url == "http://127.0.0.1:1"
    client.close()
