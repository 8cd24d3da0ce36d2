"""Conditions and updates as DynamoDB writes them: `kcl_daemon.aws.dynamodb`."""

from __future__ import annotations

import pytest

from kcl_daemon.aws.dynamodb import Placeholders, check_key, condition_expression, update_expression
from kcl_daemon.errors import InvalidRequest
from kcl_daemon.leases.row import Absent, Equals, Present, RowUpdate

KEY = "leaseKey"


def test_an_update_is_one_expression_of_placeholders() -> None:
    placeholders = Placeholders()
    update = RowUpdate(
        "k", put={"leaseOwner": "w-2", "size": 1}, add={"leaseCounter": 1}, remove=frozenset({"b", "a"})
    )
    expression = update_expression(update, placeholders, key_attribute=KEY)
    assert expression == "SET #0 = :0, #1 = :1 ADD #2 :2 REMOVE #3, #4"
    assert placeholders.names == {
        "#0": "leaseOwner",
        "#1": "size",
        "#2": "leaseCounter",
        "#3": "a",
        "#4": "b",
    }
    assert placeholders.values == {":0": {"S": "w-2"}, ":1": {"N": "1"}, ":2": {"N": "1"}}


@pytest.mark.parametrize(
    ("update", "expression"),
    [
        (RowUpdate("k"), ""),
        (RowUpdate("k", put={"a": 1}), "SET #0 = :0"),
        (RowUpdate("k", add={"a": 1}), "ADD #0 :0"),
        (RowUpdate("k", remove=frozenset({"a"})), "REMOVE #0"),
    ],
)
def test_an_update_expression_has_only_the_clauses_it_needs(update: RowUpdate, expression: str) -> None:
    assert update_expression(update, Placeholders(), key_attribute=KEY) == expression


def test_all_conditions_must_hold() -> None:
    placeholders = Placeholders()
    require = (Equals("leaseCounter", 3), Absent("checkpointOwner"), Present(KEY))
    expression = condition_expression(require, placeholders)
    assert expression == "#0 = :0 AND attribute_not_exists(#1) AND attribute_exists(#2)"
    assert placeholders.names == {"#0": "leaseCounter", "#1": "checkpointOwner", "#2": KEY}
    assert placeholders.values == {":0": {"N": "3"}}


def test_no_conditions_are_no_expression() -> None:
    placeholders = Placeholders()
    assert condition_expression((), placeholders) == ""
    assert (placeholders.names, placeholders.values) == ({}, {})


def test_an_attribute_has_one_placeholder_in_a_whole_request() -> None:
    placeholders = Placeholders()
    update = RowUpdate("k", put={"a": 2}, require=(Equals("a", 1), Present("a")))
    assert update_expression(update, placeholders, key_attribute=KEY) == "SET #0 = :0"
    assert condition_expression(update.require, placeholders) == "#0 = :1 AND attribute_exists(#0)"
    assert placeholders.names == {"#0": "a"}


@pytest.mark.parametrize(
    ("update", "words"),
    [
        (RowUpdate("k", put={"a": 1}, add={"a": 1}), "a is changed twice"),
        (RowUpdate("k", add={"a": 1}, remove=frozenset({"a"})), "a is changed twice"),
        (RowUpdate("k", put={KEY: "k"}), "leaseKey is the key"),
        (RowUpdate("", put={"a": 1}), "leaseKey must be a text"),
    ],
)
def test_contradictions_are_refused_with_the_attribute(update: RowUpdate, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        update_expression(update, Placeholders(), key_attribute=KEY)


@pytest.mark.parametrize("key", [None, 7, b"k", ""])
def test_a_key_is_a_text(key: object) -> None:
    with pytest.raises(InvalidRequest, match=KEY):
        check_key(key, key_attribute=KEY)
