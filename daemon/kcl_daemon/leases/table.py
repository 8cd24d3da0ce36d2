"""Rows and conditional writes as plain values: what a loop decides and an adapter carries out.

A row maps attribute names to Python values that stand for DynamoDB types: str = S, int and Decimal = N, bytes = B,
frozenset of str = SS, tuple = L, dict = M. The rules of KCL's rows (`row`, `leader`, `stats`) are written in these
terms, so that the same decision runs against DynamoDB and in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TypeAlias

Value: TypeAlias = "str | int | Decimal | bytes | frozenset[str] | tuple[Value, ...] | Mapping[str, Value]"
Row: TypeAlias = Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Equals:
    """The attribute is there and has this value."""

    attribute: str
    value: Value


@dataclass(frozen=True, slots=True)
class Absent:
    """The attribute is not there."""

    attribute: str


@dataclass(frozen=True, slots=True)
class Present:
    """The attribute is there."""

    attribute: str


Condition = Equals | Absent | Present
Conditions = tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class RowUpdate:
    """One conditional UpdateItem: everything takes effect if all conditions hold, else nothing does.

    Args:
        key: value of the table's key attribute.
        put: attributes to set.
        add: attributes to raise by a number; an absent one counts as 0.
        remove: attributes to take away; an absent one is fine.
        require: all must hold for the row as it is, an absent row has no attributes. None at all: an upsert.
    """

    key: str
    put: Row = field(default_factory=dict[str, Value])
    add: Mapping[str, int] = field(default_factory=dict[str, int])
    remove: frozenset[str] = frozenset()
    require: Conditions = ()


@dataclass(frozen=True, slots=True)
class RowCheck:
    """Part of a transaction: a row must be so; it stays as it is."""

    key: str
    require: Conditions


@dataclass(frozen=True, slots=True)
class RowPut:
    """Part of a transaction: a whole row is written, over one for which all conditions hold."""

    row: Row
    require: Conditions = ()


@dataclass(frozen=True, slots=True)
class RowDelete:
    """Part of a transaction: a row for which all conditions hold is removed."""

    key: str
    require: Conditions = ()


RowPart: TypeAlias = RowCheck | RowPut | RowDelete


@dataclass(frozen=True, slots=True)
class Written:
    """What came of a conditional write.

    Args:
        applied: whether the conditions held and the write took effect.
        row: the row afterwards (None after a delete); where it was refused, the row that refused it (None: no row).
    """

    applied: bool
    row: Row | None


def holds(condition: Condition, row: Row | None) -> bool:
    """Whether a condition holds for a row; an absent row has no attributes."""
    value = None if row is None else row.get(condition.attribute)
    match condition:
        case Equals(_, wanted):
            return value is not None and value == wanted
        case Absent():
            return value is None
        case Present():
            return value is not None


def apply_update(update: RowUpdate, row: Row | None, *, key_attribute: str) -> Written:
    """The meaning of a `RowUpdate` on a row, as DynamoDB would carry it out."""
    if not all(holds(condition, row) for condition in update.require):
        return Written(applied=False, row=row)
    new: dict[str, Value] = {**(row or {}), **update.put, key_attribute: update.key}
    for name, amount in update.add.items():
        old = new.get(name, 0)
        if not isinstance(old, int | Decimal):
            raise TypeError(f"{name} of row {update.key} is no number: {old!r}")
        new[name] = old + amount
    for name in update.remove:
        new.pop(name, None)
    return Written(applied=True, row=new)
