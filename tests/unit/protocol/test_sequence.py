"""The order of positions in a shard."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_protocol.sequence import (
    AT_TIMESTAMP,
    LATEST,
    SHARD_END,
    TRIM_HORIZON,
    ExtendedSequenceNumber,
    Sentinel,
)

numbers = st.builds(
    ExtendedSequenceNumber, st.integers(0, 10**60).map(str), st.integers(0, 10) | st.integers(0, 2**63 - 1)
)
positions = numbers | st.sampled_from([AT_TIMESTAMP, TRIM_HORIZON, LATEST, SHARD_END])


def test_the_sentinels_sort_around_the_numbers() -> None:
    lowest = ExtendedSequenceNumber("0")
    highest = ExtendedSequenceNumber("9" * 129, 2**63 - 1)
    shuffled = [highest, SHARD_END, LATEST, lowest, AT_TIMESTAMP, TRIM_HORIZON]
    assert sorted(shuffled) == [AT_TIMESTAMP, TRIM_HORIZON, LATEST, lowest, highest, SHARD_END]


@pytest.mark.parametrize(
    ("lower", "higher"),
    [
        (ExtendedSequenceNumber("9"), ExtendedSequenceNumber("10")),
        (ExtendedSequenceNumber("9", 500), ExtendedSequenceNumber("10", 0)),
        (ExtendedSequenceNumber("10", 0), ExtendedSequenceNumber("10", 1)),
    ],
)
def test_numbers_sort_by_value_then_by_sub_sequence_number(
    lower: ExtendedSequenceNumber, higher: ExtendedSequenceNumber
) -> None:
    assert lower < higher
    assert lower <= higher
    assert higher > lower
    assert higher >= lower
    assert lower != higher


@given(positions, positions)
def test_exactly_one_of_less_equal_greater_holds(
    one: ExtendedSequenceNumber, two: ExtendedSequenceNumber
) -> None:
    assert [one < two, one == two, one > two].count(True) == 1
    assert (one <= two) == (not one > two)


@given(positions, positions, positions)
def test_the_order_is_transitive(
    one: ExtendedSequenceNumber, two: ExtendedSequenceNumber, three: ExtendedSequenceNumber
) -> None:
    low, middle, high = sorted([one, two, three])
    assert low <= middle <= high
    assert low <= high


@given(numbers, numbers)
def test_numbers_sort_as_pairs_of_integers(one: ExtendedSequenceNumber, two: ExtendedSequenceNumber) -> None:
    pairs = [(int(each.sequence_number), each.sub_sequence_number) for each in (one, two)]
    assert (one < two) == (pairs[0] < pairs[1])


def test_leading_zeros_do_not_count() -> None:
    padded, plain = ExtendedSequenceNumber("007", 1), ExtendedSequenceNumber("7", 1)
    assert padded == plain
    assert len({padded, plain}) == 1


def test_the_sub_sequence_number_of_a_sentinel_does_not_count() -> None:
    assert ExtendedSequenceNumber("TRIM_HORIZON", 5) == TRIM_HORIZON
    assert hash(ExtendedSequenceNumber("TRIM_HORIZON", 5)) == hash(TRIM_HORIZON)


def test_a_position_is_equal_to_nothing_else() -> None:
    other: object = "7"
    assert ExtendedSequenceNumber("7") != other


def test_a_position_cannot_be_compared_with_anything_else() -> None:
    other: object = "7"
    with pytest.raises(TypeError):
        _ = ExtendedSequenceNumber("7") < other


@pytest.mark.parametrize(
    "text",
    ["", " 7", "-7", "+7", "7.0", "1e3", "0x7", "1_000", "²", "\u0667", "trim_horizon", "END", "9" * 5_000],
)
def test_a_sequence_number_that_is_neither_digits_nor_a_sentinel_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"neither a sequence number nor a sentinel|digits"):
        ExtendedSequenceNumber(text)


def test_the_error_does_not_repeat_a_long_text() -> None:
    with pytest.raises(ValueError, match="neither") as caught:
        ExtendedSequenceNumber("x" * 100_000)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("text", ["7", "TRIM_HORIZON"])
def test_a_negative_sub_sequence_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must not be negative: -1"):
        ExtendedSequenceNumber(text, -1)


@pytest.mark.parametrize(
    ("position", "is_sentinel", "is_shard_end"),
    [
        (ExtendedSequenceNumber("7"), False, False),
        (AT_TIMESTAMP, True, False),
        (TRIM_HORIZON, True, False),
        (LATEST, True, False),
        (SHARD_END, True, True),
    ],
)
def test_a_sequence_number_knows_whether_it_is_a_sentinel_and_the_shard_end(
    position: ExtendedSequenceNumber, is_sentinel: bool, is_shard_end: bool
) -> None:
    assert position.is_sentinel is is_sentinel
    assert position.is_shard_end is is_shard_end


@pytest.mark.parametrize(
    ("position", "text"),
    [
        (ExtendedSequenceNumber("7"), "7"),
        (ExtendedSequenceNumber("7", 2), "7/2"),
        (SHARD_END, "SHARD_END"),
    ],
)
def test_a_sequence_number_is_written_as_text(position: ExtendedSequenceNumber, text: str) -> None:
    assert str(position) == text


@pytest.mark.parametrize("sentinel", list(Sentinel))
def test_a_sentinel_is_its_wire_literal(sentinel: Sentinel) -> None:
    assert sentinel == sentinel.name
    assert ExtendedSequenceNumber(sentinel) == ExtendedSequenceNumber(sentinel.name)
