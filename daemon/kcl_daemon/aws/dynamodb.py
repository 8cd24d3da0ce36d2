"""Attributes of foreign types (NULL, BOOL, NS, BS) are not read, and stay in the table."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never, cast

import msgspec

from kcl_daemon.aws.access import CallLimiter, ConditionFailed, Item, TableLimiters, TransactionCancelled
from kcl_daemon.aws.tables import READY_WITHIN_S, TableAdmin, TableSpec
from kcl_daemon.errors import InvalidRequest, TableNotFound, Unavailable
from kcl_daemon.leases.row import (
    OWNER,
    OWNER_INDEX,
    Absent,
    Condition,
    Conditions,
    Equals,
    Present,
    Row,
    RowCheck,
    RowDelete,
    RowPut,
    RowUpdate,
    Value,
    WriteResult,
)
from kcl_daemon.ports import Clock, CommitResult, TablePart
from kcl_daemon.transport.caller import AwsJsonClient

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import (
        AttributeValueTypeDef,
        ConditionCheckTypeDef,
        DeleteItemInputTypeDef,
        DeleteTypeDef,
        PutItemInputTypeDef,
        PutTypeDef,
        QueryInputTypeDef,
        ScanInputTypeDef,
        TransactWriteItemTypeDef,
        UpdateItemInputTypeDef,
    )

    from kcl_daemon.errors import AwsError
    from kcl_daemon.transport.caller import ErrorResponse

    Write: TypeAlias = PutItemInputTypeDef | UpdateItemInputTypeDef | DeleteItemInputTypeDef
    Part: TypeAlias = ConditionCheckTypeDef | PutTypeDef | DeleteTypeDef


_DIGITS_MAX: Final = 38
_EXPONENT_MAX: Final = 125
_EXPONENT_MIN: Final = -130
_OPERATION: Final = "UpdateItem"
_CONDITION_FAILED: Final = "ConditionalCheckFailedException"
_NO_ANSWER: Final = "the answer has no Attributes"
# Other faults have the same code.
_INDEX_WORDS: Final = ("specified index", "global secondary index")
_TRANSACTIONS_OPERATION: Final = "TransactWriteItems"
MAX_PARTS: Final = 100


def encode_row(row: Row) -> dict[str, AttributeValueTypeDef]:
    """InvalidRequest names the attribute that DynamoDB cannot store."""
    return {name: encode(value, name) for name, value in row.items()}


def encode(value: Value, where: str) -> AttributeValueTypeDef:
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
    return int(value) if isinstance(value, int) or value == value.to_integral_value() else value


def number_text(value: int | Decimal, where: str) -> str:
    """Whole numbers become plain digits: KCL reads counters as Java longs.

    InvalidRequest if DynamoDB cannot store it.
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
    check_update(update, key_attribute=key_attribute)
    name, value, amount = placeholders.name, placeholders.value, placeholders.amount
    clauses = (
        ("SET", [f"{name(attribute)} = {value(attribute, new)}" for attribute, new in update.put.items()]),
        ("ADD", [f"{name(attribute)} {amount(attribute, by)}" for attribute, by in update.add.items()]),
        ("REMOVE", [name(attribute) for attribute in sorted(update.remove)]),
    )
    return " ".join(f"{keyword} {', '.join(parts)}" for keyword, parts in clauses if parts)


def check_update(update: RowUpdate, *, key_attribute: str) -> None:
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


UpdateItem: TypeAlias = "Callable[[UpdateItemInputTypeDef], Awaitable[Item]]"
"""Sent once; if it is cancelled or Unavailable, it may have taken effect."""


class _Answer(msgspec.Struct, gc=False):
    Attributes: dict[str, object] | None = None
    Item: dict[str, object] | None = None


_answers: Final = msgspec.json.Decoder(_Answer)


def http_update_item(caller: AwsJsonClient) -> UpdateItem:
    """Make `caller` with `condition_failed`."""

    async def update_item(request: UpdateItemInputTypeDef) -> Item:
        return await caller.call(_OPERATION, cast("Mapping[str, object]", request), _updated, once=True)

    return update_item


def condition_failed(refusal: ErrorResponse, operation: str) -> AwsError | None:
    if refusal.code != _CONDITION_FAILED:
        return None
    try:
        raw = _answers.decode(refusal.body).Item
        return ConditionFailed(operation, None if raw is None else _item(raw))
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError):
        return ConditionFailed(operation, None)


def _updated(body: bytearray) -> Item:
    try:
        raw = _answers.decode(body).Attributes
        if raw is not None:
            return _item(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError) as error:
        raise Unavailable(f"the answer cannot be read: {error}", operation=_OPERATION) from error
    raise Unavailable(_NO_ANSWER, operation=_OPERATION)


def _item(raw: Mapping[str, object]) -> Item:
    """JSON has bytes as base64; the SDK decodes them."""
    return cast("Item", {name: _attribute(value) for name, value in raw.items()})


def _attribute(raw: object) -> object:
    match raw:
        case {"B": str(text)}:
            return {"B": b64decode(text, validate=True)}
        case {"L": list(values)}:
            return {"L": [_attribute(each) for each in cast("list[object]", values)]}
        case {"M": dict(item)}:
            return {"M": _item(cast("dict[str, object]", item))}
        case _:
            return raw


class DynamoTable(TableAdmin):
    def __init__(
        self,
        spec: TableSpec,
        client: DynamoDBClient,
        limiters: TableLimiters,
        *,
        clock: Clock,
        ready_within_s: float = READY_WITHIN_S,
        update_item: UpdateItem | None = None,
    ) -> None:
        super().__init__(spec, client, limiters, clock=clock, ready_within_s=ready_within_s)
        self._update_item = update_item or self._update_by_sdk

    @property
    def name(self) -> str:
        return self._spec.name

    @property
    def key_attribute(self) -> str:
        return self._spec.key_attribute

    async def get(self, key: str) -> Row | None:
        call = partial(self._client.get_item, TableName=self.name, Key=self._key(key), ConsistentRead=True)
        answer = await self._limiters.reads.run("GetItem", call)
        item = answer.get("Item")
        return None if item is None else decode_row(item)

    async def scan(self) -> list[Row]:
        """One call per page, so that other calls run in between."""
        rows: list[Row] = []
        request: ScanInputTypeDef = {"TableName": self.name}
        while True:
            answer = await self._limiters.reads.run("Scan", partial(self._client.scan, **request))
            if "Items" not in answer:
                raise Unavailable("the answer has no Items", operation="Scan")
            rows.extend(map(decode_row, answer["Items"]))
            last_key = answer.get("LastEvaluatedKey")
            if not last_key:
                return rows
            request["ExclusiveStartKey"] = last_key

    async def owned_keys(self, owner: str) -> list[str]:
        """TableNotFound if the index is missing or unfinished."""
        if not self._spec.has_owner_index:
            raise TableNotFound(f"table {self.name} has no index by owner", operation="Query")
        keys: list[str] = []
        request: QueryInputTypeDef = {
            "TableName": self.name,
            "IndexName": OWNER_INDEX,
            "KeyConditionExpression": "#owner = :owner",
            "ExpressionAttributeNames": {"#owner": OWNER},
            "ExpressionAttributeValues": {":owner": {"S": owner}},
        }
        while True:
            items, last_key = await self._query(request)
            keys.extend(str(row[self.key_attribute]) for row in map(decode_row, items))
            if not last_key:
                return keys
            request["ExclusiveStartKey"] = last_key

    async def put(self, row: Row, require: Conditions = ()) -> WriteResult:
        key = check_key(row.get(self.key_attribute), key_attribute=self.key_attribute)
        item, placeholders = encode_row(row), Placeholders()
        request: PutItemInputTypeDef = {"TableName": self.name, "Item": item}
        _complete(request, require, placeholders)
        try:
            await self._limiters.writes.run("PutItem", partial(self._client.put_item, **request))
        except ConditionFailed as refused:
            return await self._refused(key, refused)
        return WriteResult(applied=True, row=decode_row(item))

    async def update(self, update: RowUpdate) -> WriteResult:
        placeholders = Placeholders()
        request: UpdateItemInputTypeDef = {
            "TableName": self.name,
            "Key": self._key(update.key),
            "ReturnValues": "ALL_NEW",
        }
        changes = update_expression(update, placeholders, key_attribute=self.key_attribute)
        if changes:
            request["UpdateExpression"] = changes
        _complete(request, update.require, placeholders)
        try:
            item = await self._update_item(request)
        except ConditionFailed as refused:
            return await self._refused(update.key, refused)
        return WriteResult(applied=True, row=decode_row(item))

    async def delete(self, key: str, require: Conditions = ()) -> WriteResult:
        placeholders = Placeholders()
        request: DeleteItemInputTypeDef = {"TableName": self.name, "Key": self._key(key)}
        _complete(request, require, placeholders)
        try:
            await self._limiters.writes.run("DeleteItem", partial(self._client.delete_item, **request))
        except ConditionFailed as refused:
            return await self._refused(key, refused)
        return WriteResult(applied=True, row=None)

    async def _update_by_sdk(self, request: UpdateItemInputTypeDef) -> Item:
        answer = await self._limiters.writes.run(_OPERATION, partial(self._client.update_item, **request))
        if "Attributes" not in answer:
            raise Unavailable(_NO_ANSWER, operation=_OPERATION)
        return answer["Attributes"]

    def _key(self, key: str) -> dict[str, AttributeValueTypeDef]:
        return {self.key_attribute: {"S": check_key(key, key_attribute=self.key_attribute)}}

    async def _refused(self, key: str, refused: ConditionFailed) -> WriteResult:
        """Some endpoints omit the row from the refusal."""
        row = await self.get(key) if refused.item is None else decode_row(refused.item)
        return WriteResult(applied=False, row=row)

    async def _query(self, request: QueryInputTypeDef) -> tuple[list[Item], Item | None]:
        try:
            answer = await self._limiters.reads.run("Query", partial(self._client.query, **request))
        except InvalidRequest as error:
            if any(words in str(error) for words in _INDEX_WORDS):
                raise TableNotFound(str(error)) from error
            raise
        if "Items" not in answer:
            raise Unavailable("the answer has no Items", operation="Query")
        return list[Item](answer["Items"]), answer.get("LastEvaluatedKey")


def _complete(request: Write, require: Conditions, placeholders: Placeholders) -> None:
    if require:
        request["ReturnValuesOnConditionCheckFailure"] = "ALL_OLD"
    _add_expressions(request, require, placeholders)


def _add_expressions(request: Write | Part, require: Conditions, placeholders: Placeholders) -> None:
    if require:
        request["ConditionExpression"] = condition_expression(require, placeholders)
    if placeholders.names:
        request["ExpressionAttributeNames"] = placeholders.names
    if placeholders.values:
        request["ExpressionAttributeValues"] = placeholders.values


class DynamoTransactions:
    def __init__(self, client: DynamoDBClient, limiter: CallLimiter) -> None:
        self._client = client
        self._limiter = limiter

    async def commit(self, parts: Sequence[TablePart]) -> CommitResult:
        """The SDK adds a token, so a repeated call counts once."""
        check_parts(parts)
        items = [_transactions_item(part) for part in parts]
        try:
            await self._limiter.run(
                _TRANSACTIONS_OPERATION, partial(self._client.transact_write_items, TransactItems=items)
            )
        except TransactionCancelled as cancelled:
            return CommitResult(applied=False, refused=cancelled.refused)
        return CommitResult(applied=True)


def check_parts(parts: Sequence[TablePart]) -> None:
    if not 1 <= len(parts) <= MAX_PARTS:
        raise InvalidRequest(
            f"a transaction has 1 to {MAX_PARTS} parts, not {len(parts)}", operation=_TRANSACTIONS_OPERATION
        )
    seen: set[tuple[str, str]] = set()
    for part in parts:
        place = (part.table.name, row_key(part))
        if place in seen:
            raise InvalidRequest(
                f"two parts on row {place[1]} of table {place[0]}", operation=_TRANSACTIONS_OPERATION
            )
        seen.add(place)


def row_key(part: TablePart) -> str:
    attribute = part.table.key_attribute
    key = part.what.row.get(attribute) if isinstance(part.what, RowPut) else part.what.key
    return check_key(key, key_attribute=attribute)


def _transactions_item(part: TablePart) -> TransactWriteItemTypeDef:
    match part.what:
        case RowCheck(_, require):
            if not require:
                raise InvalidRequest(
                    f"nothing to check of row {row_key(part)}", operation=_TRANSACTIONS_OPERATION
                )
            check: ConditionCheckTypeDef = {
                "TableName": part.table.name,
                "Key": _key(part),
                "ConditionExpression": "",
            }
            _add_expressions(check, require, Placeholders())
            return {"ConditionCheck": check}
        case RowPut(row, require):
            put: PutTypeDef = {"TableName": part.table.name, "Item": encode_row(row)}
            _add_expressions(put, require, Placeholders())
            return {"Put": put}
        case RowDelete(_, require):
            delete: DeleteTypeDef = {"TableName": part.table.name, "Key": _key(part)}
            _add_expressions(delete, require, Placeholders())
            return {"Delete": delete}
        case _:
            assert_never(part.what)


def _key(part: TablePart) -> dict[str, AttributeValueTypeDef]:
    return {part.table.key_attribute: {"S": row_key(part)}}
