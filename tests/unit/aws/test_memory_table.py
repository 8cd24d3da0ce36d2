"""What the table in memory has beyond the port: an index that may lag, and rows that nobody can change."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import cast

import pytest

from kcl_daemon.errors import InvalidRequest
from kcl_daemon.leases.row import RowUpdate, Value
from tests.simulator.loop import at_once
from tests.simulator.memory.table import MemoryTable


def made(changes: list[Callable[[], None]]) -> MemoryTable:
    table = MemoryTable("app", "leaseKey", True, defer_index=changes.append)
    at_once(table.ensure())
    return table


def test_the_index_shows_a_write_only_after_its_delay() -> None:
    changes: list[Callable[[], None]] = []
    table = made(changes)
    at_once(table.put({"leaseKey": "k", "leaseOwner": "w-1"}))
    assert at_once(table.owned_keys("w-1")) == []
    changes.pop()()
    assert at_once(table.owned_keys("w-1")) == ["k"]


def test_changes_in_the_wrong_order_do_not_bring_the_past_back() -> None:
    changes: list[Callable[[], None]] = []
    table = made(changes)
    at_once(table.put({"leaseKey": "k", "leaseOwner": "w-1"}))
    at_once(table.update(RowUpdate("k", put={"leaseOwner": "w-2"})))
    at_once(table.delete("k"))
    first, second, third = changes
    second()
    assert at_once(table.owned_keys("w-2")) == ["k"]
    first()
    assert at_once(table.owned_keys("w-1")) == []
    third()
    second()
    assert at_once(table.owned_keys("w-2")) == []


def test_rows_cannot_be_changed_from_outside() -> None:
    table = made([])
    nested: dict[str, Value] = {"C": (1,)}
    at_once(table.put({"leaseKey": "k", "map": nested}))
    row = cast("MutableMapping[str, Value]", at_once(table.get("k")))
    with pytest.raises(TypeError):
        row["leaseKey"] = "other"
    with pytest.raises(TypeError):
        cast("MutableMapping[str, Value]", row["map"])["C"] = ()


def test_an_update_without_changes_creates_the_row() -> None:
    table = made([])
    assert at_once(table.update(RowUpdate("k"))).row == {"leaseKey": "k"}


def test_a_refused_addition_leaves_the_row_alone() -> None:
    table = made([])
    at_once(table.put({"leaseKey": "k", "t": "text"}))
    with pytest.raises(InvalidRequest, match="t of row k is no number"):
        at_once(table.update(RowUpdate("k", put={"a": 1}, add={"t": 1})))
    assert at_once(table.get("k")) == {"leaseKey": "k", "t": "text"}
