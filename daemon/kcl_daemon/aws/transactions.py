"""The port `Transactions` over botocore's DynamoDB client.

Owns the request and what comes back. Threads and errors are the lane's, values and expressions have their own modules;
knows nothing of what rows mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, assert_never

from kcl_daemon.aws.calls import Lane, TransactionCancelled
from kcl_daemon.aws.expressions import Placeholders, check_key, condition_expression
from kcl_daemon.aws.values import encode_row
from kcl_daemon.errors import InvalidRequest
from kcl_daemon.leases.table import Conditions, RowCheck, RowDelete, RowPut
from kcl_daemon.ports import Committed, InTable, Table

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient
    from mypy_boto3_dynamodb.type_defs import (
        AttributeValueTypeDef,
        ConditionCheckTypeDef,
        DeleteTypeDef,
        PutTypeDef,
        TransactWriteItemTypeDef,
    )

_OPERATION: Final = "TransactWriteItems"
# DynamoDB's limit.
PARTS_MOST: Final = 100


class DynamoTransactions:
    """Transactions on the tables of one account and region.

    Args:
        client: may be the one of the tables.
        lane: for the calls.
    """

    def __init__(self, client: DynamoDBClient, lane: Lane) -> None:
        self._client = client
        self._lane = lane

    async def commit(self, parts: Sequence[InTable]) -> Committed:
        """As the port says. The SDK gives each call a token of its own, so that a call it repeats counts once."""
        check_parts(parts)
        items = [_item(part) for part in parts]
        try:
            await self._lane.run(_OPERATION, partial(self._client.transact_write_items, TransactItems=items))
        except TransactionCancelled as cancelled:
            return Committed(applied=False, refused=cancelled.refused)
        return Committed(applied=True)


def check_parts(parts: Sequence[InTable]) -> None:
    """Refuse what DynamoDB refuses whatever the rows are.

    Raises:
        InvalidRequest: no parts or too many, two on one row, or one without a key.
    """
    if not 1 <= len(parts) <= PARTS_MOST:
        raise InvalidRequest(
            f"a transaction has 1 to {PARTS_MOST} parts, not {len(parts)}", operation=_OPERATION
        )
    seen: set[tuple[str, str]] = set()
    for part in parts:
        place = (part.table.name, row_key(part))
        if place in seen:
            raise InvalidRequest(f"two parts on row {place[1]} of table {place[0]}", operation=_OPERATION)
        seen.add(place)


def row_key(part: InTable) -> str:
    """The key of a part's row; InvalidRequest where it has none."""
    attribute = part.table.key_attribute
    key = part.what.row.get(attribute) if isinstance(part.what, RowPut) else part.what.key
    return check_key(key, key_attribute=attribute)


def _item(part: InTable) -> TransactWriteItemTypeDef:
    match part.what:
        case RowCheck(_, require):
            if not require:
                raise InvalidRequest(f"nothing to check of row {row_key(part)}", operation=_OPERATION)
            check: ConditionCheckTypeDef = {
                "TableName": part.table.name,
                "Key": _key(part),
                "ConditionExpression": "",
            }
            _complete(check, require)
            return {"ConditionCheck": check}
        case RowPut(row, require):
            put: PutTypeDef = {"TableName": part.table.name, "Item": encode_row(row)}
            _complete(put, require)
            return {"Put": put}
        case RowDelete(_, require):
            delete: DeleteTypeDef = {"TableName": part.table.name, "Key": _key(part)}
            _complete(delete, require)
            return {"Delete": delete}
        case _:
            assert_never(part.what)


def _key(part: InTable) -> dict[str, AttributeValueTypeDef]:
    table: Table = part.table
    return {table.key_attribute: {"S": row_key(part)}}


def _complete(request: ConditionCheckTypeDef | PutTypeDef | DeleteTypeDef, require: Conditions) -> None:
    """Add the condition and what it stands for; DynamoDB refuses empty ones."""
    placeholders = Placeholders()
    condition = condition_expression(require, placeholders)
    if condition:
        request["ConditionExpression"] = condition
        request["ExpressionAttributeNames"] = placeholders.names
    if placeholders.values:
        request["ExpressionAttributeValues"] = placeholders.values
