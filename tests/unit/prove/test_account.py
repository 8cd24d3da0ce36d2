"""The account of a proof against a naive one, and what it says of lost, repeated, reordered and doubled records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_local.demo.check import CountedRecord, LedgerEntry
from kcl_prove.account import Account, longest_gap_s, quantile

SHARD = "shardId-0"
Times = list[tuple[float, float]]
times_of_records = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 20)).map(lambda each: (float(each[0]), float(sum(each)))),
    max_size=12,
)


def naive_gap_s(times: Times) -> float | None:
    """For each delivery: how long somebody had waited since the one before it."""
    gaps: list[float] = []
    for _, at_s in times:
        earlier = [other for _, other in times if other < at_s]
        oldest_s = min(put_s for put_s, other in times if other >= at_s)
        gaps.append(at_s - max([oldest_s, *earlier]))
    return max(gaps, default=None)


@given(times_of_records)
def test_the_gap_is_that_of_a_naive_count(times: Times) -> None:
    assert longest_gap_s(times) == naive_gap_s(times)


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.01, 1))
def test_a_quantile_is_the_smallest_that_so_many_do_not_exceed(values: list[float], share: float) -> None:
    found = quantile(sorted(values), share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-6
    assert sum(value < found for value in values) < share * len(values) + 1e-6


def test_an_empty_list_has_no_quantile() -> None:
    assert quantile([], 0.5) is None


def entry(at_s: float, *records: tuple[int, str], process: str = "one") -> LedgerEntry:
    counted = tuple(CountedRecord(str(number), {word: 1}) for number, word in records)
    return LedgerEntry("records", at_s, SHARD, process, counted)


def account(written: int) -> Account:
    """Record i is at i and was put at i."""
    found = Account()
    found.checker.lineage(SHARD, parents=(), is_open=True)
    for number in range(written):
        found.wrote(SHARD, str(number), f"w{number}", float(number))
    return found


def test_all_that_was_written_arrived() -> None:
    found = account(3)
    found.reported(entry(5.0, (0, "w0"), (1, "w1"), (2, "w2")))
    settled = found.settle()
    assert settled.check.is_right
    assert (settled.latency_p50_s, settled.latency_p99_s, settled.gap_s) == (4.0, 5.0, 5.0)


@given(st.sets(st.integers(0, 9)), st.sets(st.integers(0, 9)))
def test_lost_and_repeated_records_are_counted(missing: set[int], again: set[int]) -> None:
    found = account(10)
    there = [(number, f"w{number}") for number in range(10) if number not in missing]
    found.reported(entry(20.0, *there))
    twice = [each for each in there if each[0] in again]
    found.reported(entry(21.0, *twice, process="two"))
    check = found.settle().check
    assert (check.lost, check.repeated, check.is_right) == (len(missing), len(twice), not missing)


def test_a_record_out_of_order_is_found() -> None:
    found = account(2)
    found.reported(entry(3.0, (1, "w1"), (0, "w0")))
    check = found.settle().check
    assert (check.out_of_order, check.lost, check.is_right) == (1, 0, False)


def test_changed_bytes_are_found() -> None:
    found = account(1)
    found.reported(entry(3.0, (0, "another")))
    check = found.settle().check
    assert (check.lost, check.words_agree, check.is_right) == (0, False, False)


@pytest.mark.parametrize("had_answer", [True, False])
def test_a_put_without_answer_may_be_there_twice(had_answer: bool) -> None:
    found = account(1)
    if not had_answer:
        found.without_answer(["w0"])
    found.reported(entry(3.0, (0, "w0"), (7, "w0")))
    settled = found.settle()
    assert (settled.twice, settled.check.unknown, settled.check.is_right) == (
        (0, 1, False) if had_answer else (1, 0, True)
    )


def test_a_child_shard_before_its_parent_is_found() -> None:
    found = account(1)
    found.checker.lineage(SHARD, parents=(), is_open=False)
    found.checker.lineage("shardId-1", parents=(SHARD,), is_open=True)
    found.wrote("shardId-1", "100", "w100", 1.0)
    found.reported(LedgerEntry("records", 2.0, "shardId-1", "child", (CountedRecord("100", {"w100": 1}),)))
    found.reported(entry(3.0, (0, "w0")))
    found.reported(LedgerEntry("ended", 4.0, SHARD, "one"))
    check = found.settle().check
    assert (check.before_parents, check.is_right) == (1, False)
