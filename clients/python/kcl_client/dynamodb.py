"""Changes of a DynamoDB table, made of records in any `childRecordFormat`. Needs boto3, which comes with kcl-daemon."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, Literal, cast

from boto3.dynamodb.types import DYNAMODB_CONTEXT, Binary, TypeDeserializer

from kcl_client._processor import Record

__all__ = ["Change", "Item", "Kind", "changes"]

Item = Mapping[str, Any]
"""Attributes as boto3's resources have them: Decimal, `boto3.dynamodb.types.Binary`, set ..."""
Kind = Literal["insert", "modify", "remove", "snapshot"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EXPIRY: Final = {"principalId": "dynamodb.amazonaws.com", "type": "Service"}


class _Deserializer(TypeDeserializer):
    """In JSON binary values are base64."""

    def _deserialize_b(self, value: str) -> Binary:
        return Binary(b64decode(value))


_deserialize: Final = _Deserializer().deserialize


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one item.

    Args:
        kind: `snapshot` only in the form `plain`; in the others an item of a snapshot is an `insert`.
        keys: the item's key attributes.
        new, old: the item afterwards and before; None if there was none, or the stream has no such images.
        table: None in the form `kcl1`, which does not have it.
        created_at: in UTC, about.
        is_expiry: DynamoDB itself removed the item because its time to live was over.
        record: for `Batch.reject` and `Checkpointer.checkpoint`.
    """

    kind: Kind
    keys: Item
    new: Item | None
    old: Item | None
    table: str | None
    sequence_number: str
    created_at: datetime | None
    is_expiry: bool
    record: Record = field(repr=False, compare=False)

    @classmethod
    def of(cls, record: Record) -> Change:
        """ValueError if the data is no change of a table."""
        try:
            shape: dict[str, Any] = json.loads(record.data, parse_int=_number, parse_float=_number)
            return _of_event(record, shape) if "dynamodb" in shape else _of_plain(record, shape)
        except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
            raise ValueError(
                f"record {record.position} is no change of a DynamoDB table: {error!r:.200}"
            ) from error


def changes(records: Iterable[Record]) -> Iterator[Change]:
    """In order; ValueError as `Change.of`."""
    return map(Change.of, records)


def _of_event(record: Record, shape: Mapping[str, Any]) -> Change:
    change, arn = shape["dynamodb"], shape.get("eventSourceARN")
    moment = change.get("ApproximateCreationDateTime")
    identity = shape.get("userIdentity") or {}
    return Change(
        cast("Kind", shape["eventName"].lower()),
        _item(change["Keys"]),
        _image(change.get("NewImage")),
        _image(change.get("OldImage")),
        None if arn is None else arn.split("/")[1],
        change["SequenceNumber"],
        _time(moment if arn is None or moment is None else moment * 1000),  # kcl1 has milliseconds
        all(identity.get(name) == value for name, value in _EXPIRY.items()),
        record,
    )


def _of_plain(record: Record, shape: Mapping[str, Any]) -> Change:
    return Change(
        shape["kind"],
        _plain_item(shape["keys"]),
        _plain_item(shape["new"]) if "new" in shape else None,
        _plain_item(shape["old"]) if "old" in shape else None,
        shape["table"],
        shape["sequenceNumber"],
        _time(shape["createdAt"]),
        shape.get("expired", False),
        record,
    )


def _number(text: str) -> Decimal:
    return DYNAMODB_CONTEXT.create_decimal(text)


def _time(moment_ms: Decimal | None) -> datetime | None:
    return None if moment_ms is None else _EPOCH + timedelta(milliseconds=float(moment_ms))


def _item(attributes: Mapping[str, Any]) -> Item:
    return {name: _deserialize(value) for name, value in attributes.items()}


def _image(attributes: Mapping[str, Any] | None) -> Item | None:
    return None if attributes is None else _item(attributes)


def _plain_item(attributes: Mapping[str, Any]) -> Item:
    return {name: _of_json(value) for name, value in attributes.items()}


def _of_json(value: Any) -> Any:
    if isinstance(value, list):
        return list(map(_of_json, value))
    if not isinstance(value, dict):
        return value
    name, inner = next(iter(value.items()), ("", None))
    return _OURS[name](inner) if len(value) == 1 and name in _OURS else _plain_item(value)


_OURS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "$binary": lambda text: _deserialize({"B": text}),
    "$map": _plain_item,
    "$number": lambda text: _deserialize({"N": text}),
    "$other": _deserialize,
    "$set": lambda values: set(map(_of_json, values)),
}
