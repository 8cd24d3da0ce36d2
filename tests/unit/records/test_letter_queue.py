"""What a program is given next, and what becomes of the letters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_daemon.records.letter_queue import BATCH_BYTES_MOST, LetterQueue
from kcl_daemon.records.letters import StoredLetter, parse_letter
from kcl_protocol.sequence import ExtendedSequenceNumber
from tests.examples import examples
from tests.unit.consumer.letters import letter


def letters(count: int, data_bytes: int = 1) -> list[StoredLetter]:
    return [replace(parse_letter(letter(n).line(), ""), data_bytes=data_bytes) for n in range(1, count + 1)]


def numbers(found: list[StoredLetter]) -> list[int]:
    return [int(each.letter.record.sequence_number) for each in found]


def at(number: int) -> ExtendedSequenceNumber:
    return ExtendedSequenceNumber(str(number), 7)


def queue(count: int, *, batch: int = 3, tries: int = 2, data_bytes: int = 1) -> LetterQueue:
    return LetterQueue(letters(count, data_bytes), batch_most=batch, tries_most=tries)


def test_batches_have_a_size() -> None:
    four = queue(4)
    assert [numbers(four.take()) for _ in range(3)] == [[1, 2, 3], [4], []]


def test_a_large_letter_comes_alone() -> None:
    large = queue(2, data_bytes=BATCH_BYTES_MOST + 1)
    assert [numbers(large.take()) for _ in range(2)] == [[1], [2]]


def test_a_letter_is_done_with_its_checkpoint_or_with_a_good_end() -> None:
    five = queue(5)
    five.take()
    assert numbers(five.stored(at(2))) == [1, 2]
    five.answered()
    five.take()
    five.answered()
    assert numbers(five.ended()) == [3, 4, 5]
    assert five.is_empty


def test_after_a_failure_each_letter_of_the_batch_comes_alone() -> None:
    four = queue(4)
    four.take()
    assert four.failed() is None
    assert [numbers(four.take()) for _ in range(3)] == [[1], [2], [3]]
    four.answered()
    assert numbers(four.take()) == [4]


def test_a_letter_that_fails_alone_is_given_up_and_the_others_go_on() -> None:
    three = queue(3)
    three.take()
    three.failed()
    for given_up in (None, 2):
        assert numbers(three.take()) == [1]
        three.answered()
        assert numbers(three.take()) == [2]
        found = three.failed()
        assert (found and int(found.letter.record.sequence_number)) == given_up
    assert [numbers(three.take()) for _ in range(2)] == [[1], [3]], "1 was answered, but never checkpointed"


def test_a_record_covered_by_a_stored_checkpoint_is_not_taken_again() -> None:
    three = queue(3)
    three.take()
    three.stored(at(2))
    assert three.failed() is None, "one was left in hand: its first failure"
    assert numbers(three.take()) == [3]
    found = three.failed()
    assert found is not None
    assert numbers([found]) == [3]
    assert three.is_empty


def test_a_rejected_letter_is_out_of_hand() -> None:
    three = queue(3)
    three.take()
    rejected = three.held("2", 7)
    assert rejected is not None
    assert three.held("2", 6) is None
    assert three.held(None, None) is None
    three.drop(rejected)
    assert three.held("2", 7) is None
    assert numbers(three.ended()) == [1, 3]


def test_a_queue_is_hopeless_after_two_failures_without_progress() -> None:
    one = queue(1)
    for hopeless in (False, True):
        assert one.failed() is None
        assert one.is_hopeless is hopeless
    again = queue(2, batch=1)
    again.failed()
    again.take()
    again.stored(at(1))
    again.answered()
    again.failed()
    assert not again.is_hopeless, "there was progress in between"


End = Callable[[list[StoredLetter], str], None]
FATES = st.lists(st.sampled_from(["good", "good", "deadly", "rejected", "flaky"]), min_size=1, max_size=12)


@settings(max_examples=examples(300))
@given(FATES, st.integers(1, 5), st.integers(1, 3), st.integers(0, 3))
def test_every_letter_has_one_end_and_the_order_is_kept(
    fates: list[str], batch: int, tries: int, every: int
) -> None:
    """`every`: the child checkpoints after so many batches; 0: never."""
    work = LetterQueue(letters(len(fates)), batch_most=batch, tries_most=tries)
    ends: dict[int, str] = {}
    flaky = {n for n, fate in enumerate(fates, 1) if fate == "flaky" and tries > 1}

    def end(found: list[StoredLetter], how: str) -> None:
        for number in numbers(found):
            assert number not in ends
            ends[number] = how

    for _ in range(10_000):
        if work.is_empty:
            break
        if _a_child_dies(work, fates, flaky, every, end):
            given_up = work.failed()
            end([] if given_up is None else [given_up], "failed")
            assert not work.is_hopeless
        else:
            end(work.ended(), "done")
    expected = {"good": "done", "flaky": "done", "deadly": "failed"}
    assert ends == {number: expected.get(fate, fate) for number, fate in enumerate(fates, 1)}


def _a_child_dies(work: LetterQueue, fates: list[str], flaky: set[int], every: int, end: End) -> bool:
    last = batches = 0
    while batch := work.take():
        for each in batch:
            number = numbers([each])[0]
            assert number > last
            last = number
            if fates[number - 1] == "deadly" or number in flaky:
                flaky.discard(number)
                return True
            if fates[number - 1] == "rejected":
                end([each], "rejected")
                work.drop(each)
        batches += 1
        if every and batches % every == 0:
            end(work.stored(batch[-1].position), "done")
        work.answered()
    return False


def test_a_batch_may_have_all_bytes_that_are_allowed_and_not_one_more() -> None:
    half = BATCH_BYTES_MOST // 2
    first, second = letters(2, half)
    exact = LetterQueue([first, second], batch_most=3, tries_most=2)
    assert numbers(exact.take()) == [1, 2]
    above = LetterQueue([first, replace(second, data_bytes=half + 1)], batch_most=3, tries_most=2)
    assert [numbers(above.take()) for _ in range(2)] == [[1], [2]]


def test_it_stays_hopeless_while_children_keep_failing_and_a_letter_that_is_done_begins_anew() -> None:
    one = queue(2, batch=1, tries=2)
    seen = list[bool]()
    for _ in range(3):
        one.failed()
        seen.append(one.is_hopeless)
    assert seen == [False, True, True]
    one.take()
    one.answered()
    one.ended()
    assert not one.is_hopeless
    for _ in range(2):
        one.failed()
    assert one.is_hopeless


def test_a_record_is_held_by_its_number_and_without_a_sub_sequence_number_by_the_first() -> None:
    (whole,) = letters(1)
    record = replace(whole.letter.record, sub_sequence_number=0)
    first = replace(whole, letter=replace(whole.letter, record=record))
    one = LetterQueue([first], batch_most=1, tries_most=2)
    one.take()
    assert one.held("1", None) is first
    assert one.held("1", 0) is first
    assert one.held("1", 1) is None
    assert one.held("2", 0) is None
