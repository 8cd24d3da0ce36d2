"""Row values and DynamoDB attributes: `kcl_daemon.aws.dynamodb`."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kcl_daemon.aws.dynamodb import decode, decode_row, encode, encode_row, number_text
from kcl_daemon.errors import InvalidRequest
from kcl_daemon.leases.row import Value

numbers: st.SearchStrategy[Value] = st.one_of(
    st.integers(-(10**38) + 1, 10**38 - 1),
    st.decimals(-(10**9), 10**9, places=6),
)
leaves: st.SearchStrategy[Value] = st.one_of(
    st.text(), st.binary(), numbers, st.frozensets(st.text(), min_size=1)
)
values: st.SearchStrategy[Value] = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple), st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_leaves=8,
)


def integral_as_int(value: Value) -> bool:
    """Whether no Decimal in it is whole."""
    match value:
        case Decimal():
            return value != value.to_integral_value()
        case tuple():
            return all(map(integral_as_int, value))
        case Mapping():
            return all(map(integral_as_int, value.values()))
        case _:
            return True


@given(values)
def test_every_value_comes_back_equal(value: Value) -> None:
    (decoded,) = decode(encode(value, "v"))
    assert decoded == value
    assert integral_as_int(decoded)


@pytest.mark.parametrize(
    ("value", "attribute"),
    [
        ("x", {"S": "x"}),
        (7, {"N": "7"}),
        (Decimal("17.250000"), {"N": "17.250000"}),
        (Decimal("1E+3"), {"N": "1000"}),
        (Decimal("1E-7"), {"N": "0.0000001"}),
        (b"x", {"B": b"x"}),
        (frozenset({"b", "a"}), {"SS": ["a", "b"]}),
        ((1, "x"), {"L": [{"N": "1"}, {"S": "x"}]}),
        ({"C": (Decimal("0.5"),)}, {"M": {"C": {"L": [{"N": "0.5"}]}}}),
    ],
)
def test_values_are_written_by_their_types(value: Value, attribute: dict[str, object]) -> None:
    assert encode(value, "v") == attribute
    assert encode_row({"v": value}) == {"v": attribute}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10", 10),
        ("10.0", 10),
        ("1E+2", 100),
        ("-0", 0),
        ("0.5", Decimal("0.5")),
        ("340282366920938463463374607431768211455", 2**128 - 1),
    ],
)
def test_numbers_are_read_as_int_where_they_are_whole(text: str, expected: int | Decimal) -> None:
    (found,) = decode({"N": text})
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    "number",
    [
        True,
        Decimal("NaN"),
        Decimal("Infinity"),
        10**126,
        Decimal("1E-131"),
        10**38 + 1,
        Decimal("0." + "1" * 39),
    ],
)
def test_numbers_that_dynamodb_does_not_keep_are_refused_by_name(number: int | Decimal) -> None:
    with pytest.raises(InvalidRequest, match="leaseCounter"):
        number_text(number, "leaseCounter")


@pytest.mark.parametrize("number", [0, 10**125, Decimal("1E-130"), int("9" * 38), Decimal("0E-200")])
def test_numbers_that_dynamodb_keeps_are_written(number: int | Decimal) -> None:
    assert Decimal(number_text(number, "n")) == number


def test_an_empty_set_is_refused_where_it_is() -> None:
    with pytest.raises(InvalidRequest, match=r"a\.b\[1\]"):
        encode_row({"a": {"b": (1, frozenset[str]())}})


@pytest.mark.parametrize("attribute", [{"NULL": True}, {"BOOL": True}, {"NS": ["1"]}, {"BS": [b"x"]}, {}])
def test_foreign_types_are_left_out(attribute: Any) -> None:
    item: Any = {
        "known": {"S": "x"},
        "foreign": attribute,
        "nested": {"M": {"f": attribute, "n": {"N": "1"}}},
    }
    assert decode_row(item) == {"known": "x", "nested": {"n": 1}}
    assert decode_row({"list": {"L": [attribute, {"N": "1"}]}}) == {"list": (1,)}
