"""What DynamoDB makes of conditions and updates, for rows in memory."""

from __future__ import annotations

from decimal import Decimal

from kcl_daemon.leases.row import Absent, Condition, Equals, Present, Row, RowUpdate, Value, WriteResult


def holds(condition: Condition, row: Row | None) -> bool:
    value = None if row is None else row.get(condition.attribute)
    match condition:
        case Equals(_, wanted):
            return value is not None and value == wanted
        case Absent():
            return value is None
        case Present():
            return value is not None


def apply_update(update: RowUpdate, row: Row | None, *, key_attribute: str) -> WriteResult:
    if not all(holds(condition, row) for condition in update.require):
        return WriteResult(applied=False, row=row)
    new: dict[str, Value] = {**(row or {}), **update.put, key_attribute: update.key}
    for name, amount in update.add.items():
        old = new.get(name, 0)
        if not isinstance(old, int | Decimal):
            raise TypeError(f"{name} of row {update.key} is no number: {old!r}")
        new[name] = old + amount
    for name in update.remove:
        new.pop(name, None)
    return WriteResult(applied=True, row=new)
