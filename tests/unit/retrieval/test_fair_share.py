"""`tail` leaves four fifths of a shard to its other readers, whatever the answers are."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kcl_daemon.retrieval.fair_share import BYTES_PER_S, FIRST_RECORDS, GROWTH, RECORDS_MOST, FairShare
from tests.examples import examples

MIB = 2**20
# Records in an answer as a part of those asked for, and the size of one.
ANSWERS = st.lists(
    st.tuples(st.floats(0, 1), st.sampled_from([0, 10, 300, 5_000, 100_000, MIB, 10 * MIB])), max_size=60
)


def followed(answers: list[tuple[float, int]]) -> list[tuple[float, int, FairShare]]:
    """Seconds of each answer, its bytes, and what was decided then. The service cuts an answer at 10 MiB."""
    share, now_s, found = FairShare(), 0.0, list[tuple[float, int, FairShare]]()
    for part, record_bytes in answers:
        count = round(share.limit * part)
        if record_bytes * count > 10 * MIB:
            count = max(1, 10 * MIB // record_bytes)
        share = share.answered(count, count * record_bytes)
        found.append((now_s, count * record_bytes, share))
        now_s += share.pause_s
    return found


@given(ANSWERS)
@settings(max_examples=examples(200))
def test_no_more_than_one_read_and_a_fifth_of_the_bytes_a_second(answers: list[tuple[float, int]]) -> None:
    seen = followed(answers)
    for first in range(len(seen)):
        for last in range(first, len(seen)):
            between_s = seen[last][0] - seen[first][0]
            size_bytes = sum(each[1] for each in seen[first:last])
            assert between_s >= last - first - 1e-6
            assert size_bytes <= BYTES_PER_S * between_s + 1


@given(ANSWERS)
@settings(max_examples=examples(200))
def test_the_limit_follows_the_record_sizes_of_earlier_answers(answers: list[tuple[float, int]]) -> None:
    asked = FIRST_RECORDS
    for (part, record_bytes), (_, size_bytes, share) in zip(answers, followed(answers), strict=True):
        assert 1 <= share.limit <= min(asked * GROWTH, RECORDS_MOST)
        count = size_bytes // record_bytes if record_bytes else round(asked * part)
        if size_bytes and count:
            assert share.limit == 1 or share.limit * record_bytes <= BYTES_PER_S
        if count < asked:
            assert share.limit <= asked, "a answer that was not full says nothing about more"
        asked = share.limit


def test_small_records_are_soon_read_as_quickly_as_a_shard_takes_them() -> None:
    share, reads = FairShare(), 0
    while share.limit < RECORDS_MOST:
        share, reads = share.answered(share.limit, share.limit * 200), reads + 1
    assert reads == 5


def test_a_shard_waits_25_s_after_an_answer_of_10_mib() -> None:
    share = FairShare().answered(1, 10 * MIB)
    assert (share.limit, share.pause_s) == (1, 25.0)


def test_large_records_are_believed_at_once_and_small_ones_slowly() -> None:
    share = FairShare(limit=1000).answered(1000, 1000 * 100).answered(1, 400_000)
    assert share.limit == 1
    limits = list[int]()
    for _ in range(12):
        share = share.answered(share.limit, share.limit * 100)
        limits.append(share.limit)
    assert limits[0] == 2
    assert limits == sorted(limits)
    assert limits[-1] == RECORDS_MOST


def test_refusals_wait_longer_and_longer_until_an_answer_comes() -> None:
    share, waits = FairShare(limit=7), list[float]()
    for _ in range(7):
        share = share.refused()
        waits.append(share.pause_s)
    assert waits == [2, 4, 8, 16, 30, 30, 30]
    assert share.limit == 7
    assert share.answered(0, 0).pause_s == 1
    assert share.answered(0, 0).refused().pause_s == 2


def test_it_asks_for_little_first_and_four_times_as_much_after_each_full_answer() -> None:
    share, limits = FairShare(), [FairShare().limit]
    for _ in range(6):
        share = share.answered(share.limit, share.limit * 10)
        limits.append(share.limit)
    assert limits == [2, 8, 32, 128, 512, 1000, 1000]
    assert share.pause_s == 1.0


def test_the_share_is_a_fifth_of_the_two_mebibytes_that_a_shard_gives_in_a_second() -> None:
    assert FairShare().answered(2, 2 * MIB).pause_s == 5.0
    assert FairShare().answered(2, 2 * MIB + 1).pause_s > 5.0
    assert FairShare(limit=1000).answered(1000, 1000 * 1000).limit == 419


def test_the_limit_is_the_number_of_records_that_fit_into_a_second_to_the_byte() -> None:
    assert FairShare(limit=1000).answered(1000, 500_900).limit == 837
    assert FairShare(limit=10).answered(10, 2_097_151).limit == 2
    assert FairShare(limit=1000, record_bytes=1001.0).answered(1000, 500_000).limit == 558


def test_an_answer_that_is_not_full_lets_the_limit_where_it_is() -> None:
    share = FairShare(limit=10)
    assert share.answered(9, 90).limit == 10
    assert share.answered(10, 100).limit == 40
    assert share.answered(11, 110).limit == 40


def test_refusals_before_an_answer_without_records_are_forgotten() -> None:
    share = FairShare(limit=7).refused().refused()
    assert share.refusals == 2
    assert share.answered(0, 0).refusals == 0
    assert share.answered(1, 10).refusals == 0
