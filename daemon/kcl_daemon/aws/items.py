"""Rows, conditions and updates as DynamoDB attributes and expressions.

Must agree with `kcl_daemon.leases.row`.

Attributes of foreign types (NULL, BOOL, NS, BS) are left out of rows read and stay in the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Final, assert_never, cast

from kcl_daemon.errors import InvalidRequest
from kcl_daemon.leases.row import Absent, Condition, Conditions, Equals, Present, Row, RowUpdate, Value

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.type_defs import AttributeValueTypeDef


_DIGITS_MAX: Final = 38
_EXPONENT_MAX: Final = 125
_EXPONENT_MIN: Final = -130


def encode_row(row: Row) -> dict[str, AttributeValueTypeDef]:
    """Raise InvalidRequest, which names the attribute, if DynamoDB cannot store the row."""
    return {name: encode(value, name) for name, value in row.items()}


def encode(value: Value, where: str) -> AttributeValueTypeDef:
    """`where` names the value in errors, as in `encode_row`."""
    match value:
        case str():
            return {"S": value}
        case int() | Decimal():
            return {"N": number_text(value, where)}
        case bytes():
            return {"B": value}
        case frozenset():
            if not value:
                raise InvalidRequest(f"{where}: a set must not be empty; remove the attribute instead")
            return {"SS": sorted(value)}
        case tuple():
            return {"L": [encode(each, f"{where}[{index}]") for index, each in enumerate(value)]}
        case Mapping():
            return {"M": {name: encode(each, f"{where}.{name}") for name, each in value.items()}}
        case _:
            assert_never(value)


def decode_row(item: Mapping[str, AttributeValueTypeDef]) -> dict[str, Value]:
    return {name: value for name, attribute in item.items() for value in decode(attribute)}


def decode(attribute: AttributeValueTypeDef) -> Iterator[Value]:
    """Yield nothing if the type is foreign."""
    match cast("Mapping[str, object]", attribute):
        case {"S": str(text)}:
            yield text
        case {"N": str(text)}:
            yield number(Decimal(text))
        case {"B": bytes(data)}:
            yield data
        case {"SS": list(texts)}:
            yield frozenset(cast("list[str]", texts))
        case {"L": list(attributes)}:
            nested = cast("list[AttributeValueTypeDef]", attributes)
            yield tuple(value for each in nested for value in decode(each))
        case {"M": dict(item)}:
            yield decode_row(cast("dict[str, AttributeValueTypeDef]", item))
        case _:
            return


def number(value: int | Decimal) -> int | Decimal:
    """Return an int if the number is whole, else a Decimal."""
    return int(value) if isinstance(value, int) or value == value.to_integral_value() else value


def number_text(value: int | Decimal, where: str) -> str:
    """Whole numbers become plain digits: KCL reads counters as Java longs.

    Raises:
        InvalidRequest: it is a bool, no number, or beyond DynamoDB's precision or range.
    """
    if isinstance(value, bool):
        raise InvalidRequest(f"{where}: rows cannot hold a bool")
    exact = Decimal(value)
    if not exact.is_finite():
        raise InvalidRequest(f"{where}: {value} is no number")
    digits = "".join(map(str, exact.as_tuple().digits)).strip("0")
    if len(digits) > _DIGITS_MAX:
        raise InvalidRequest(f"{where}: {value} has more than {_DIGITS_MAX} digits")
    if digits and not _EXPONENT_MIN <= exact.adjusted() <= _EXPONENT_MAX:
        raise InvalidRequest(f"{where}: {value} is too large or too small")
    return format(exact, "f")


@dataclass(slots=True)
class Placeholders:
    """Names such as `#0` and values such as `:0` of one request."""

    names: dict[str, str] = field(default_factory=dict[str, str])
    values: dict[str, AttributeValueTypeDef] = field(default_factory=dict[str, "AttributeValueTypeDef"])
    _by_attribute: dict[str, str] = field(default_factory=dict[str, str])

    def name(self, attribute: str) -> str:
        placeholder = self._by_attribute.setdefault(attribute, f"#{len(self.names)}")
        self.names[placeholder] = attribute
        return placeholder

    def value(self, attribute: str, value: Value) -> str:
        return self._keep(encode(value, attribute))

    def amount(self, attribute: str, amount: int) -> str:
        return self._keep({"N": number_text(amount, attribute)})

    def _keep(self, encoded: AttributeValueTypeDef) -> str:
        placeholder = f":{len(self.values)}"
        self.values[placeholder] = encoded
        return placeholder


def condition_expression(require: Conditions, placeholders: Placeholders) -> str:
    return " AND ".join(_condition(condition, placeholders) for condition in require)


def update_expression(update: RowUpdate, placeholders: Placeholders, *, key_attribute: str) -> str:
    """Empty if there are no changes. Errors as `check_update` and `encode`."""
    check_update(update, key_attribute=key_attribute)
    name, value, amount = placeholders.name, placeholders.value, placeholders.amount
    clauses = (
        ("SET", [f"{name(attribute)} = {value(attribute, new)}" for attribute, new in update.put.items()]),
        ("ADD", [f"{name(attribute)} {amount(attribute, by)}" for attribute, by in update.add.items()]),
        ("REMOVE", [name(attribute) for attribute in sorted(update.remove)]),
    )
    return " ".join(f"{keyword} {', '.join(parts)}" for keyword, parts in clauses if parts)


def check_update(update: RowUpdate, *, key_attribute: str) -> None:
    """Raise InvalidRequest if an attribute changes twice, the key changes, or the key is missing."""
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
    """Raise InvalidRequest if the key is no text or empty."""
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
