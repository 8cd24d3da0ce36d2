"""Conditions and updates of rows as DynamoDB expressions, every name and value by placeholder.

Pure: knows no SDK. Says the same as `kcl_daemon.leases.table.holds` and `apply_update`; the contract suite compares.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, assert_never

from kcl_daemon.aws.values import encode, number_text
from kcl_daemon.errors import InvalidRequest
from kcl_daemon.leases.table import Absent, Condition, Conditions, Equals, Present, RowUpdate, Value

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.type_defs import AttributeValueTypeDef


@dataclass(slots=True)
class Placeholders:
    """The names and values that the expressions of one request use.

    Attributes:
        names: attribute by placeholder, such as `#0`; each attribute has one.
        values: attribute value by placeholder, such as `:0`.
    """

    names: dict[str, str] = field(default_factory=dict[str, str])
    values: dict[str, AttributeValueTypeDef] = field(default_factory=dict[str, "AttributeValueTypeDef"])
    _by_attribute: dict[str, str] = field(default_factory=dict[str, str])

    def name(self, attribute: str) -> str:
        """The placeholder of an attribute's name."""
        placeholder = self._by_attribute.setdefault(attribute, f"#{len(self.names)}")
        self.names[placeholder] = attribute
        return placeholder

    def value(self, attribute: str, value: Value) -> str:
        """The placeholder of a value; the attribute is named in errors (InvalidRequest, as in `values.encode`)."""
        return self._keep(encode(value, attribute))

    def amount(self, attribute: str, amount: int) -> str:
        """The placeholder of what an attribute is raised by."""
        return self._keep({"N": number_text(amount, attribute)})

    def _keep(self, encoded: AttributeValueTypeDef) -> str:
        placeholder = f":{len(self.values)}"
        self.values[placeholder] = encoded
        return placeholder


def condition_expression(require: Conditions, placeholders: Placeholders) -> str:
    """All conditions as one expression, empty where there are none."""
    return " AND ".join(_condition(condition, placeholders) for condition in require)


def update_expression(update: RowUpdate, placeholders: Placeholders, *, key_attribute: str) -> str:
    """The changes as one expression, empty where there are none.

    Raises:
        InvalidRequest: as `check_update` or `values.encode`.
    """
    check_update(update, key_attribute=key_attribute)
    name, value, amount = placeholders.name, placeholders.value, placeholders.amount
    clauses = (
        ("SET", [f"{name(attribute)} = {value(attribute, new)}" for attribute, new in update.put.items()]),
        ("ADD", [f"{name(attribute)} {amount(attribute, by)}" for attribute, by in update.add.items()]),
        ("REMOVE", [name(attribute) for attribute in sorted(update.remove)]),
    )
    return " ".join(f"{keyword} {', '.join(parts)}" for keyword, parts in clauses if parts)


def check_update(update: RowUpdate, *, key_attribute: str) -> None:
    """Refuse what DynamoDB refuses whatever the row is.

    Raises:
        InvalidRequest: two changes of one attribute, a change of the key, or no key.
    """
    check_key(update.key, key_attribute=key_attribute)
    seen: set[str] = {key_attribute}
    for attribute in _changed(update):
        if attribute in seen:
            what = "is the key" if attribute == key_attribute else "is changed twice"
            raise InvalidRequest(
                f"row {update.key}: {attribute} {what} in one update", operation="UpdateItem"
            )
        seen.add(attribute)


def check_key(key: object, *, key_attribute: str) -> str:
    """The key of a row; InvalidRequest where it is no text or empty."""
    if not isinstance(key, str) or not key:
        raise InvalidRequest(f"{key_attribute} must be a text that is not empty, not {key!r:.80}")
    return key


def _changed(update: RowUpdate) -> Iterable[str]:
    yield from update.put
    yield from update.add
    yield from update.remove


def _condition(condition: Condition, placeholders: Placeholders) -> str:
    name = placeholders.name(condition.attribute)
    match condition:
        case Equals(attribute, value):
            return f"{name} = {placeholders.value(attribute, value)}"
        case Absent():
            return f"attribute_not_exists({name})"
        case Present():
            return f"attribute_exists({name})"
        case _:
            assert_never(condition)
