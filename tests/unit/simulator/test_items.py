"""The copy that a reader makes of a table's changes, where some of them are letters."""

from __future__ import annotations

import pytest

from tests.simulator.rules.deliveries import Incarnation
from tests.simulator.rules.items import Change, ItemRules
from tests.simulator.rules.truth import Truth

CHANGES = {10: Change("item", None, 1), 20: Change("item", 1, 2), 30: Change("item", 2, None)}


@pytest.mark.parametrize(
    ("letters", "expected"),
    [((10, 20), 2), ((20, 10), 2), ((10, 10), 1), ((20, 30, 10), None), ((20,), 2)],
)
def test_letters_that_are_stored_together_come_in_any_order(
    letters: tuple[int, ...], expected: int | None
) -> None:
    truth, rules = Truth(), ItemRules()
    truth.shard_created("shard", ())
    shard = truth.shards["shard"]
    for number in CHANGES:
        truth.record_written("shard", number, 0.0, "")
        rules.written("item", shard)
    for number in letters:
        rules.set_aside(shard, (number, 0), CHANGES[number])
    assert rules.copy["item"] == expected


def test_a_change_given_again_before_a_letter_is_older_than_the_letter() -> None:
    """A child failed at the second change, which became a letter; the next one is given the first change once more."""
    truth, rules = Truth(), ItemRules()
    truth.shard_created("shard", ())
    shard, child = truth.shards["shard"], Incarnation(1, "shard", "a", 0.0)
    for place, number in enumerate(CHANGES):
        truth.record_written("shard", number, 0.0, "")
        rules.written("item", shard)
        if number == 20:
            rules.set_aside(shard, (number, 0), CHANGES[number])
            shard.delivered(place)
            rules.delivered(child, shard, 0, CHANGES[10])
            shard.delivered(0)
            assert rules.copy["item"] == 2
        elif number == 30:
            rules.delivered(child, shard, place, CHANGES[number])
            assert rules.copy["item"] is None


def test_an_item_of_a_scan_has_no_place() -> None:
    rules = ItemRules()
    rules.set_aside(None, (7, 0), CHANGES[20])
    assert rules.copy["item"] == 2
