"""The meaning of conditional writes on rows."""

from __future__ import annotations

import pytest

from kcl_daemon.leases.row import Absent, Equals, Present, Row, RowUpdate
from tests.simulator.memory.updates import apply_update, holds


def test_conditions_on_a_row_and_on_no_row() -> None:
    row: Row = {"k": "1", "n": 3}
    assert holds(Equals("n", 3), row)
    assert not holds(Equals("n", 4), row)
    assert holds(Present("n"), row)
    assert not holds(Present("m"), row)
    assert holds(Absent("m"), row)
    assert holds(Absent("k"), None)
    assert not holds(Equals("k", "1"), None)
    assert not holds(Present("k"), None)


def test_an_update_without_conditions_creates_the_row() -> None:
    outcome = apply_update(RowUpdate("x", put={"a": "b"}, add={"n": 2}), None, key_attribute="k")
    assert outcome.applied
    assert outcome.row == {"k": "x", "a": "b", "n": 2}


def test_a_refused_update_gives_the_row_that_refused_it_unchanged() -> None:
    row: Row = {"k": "x", "n": 1}
    outcome = apply_update(RowUpdate("x", add={"n": 1}, require=(Equals("n", 2),)), row, key_attribute="k")
    assert not outcome.applied
    assert outcome.row == {"k": "x", "n": 1}


def test_removing_what_is_not_there_is_fine() -> None:
    assert apply_update(RowUpdate("x", remove=frozenset({"z"})), {"k": "x"}, key_attribute="k").row == {
        "k": "x"
    }


def test_adding_to_text_is_a_fault_of_ours() -> None:
    with pytest.raises(TypeError, match="no number"):
        apply_update(RowUpdate("x", add={"a": 1}), {"k": "x", "a": "b"}, key_attribute="k")
