"""The covering array: each pair that may be is in it, and each that may not is refused by who is said to refuse it."""

from __future__ import annotations

from itertools import combinations

import pytest

from kcl_client import ShardStart
from kcl_client.once import Cursor, OnceProcessor
from kcl_daemon.config.load import interpret
from kcl_daemon.errors import ConfigurationError
from tests.proof.parts import ROWS_OF_TRIPLES
from tests.simulator.pairs.array import (
    AGAIN,
    APART,
    REFUSED,
    REFUSED_BY_CLIENT,
    SEEDS,
    Apart,
    Row,
    covering_array,
    may_be_together,
    pairs_of,
    row_of,
)
from tests.simulator.pairs.factors import FACTORS
from tests.simulator.pairs.scenario import values_of

# Two of them are not apart, but there is no third that fits: age needs letters or that what is bad is skipped.
BY_A_THIRD = {(("sink", "landing"), ("attempts", "4"))}


def text_of(row: Row) -> str:
    """A properties file that has these values."""
    lines = ["applicationName = billing", *"\n".join(value.lines for value in values_of(row)).splitlines()]
    is_one = dict(row).get("streams", "one") == "one" and dict(row).get("source", "kinesis") == "kinesis"
    lines = [line for line in lines if line and (is_one or not line.startswith("streamName ="))]
    if dict(row).get("sink") == "landing":
        lines = [line for line in lines if not line.startswith("childPreload")]
    return "\n".join(lines) + "\n"


def refusal(text: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        interpret(text.encode(), file="app.properties", default_worker_id="worker")
    return str(caught.value)


def rows_of(apart: Apart) -> list[Row]:
    found: list[Row] = [()]
    for name, some in apart.values.items():
        found = [(*row, (name, value)) for row in found for value in sorted(some)]
    return found


@pytest.mark.parametrize(("row", "apart"), [(row, each) for each in REFUSED for row in rows_of(each)])
def test_settings_that_exclude_each_other_are_refused_with_that_message(row: Row, apart: Apart) -> None:
    assert apart.why in refusal(text_of(row) + apart.lines)


def test_each_row_of_the_array_is_a_file_that_the_daemon_takes() -> None:
    array = covering_array()
    for row in (*array.rows, *array.again):
        interpret(text_of(row).encode(), file="app.properties", default_worker_id="worker")


def test_several_children_of_a_shard_are_refused_by_a_client_that_stores_its_position() -> None:
    class Nothing(OnceProcessor[Cursor]):
        def process(self, batch: object, transaction: Cursor) -> None: ...

    (apart,) = REFUSED_BY_CLIENT
    start = ShardStart("shardId-0", None, extra={"lanes": 3, "fencingToken": 1})
    with pytest.raises(RuntimeError) as caught:
        Nothing(store=None).initialize(start)  # type: ignore[arg-type]  # it is not asked
    assert str(caught.value) == apart.why


def test_each_pair_that_is_not_apart_is_in_a_row_of_the_array() -> None:
    wanted = covering_array().wanted
    for one, other in combinations(FACTORS, 2):
        for first in one.values:
            for second in other.values:
                pair = ((one.name, first.name), (other.name, second.name))
                is_there = pair in wanted
                assert is_there is (may_be_together(dict(pair)) and pair not in BY_A_THIRD), pair


def test_as_many_seeds_play_each_row_of_the_array() -> None:
    rows = covering_array().rows
    assert len(rows) <= SEEDS
    assert all(may_be_together(dict(row)) for row in rows)
    assert {pair for row in rows for pair in pairs_of(row)} == covering_array().wanted


def test_the_seeds_also_play_each_further_row_twice() -> None:
    array = covering_array()
    assert all(set(some) <= set(row) for some, row in zip(AGAIN, array.again, strict=True))
    assert {pair for row in array.again for pair in pairs_of(row)} <= array.wanted
    played = [row_of(seed) for seed in range(1, SEEDS + 1)]
    assert set(played) == {*array.rows, *array.again}
    assert [played.count(row) for row in array.again] == [2, 2]


def test_each_reason_names_factors_and_values_that_there_are() -> None:
    known = {(factor.name, value.name) for factor in FACTORS for value in factor.values}
    assert {(name, value) for each in APART for name, some in each.values.items() for value in some} <= known


@pytest.mark.prove
def test_each_triple_that_is_not_apart_is_in_a_row() -> None:
    array = covering_array(3)
    assert len(array.rows) == ROWS_OF_TRIPLES
    assert {some for row in array.rows for some in pairs_of(row, 3)} == array.wanted
