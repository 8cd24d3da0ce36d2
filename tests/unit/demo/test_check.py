"""What the checker calls lost, repeated, out of order and before parents."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kcl_local.demo.check import Checker, CountedRecord, EntryKind, LedgerEntry, ShardState

PARENT, OTHER_PARENT, CHILD = "shardId-0", "shardId-1", "shardId-2"


def wrote(checker: Checker, shard_id: str, *numbers: int) -> None:
    for number in numbers:
        checker.wrote(shard_id, str(number), {f"word{number}": 1})


def batch(shard_id: str, at_s: float, *numbers: int, process: str = "first") -> LedgerEntry:
    records = tuple(CountedRecord(str(number), {f"word{number}": 1}) for number in numbers)
    return LedgerEntry("records", at_s, shard_id, process, records)


def note(kind: EntryKind, shard_id: str, at_s: float, process: str = "first") -> LedgerEntry:
    return LedgerEntry(kind, at_s, shard_id, process)


def test_everything_delivered_once_in_order_is_right() -> None:
    checker = Checker()
    wrote(checker, PARENT, 1, 2, 30)
    checker.reported(batch(PARENT, 1.0, 1, 2))
    checker.reported(batch(PARENT, 2.0, 30))
    verdict = checker.verdict()
    assert verdict.is_right
    assert (verdict.written, verdict.delivered, verdict.repeated, verdict.lost) == (3, 3, 0, 0)
    assert checker.is_settled
    assert (checker.first_delivery_s, checker.last_delivery_s) == (1.0, 2.0)


def test_a_record_that_never_arrived_is_lost() -> None:
    checker = Checker()
    wrote(checker, PARENT, 1, 2, 3)
    checker.reported(batch(PARENT, 1.0, 1, 3))
    assert checker.verdict().lost == 1
    assert not checker.verdict().is_right
    assert not checker.is_settled


def test_a_record_delivered_by_another_shard_is_lost_and_unknown() -> None:
    checker = Checker()
    wrote(checker, PARENT, 1)
    checker.reported(batch(OTHER_PARENT, 1.0, 1))
    assert (checker.verdict().lost, checker.verdict().unknown) == (1, 1)


def test_a_second_process_may_repeat_and_its_words_count_once() -> None:
    checker = Checker()
    wrote(checker, PARENT, 1, 2, 3)
    checker.reported(batch(PARENT, 1.0, 1, 2))
    checker.reported(batch(PARENT, 5.0, 2, 3, process="second"))
    verdict = checker.verdict()
    assert verdict.is_right
    assert verdict.repeated == 1
    assert verdict.words_delivered == Counter(["word1", "word2", "word3"])


def test_going_back_within_a_process_is_out_of_order() -> None:
    checker = Checker()
    wrote(checker, PARENT, 1, 2, 3)
    checker.reported(batch(PARENT, 1.0, 1, 3))
    checker.reported(batch(PARENT, 2.0, 2))
    assert checker.verdict().out_of_order == 1
    assert not checker.verdict().is_right


def test_the_same_record_twice_in_a_process_is_out_of_order_too() -> None:
    checker = Checker()
    wrote(checker, PARENT, 1)
    checker.reported(batch(PARENT, 1.0, 1, 1))
    assert (checker.verdict().out_of_order, checker.verdict().repeated) == (1, 1)


def test_numbers_are_compared_as_numbers() -> None:
    checker = Checker()
    wrote(checker, PARENT, 9, 10)
    checker.reported(batch(PARENT, 1.0, 9, 10))
    assert checker.verdict().out_of_order == 0


def family() -> Checker:
    checker = Checker()
    checker.lineage(PARENT, parents=(), is_open=False)
    checker.lineage(OTHER_PARENT, parents=(), is_open=False)
    checker.lineage(CHILD, parents=(PARENT, OTHER_PARENT), is_open=True)
    wrote(checker, PARENT, 1)
    wrote(checker, OTHER_PARENT, 2)
    wrote(checker, CHILD, 3, 4)
    return checker


def test_a_child_shard_after_both_parents_is_right() -> None:
    checker = family()
    for entry in (
        batch(PARENT, 1.0, 1),
        note("ended", PARENT, 2.0),
        batch(OTHER_PARENT, 3.0, 2),
        note("ended", OTHER_PARENT, 4.0),
        batch(CHILD, 5.0, 3, 4),
    ):
        checker.reported(entry)
    assert checker.verdict().is_right


def test_a_child_shard_before_the_end_of_one_parent_is_counted() -> None:
    checker = family()
    for entry in (
        batch(PARENT, 1.0, 1),
        note("ended", PARENT, 2.0),
        batch(OTHER_PARENT, 3.0, 2),
        batch(CHILD, 3.5, 3),
        note("ended", OTHER_PARENT, 4.0),
        batch(CHILD, 5.0, 4),
    ):
        checker.reported(entry)
    assert checker.verdict().before_parents == 1
    assert not checker.verdict().is_right


def test_a_child_shard_of_a_parent_that_never_ended_is_counted_whole() -> None:
    checker = family()
    for entry in (
        batch(PARENT, 1.0, 1),
        note("ended", PARENT, 2.0),
        batch(OTHER_PARENT, 3.0, 2),
        batch(CHILD, 9.0, 3, 4),
    ):
        checker.reported(entry)
    assert checker.verdict().before_parents == 2


def test_a_parent_record_first_delivered_after_the_child_shard_counts_against_it() -> None:
    checker = family()
    for entry in (
        note("ended", PARENT, 1.0),
        batch(OTHER_PARENT, 1.0, 2),
        note("ended", OTHER_PARENT, 2.0),
        batch(CHILD, 5.0, 3, 4),
        batch(PARENT, 6.0, 1, process="late"),
    ):
        checker.reported(entry)
    assert checker.verdict().before_parents == 2


def test_a_parent_ended_again_by_a_second_process_was_done_at_the_first() -> None:
    checker = family()
    for entry in (
        batch(PARENT, 1.0, 1),
        note("ended", PARENT, 2.0),
        batch(OTHER_PARENT, 1.0, 2),
        note("ended", OTHER_PARENT, 2.0),
        batch(CHILD, 5.0, 3, 4),
        note("ended", PARENT, 9.0, "zombie"),
    ):
        checker.reported(entry)
    assert checker.verdict().is_right


def test_a_closed_shard_is_settled_once_its_end_was_reported() -> None:
    checker = Checker()
    checker.lineage(PARENT, parents=(), is_open=False)
    assert not checker.is_settled
    checker.reported(note("ended", PARENT, 1.0))
    assert checker.is_settled


def test_differing_words_are_wrong() -> None:
    checker = Checker()
    checker.wrote(PARENT, "1", {"right": 1})
    checker.reported(LedgerEntry("records", 1.0, PARENT, "first", (CountedRecord("1", {"wrong": 1}),)))
    verdict = checker.verdict()
    assert verdict.lost == 0
    assert not verdict.words_agree
    assert not verdict.is_right


def test_progress_follows_a_shard_through_its_life() -> None:
    checker = Checker()
    checker.lineage(PARENT, parents=(), is_open=True)
    wrote(checker, PARENT, 1, 2, 3)

    def now() -> tuple[ShardState, int, int, int]:
        (shard,) = checker.progress()
        return shard.state, shard.delivered, shard.behind, shard.unsaved

    assert now() == (ShardState.WAITING, 0, 3, 0)
    checker.reported(note("start", PARENT, 1.0))
    checker.reported(batch(PARENT, 2.0, 1, 2))
    assert now() == (ShardState.READING, 2, 1, 2)
    checker.reported(note("checkpoint", PARENT, 3.0))
    assert now() == (ShardState.READING, 2, 1, 0)
    checker.reported(note("lost", PARENT, 4.0))
    assert now() == (ShardState.STOPPED, 2, 1, 0)
    checker.reported(note("start", PARENT, 5.0, "second"))
    checker.reported(batch(PARENT, 6.0, 3, process="second"))
    checker.reported(note("ended", PARENT, 7.0, "second"))
    assert now() == (ShardState.ENDED, 3, 0, 1)
    checker.reported(note("stopping", PARENT, 8.0, "second"))
    assert now()[0] is ShardState.ENDED


def test_a_delivery_known_before_its_write_is_not_behind() -> None:
    checker = Checker()
    checker.reported(batch(PARENT, 1.0, 1))
    assert checker.progress()[0].behind == 0
    wrote(checker, PARENT, 1)
    assert checker.verdict().is_right


@given(st.sets(st.integers(0, 60)), st.lists(st.lists(st.integers(0, 60), max_size=20), max_size=6))
def test_the_account_always_adds_up(written: set[int], deliveries: list[list[int]]) -> None:
    checker = Checker()
    wrote(checker, PARENT, *written)
    for process, numbers in enumerate(deliveries):
        checker.reported(batch(PARENT, 1.0, *numbers, process=str(process)))
    verdict = checker.verdict()
    all_deliveries = [number for numbers in deliveries for number in numbers]
    assert verdict.delivered + verdict.lost == verdict.written == len(written)
    assert verdict.delivered + verdict.unknown + verdict.repeated == len(all_deliveries)
    assert verdict.is_right == (
        set(all_deliveries) == written and all(numbers == sorted(set(numbers)) for numbers in deliveries)
    )
