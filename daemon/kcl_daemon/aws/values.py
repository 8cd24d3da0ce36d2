"""Row values as DynamoDB attributes and back, by the types of `kcl_daemon.leases.table`.

Pure: knows no SDK and no table. Attributes of other types (NULL, BOOL, NS, BS) are foreign: no rule of ours reads or
writes them, so they are left out of the rows read, wherever they are nested; what is in the table is not touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Final, assert_never, cast

from kcl_daemon.errors import InvalidRequest
from kcl_daemon.leases.table import Row, Value

if TYPE_CHECKING:
    from mypy_boto3_dynamodb.type_defs import AttributeValueTypeDef

_DIGITS_MAX: Final = 38
_EXPONENT_MAX: Final = 125
_EXPONENT_MIN: Final = -130


def encode_row(row: Row) -> dict[str, AttributeValueTypeDef]:
    """A row as an item.

    Raises:
        InvalidRequest: DynamoDB could not store it; the message names the attribute.
    """
    return {name: encode(value, name) for name, value in row.items()}


def encode(value: Value, where: str) -> AttributeValueTypeDef:
    """A value as an attribute; `where` names it in errors (InvalidRequest, as in `encode_row`)."""
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
    """An item as a row, foreign types left out."""
    return {name: value for name, attribute in item.items() for value in decode(attribute)}


def decode(attribute: AttributeValueTypeDef) -> Iterator[Value]:
    """The value of an attribute; nothing where its type is foreign."""
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
    """A number in the form in which rows are read: int where it is whole, else Decimal."""
    return int(value) if isinstance(value, int) or value == value.to_integral_value() else value


def number_text(value: int | Decimal, where: str) -> str:
    """A number as DynamoDB takes it, plain digits where it is whole (KCL reads counters as Java longs).

    Raises:
        InvalidRequest: it is a bool or no number, or has more digits or a greater size than DynamoDB keeps.
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
