"""Java's random numbers, shuffle and string order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.migrations.kcl2_rules import java_order, java_random, shuffled

SHUFFLED = {
    0: [],
    1: [0],
    2: [0, 1],
    3: [2, 0, 1],
    4: [3, 0, 1, 2],
    5: [4, 0, 2, 1, 3],
    6: [2, 3, 5, 4, 0, 1],
    7: [2, 4, 3, 5, 0, 6, 1],
    12: [9, 4, 8, 2, 0, 11, 6, 10, 1, 5, 3, 7],
}

# One generator for each row. 16 and 2**30 are powers of two; 2**31 - 1 is the largest int; at 2**30 + 1 nearly half of
# all draws fall into the incomplete stretch and are made again.
BOUNDS = (10, 7, 16, 1000, 1, 2147483647, 1073741824, 1073741825)
DRAWN = {
    0: (0, 2, 3, 447, 0, 663681053, 591027245, 251269761),
    1: (5, 4, 6, 313, 0, 77814904, 357252217, 13136569),
    1947: (3, 1, 0, 169, 0, 1033571118, 747883780, 995805700),
    42: (0, 5, 10, 884, 0, 2023087525, 297510752, 196118093),
    -1: (3, 6, 0, 439, 0, 1290198438, 447147238, 857465478),
}


@pytest.mark.parametrize("size", SHUFFLED)
def test_the_shuffle_of_the_election_is_javas(size: int) -> None:
    assert shuffled(range(size), 1947) == SHUFFLED[size]


@pytest.mark.parametrize("seed", DRAWN)
def test_numbers_below_a_bound_are_javas(seed: int) -> None:
    chance = java_random(seed)
    assert tuple(chance(bound) for bound in BOUNDS) == DRAWN[seed]


def test_the_first_number_follows_from_the_definition() -> None:
    # Seed 0: state 0x5DEECE66D, times the multiplier plus 11, the upper 31 of 48 bits, modulo 10.
    state = (0x5DEECE66D * 0x5DEECE66D + 0xB) % 2**48
    assert (state // 2**17) % 10 == java_random(0)(10) == 0
    assert (1000 * (state // 2**17)) // 2**31 != java_random(0)(1000)  # only powers of two are scaled


@pytest.mark.parametrize(
    ("seed", "drawn"),
    [
        (0, (516548029, 586288564, 653015632)),
        (2, (630021372, 8925067, 351090506)),
        (42, (117392763, 102948884, 662969970)),
    ],
)
def test_a_stretch_that_lacks_a_single_number_is_not_used(seed: int, drawn: tuple[int, ...]) -> None:
    # Three times this bound is 2**31 + 1: a third of all draws is made again.
    chance = java_random(seed)
    assert tuple(chance(715827883) for _ in drawn) == drawn


def test_only_the_lower_48_bits_of_a_seed_count() -> None:
    assert java_random(-1)(1000) == java_random(2**48 - 1)(1000)


@pytest.mark.parametrize("bound", [0, -1, 2**31])
def test_a_bound_that_is_no_positive_int_is_refused(bound: int) -> None:
    with pytest.raises(ValueError, match=str(bound)):
        java_random(0)(bound)


@given(seed=st.integers(-(2**63), 2**63 - 1), bound=st.integers(1, 2**31 - 1))
def test_numbers_stay_below_their_bound(seed: int, bound: int) -> None:
    assert 0 <= java_random(seed)(bound) < bound


@given(items=st.lists(st.integers()), seed=st.integers())
def test_a_shuffle_loses_and_adds_nothing(items: list[int], seed: int) -> None:
    before = list(items)
    assert sorted(shuffled(items, seed)) == sorted(items)
    assert items == before


def test_texts_are_ordered_by_utf16_code_units() -> None:
    # By code points U+FFFD would come before U+1F600, whose first unit is 0xD83D.
    assert java_order(["\ufffd", "\U0001f600", "a", "B", "ab", ""]) == [
        "",
        "B",
        "a",
        "ab",
        "\U0001f600",
        "\ufffd",
    ]


def test_a_lone_surrogate_has_its_place() -> None:
    assert java_order(["\ue000", "\ud800"]) == ["\ud800", "\ue000"]
