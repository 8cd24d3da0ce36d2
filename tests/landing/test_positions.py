"""Positions of records that were packed into one: their place in it is part of the position, also in texts."""

from __future__ import annotations

import pytest

from kcl_landing.positions import START, from_text, position, to_text


@pytest.mark.parametrize(
    ("sequence_number", "sub_sequence_number", "expected"),
    [
        ("49", 3, (49, 3)),
        ("49", 0, (49, 0)),
        ("49", None, (49, 0)),
        ("TRIM_HORIZON", 3, START),
        (None, 3, START),
        ("\u0664\u0669", 3, START),
    ],
)
def test_a_record_inside_another_has_its_place(
    sequence_number: str | None, sub_sequence_number: int | None, expected: tuple[int, int]
) -> None:
    assert position(sequence_number, sub_sequence_number) == expected


@pytest.mark.parametrize("where", [(49, 3), (49, 0), START])
def test_a_position_is_read_as_it_was_written(where: tuple[int, int]) -> None:
    assert from_text(to_text(where)) == where
    assert from_text(to_text(where, "."), ".") == where


def test_the_text_is_the_sequence_number_and_the_place_in_it() -> None:
    assert (to_text((49, 3)), to_text((49, 3), "-")) == ("49/3", "49-3")


def test_positions_are_ordered_as_in_the_shard() -> None:
    assert START < position("0", 0) < position("0", 1) < position("9", 0) < position("10", 0)
